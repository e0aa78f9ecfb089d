# shellcheck shell=sh disable=SC1091,SC2016,SC2034,SC2154
# Faults that the kernel's NUMA balancing provokes, by a perf event's ring. The
# kernel moves pages at the same time, so only what was seen is looked at.
. /tests/lib.sh
echo 1 >/proc/sys/kernel/numa_balancing
start_hotset read 32 4 4
terrace attach --sampler kernel-hints --sampling-cap 40% --pid "$program" \
    --fast numa:0=8MiB --slow numa:1 --for 15s --json --report /tmp/report.json 2>/tmp/warnings
echo 0 >/proc/sys/kernel/numa_balancing
stop_hotset
cat /tmp/report.json /tmp/warnings
expect "$(reported /tmp/report.json samples)" -gt 100 "hint faults were seen"
grep -q 'NUMA balancing moves pages, too' /tmp/warnings
