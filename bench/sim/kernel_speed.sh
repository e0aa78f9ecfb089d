#!/bin/bash
# Speed of the simulated kernel: calls a second of processor time, with placement alone and through the
# caches, beside the exact engine and the running kernel in the same run; and whether it is linear in
# calls. kernel_speed.sh DIRECTORY, where `examples/` are.
#
# The exact engine simulates lines, too, and no kernel: what a call's lines would take there. The
# running kernel does the same reads on this processor, and simulates nothing.
set -euo pipefail

bin=$1/examples
rounds=${BENCH_ROUNDS:-3}
programs=${KERNEL_PROGRAMS:-filebench rocksdb redis}

# middle VALUE…: the median, and the range in brackets.
middle() {
	printf '%s\n' "$@" | sort -n | awk '
		{ v[NR] = $1 }
		END {
			m = NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2
			printf "%.3g (%.3g-%.3g)\n", m, v[1], v[NR]
		}'
}

# over A B: their quotient.
over() {
	awk -v a="$1" -v b="$2" 'BEGIN { printf "%.4f", a / (b > 0 ? b : 1e-9) }'
}

echo "$(date -u +%F), Linux $(uname -r), $(nproc) processors," \
	"$(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -1), load $(cut -d' ' -f1 /proc/loadavg)"
echo
echo "Programs under KLOCs without their preparation, a 128th of the paper's size. Millions of calls and of lines"
echo "a second of processor time, median and range of $rounds rounds; lines over the exact engine's accesses (mix),"
echo "and calls over the running kernel's cached reads of 4 KiB, of the same round. The target is for the calls."
printf '%-9s  %-10s  %6s  %-22s  %-22s  %-22s  %s\n' \
	detail program target calls lines 'lines over mix' 'calls over running'
for line in placement:2 caches:0.25; do
	detail=${line%:*} target=${line#*:}
	for program in $programs; do
		calls=() lines=() beside=() real=()
		for _ in $(seq "$rounds"); do
			read -r c l _ < <("$bin/kernel_speed" one "$program" "$detail" 1)
			mix=$("$bin/exact_speed" mix 1 20 | awk '{ print $2 }')
			running=$("$bin/kernel_speed" running)
			calls+=("$c")
			lines+=("$l")
			beside+=("$(over "$l" "$mix")")
			real+=("$(over "$c" "$running")")
		done
		printf '%-9s  %-10s  %6s  %-22s  %-22s  %-22s  %s\n' "$detail" "$program" "$target" \
			"$(middle "${calls[@]}")" "$(middle "${lines[@]}")" "$(middle "${beside[@]}")" \
			"$(middle "${real[@]}")"
	done
done
echo
echo "Cost is linear: nanoseconds of processor time a call, with 1, 2 and 4 times as many calls"
printf '%-9s  %-10s  %9s  %9s  %9s  %s\n' detail program 1x 2x 4x '4x over 1x'
for detail in placement caches; do
	for program in $programs; do
		nanos=()
		for times in 1 2 4; do
			read -r _ _ n < <("$bin/kernel_speed" one "$program" "$detail" "$times")
			nanos+=("$n")
		done
		printf '%-9s  %-10s  %9s  %9s  %9s  %s\n' "$detail" "$program" "${nanos[@]}" \
			"$(over "${nanos[2]}" "${nanos[0]}")"
	done
done
