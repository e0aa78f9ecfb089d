#!/usr/bin/env bash
# RocksDB's db_bench, reads while it writes, in a small control group: throughput and latency without
# and with `terrace kloc run`, as a table. For root.
#
#   bench/kloc/rocksdb.sh TARGET
#
# TARGET is the directory of what was built (target/release). db_bench is Debian's (rocksdb-tools). Where
# it takes place scene.sh says. Settings: KLOC_SECONDS (30) a cell, KLOC_ROUNDS (3) interleaved rounds,
# KLOC_GROUP_MIB (384) for the group, KLOC_KEYS (2000000) of 16 + 400 bytes, KLOC_HOOKS for the set of
# hooks (the daemon's choice).
#
# Cases:
#   small    the data are twice what the group has, reads follow no order: where it may gain
#   hot      nine reads of ten go to a hundredth of the keys: the kernel keeps those anyway
#   ample    the group has room for all: nothing is short, and what remains is what it costs
# `small` is run with all table files open (RocksDB's default: nobody may drop what is open) and with 32
# of them at most, as where descriptors are short.
set -euo pipefail

target=${1:?usage: rocksdb.sh TARGET}
seconds=${KLOC_SECONDS:-30}
rounds=${KLOC_ROUNDS:-3}
keys=${KLOC_KEYS:-2000000}
limit=$((${KLOC_GROUP_MIB:-384} << 20))
terrace=$target/terrace
command -v db_bench >/dev/null || {
    echo "rocksdb.sh: db_bench is missing (scripts/setup.sh bench-kloc installs it)" >&2
    exit 77
}
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=bench/kloc/scene.sh
. "$here/scene.sh"

scene rocksdb 6G
scene_group
common=(--db="$mount/db" --num="$keys" --value_size=400 --cache_size=8388608
    --compression_type=none --write_buffer_size=16777216 --target_file_size_base=8388608
    --max_bytes_for_level_base=67108864 --max_background_jobs=2 --histogram=1)
# bench OPTION...: within the group.
bench() {
    (
        echo "$BASHPID" >"$group/cgroup.procs"
        exec db_bench "${common[@]}" "$@" 2>&1
    )
}
echo "filling" >&2
bench --benchmarks=fillrandom,compact >"$work/filled"
size=$(du -sm "$mount/db" | cut -f 1)

begin() {
    local hooks=()
    if [ -n "${KLOC_HOOKS:-}" ]; then hooks=(--hooks "$KLOC_HOOKS"); fi
    "$terrace" kloc run --mode enforce --cgroup "$group" --state "$work/state" "${hooks[@]}" \
        >"$work/status" 2>&1 &
    daemon=$!
    local patience=100
    until "$terrace" kloc top --times 1 --state "$work/state" >/dev/null 2>&1; do
        sleep 0.1
        patience=$((patience - 1))
        if [ "$patience" -eq 0 ]; then
            cat "$work/status" >&2
            exit 1
        fi
    done
}
finish() {
    kill -TERM "$daemon"
    wait "$daemon" || true
    daemon=
}
# middle VALUE...: the median.
middle() { printf '%s\n' "$@" | sort -g | sed -n "$(($# / 2 + 1))p"; }

echo "db_bench readwhilewriting, $size MiB of data, $((limit >> 20)) MiB for the group, $seconds s a cell," \
    "medians of $rounds rounds"
echo
echo "| case | operations a second | p50 | p99 | p99.9 | dropped |"
echo "|---|---|---|---|---|---|"
cases=("small, all files open" "small, 32 files open" "hot" "ample")
for name in "${cases[@]}"; do
    room=$limit
    options=()
    case $name in
    "small, 32 files open") options=(--open_files=32) ;;
    # An exponent of db_bench's own: keys near the beginning are read most.
    hot) options=(--read_random_exp_range=40) ;;
    ample) room=$((4 << 30)) ;;
    esac
    declare -A found=()
    for _ in $(seq "$rounds"); do
        for who in kernel ours; do
            group_limit "$room"
            # Each cell begins with what it brings itself.
            for table in "$mount"/db/*.sst; do dd if="$table" iflag=nocache count=0 2>/dev/null; done
            dropped="-"
            if [ "$who" = ours ]; then begin; fi
            bench --use_existing_db=1 --benchmarks=readwhilewriting --threads=2 --duration="$seconds" \
                --benchmark_write_rate_limit=16777216 "${options[@]}" >"$work/out"
            if [ "$who" = ours ]; then
                finish
                dropped=$(sed -n 's/^ *left   *//p' "$work/status" | tr -d '\n')
            fi
            rate=$(sed -nE 's/^readwhilewriting .* ([0-9.]+) ops\/sec.*/\1/p' "$work/out")
            line=$(grep '^Percentiles:' "$work/out" | tail -n 1)
            percentile() { echo "$line" | sed -nE "s/.* $1: ([0-9.]+).*/\1/p"; }
            if [ -z "$rate" ] || [ -z "$line" ]; then cat "$work/out" >&2; exit 1; fi
            found[$who-rate]+=" $rate"
            found[$who-p50]+=" $(percentile P50)"
            found[$who-p99]+=" $(percentile P99)"
            found[$who-p999]+=" $(percentile P99.9)"
            found[$who-dropped]=$dropped
        done
    done
    for who in kernel ours; do
        # shellcheck disable=SC2086 # words on purpose
        echo "| $name, $who | $(middle ${found[$who-rate]}) | $(middle ${found[$who-p50]}) µs" \
            "| $(middle ${found[$who-p99]}) µs | $(middle ${found[$who-p999]}) µs | ${found[$who-dropped]} |"
    done
done
