#!/usr/bin/env bash
# Real programs that touch much memory for the first time, as tails.sh has a synthetic one: under plain
# Linux with transparent huge pages always, by advice and never, and under `terrace run` with and
# without a profile, on memory as it is and on fragmented memory. How long redis takes for each new key,
# to the longest; how long the others run; page faults, and what the kernel counts of huge pages. Needs
# root for the settings, which are as before afterwards, and qemu-user for the profiles.
#
#   bench/live/tails_programs.sh RELEASE-DIRECTORY [ROUNDS [FRAGMENTED-MIB [PROGRAM...]]]
#   bench/live/tails_programs.sh RELEASE-DIRECTORY short
#
# FRAGMENTED-MIB is how much memory is fragmented; without it, or if it is empty, all that is free but
# 64 MiB. The short form shows that it works, and no more: a tenth of each program's memory, one round.
set -euo pipefail

bin=$(cd "$1" && pwd)
rounds=${2:-1}
fragmented=${3:-}
shift $(($# < 3 ? $# : 3))
scale=full
# How many seconds a program is recorded at most. It is far slower then, and what it does later, its
# profile does not know.
recorded=40
# More free blocks of 2 MiB than this, and memory is fragmented again before a run.
most=512
if [ "$rounds" = short ]; then
    rounds=1
    scale=smoke
    recorded=5
fi
if [ $# -eq 0 ]; then set -- redis sort python numpy xz sqlite pagerank bfs; fi
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=bench/live/memory.sh
. "$here/memory.sh"

# The interpreter itself: what a version manager calls python3 is a script, which cannot be recorded.
PATH=$(python3 -c 'import os, sys; print(os.path.dirname(sys.executable))'):$PATH

machine
echo "the machine's own settings: transparent huge pages $before, which terrace run has here, defrag" \
    "$(sed -n 's/.*\[\(.*\)\].*/\1/p' "$(dirname "$setting")/defrag" 2>/dev/null || true)"
python3 "$here/corpus.py" "$work/corpus" 16
place=(--directory "$work/place" --corpus "$work/corpus" --scripts "$here/programs" --scale "$scale")

# Once without anything, which tells how much memory it takes; then its profile.
declare -A budgets
programs=()
for program in "$@"; do
    if ! ours "$bin/touches" need "$program" "${place[@]}" >"$work/need" 2>"$work/said"; then
        echo "$program: left out: $(tail -n 1 "$work/said")"
        continue
    fi
    need=$(cat "$work/need")
    programs+=("$program")
    # All of it fits.
    budgets[$program]=$((need + need / 2 + 64))
    if ours "$bin/touches" record "$program" "${place[@]}" --seconds "$recorded" -- \
        "$bin/terrace" profile record -o "$work/$program.profile" -- >"$work/much" 2>"$work/said" &&
        [ -s "$work/$program.profile" ]; then
        echo "$program: $need MiB; recorded: $(cat "$work/much");" \
            "$(sed -n 's/^walks averted  */walks averted: /p' "$work/place/errors")"
    else
        rm -f "$work/$program.profile"
        echo "$program: $need MiB; no profile: $(cat "$work/place/errors" "$work/said" | tail -n 1)"
    fi
done
if [ ${#programs[@]} -eq 0 ]; then
    echo "none of the programs can be run" >&2
    exit 1
fi

# What runs read comes from the page cache, of which fragmenting takes some.
warm() {
    cat "$bin/terrace" "$bin"/libterrace*.so "$work/corpus" "$work"/place/* >/dev/null 2>&1 || true
}

# One run of $program.
run() {
    local under=$1 words=() profile=$work/$program.profile
    case $under in
    always | madvise | never)
        if ! huge_pages "$under"; then
            echo "Linux, $under: NOT run, $setting cannot be written"
            return 0
        fi
        ;;
    run | profile)
        huge_pages "$before" || true
        words=("$bin/terrace" run --engine pager --quiet --fast "${budgets[$program]}MiB"
            --report "$work/report")
        if [ "$under" = profile ]; then
            if [ ! -s "$profile" ]; then return 0; fi
            words+=(--profile "$profile")
        fi
        words+=(--)
        ;;
    esac
    if [ "$memory" = fragmented ] && { [ -z "$holder" ] || [ "$(free_blocks)" -gt "$most" ]; }; then
        give_back
        fragment "$fragmented"
        warm
    fi
    from_host "${budgets[$program]}"
    ours "$bin/touches" run "$program" "${place[@]}" --memory "$memory" --under "$under" \
        --round "$round" --blocks "$(free_blocks)" --results "$work/results" \
        --report "$work/report" -- "${words[@]}"
}

unders=(always madvise never run profile)
warm
for memory in as-it-is fragmented; do
    for program in "${programs[@]}"; do
        echo
        echo "$program, memory $memory"
        "$bin/touches" head
        for ((round = 1; round <= rounds; round++)); do
            # What comes first changes from round to round.
            for ((turn = 0; turn < ${#unders[@]}; turn++)); do
                run "${unders[(round - 1 + turn) % ${#unders[@]}]}"
            done
        done
    done
done
give_back
huge_pages "$before" || true

echo
"$bin/touches" table "$work/results"
