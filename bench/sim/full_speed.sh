#!/bin/bash
# Speed of the simulator beside its peers, all run now: accesses a second of
# processor time. full_speed.sh DIRECTORY, where `terrace` and `examples/` are.
#
# Peers run the same streams as programs. Cachegrind counts instruction fetches
# too and has no TLB, page tables, tiers, time or policy; lackey prints every
# access and simulates nothing; QEMU with a plugin counts accesses and does
# nothing else, the ceiling of what a recorder could see.
set -euo pipefail

bin=$1
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
TIMEFORMAT=%U
streams="$work/streams"
"${CC:-cc}" -O2 -static -o "$streams" "$here/streams.c"

# rate COUNT COMMAND…: millions of data accesses a second of processor time.
rate() {
	local count=$1 seconds
	shift
	seconds=$({ time "$@" >/dev/null 2>&1; } 2>&1)
	awk -v s="$seconds" -v n="$count" 'BEGIN { printf "%.2f", n / (s > 0 ? s : 1e-9) / 1e6 }'
}

ours() {
	"$bin/examples/full_speed" "$1" "$2" "$3" | awk '{ print $2 }'
}

# ratio OURS PEER
ratio() {
	if [ "$2" = - ]; then echo -; else awk -v a="$1" -v b="$2" 'BEGIN { printf "%.2f", a / b }'; fi
}

plugin=
if command -v qemu-x86_64 >/dev/null; then
	plugin="$work/count.so"
	"${CC:-cc}" -O2 -fPIC -shared -o "$plugin" "$here/count.c"
fi

echo "Full model: caches, TLBs with walks, page tables, tiers, HeMem; 1 GiB, base pages."
echo "Millions of data accesses a second of processor time, and ours over the peer's."
printf '%-8s%8s%8s  %12s%7s  %10s%7s  %14s%7s\n' \
	stream ours target cachegrind ratio lackey ratio 'qemu counting' ratio
for line in gups:10 seq:80 mix:25; do
	stream=${line%:*} target=${line#*:}
	own=$(ours "$stream" 1 60)
	cachegrind=- lackey=- qemu=-
	if command -v valgrind >/dev/null; then
		cachegrind=$(rate 10000000 valgrind -q --tool=cachegrind --cache-sim=yes \
			--cachegrind-out-file=/dev/null "$streams" "$stream" 5000000)
		lackey=$(rate 1000000 valgrind -q --tool=lackey --trace-mem=yes \
			--log-file=/dev/null "$streams" "$stream" 500000)
	fi
	if [ -n "$plugin" ]; then
		qemu=$(rate 40000000 qemu-x86_64 -plugin "$plugin" "$streams" "$stream" 20000000)
	fi
	printf '%-8s%8s%8s  %12s%7s  %10s%7s  %14s%7s\n' "$stream" "$own" "$target" \
		"$cachegrind" "$(ratio "$own" "$cachegrind")" "$lackey" "$(ratio "$own" "$lackey")" \
		"$qemu" "$(ratio "$own" "$qemu")"
done
printf '%-8s%8s%8s  (64 GiB)\n' gups "$(ours gups 64 30)" 3
echo
echo "Cost by accesses: gups, millions of accesses, millions a second"
for millions in 15 30 60; do
	printf '%8s%8s\n' "$millions" "$(ours gups 1 "$millions")"
done
echo
echo "Execution-driven (terrace sim -- streams): millions of accesses a second of wall time; target 15"
for stream in gups seq mix; do
	speed=$("$bin/terrace" sim --json --machine optane-cascade-lake --policy first-touch \
		--page-size 4KiB -- "$streams" "$stream" 10000000 2>/dev/null |
		awk -F'[ ,]+' '/"host_speed"/ { printf "%.1f", $3 / 1e6 }')
	printf '%-8s%8s\n' "$stream" "${speed:--}"
done
echo
echo "Memory timing by commands (targets: 3 M random, 10 M row hits a second)"
"$bin/examples/dram_speed"
echo
echo "Sweep: seconds with one and with two simulations side by side; target 1.7"
for jobs in 1 2; do
	seconds=$("$bin/terrace" sweep --json --jobs "$jobs" -o "$work/sweep$jobs" \
		workload=gups,stream policy=first-touch,hemem size=64MiB accesses=3000000 \
		fast=25%,50% seed=1,2 | awk -F'[ ,]+' '/"seconds"/ { print $3 }')
	printf '%8s  %.2f s\n' "$jobs" "$seconds"
	eval "sweep$jobs=$seconds"
done
# shellcheck disable=SC2154 # both are set by the loop
awk -v a="$sweep1" -v b="$sweep2" 'BEGIN { printf "%.2f times\n", a / b }'
echo
cat <<'END'
Not run here, measured 2026-11 on a 2-processor guest under load (accesses a second):
  ChampSim 2ff25011 (out-of-order core, no tiers)   gups 2.2 K   seq 21-28 K   mix 13.7 K
  Ramulator 2.1 SimpleO3 (core, last level, DRAM)   gups 0.14 M  seq 0.9 M     mix 1.1 M
  Ramulator 2.1 LoadStoreTrace (DRAM alone)         random 0.157 M requests
END
