# shellcheck shell=sh disable=SC1091,SC2034,SC2154
# With the default cap, observing takes 3 % of one processor. An emulator makes
# it some twenty times as dear, so the cap has much to do here.
. /tests/lib.sh
start_hotset write 64 6 8
terrace attach --pid "$program" --fast numa:0=8MiB --slow numa:1 --for 20s --json \
    --report /tmp/report.json
stop_hotset
cat /tmp/report.json
sampling=$(reported /tmp/report.json sampling)
elapsed=$(reported /tmp/report.json elapsed)
# In thousandths; what DAMON's first quarter of a second cost has been paid off
# by then, up to what the kernel's clock cannot tell.
expect "$((sampling * 1000 / elapsed))" -le 36 "the share of one processor"
expect "$(reported /tmp/report.json samples)" -gt 0 "and it still sees something"
