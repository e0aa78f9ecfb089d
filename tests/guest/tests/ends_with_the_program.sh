# shellcheck shell=sh disable=SC1091,SC2016,SC2034,SC2154
# Attach ends when the program does, and when it is interrupted.
. /tests/lib.sh
is_attached() { terrace top hotset 2>/dev/null | grep -q '^terrace: attached'; }
start_hotset write 16 2 4
terrace attach --sampling-cap 40% --pid "$program" --fast numa:0=4MiB --slow numa:1 --report /tmp/report.json --json &
attached=$!
until_true 60 is_attached
stop_hotset
wait "$attached"
start_hotset write 16 2 4
terrace attach --sampling-cap 40% --pid "$program" --fast numa:0=4MiB --slow numa:1 >/tmp/report &
attached=$!
until_true 60 is_attached
kill -INT "$attached"
wait "$attached"
stop_hotset
cat /tmp/report
grep -q 'attached to hotset' /tmp/report
