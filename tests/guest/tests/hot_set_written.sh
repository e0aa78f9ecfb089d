# shellcheck shell=sh disable=SC1091,SC2016,SC2034,SC2154
# A hot set on the slow node, while the fast one is full of cold pages: they
# change places, within the capacity, and nothing is lost.
. /tests/lib.sh
start_hotset write 48 4 6
# 4 MiB are 1024 pages, 6 MiB 1536.
attach_until 90 '[ "$(placed hot node0)" -ge 1000 ]' \
    --pid "$program" --fast numa:0=6MiB --slow numa:1 --record /tmp/decisions.jsonl
stop_hotset
cat /tmp/report.json
expect "$(placed hot node0)" -ge 1000 "hot pages on the fast node"
expect "$(in_all node0)" -le 1590 "the capacity is kept"
expect "$(placed cold-fast node1)" -ge 900 "cold pages made room"
expect "$(reported /tmp/report.json promotions)" -ge 1000 "promotions are counted"
expect "$(reported /tmp/report.json demotions)" -ge 900 "demotions are counted"
terrace check /tmp/decisions.jsonl
