#!/usr/bin/env bash
# Boots emulated guests under a stock Debian kernel and runs the tests in
# tests/guest/tests inside: one boot for each machine of tests.list that a test needs.
#
#   tests/guest/guest.sh TERRACE [--short [MACHINE] | NAME...]
#
# NAMEs choose tests of tests.list, --short those that are marked so there. GUEST_JOBS guests (1) run
# at a time: each is emulated by one thread. Where the kernel comes from is in kernel.sh.
# Exit code 77: this machine cannot have a guest, and the message says why.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
terrace=${1:?usage: guest.sh TERRACE [--short | NAME...]}
shift
# Seconds that the whole guest may take.
limit=${GUEST_TIMEOUT:-2400}
# Seconds for which it may say nothing: booting takes ten where nothing disturbs it.
silence=120
jobs=${GUEST_JOBS:-1}

# shellcheck source=tests/guest/kernel.sh
. "$here/kernel.sh"
# shellcheck source=tests/guest/machines.sh
. "$here/machines.sh"
[ -x "$terrace" ] || { echo "guest.sh: $terrace: not built" >&2; exit 1; }

find_kernel

work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$work"' EXIT
root=$work/root
mkdir -p "$root"/{bin,modules,proc,sys,dev,tmp}
cp "$busybox" "$root/bin/busybox"
# Without what debuggers want: 100 MB of the guest's memory, which in its smallest machine are a fifth.
strip -o "$root/bin/terrace" "$terrace"
cc -O2 -Wall -static -o "$root/bin/hotset" "$here/hotset.c"
cc -O2 -Wall -static -o "$root/bin/hog" "$here/hog.c"
cc -O2 -Wall -static -o "$root/bin/pinned" "$here/pinned.c"
cc -O2 -Wall -static -o "$root/bin/mapped" "$here/mapped.c"
cc -O2 -Wall -static -o "$root/bin/fragment" "$here/../../bench/live/fragment.c"
# Programs without a loader cannot be managed.
cc -O2 -Wall -o "$root/bin/hotset-managed" "$here/hotset.c"
cc -O2 -Wall -o "$root/bin/hog-managed" "$here/hog.c"
# For `terrace run`: the library, and programs of the hazard suite, which need a loader.
preload=$(dirname "$terrace")/libterrace_preload.so
if [ -e "$preload" ]; then strip -o "$root/bin/libterrace_preload.so" "$preload"; fi
# For tests that measure, or that call a function of ours by itself: `make` builds what they want.
for example in kloc_bench move_to_node; do
    file=$(dirname "$terrace")/examples/$example
    if [ -e "$file" ]; then strip -o "$root/bin/$example" "$file"; fi
done
mkdir -p "$root/hazards"
for hazard in patterns fork_both_write sys_mlock; do
    cc -std=gnu11 -O2 -Wall -pthread -o "$root/hazards/$hazard" "$here/../hazards/$hazard.c" -ldl -lm
done
# What makes a file system that DAX can be used with (busybox has none with extents).
mkfs=$(command -v mkfs.ext4 || echo /sbin/mkfs.ext4)
if [ -x "$mkfs" ]; then cp -L "$mkfs" "$root/bin/mkfs.ext4"; fi
for tool in fsck.ext4 mkfs.f2fs fsck.f2fs nbd-client; do
    file=$(command -v "$tool" || echo "/sbin/$tool")
    if [ -x "$file" ]; then cp -L "$file" "$root/bin/$tool"; fi
