# shellcheck shell=sh disable=SC1091,SC2034,SC2154
# A hot set on the slow node, while the fast one is full of cold pages: they
# change places, within the capacity, and nothing is lost.
. /tests/lib.sh
start_hotset write 64 6 8
terrace attach --sampling-cap 40% --pid "$program" --fast numa:0=8MiB --slow numa:1 --for 15s --json \
    --report /tmp/report.json --record /tmp/decisions.jsonl
stop_hotset
cat /tmp/report.json
# 6 MiB are 1536 pages, 8 MiB 2048.
expect "$(placed hot node0)" -ge 1450 "hot pages on the fast node"
expect "$(placed cold-before node0)" -le 300 "cold pages stay on the slow node"
expect "$(($(placed hot node0) + $(placed cold-fast node0) + $(placed cold-before node0) + $(placed cold-after node0)))" \
    -le 2100 "the capacity is kept"
expect "$(placed cold-fast node1)" -ge 1300 "cold pages made room"
expect "$(reported /tmp/report.json promotions)" -ge 1450 "promotions are counted"
expect "$(reported /tmp/report.json demotions)" -ge 1300 "demotions are counted"
terrace check /tmp/decisions.jsonl
