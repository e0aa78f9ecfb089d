#!/usr/bin/env bash
# First touches to the greatest: plain Linux with transparent huge pages always, by advice and
# never, and `terrace run` with and without a profile, on memory as it is and on fragmented
# memory. Needs root for the first (a setting, which is as before afterwards).
#
#   bench/live/tails.sh RELEASE-DIRECTORY [MIB] [MILLION-UPDATES] [ROUNDS] [FRAGMENTED-MIB]
#
# In each round every row runs once; without ROUNDS, five. Figures are medians, and the least and the
# greatest p99.9 stand beside. FRAGMENTED-MIB is how much memory is fragmented; without it all that is
# free but 64 MiB.
set -euo pipefail

bin=$1
mib=${2:-512}
updates=${3:-20}
rounds=${4:-5}
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=bench/live/memory.sh
. "$here/memory.sh"

machine

budget=$((mib + mib / 2 + 64))
# One run of a tenth of the updates: what is touched, and where, does not depend on them.
"$bin/terrace" profile record -o "$work/profile" -- "$work/tails" "$mib" random 2 \
    >/dev/null 2>"$work/recorded" || { cat "$work/recorded" >&2; exit 1; }
grep -E 'walks averted|a run takes' "$work/recorded" || true

# One run of a row: its name and both lines of `tails` go to the results.
row() {
    local name=$1
    shift
    from_host "$budget"
    if "$@" >"$work/out" 2>"$work/err"; then
        printf '%s|%s|%s\n' "$name" "$(sed -n 1p "$work/out")" "$(sed -n 2p "$work/out")" >>"$work/rows"
    else
        echo "$name failed: $(tail -1 "$work/err")"
    fi
}

one_round() {
    local order=$1
    for when in always madvise never; do
        if huge_pages "$when"; then
            row "Linux, $when" "$work/tails" "$mib" "$order" "$updates"
        else
            echo "Linux, $when: NOT run, $setting cannot be written"
        fi
    done
    huge_pages "$before" || true
    local run=("$bin/terrace" run --engine pager --quiet --fast "${budget}MiB")
    row "terrace run" "${run[@]}" -- "$work/tails" "$mib" "$order" "$updates"
    row "terrace run --profile" "${run[@]}" --profile "$work/profile" -- \
        "$work/tails" "$mib" "$order" "$updates"
}

for memory in as-it-is fragmented; do
    if [ "$memory" = fragmented ]; then fragment "${5:-}"; fi
    for order in order random; do
        echo
        echo "memory $memory ($(free_blocks) free blocks of 2 MiB), pages in turn: $order, rounds: $rounds"
        : >"$work/rows"
        for ((round = 0; round < rounds; round++)); do one_round "$order"; done
        python3 "$here/tails.py" "$work/rows"
    done
done
