# shellcheck shell=sh disable=SC1091,SC2016,SC2034,SC2154
# With the default cap, observing takes 3 % of one processor. An emulator makes
# it some twenty times as dear, so the cap has much to do here.
. /tests/lib.sh
start_hotset write 64 6 8
terrace attach --pid "$program" --fast numa:0=8MiB --slow numa:1 --for 30s --json \
    --report /tmp/report.json
stop_hotset
cat /tmp/report.json
sampling=$(reported /tmp/report.json sampling)
elapsed=$(reported /tmp/report.json elapsed)
# In thousandths. What DAMON's first quarter of a second cost is paid off by
# then, but for what lies between two of our looks at its clock.
expect "$((sampling * 1000 / elapsed))" -le 40 "the share of one processor"
expect "$(reported /tmp/report.json samples)" -gt 0 "and it still sees something"
