#!/usr/bin/env bash
# The two engines beside kernel swap on zram alone: GUPS, 4 GiB in 1 GiB. Prints the machine and
# one table; medians over the rounds, each of which runs every system once at each point. Needs
# root, and /dev/zram0 unused.
#
#   bench/live/engines.sh RELEASE-DIRECTORY [ROUNDS [HOT-SETS [THREADS [SECONDS]]]]
#   bench/live/engines.sh RELEASE-DIRECTORY short
#
# The short form shows that it works, and no more: one round, one thread, one hot set, three seconds.
set -euo pipefail

bin=$1
if [ "${2-}" = short ]; then set -- "$bin" 1 512MiB 1 1,1,1; fi
rounds=${2:-3}
hots=${3:-256MiB,512MiB,768MiB,1536MiB}
threads=${4:-1,2}
seconds=${5:-6,4,2}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck source=bench/live/host.sh
. "$here/host.sh"

echo "$(date -u +%F), Linux $(uname -r), $(nproc) processors," \
    "$(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -1)," \
    "$(awk '/MemTotal/ {printf "%.0f GiB", $2 / 1048576}' /proc/meminfo), load $(cut -d' ' -f1 /proc/loadavg)"
python3 "$here/corpus.py" "$work/corpus" 64
IFS=, read -r warm measure latency <<<"$seconds"

for ((round = 1; round <= rounds; round++)); do
    # Zram alone, and the pager.
    "$bin/pager" --terrace "$bin/terrace" --corpus "$work/corpus" --json --rounds 1 \
        --hot "$hots" --threads "$threads" --seconds "$seconds" >>"$work/pager"
    for count in ${threads//,/ }; do
        for hot in ${hots//,/ }; do
            # As much as `pager` brings back before each of its runs.
            from_host 4096
            "$bin/terrace" --json run --engine kernel --fast 1GiB --report "$work/report" -- \
                "$bin/gups" --size 4GiB --hot "$hot" --threads "$count" --warm "$warm" \
                --measure "$measure" --latency "$latency" --seed "$round" \
                --corpus "$work/corpus" >"$work/gups"
            printf '{"hot": "%s", "threads": %s, "gups": %s, "report": %s}\n' \
                "$hot" "$count" "$(cat "$work/gups")" "$(cat "$work/report")" |
                tr -d '\n' >>"$work/kernel"
            echo >>"$work/kernel"
        done
    done
done

python3 "$here/engines.py" "$work/pager" "$work/kernel"
