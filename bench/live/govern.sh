#!/usr/bin/env bash
# What `terrace govern` forecasts, and what it then saves, at a slowdown of 2 %: several programs
# (bench/live/govern.py), each beside the same without it. Medians over the rounds. Root; 35 minutes
# a round.
#
#   bench/live/govern.sh TERRACE [ROUNDS [SECONDS [PROGRAM...]]]
#   bench/live/govern.sh TERRACE short
#
# The short form shows that it works, and no more: one program for 25 s, of which 16 go to the first
# curve.
set -euo pipefail
terrace=$1
if [ "${2-}" = short ]; then set -- "$terrace" 1 25 parts; fi
rounds=${2:-1}
seconds=${3:-150}
if [ $# -gt 3 ]; then shift 3; else set -- parts skewed cache phases sweep sqlite redis; fi
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

echo "$(date -u +%F), Linux $(uname -r), $(nproc) processors," \
    "$(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -1)," \
    "$(awk '/MemTotal/ {printf "%.0f GiB", $2 / 1048576}' /proc/meminfo), load $(cut -d' ' -f1 /proc/loadavg)"
for ((round = 1; round <= rounds; round++)); do
    for name in "$@"; do
        plain=$(python3 "$here/govern.py" run "$name" "$seconds")
        governed=$("$terrace" --json govern --mode enforce --target 2% --quiet \
            --report "$work/report" -- python3 "$here/govern.py" run "$name" "$seconds")
        printf '{"name": "%s", "plain": %s, "governed": %s, "report": %s}\n' \
            "$name" "$plain" "$governed" "$(cat "$work/report")" | tr -d '\n' >>"$work/runs"
        echo >>"$work/runs"
    done
done
python3 "$here/govern.py" table "$work/runs"
