#!/usr/bin/env bash
# terrace attach beside the kernel's own NUMA tiering, in an emulated guest with a slow
# node: which node serves the program's accesses, and how many pages were moved for it.
# Prints one table.
#
#   bench/nodes/run.sh TERRACE [--rounds N] [--updates N] [--hot together|scattered]
#       [--access write|read] [--jobs N] [--systems "NAME..."]
#
# Systems: none, kernel, terrace, terrace:POLICY, terrace:POLICY:CAP (an empty POLICY is
# the default one). Exit code 77: this machine cannot have such a guest.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
terrace=${1:?usage: run.sh TERRACE [options]}
shift
rounds=3 updates=4000000 hot=together access=write jobs=$(nproc)
systems="none kernel terrace terrace:arms terrace:memtis terrace::40%"
while [ $# -gt 0 ]; do
    [ $# -gt 1 ] || { echo "run.sh: $1 needs a value" >&2; exit 2; }
    case $1 in
    --rounds) rounds=$2 ;;
    --updates) updates=$2 ;;
    --hot) hot=$2 ;;
    --access) access=$2 ;;
    --jobs) jobs=$2 ;;
    --systems) systems=$2 ;;
    *) echo "run.sh: unknown option $1" >&2; exit 2 ;;
    esac
    shift 2
done
for number in "$rounds" "$updates" "$jobs"; do
    [[ $number =~ ^[1-9][0-9]{0,9}$ ]] || { echo "run.sh: $number is no number from 1 on" >&2; exit 2; }
done
[[ $hot =~ ^(together|scattered)$ ]] || { echo "run.sh: --hot together or scattered" >&2; exit 2; }
[[ $access =~ ^(write|read)$ ]] || { echo "run.sh: --access write or read" >&2; exit 2; }

# MiB: the arena, what of it begins on node 0, the hot set, and what room node 0 has.
total=144 fast=40 hot_mib=24 room=48
# MiB of the nodes: the kernel has to boot in the first.
near=256 far=384
# Every instruction takes 2^2 ns, whatever the host does meanwhile.
shift_ns=2

# shellcheck source=tests/guest/kernel.sh
. "$here/../../tests/guest/kernel.sh"
[ -x "$terrace" ] || { echo "run.sh: $terrace: not built" >&2; exit 1; }
find_kernel
work=$(mktemp -d)
running=
# shellcheck disable=SC2086
trap 'if [ -n "$running" ]; then kill $running 2>/dev/null || true; wait; fi; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM HUP

# The interface has a version, and each emulator takes a range of them.
built=
for version in 1 2 3 4 5; do
    cc -O2 -Wall -shared -fPIC -fvisibility=hidden -DPLUGIN_VERSION=$version \
        -o "$work/count.so" "$here/count.c"
    if timeout 10 qemu-system-x86_64 -machine none -display none -nodefaults -S -daemonize \
        -pidfile "$work/pid" -accel tcg \
        -plugin "$work/count.so,out=$work/try,boundary=1" >/dev/null 2>&1; then
        kill "$(cat "$work/pid")"
        built=yes
        break
    fi
done
[ -n "$built" ] || cannot "this qemu-system-x86_64 loads no plugins"

root=$work/root
mkdir -p "$root/bin"
cp "$busybox" "$root/bin/busybox"
cc -O2 -Wall -static -o "$root/bin/updates" "$here/updates.c"
# Without what only a debugger wants: it lies in the guest's memory.
strip -o "$root/bin/terrace" "$terrace"
{ ldd "$terrace" 2>/dev/null || true; } | { grep -o '/[^ )]*' || true; } | while read -r library; do
    mkdir -p "$root$(dirname "$library")"
    cp -L "$library" "$root$library"
