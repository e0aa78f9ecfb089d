# shellcheck shell=sh disable=SC1091,SC2034,SC2154
# A hot set in huge pages: they move whole, and stay huge.
. /tests/lib.sh
start_hotset write 64 6 8 huge
before=$(sed -n 's/^AnonHugePages: *\([0-9]*\) kB/\1/p' "/proc/$program/smaps_rollup")
terrace attach --sampling-cap 40% --pid "$program" --fast numa:0=16MiB --slow numa:1 --for 15s --json \
    --report /tmp/report.json
after=$(sed -n 's/^AnonHugePages: *\([0-9]*\) kB/\1/p' "/proc/$program/smaps_rollup")
stop_hotset
cat /tmp/report.json
expect "$before" -ge 60000 "the program has huge pages"
expect "$after" -ge "$before" "and keeps them"
grep -q '"page_size": "2 MiB"' /tmp/report.json
expect "$(placed hot node0)" -ge 1450 "hot pages on the fast node"
expect "$(($(placed hot node0) + $(placed cold-fast node0) + $(placed cold-before node0) + $(placed cold-after node0)))" \
    -le 4096 "the capacity is kept"
