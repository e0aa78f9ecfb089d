#!/usr/bin/env bash
# First touches to the greatest: plain Linux with transparent huge pages always, by advice and
# never, and `terrace run` with and without a profile, on memory as it is and on fragmented
# memory. Needs root for the first (a setting, which is as before afterwards).
#
#   bench/live/tails.sh RELEASE-DIRECTORY [MIB] [MILLION-UPDATES] [FRAGMENTED-MIB]
#
# FRAGMENTED-MIB is how much memory is fragmented; without it all that is free but 64 MiB.
set -euo pipefail

bin=$1
mib=${2:-512}
updates=${3:-20}
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=bench/live/memory.sh
. "$here/memory.sh"

machine

budget=$((mib + mib / 2 + 64))
# One run of a tenth of the updates: what is touched, and where, does not depend on them.
"$bin/terrace" profile record -o "$work/profile" -- "$work/tails" "$mib" random 2 \
    >/dev/null 2>"$work/recorded" || { cat "$work/recorded" >&2; exit 1; }
grep -E 'walks averted|a run takes' "$work/recorded" || true

row() {
    local name=$1
    shift
    from_host "$budget"
    "$@" >"$work/out" 2>"$work/err" || { echo "$name failed: $(tail -1 "$work/err")"; return 0; }
    read -r _ p50 p99 p999 p9999 most touches rest <"$work/out"
    printf '%-26s %9.1f %9.1f %9.1f %9.1f %10.1f %9s %9s\n' "$name" \
        "$(awk "BEGIN {print $p50 / 1000}")" "$(awk "BEGIN {print $p99 / 1000}")" \
        "$(awk "BEGIN {print $p999 / 1000}")" "$(awk "BEGIN {print $p9999 / 1000}")" \
        "$(awk "BEGIN {print $most / 1000}")" "$touches" "$rest"
    printf '    %s\n' "$(sed -n 2p "$work/out")"
}

all() {
    local order=$1
    printf '%-26s %9s %9s %9s %9s %10s %9s %9s\n' "first touches, µs" p50 p99 p99.9 p99.99 \
        greatest "touches s" "updates s"
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
    if [ "$memory" = fragmented ]; then fragment "${4:-}"; fi
    for order in order random; do
        echo
        echo "memory $memory ($(free_blocks) free blocks of 2 MiB), pages in turn: $order"
        all "$order"
    done
done
