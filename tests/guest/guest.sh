#!/usr/bin/env bash
# Boots a guest with two NUMA nodes (node 1 without processors) under a stock
# Debian kernel and runs the tests in tests/guest/tests inside.
#
#   tests/guest/guest.sh TERRACE [--short | NAME...]
#
# NAMEs choose tests of tests.list, --short those that are marked so there. Where
# the kernel comes from is in kernel.sh.
# Exit code 77: this machine cannot have a guest, and the message says why.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
terrace=${1:?usage: guest.sh TERRACE [--short | NAME...]}
shift
# Seconds that the whole guest may take.
limit=${GUEST_TIMEOUT:-900}
# Seconds for which it may say nothing: booting takes ten where nothing disturbs it.
silence=120

# shellcheck source=tests/guest/kernel.sh
. "$here/kernel.sh"
[ -x "$terrace" ] || { echo "guest.sh: $terrace: not built" >&2; exit 1; }

find_kernel

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir -p "$root"/{bin,tests,modules,proc,sys,dev,tmp}
cp "$busybox" "$root/bin/busybox"
cp "$terrace" "$root/bin/terrace"
cc -O2 -Wall -static -o "$root/bin/hotset" "$here/hotset.c"
# Programs without a loader cannot be managed.
cc -O2 -Wall -o "$root/bin/hotset-managed" "$here/hotset.c"
# For `terrace run`: the library, and programs of the hazard suite, which need a loader.
preload=$(dirname "$terrace")/libterrace_preload.so
if [ -e "$preload" ]; then cp "$preload" "$root/bin/"; fi
mkdir -p "$root/hazards"
for hazard in patterns fork_both_write sys_mlock; do
    cc -std=gnu11 -O2 -Wall -pthread -o "$root/hazards/$hazard" "$here/../hazards/$hazard.c" -ldl -lm
