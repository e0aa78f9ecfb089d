# shellcheck shell=sh disable=SC1091,SC2034,SC2154
# `terrace run` with a slow node instead of compression: the program keeps
# within its share of the fast node, and its status passes through.
. /tests/lib.sh
terrace run --fast 8MiB --slow numa:1 --json --report /tmp/report.json -- \
    hotset write 48 3 16 >/tmp/hotset.out &
program=$!
until grep -q ready /tmp/hotset.out; do sleep 0.1; done
sleep 12
# Ends the program by way of terrace, which hands the signal on.
stop_hotset
cat /tmp/report.json
# 8 MiB are 2048 pages; 16 MiB lay there at the beginning.
fast=$(($(placed hot node0) + $(placed cold-fast node0) + $(placed cold-before node0) + $(placed cold-after node0)))
expect "$fast" -le 2100 "the budget is kept"
expect "$(placed cold-fast node1)" -ge 2048 "what was too much left"
status=0
terrace run --fast 8MiB --slow numa:1 --quiet -- sh -c 'exit 7' || status=$?
expect "$status" -eq 7 "the program's status"
