# shellcheck shell=bash
# Memory that a virtual machine's host has taken back, for the scripts beside it. Wants a directory, `work`.
: "${work:?}"

cc -O2 "$(dirname "${BASH_SOURCE[0]}")/tails.c" -o "$work/tails"

# Brings so many MiB back from the host, by touching them twice and giving them back. A guest that
# reports its free memory loses it to the host, and touches it for the first time at 65 to 260 µs for each
# 64 KiB then; whatever ran first would pay for that. What was freed last is handed out first.
from_host() {
    local turn
    for turn in 1 2; do
        "$work/tails" "$1" order 0 >/dev/null || { echo "no $1 MiB to touch ($turn)" >&2; return 1; }
    done
}
