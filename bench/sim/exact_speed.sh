#!/bin/bash
# Speed of the simulator beside its peers, all run now: accesses a second of
# processor time. exact_speed.sh DIRECTORY, where `terrace` and `examples/` are.
#
# Peers run the same streams as programs. Cachegrind counts instruction fetches
# too and has no TLB, page tables, tiers, time or policy; lackey prints every
# access and simulates nothing; QEMU with a plugin counts accesses and does
# nothing else, the ceiling of what a recorder could see.
set -euo pipefail

bin=$1
rounds=${BENCH_ROUNDS:-3}
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
	"$bin/examples/exact_speed" "$1" "$2" "$3" | awk '{ print $2 }'
}

# middle VALUE…: the median, and the range in brackets; `-` of none.
middle() {
	printf '%s\n' "$@" | grep -v '^-*$' | sort -n | awk '
		{ v[NR] = $1 }
		END {
			if (NR == 0) { print "-"; exit }
			m = NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2
			printf "%.2f (%.2f-%.2f)\n", m, v[1], v[NR]
		}'
}

# ratio OURS PEER, of one round.
ratio() {
	if [ "$2" = - ]; then echo -; else awk -v a="$1" -v b="$2" 'BEGIN { printf "%.3f", a / b }'; fi
}

plugin=
if command -v qemu-x86_64 >/dev/null; then
	plugin="$work/count.so"
	"${CC:-cc}" -O2 -fPIC -shared -o "$plugin" "$here/count.c"
fi

echo "$(date -u +%F), Linux $(uname -r), $(nproc) processors," \
	"$(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -1), load $(cut -d' ' -f1 /proc/loadavg)"
echo
echo "Exact engine: caches, TLBs with walks, page tables, tiers, HeMem; 1 GiB, base pages."
echo "Millions of data accesses a second of processor time; ours over the peer's in the"
echo "same round. Median and range of $rounds rounds. The target is for the ratio."
printf '%-6s %-14s %6s  %-42s %s\n' stream peer target 'ours, peer' 'ratio'
# Targets are ratios to cachegrind: absolute rates differ by a third between machines.
for line in gups:1.6 seq:1.3 mix:2.4; do
	stream=${line%:*} target=${line#*:}
	declare -A speeds=() ratios=()
	for _ in $(seq "$rounds"); do
		own=$(ours "$stream" 1 60)
		declare -A now=([cachegrind]=- [lackey]=- [qemu]=-)
		if command -v valgrind >/dev/null; then
			now[cachegrind]=$(rate 10000000 valgrind -q --tool=cachegrind --cache-sim=yes \
				--cachegrind-out-file=/dev/null "$streams" "$stream" 5000000)
			now[lackey]=$(rate 1000000 valgrind -q --tool=lackey --trace-mem=yes \
				--log-file=/dev/null "$streams" "$stream" 500000)
		fi
		if [ -n "$plugin" ]; then
			now[qemu]=$(rate 40000000 qemu-x86_64 -plugin "$plugin" "$streams" "$stream" 20000000)
		fi
		speeds[ours]+=" $own"
		for peer in cachegrind lackey qemu; do
			speeds[$peer]+=" ${now[$peer]}"
			ratios[$peer]+=" $(ratio "$own" "${now[$peer]}")"
		done
	done
	for peer in cachegrind lackey qemu; do
		wanted=-
		[ "$peer" = cachegrind ] && wanted=$target
		# shellcheck disable=SC2086 # lists of numbers
		printf '%-6s %-14s %6s  %-42s %s\n' "$stream" "${peer/qemu/qemu, counting}" "$wanted" \
			"$(middle ${speeds[ours]}), $(middle ${speeds[$peer]})" "$(middle ${ratios[$peer]})"
	done
done
printf 'gups at 64 GiB, millions a second, target 2.8: %s\n' \
	"$(for _ in $(seq "$rounds"); do ours gups 64 30; done | { mapfile -t v; middle "${v[@]}"; })"
echo
echo "Cores that share time: millions of accesses a second, median and range, 1 GiB, 40 M accesses"
printf '%-6s %-20s %-20s %s\n' stream '1 core' '4 cores' '16 cores'
for stream in gups seq mix; do
	printf '%-6s' "$stream"
	for cores in 1 4 16; do
		mapfile -t v < <(for _ in $(seq "$rounds"); do
			"$bin/examples/exact_speed" "$stream" 1 40 4KiB "$cores" | awk '{ print $2 }'
		done)
		printf ' %-20s' "$(middle "${v[@]}")"
	done
	echo
done
echo
echo "Cost is linear: gups, nanoseconds of processor time an access,"
echo "by millions of accesses (1 GiB), and by GiB touched (30 M accesses and the first touches)"
for millions in 15 30 60 120; do
	printf '%8s M  %8.1f\n' "$millions" "$(awk -v r="$(ours gups 1 "$millions")" 'BEGIN { print 1e3 / r }')"
done
for gib in 1 4 16 64; do
	printf '%6s GiB  %8.1f\n' "$gib" "$(awk -v r="$(ours gups "$gib" 30)" 'BEGIN { print 1e3 / r }')"
done
echo
echo "Execution-driven (terrace sim -- PROGRAM, recording included): millions of accesses a"
echo "second of wall time; target 15 on a real program"
driven() {
	local label=$1 speed
	shift
	speed=$("$bin/terrace" sim --json --machine optane-cascade-lake --policy hemem \
		--page-size 4KiB -- "$@" 2>/dev/null |
		awk -F'[ ,]+' '/"host_speed"/ { printf "%.1f", $3 / 1e6 }')
	printf '%-8s%8s\n' "$label" "${speed:--}"
}
for label in gups seq mix; do driven "$label" "$streams" "$label" 10000000; done
seq 400000 | shuf --random-source=<(yes) >"$work/numbers"
driven sort "$(command -v sort)" -o /dev/null "$work/numbers"
driven gzip "$(command -v gzip)" -k "$work/numbers"
if command -v sqlite3 >/dev/null; then
	driven sqlite3 "$(command -v sqlite3)" -cmd '.output /dev/null' :memory: \
		'create table t(a, b);
		with recursive c(x) as (select 1 union all select x + 1 from c where x < 100000)
		insert into t select x, x * 7919 % 100003 from c; create index i on t(b);
		select count(*) from t a join t b on a.b = b.a;'
fi
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
