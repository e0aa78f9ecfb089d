#!/usr/bin/env bash
# terrace run beside kernel swap, and beside nothing when all fits. Prints the
# machine, and tables. Beside kernel swap it needs root (a memory cgroup, swap).
#
#   bench/live/run.sh pager RELEASE-DIRECTORY [options of `pager`]
#   bench/live/run.sh programs RELEASE-DIRECTORY [options of `programs`]
#   bench/live/run.sh fits RELEASE-DIRECTORY [options of `fits`]
#   bench/live/run.sh bound RELEASE-DIRECTORY [options of `pager`]
#   bench/live/run.sh walk RELEASE-DIRECTORY
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
    ending "$bin/fits" --terrace "$bin/terrace" --corpus "$work/corpus" "$@"
    ;;
bound)
    cc -O2 -pthread "$here/../mechanisms/bound.c" -o "$work/bound"
    if [ $# -eq 0 ]; then set -- --seconds 15,4,2 --hot 256MiB,512MiB,768MiB --rounds 1; fi
    ending "$bin/pager" --terrace "$bin/terrace" --corpus "$work/corpus" --bound "$work/bound" "$@"
    ;;
walk)
    cc -O2 "$here/walk.c" -o "$work/walk"
    # The kernel's choice of huge pages for plain memory: none, and one at each first touch.
    for touched in sparse whole; do
        echo "800 of 1200 MiB, $touched: a first touch, and random updates afterwards (1 GiB of budget)"
        for system in base huge; do
            echo "  plain Linux, $system pages"
            "$work/walk" 1200 800 "$touched" "$system" | sed 's/^/    /'
        done
        for pages in never auto; do
            echo "  terrace run --huge-pages $pages"
            "$bin/terrace" run --engine pager --quiet --fast 1GiB --huge-pages "$pages" -- \
                "$work/walk" 1200 800 "$touched" default | sed 's/^/    /'
        done
    done
    ;;
*)
    echo "run.sh: $what is none of pager, programs, fits, bound and walk" >&2
    exit 2
    ;;
esac
