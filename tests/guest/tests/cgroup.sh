# shellcheck shell=sh disable=SC1091,SC2016,SC2034,SC2154
# Every process of a control group, under one capacity; and a dry run before it.
. /tests/lib.sh
mkdir -p /sys/fs/cgroup/app
start_hotset write 32 3 0
echo "$program" >/sys/fs/cgroup/app/cgroup.procs
terrace attach --sampling-cap 40% --cgroup app --fast numa:0=8MiB --slow numa:1 --for 4s --dry-run --json \
    --report /tmp/dry.json
expect "$(reported /tmp/dry.json promotions)" -eq 0 "a dry run moves nothing"
# 3 MiB are 768 pages.
attach_until 90 '[ "$(placed hot node0)" -ge 740 ]' \
    --cgroup /sys/fs/cgroup/app --fast numa:0=8MiB --slow numa:1
stop_hotset
cat /tmp/report.json
expect "$(placed hot node0)" -ge 740 "hot pages on the fast node"
