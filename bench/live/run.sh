#!/usr/bin/env bash
# terrace run beside kernel swap, and beside nothing when all fits. Prints the
# machine, and tables. Beside kernel swap it needs root (a memory cgroup, swap).
#
#   bench/live/run.sh pager RELEASE-DIRECTORY [options of `pager`]
#   bench/live/run.sh programs RELEASE-DIRECTORY [options of `programs`]
#   bench/live/run.sh fits RELEASE-DIRECTORY [rounds]
set -euo pipefail

what=$1
bin=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Runs a command that undoes what it does to the machine when it is told to end, and
# waits for it to have done so whoever was told.
ending() {
    "$@" &
    local child=$! status=0
    trap 'kill -TERM "$child" 2>/dev/null || true' INT TERM HUP
    while :; do
        status=0
        wait "$child" || status=$?
        kill -0 "$child" 2>/dev/null || break
    done
    trap - INT TERM HUP
    return "$status"
}

echo "$(date -u +%F), Linux $(uname -r), $(nproc) processors," \
    "$(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -1)," \
    "$(awk '/MemTotal/ {printf "%.0f GiB", $2 / 1048576}' /proc/meminfo), load $(cut -d' ' -f1 /proc/loadavg)"

python3 "$here/corpus.py" "$work/corpus" 64
case $what in
pager)
    if [ $# -eq 0 ]; then set -- --seconds 15,4,2 --hot 512MiB --equal-dram; fi
    ending "$bin/pager" --terrace "$bin/terrace" --corpus "$work/corpus" "$@"
    ;;
programs)
    ending "$bin/programs" --terrace "$bin/terrace" --corpus "$work/corpus" \
        --scripts "$here/programs" "$@"
    ;;
fits)
    rounds=${1:-10}
    echo "Everything fits: GUPS on 512 MiB with a budget of 1 GiB, M updates/s, $rounds rounds by turns"
    gups=("$bin/gups" --corpus "$work/corpus" --size 512MiB --hot 128MiB --warm 1 --measure 3 --latency 0.1)
    rate() { sed -n 's/.*"updates_per_second":\([0-9.]*\).*/\1/p'; }
    for ((i = 0; i < rounds; i++)); do
        plain=$("${gups[@]}" | rate)
        managed=$("$bin/terrace" run --quiet --fast 1GiB -- "${gups[@]}" | rate)
        awk -v p="$plain" -v m="$managed" 'BEGIN { print m / p, p / 1e6, m / 1e6 }'
    done | sort -n | awk '
        { ratio[NR] = $1; printf "  plain %.2f  terrace run %.2f  ratio %.3f\n", $2, $3, $1 }
        END {
            m = NR % 2 ? ratio[(NR + 1) / 2] : (ratio[NR / 2] + ratio[NR / 2 + 1]) / 2
            printf "  median %.3f (%.3f-%.3f)\n", m, ratio[1], ratio[NR]
        }'
    ;;
*)
    echo "run.sh: $what is none of pager, programs and fits" >&2
    exit 2
    ;;
esac
