# shellcheck shell=sh disable=SC1091,SC2016,SC2034,SC2154
# The whole life of slow memory, from hidden to returned. A program of 900 MiB is killed in
# 512 MiB of DRAM, and survives where the daemon brings in what is hidden; all of it is given
# back after it, and the machine is as it was.
. /tests/lib.sh
load pmem
load dax
before=$(mem_total)
scale=$(cat /proc/sys/vm/watermark_scale_factor)

# Without the daemon.
status=0
hog 900 >/tmp/hog 2>&1 || status=$?
expect "$status" -eq 137 "without the daemon the program is killed"

# Hidden: six blocks and a namespace, which is made a device.
terrace provision plan >/tmp/plan
cat /tmp/plan
grep -q '^memory blocks of node 1 *768 MiB' /tmp/plan
grep -q 'namespace0.0 (514 MiB) is a block device, not memory' /tmp/plan
terrace provision reload namespace0.0 >/tmp/reload
grep -q 'nothing was done' /tmp/reload
# shellcheck disable=SC2012 # names of the kernel's
expect "$(ls /sys/bus/dax/devices | wc -l)" -eq 0 "nothing was done without --destroy"
terrace provision reload namespace0.0 --destroy
expect "$(ls /sys/bus/dax/devices)" = dax0.0 "the namespace is a DAX device"
terrace provision plan >/tmp/plan
grep '^dax0.0 (node 1) *384 MiB' /tmp/plan
if grep namespace0.0 /tmp/plan; then false; fi

cat >/tmp/provision.toml <<CONFIG
provision = 1

[resolved]
# Some hundred MiB are filled within a second here.
thresholds = [0.5, 0.4, 0.3]
online = [1.0, 2.0]
hold = "2s"

[offline]
headroom = "32MiB"
unbind-after = "2s"
CONFIG
terrace check /tmp/provision.toml
start_daemon /tmp/provision.toml
expect "$(cat /proc/sys/vm/watermark_scale_factor)" -eq 500 "DRAM has its floor"
expect "$(cat "/proc/$daemon/oom_score_adj")" -eq -1000 "the daemon is not killed for want of memory"
expect "$(sed -n 's/^VmLck:[^0-9]*\([0-9]*\) kB/\1/p' "/proc/$daemon/status")" -gt 1000 "its memory is locked"
grep -E "^Vm(Lck|RSS|HWM|Size)" "/proc/$daemon/status"

# A second one is refused, and changes nothing.
status=0
terrace provision run --state /tmp/state >/tmp/second 2>&1 || status=$?
expect "$status" -eq 1 "a second daemon is refused"
grep "process $daemon runs already" /tmp/second

hog 900 3 >/tmp/hog 2>&1 || { failed_hog; }
expect "$(tail -n 1 /tmp/hog)" = intact "with the daemon it survives"
# More than the blocks that were there: the device became memory.
hog 1150 >/tmp/hog 2>&1 || { failed_hog; }
expect "$(tail -n 1 /tmp/hog)" = intact "and one that needs the device"
expect "$(grep -c 'make dax0.0 memory' /tmp/daemon)" -ge 1 "the device was brought in"
terrace provision status --state /tmp/state

until_true 240 all_offline 1
until_true 120 grep -q 'done in .*make dax0.0 a device again' /tmp/daemon
expect "$(mem_total)" -eq "$before" "the machine has the memory that it had"
stop_daemon
cat /tmp/daemon
expect "$(cat /proc/sys/vm/watermark_scale_factor)" -eq "$scale" "and the setting"
terrace provision why --state /tmp/state --last 3 | grep 'stopped: it was told to'
terrace provision why --state /tmp/state --node 0 | grep 'bring .* online .* free local memory is at most'
status=0
terrace provision status --state /tmp/state >/dev/null 2>&1 || status=$?
expect "$status" -eq 1 "no daemon runs"
