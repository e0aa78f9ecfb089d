# shellcheck shell=sh disable=SC1091,SC2016,SC2034,SC2154
# The doctor sees both nodes, and what can observe programs here.
. /tests/lib.sh
status=0
terrace doctor >/tmp/doctor || status=$?
cat /tmp/doctor
expect "$status" -eq 0 "terrace run works here"
expect "$(grep -c 'NUMA node' /tmp/doctor)" -eq 2 "two nodes"
grep -q 'NUMA node.*1: .*no processors' /tmp/doctor
grep -q 'chosen *damon and soft-dirty' /tmp/doctor
# By the tracepoint: a kernel on which it was not found would be waited for, and nobody would see.
grep -Eq '^ *damon +yes$' /tmp/doctor