done
# All their libraries, at the paths where the loader looks for them.
for file in "$root"/bin/* "$root"/hazards/*; do
    { ldd "$file" 2>/dev/null || true; } | { grep -o '/[^ )]*' || true; } | while read -r library; do
        mkdir -p "$root$(dirname "$library")"
        cp -L "$library" "$root$library"
    done
done
cp "$here/lib.sh" "$root/lib.sh"
cp "$here/volume.sh" "$root/volume.sh"
cp "$here/kloc.sh" "$root/kloc.sh"
only=
case ${1-} in
'') wanted='short|long' ;;
--short)
    wanted=short
    only=${2-}
    ;;
*) wanted= ;;
esac
if [ -n "$wanted" ]; then
    # shellcheck disable=SC2046
    set -- $(sed -nE "s/^([a-z_]+) ($wanted) (${only:-[a-z0-9-]+})\$/\1/p" "$here/tests.list")
    [ "$#" -gt 0 ] || { echo "guest.sh: tests.list has no test" >&2; exit 2; }
fi
# The machine that a test needs.
machine_of() { sed -nE "s/^$1 (short|long|named) ([a-z0-9-]+)\$/\2/p" "$here/tests.list"; }
machines=
for name in "$@"; do
    [ -e "$here/tests/$name.sh" ] || { echo "guest.sh: there is no test $name" >&2; exit 2; }
    needed=$(machine_of "$name")
    [ -n "$needed" ] || { echo "guest.sh: tests.list does not say what $name needs" >&2; exit 2; }
    case " $machines " in *" $needed "*) ;; *) machines="$machines $needed" ;; esac
done
if [ -n "$modules" ]; then cp -r "$modules/." "$root/modules/"; fi
cp "$here/init" "$root/init"
chmod 755 "$root/init" "$root"/bin/*

# prepare MACHINE NAME...: the file system of a guest that runs those of the tests that need it, in
# the directory of that guest. Those that end in a number are one more guest of the same kind.
prepare() {
    local needed=$1 name number=0
    shift
    mkdir "$work/$needed"
    rm -rf "$root/tests"
    mkdir -p "$root/tests"
    for name in "$@"; do
        [ "$(machine_of "$name")" = "$needed" ] || continue
        number=$((number + 1))
        # So many that ten would be before two.
        sed 's|^\. /tests/lib.sh|. /lib.sh|' "$here/tests/$name.sh" \
            >"$root/tests/$(printf %02d $number)-$name.sh"
    done
    (cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) >"$work/$needed/initrd"
}

# What the host does meanwhile, where a test has a part for it.
beside() {
    local name
    for name in "$@"; do
        if [ "$(machine_of "$name")" = "$machine" ] && [ -e "$here/host/$name.sh" ]; then
            bash "$here/host/$name.sh" "$terrace" "$place/qmp" "$place/console" \
                >"$place/$name.host" 2>&1 &
            hosts="$hosts $!"
        fi
    done
}

boot() {
    # What the last boot said is not to be taken for what this one says.
    : >"$place/console"
    timeout -k 10 "$limit" qemu-system-x86_64 "${hardware[@]}" \
        -kernel "$kernel" -initrd "$place/initrd" \
        -append "console=ttyS0 quiet panic=-1 no_timer_check swiotlb=noforce $append ${VERBOSE:+VERBOSE=1} ${GUEST_TEST_LIMIT:+GUEST_TEST_LIMIT=$GUEST_TEST_LIMIT}" \
        -display none -nodefaults -serial stdio -no-reboot </dev/null >>"$place/console" 2>&1 &
    local guest=$! told=0 lines
    frozen=
    until ! kill -0 "$guest" 2>/dev/null; do
        # A kernel that has panicked may hang instead of rebooting.
        if grep -q 'Kernel panic' "$place/console"; then
            sleep 1
            kill "$guest" 2>/dev/null || true
            break
        fi
        # The guest says something every ten seconds, whatever its tests do.
        if [ $(($(date +%s) - $(stat -c %Y "$place/console"))) -gt "$silence" ]; then
            frozen=yes
            kill "$guest" 2>/dev/null || true
            break
        fi
        # Who watches for hangs hears that the guest is at work.
        lines=$(grep -c '^GUEST' "$place/console" || true)
        if [ "$lines" -gt "$told" ]; then
            told=$lines
            grep '^GUEST' "$place/console" | tail -n 1 | tr -d '\r' | sed 's/^/guest: /'
        fi
        sleep 0.2
    done
    status=0
    wait "$guest" || status=$?
}

# run MACHINE NAME...: its tests, in a guest that is prepared; how many passed and failed is left in
# its directory. What panics before the first test, or does not even run its first process any more,
# is the kernel's or the emulator's doing.
run() {
    local again machine=$1 place=$work/$1 hosts='' passed failed=0
    shift
    # It is ended by guest.sh alone, and then ends what it has started: a guest would go on for as long as
    # it may. A second signal at the same time, as from the keyboard, would have it do nothing.
    trap '' INT HUP
    trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
    machine "${machine%-[0-9]}" "$place/qmp"
    beside "$@"
    boot
    for again in 2 3; do
        if [ -n "$frozen" ]; then
            cat "$place/console" >&2
            echo "guest.sh: the guest has frozen: silent for $silence s; booting again ($again of 3)" >&2
        elif grep -q 'Kernel panic' "$place/console" && ! grep -q '^GUEST' "$place/console"; then
            grep 'Kernel panic' "$place/console" >&2
            echo "guest.sh: the guest's kernel died before the tests; booting again ($again of 3)" >&2
        else
            break
        fi
        boot
    done
    local host
    for host in $hosts; do
        wait "$host" || { echo "guest.sh: what the host does beside failed" >&2; failed=$((failed + 1)); }
    done
    if [ -n "$hosts" ] && { [ -n "${VERBOSE-}" ] || [ "$failed" -gt 0 ]; }; then
        cat "$place"/*.host
    fi

    tr -d '\r' <"$place/console" >"$place/log"
    if [ -n "${VERBOSE-}" ] || ! grep -q '^GUEST finished' "$place/log"; then
        cat "$place/log"
    fi
    grep -q '^GUEST finished' "$place/log" || {
        if grep -q 'Kernel panic' "$place/log"; then
            echo "guest.sh: the guest's kernel panicked" >&2
        elif [ -n "$frozen" ]; then
            echo "guest.sh: the guest froze each time it was booted" >&2
        else
            echo "guest.sh: the guest did not finish within $limit s (status $status)" >&2
        fi
        exit 1
    }
    passed=$(grep -c '^GUEST .*: passed' "$place/log" || true)
    local bad
    bad=$(grep -c '^GUEST .*: FAILED' "$place/log" || true)
    failed=$((failed + bad))
    if [ "$bad" -gt 0 ]; then
        sed -n '/^GUEST .*: FAILED/,$p' "$place/log"
    else
        grep '^GUEST .*: passed' "$place/log"
    fi
    echo "$passed $failed" >"$place/result"
}

for machine in $machines; do
    prepare "$machine" "$@"
done
for machine in $machines; do
    while [ "$(jobs -pr | wc -l)" -ge "$jobs" ]; do wait -n || true; done
    run "$machine" "$@" &
done
wait
passed=0
failed=0
for machine in $machines; do
    # Without one the guest did not finish, which has been told.
    [ -e "$work/$machine/result" ] || exit 1
    read -r good bad <"$work/$machine/result"
    passed=$((passed + good))
    failed=$((failed + bad))
done
echo "guest: $passed passed, $failed failed, of $#"
[ "$failed" -eq 0 ] && [ "$passed" -eq "$#" ]
