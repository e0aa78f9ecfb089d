# shellcheck shell=sh disable=SC1091,SC2016,SC2034,SC2154
# Two findings about stock kernels that take seconds, in the short form's boot: a program that asks
# for more than there is now is refused at once (5), and a device that is unbound with blocks in use
# leaves them online for ever (4), which the daemon does not do. The block stays until the machine
# ends, so this is the last test of it: it needs no other memory than the device's.
. /tests/lib.sh
load pmem
load dax
if [ -e /sys/bus/nd/devices/namespace0.0/driver ] && [ ! -e /sys/bus/dax/devices/dax0.0 ]; then
    terrace provision reload namespace0.0 --destroy
fi
device=/sys/bus/dax/devices/dax0.0
driver() { basename "$(readlink $device/driver)"; }

echo "5: a program that asks for more than there is now is refused at once"
status=0
RESERVE=1 hog 2000 >/tmp/hog 2>&1 || status=$?
expect "$status" -eq 3 "before any memory can be brought in"
grep -i 'cannot allocate memory' /tmp/hog
terrace provision plan | grep 'is refused, before any memory can be brought in'

echo "4: a device is unbound with blocks in use, and they stay for ever"
cat >/tmp/unbound.toml <<CONFIG
provision = 1
[resolved]
thresholds = [0.5, 0.4, 0.3]
online = [1.0, 2.0]
hold = "1s"
[offline]
headroom = "32MiB"
unbind-after = "1s"
[kernel]
floor = "none"
CONFIG
if ! all_offline 1; then
    start_daemon /tmp/unbound.toml
    until_true 30 all_offline 1
    stop_daemon
fi
if [ "$(driver)" != kmem ]; then
    echo dax0.0 >/sys/bus/dax/drivers/device_dax/unbind
    echo dax0.0 >/sys/bus/dax/drivers/kmem/new_id
fi
last=$(echo /sys/devices/system/node/node1/memory[0-9]* | tr ' ' '\n' | sort -V | tail -n 1)
echo online_kernel >"$last/state"
start_daemon /tmp/unbound.toml
# Three times as long as it waits before it unbinds a device of which nothing is in use.
sleep 3
expect "$(driver)" = kmem "the daemon does not unbind it"
stop_daemon
echo dax0.0 >/sys/bus/dax/drivers/kmem/unbind
expect "$(cat "$last/state")" = online "by hand that is a success, and the block is online"
