# shellcheck shell=sh disable=SC1091,SC2016,SC2034,SC2154
# The same with a hot set that is only read: writes give nothing away.
. /tests/lib.sh
start_hotset read 48 4 6
attach_until 120 '[ "$(placed hot node0)" -ge 950 ]' \
    --pid "$program" --fast numa:0=6MiB --slow numa:1
stop_hotset
cat /tmp/report.json
expect "$(placed hot node0)" -ge 950 "hot pages on the fast node"
expect "$(in_all node0)" -le 1590 "the capacity is kept"
