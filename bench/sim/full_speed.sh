#!/bin/bash
# Speed of the full model, and of cachegrind on the same streams as a program:
# accesses a second of processor time. Cachegrind counts instruction fetches
# too, and has no TLB, page tables, tiers, time or policy.
set -euo pipefail

model=$1
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

echo "full model, HeMem on, 1 GiB, base pages:"
"$model" all 1 60
echo "full model, HeMem on, 64 GiB, base pages:"
"$model" gups 64 30

if ! command -v valgrind >/dev/null; then
	echo "cachegrind: valgrind is not installed, no comparison"
	exit 0
fi
"${CC:-cc}" -O2 -o "$work/streams" "$here/streams.c"
for stream in gups seq; do
	TIMEFORMAT=%U
	seconds=$({ time valgrind -q --tool=cachegrind --cachegrind-out-file=/dev/null \
		"$work/streams" "$stream" 5000000 >"$work/count" 2>/dev/null; } 2>&1)
	awk -v s="$seconds" -v n="$(cat "$work/count")" -v stream="$stream" \
		'BEGIN { printf "cachegrind %-5s %5.1f M data accesses/s\n", stream, n / s / 1e6 }'
done
