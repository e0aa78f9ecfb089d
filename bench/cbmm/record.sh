#!/usr/bin/env bash
# Records real programs for `terrace reproduce cbmm --trace`, and runs it with them: xz, redis (in
# the place of memcached where that is not installed), a matrix product, PageRank as in the GAP
# benchmark suite, and cross-section lookups as in XSBench.
#
#   bench/cbmm/record.sh RELEASE-DIRECTORY OUTPUT-DIRECTORY [MILLION-ACCESSES] [OPTIONS OF reproduce cbmm]
#
# Needs qemu-user, a C compiler, xz and redis; what is missing is said and left out. Recordings that
# are there already are used as they are.
set -euo pipefail

bin=$(cd "$1" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
limit=$((${3:-30} * 1000000))
shift $(($# < 3 ? $# : 3))
here=$(cd "$(dirname "$0")" && pwd)
traces=()

missing() { echo "left out: $1 needs $2" >&2; }

record() {
    local name=$1
    shift
    if [ ! -s "$out/$name.trace" ]; then
        # The recording ends the program when it is long enough: its exit code says nothing.
        "$bin/terrace" record -o "$out/$name.trace" --limit "$limit" -- "$@" >/dev/null 2>"$out/$name.log" || true
    fi
    if [ -s "$out/$name.trace" ]; then
        traces+=(--trace "$name=$out/$name.trace")
    else
        echo "left out: $name: $(tail -1 "$out/$name.log")" >&2
    fi
}

if command -v cc >/dev/null; then
    cc -O2 -o "$out/programs" "$here/programs.c"
    for program in pagerank lookups matrices; do record "$program" "$out/programs" "$program"; done
else
    missing "pagerank, lookups and matrices" "a C compiler"
fi

if command -v xz >/dev/null; then
    # Text that compresses, of which nobody has to have a copy.
    awk 'BEGIN {srand(7); for (i = 0; i < 250000; i++) printf "%d %d\n", i, rand() * 1000}' >"$out/text"
    record xz-recorded "$(command -v xz)" -9 -T1 -k -c "$out/text"
else
    missing xz xz
fi

if command -v redis-server >/dev/null && command -v redis-benchmark >/dev/null; then
    if [ ! -s "$out/redis.trace" ]; then
        socket=$out/redis.socket
        (
            for _ in $(seq 600); do
                [ -S "$socket" ] && break
                sleep 0.1
            done
            redis-benchmark -s "$socket" -t set,get -n 60000 -r 30000 -d 1024 -c 4 -q >/dev/null 2>&1 || true
            redis-cli -s "$socket" shutdown nosave >/dev/null 2>&1 || true
        ) &
        client=$!
        record redis "$(command -v redis-server)" --port 0 --unixsocket "$socket" --save "" --appendonly no
        kill "$client" 2>/dev/null || true
        wait "$client" 2>/dev/null || true
    else
        record redis true
    fi
else
    missing "redis (for memcached)" "redis-server and redis-benchmark"
fi

exec "$bin/terrace" reproduce cbmm "${traces[@]}" "$@"
