# shellcheck shell=sh disable=SC1091,SC2034,SC2154
# The same with a hot set that is only read: writes give nothing away.
. /tests/lib.sh
start_hotset read 64 6 8
terrace attach --sampling-cap 40% --pid "$program" --fast numa:0=8MiB --slow numa:1 --for 20s --json \
    --report /tmp/report.json
stop_hotset
cat /tmp/report.json
expect "$(placed hot node0)" -ge 1400 "hot pages on the fast node"
expect "$(placed cold-fast node1)" -ge 1200 "cold pages made room"
