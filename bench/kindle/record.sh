#!/usr/bin/env bash
# Records the programs of Kindle's Figures 5 and 6, so that they can be replayed
# in place of the algorithms that come with Terrace.
#
#   bench/kindle/record.sh TERRACE DIRECTORY [SCALE]
#
# They are bench/kindle/programs.c, unless the originals are at hand:
#
#   GAPBS=DIR   a built GAP benchmark suite (`make SERIAL=1 pr sssp`):
#               its pr and sssp
#   REDIS=1     redis-server, with YCSB's workload B sent by redis-cli
set -euo pipefail

terrace=$1
directory=$2
scale=${3:-16}
here=$(cd "$(dirname "$0")" && pwd)

mkdir -p "$directory"
cc -O2 -o "$directory/programs" "$here/programs.c" -lm

# record NAME PROGRAM ARGUMENTS…
record() {
    local name=$1
    shift
    "$terrace" record -o "$directory/$name.trace" -- "$@"
}

# Redis runs under the recorder; its client does not.
redis() {
    local socket=$directory/redis.sock
    local cli=(redis-cli -s "$socket")
    record ycsb "$(command -v redis-server)" --port 0 --unixsocket "$socket" --save "" \
        --appendonly no --dir "$directory" --loglevel warning &
    local recorder=$!
    for _ in $(seq 100); do
        if [ "$("${cli[@]}" ping 2>/dev/null)" = PONG ]; then break; fi
        sleep 0.2
    done
    # One command after the other, as YCSB's client waits for each.
    "$directory/programs" ycsb-for-redis "$scale" | "${cli[@]}" >/dev/null
    "${cli[@]}" shutdown nosave
    wait "$recorder"
}

for program in pagerank sssp; do
    if [ -z "${GAPBS:-}" ]; then
        record "$program" "$directory/programs" "$program" "$scale"
    elif [ "$program" = pagerank ]; then
        record "$program" "$GAPBS/pr" -g "$scale" -n 1
    else
        record "$program" "$GAPBS/sssp" -g "$scale" -n 1
    fi
done
if [ -n "${REDIS:-}" ]; then
    redis
else
    record ycsb "$directory/programs" ycsb "$scale"
fi
options=()
for program in pagerank sssp ycsb; do
    options+=(--trace "$program=$directory/$program.trace")
done
echo "now: $terrace reproduce kindle ${options[*]}"