done
cp "$here/init" "$root/init"
chmod 755 "$root/init" "$root"/bin/*
(cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) >"$work/initrd"

# The firmware's table (HMAT) says that node 1 is slower: without it the kernel takes both
# for one tier of memory, and demotes nothing.
latency() { echo "hmat-lb,initiator=0,target=$1,hierarchy=memory,data-type=access-latency,latency=$2"; }
bandwidth() { echo "hmat-lb,initiator=0,target=$1,hierarchy=memory,data-type=access-bandwidth,bandwidth=$2"; }

# one SYSTEM ROUND: boots a guest; leaves its console and counts.
one() {
    local name=$work/$1.$2
    timeout -k 10 900 qemu-system-x86_64 \
        -machine q35,hmat=on -accel tcg,thread=single -icount "shift=$shift_ns,sleep=off" \
        -cpu max -smp 2 -m $((near + far))M \
        -object "memory-backend-ram,id=m0,size=${near}M" -numa node,nodeid=0,cpus=0-1,memdev=m0 \
        -object "memory-backend-ram,id=m1,size=${far}M" -numa node,nodeid=1,memdev=m1,initiator=0 \
        -numa dist,src=0,dst=1,val=25 \
        -numa "$(latency 0 100)" -numa "$(bandwidth 0 20G)" \
        -numa "$(latency 1 300)" -numa "$(bandwidth 1 10G)" \
        -plugin "$work/count.so,out=$name.counts,boundary=$((near << 20))" \
        -kernel "$kernel" -initrd "$work/initrd" \
        -append "console=ttyS0 quiet panic=-1 nokaslr memmap=15M\$1M system=$1 room_mib=$room reserve_kib=2048 program=\"$total $fast $hot_mib $hot $access $updates $2\"" \
        -display none -nodefaults -serial stdio -no-reboot </dev/null >"$name.console" 2>&1 || true
}

for ((round = 1; round <= rounds; round++)); do
    for system in $systems; do
        while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
        one "$system" "$round" &
        running=$(jobs -rp | tr '\n' ' ')
    done
done
wait
running=

# What each run says, one line: the shares in percent, in the order of the marks, then the
# hot pages of both halves on node 0, pages moved, moves undone between two marks, seconds.
for ((round = 1; round <= rounds; round++)); do
    for system in $systems; do
        run=$work/$system.$round
        tr -d '\r' <"$run.console" >"$run.log"
        if ! grep -q '^NODES finished' "$run.log" || ! grep -q 'content intact' "$run.log"; then
            cat "$run.log" >&2
            echo "run.sh: $system, round $round, failed" >&2
            exit 1
        fi
        awk -v name="$system" '
            FILENAME ~ /counts$/ { share[$1] = $2 + $3 ? 100 * $2 / ($2 + $3) : 0; next }
            /^MARK/ {
                for (i = 2; i <= NF; i++) { split($i, pair, "="); got[pair[1]] = pair[2] }
                if (got["half"] == 0 && got["at"] == 0) begin = got["ms"]
                else seen += got["elsewhere"]
                if (got["at"] == 4)
                    on[got["half"]] = 100 * got["node0"] / (got["node0"] + got["node1"])
                if (got["at"] == 4) end = got["ms"]
            }
            $1 == "NODES" && $3 == "pgmigrate_success" { moved = $4 }
            END {
                printf "%s", name
                n = split("1 2 3 5 6 7", marks, " ")
                for (i = 1; i <= n; i++) printf " %.1f", share[marks[i]]
                printf " %.1f %.1f %d %d %.1f\n", on[0], on[1], moved, \
                    (moved > seen ? moved - seen : 0), (end - begin) / 1000
            }' "$run.counts" "$run.log"
    done
done >"$work/results"

echo "$(date -u +%F), $(sed -n 's/.*\(QEMU emulator version [0-9.]*\).*/\1/p' <<<"$(qemu-system-x86_64 --version)")," \
    "$(basename "$(dirname "$kernel")"), $((4 * updates)) updates before and after the shift," \
    "hot set $hot, $access; median (least-greatest) of $rounds"
awk '
    BEGIN {
        printf "| system | to N | to 2N | to 4N | shift, to N | to 2N | to 4N "
        print "| hot pages up | after shift | moved | undone | seconds |"
        print "|---|---|---|---|---|---|---|---|---|---|---|---|"
    }
    !($1 in runs) { order[++systems] = $1 }
    { runs[$1]++; for (i = 2; i <= NF; i++) value[$1, i, runs[$1]] = $i; columns = NF }
    END {
        for (s = 1; s <= systems; s++) {
            name = order[s]; n = runs[name]
            printf "| %s |", name
            for (i = 2; i <= columns; i++) {
                for (a = 1; a <= n; a++) sorted[a] = value[name, i, a] + 0
                for (a = 2; a <= n; a++)
                    for (b = a; b > 1 && sorted[b - 1] > sorted[b]; b--) {
                        swap = sorted[b]; sorted[b] = sorted[b - 1]; sorted[b - 1] = swap
                    }
                middle = n % 2 ? sorted[(n + 1) / 2] : (sorted[n / 2] + sorted[n / 2 + 1]) / 2
                printf sorted[1] == sorted[n] ? " %s |" : " %s (%s-%s) |", middle, sorted[1], sorted[n]
            }
            print ""
        }
    }' "$work/results"