done
# What makes a file system that DAX can be used with (busybox has none with extents).
mkfs=$(command -v mkfs.ext4 || echo /sbin/mkfs.ext4)
if [ -x "$mkfs" ]; then cp -L "$mkfs" "$root/bin/mkfs.ext4"; fi
# All their libraries, at the paths where the loader looks for them.
for file in "$root"/bin/* "$root"/hazards/*; do
    { ldd "$file" 2>/dev/null || true; } | { grep -o '/[^ )]*' || true; } | while read -r library; do
        mkdir -p "$root$(dirname "$library")"
        cp -L "$library" "$root$library"
    done
done
cp "$here/lib.sh" "$root/tests/lib.sh"
case ${1-} in
'') wanted='short|long' ;;
--short) wanted=short ;;
*) wanted= ;;
esac
if [ -n "$wanted" ]; then
    # shellcheck disable=SC2046
    set -- $(sed -nE "s/^([a-z_]+) ($wanted)\$/\1/p" "$here/tests.list")
    [ "$#" -gt 0 ] || { echo "guest.sh: tests.list has no test" >&2; exit 2; }
fi
number=0
for name in "$@"; do
    [ -e "$here/tests/$name.sh" ] || { echo "guest.sh: there is no test $name" >&2; exit 2; }
    number=$((number + 1))
    cp "$here/tests/$name.sh" "$root/tests/$number-$name.sh"
done
# Not a test.
mv "$root/tests/lib.sh" "$root/lib.sh"
sed -i 's|^\. /tests/lib.sh|. /lib.sh|' "$root"/tests/*.sh
if [ -n "$modules" ]; then cp -r "$modules/." "$root/modules/"; fi
cp "$here/init" "$root/init"
chmod 755 "$root/init" "$root"/bin/*
(cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) >"$work/initrd"

# Emulated, so that it runs wherever the tests run. Distances as of CXL memory. 64 MiB
# of node 0 are persistent memory to the kernel (`memmap`). Node 2 is an NVDIMM: none until
# it is given to the kernel as memory. The kernel takes blocks of 128 MiB that lie at multiples
# of that, and the first 2 MiB of the device are not its own: 258 MiB are one block. No memory
# is set aside for devices that cannot reach it (`swiotlb`): there are none.
# Both processors are emulated by one thread: with a thread each, QEMU can run
# an instruction that the other processor is just patching, and the kernel dies
# of a breakpoint it no longer knows ("Oops: int3" while it boots).
# On a busy host its timer may come too late for a check of the kernel's
# (`no_timer_check`).
boot() {
    # What the last boot said is not to be taken for what this one says.
    : >"$work/console"
    timeout -k 10 "$limit" qemu-system-x86_64 \
        -machine q35,nvdimm=on -accel tcg,thread=single -cpu max -smp 2 \
        -m 832M,slots=1,maxmem=2G \
        -object memory-backend-ram,id=m0,size=448M -numa node,nodeid=0,cpus=0-1,memdev=m0 \
        -object memory-backend-ram,id=m1,size=384M -numa node,nodeid=1,memdev=m1 \
        -numa node,nodeid=2 \
        -object memory-backend-ram,id=dax,size=258M -device nvdimm,memdev=dax,node=2 \
        -numa dist,src=0,dst=1,val=25 -numa dist,src=0,dst=2,val=30 -numa dist,src=1,dst=2,val=40 \
        -kernel "$kernel" -initrd "$work/initrd" \
        -append "console=ttyS0 quiet panic=-1 no_timer_check swiotlb=noforce memmap=64M!256M ${VERBOSE:+VERBOSE=1}" \
        -display none -nodefaults -serial stdio -no-reboot </dev/null >>"$work/console" 2>&1 &
    local guest=$!
    frozen=
    until ! kill -0 "$guest" 2>/dev/null; do
        # A kernel that has panicked may hang instead of rebooting.
        if grep -q 'Kernel panic' "$work/console"; then
            sleep 1
            kill "$guest" 2>/dev/null || true
            break
        fi
        # The guest says something every ten seconds, whatever its tests do.
        if [ $(($(date +%s) - $(stat -c %Y "$work/console"))) -gt "$silence" ]; then
            frozen=yes
            kill "$guest" 2>/dev/null || true
            break
        fi
        sleep 0.2
    done
    status=0
    wait "$guest" || status=$?
}

# What panics before the first test, or does not even run its first process any more, is
# the kernel's or the emulator's doing.
boot
for again in 2 3; do
    if [ -n "$frozen" ]; then
        cat "$work/console" >&2
        echo "guest.sh: the guest has frozen: silent for $silence s; booting again ($again of 3)" >&2
    elif grep -q 'Kernel panic' "$work/console" && ! grep -q '^GUEST' "$work/console"; then
        grep 'Kernel panic' "$work/console" >&2
        echo "guest.sh: the guest's kernel died before the tests; booting again ($again of 3)" >&2
    else
        break
    fi
    boot
done

tr -d '\r' <"$work/console" >"$work/log"
if [ -n "${VERBOSE-}" ] || ! grep -q '^GUEST finished' "$work/log"; then
    cat "$work/log"
fi
grep -q '^GUEST finished' "$work/log" || {
    if grep -q 'Kernel panic' "$work/log"; then
        echo "guest.sh: the guest's kernel panicked" >&2
    elif [ -n "$frozen" ]; then
        echo "guest.sh: the guest froze each time it was booted" >&2
    else
        echo "guest.sh: the guest did not finish within $limit s (status $status)" >&2
    fi
    exit 1
}
passed=$(grep -c '^GUEST .*: passed' "$work/log" || true)
failed=$(grep -c '^GUEST .*: FAILED' "$work/log" || true)
if [ "$failed" -gt 0 ]; then
    sed -n '/^GUEST .*: FAILED/,$p' "$work/log"
else
    grep '^GUEST .*: passed' "$work/log"
fi
echo "guest: $passed passed, $failed failed, of $#"
[ "$failed" -eq 0 ] && [ "$passed" -eq "$#" ]
