# shellcheck shell=sh disable=SC1091,SC2016,SC2034,SC2154
# A hot set in huge pages: they move whole, and stay huge.
. /tests/lib.sh
start_hotset write 48 4 6 huge
huge() { sed -n 's/^AnonHugePages: *\([0-9]*\) kB/\1/p' "/proc/$program/smaps_rollup"; }
before=$(huge)
attach_until 120 '[ "$(placed hot node0)" -ge 1000 ]' \
    --pid "$program" --fast numa:0=12MiB --slow numa:1
after=$(huge)
stop_hotset
cat /tmp/report.json
expect "$before" -ge 45000 "the program has huge pages"
expect "$after" -ge "$before" "and keeps them"
grep -q '"page_size": 2097152' /tmp/report.json
expect "$(placed hot node0)" -ge 1000 "hot pages on the fast node"
expect "$(in_all node0)" -le 3072 "the capacity is kept"
