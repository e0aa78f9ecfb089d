# shellcheck shell=sh disable=SC1091,SC2016,SC2034,SC2154
# `terrace run` with a slow node instead of compression: the program keeps
# within its share of the fast node, and its status passes through.
. /tests/lib.sh
: >/tmp/hotset.out
terrace run --fast 8MiB --slow numa:1 --json --report /tmp/report.json -- \
    hotset write 32 3 16 >/tmp/hotset.out &
terrace=$!
until grep -q ready /tmp/hotset.out; do
    kill -0 "$terrace"
    sleep 0.1
done
program=$(pidof hotset)
# 8 MiB are 2048 pages; twice as many lay there at the beginning.
until_placed 60 '[ "$(in_all node0)" -le 2048 ]'
# Ends the program by way of terrace, which hands the signal on.
program=$terrace
stop_hotset
cat /tmp/report.json
expect "$(in_all node0)" -le 2100 "the budget is kept"
expect "$(placed cold-fast node1)" -ge 1500 "what was too much left"
status=0
terrace run --fast 8MiB --slow numa:1 --quiet -- sh -c 'exit 7' || status=$?
expect "$status" -eq 7 "the program's status"
