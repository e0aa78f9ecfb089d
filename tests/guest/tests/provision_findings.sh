# shellcheck shell=sh disable=SC1091,SC2016,SC2034,SC2154
# What was found about stock kernels, and what the daemon does about it. The order of nodes and
# page descriptors have a test of their own (provision_order), and so has a device that is unbound
# in use, since a block stays for ever there (provision_unbound).
. /tests/lib.sh
load pmem
load dax
if [ -e /sys/bus/nd/devices/namespace0.0/driver ] && [ ! -e /sys/bus/dax/devices/dax0.0 ]; then
    terrace provision reload namespace0.0 --destroy
fi
# configured KERNEL [HEADROOM]: a configuration with what the tests have in common.
configured() {
    cat <<CONFIG
provision = 1
[resolved]
thresholds = [0.5, 0.4, 0.3]
online = [1.0, 2.0]
hold = "1s"
[offline]
headroom = "${2:-32MiB}"
unbind-after = "1s"
[kernel]
$1
CONFIG
}

echo "1: slow memory is free, and a program is killed for DRAM of the kernel's"
set_blocks 1 online_movable
status=0
hog 900 >/tmp/hog 2>&1 || status=$?
expect "$status" -eq 137 "768 MiB of slow memory are not enough"
# For 900 MiB of pages, the kernel needs 2 MiB of page tables; whatever the floor, it survives.
for floor in watermarks demotion; do
    configured "floor = \"$floor\"" >/tmp/floor.toml
    start_daemon /tmp/floor.toml
    # Where the kernel does not take these blocks for slower than DRAM, demotion finds no way.
    if [ "$floor" = demotion ]; then
        expect "$(cat /sys/kernel/mm/numa/demotion_enabled)" = true "demotion is on"
    else
        hog 900 >/tmp/hog 2>&1 || { failed_hog; }
        expect "$(tail -n 1 /tmp/hog)" = intact "with a floor ($floor) it survives"
    fi
    stop_daemon
done

echo "3: a block is taken away without room, and a program is killed"
sysctl -q -w vm.watermark_scale_factor=500
set_blocks 1 online_movable 2>/dev/null || true
hog 900 3 >/tmp/hog 2>&1 &
hog=$!
until_true 30 grep -q filled /tmp/hog
# The daemon would not: what has to stay free is more than there is.
configured 'floor = "watermarks"' 1000MiB >/tmp/floor.toml
start_daemon /tmp/floor.toml
status=0
wait "$hog" || status=$?
expect "$status" -eq 0 "the daemon leaves a full machine alone"
# Afterwards it may give everything back but for the headroom, which is nearly all there is.
until_true 20 grep -q 'not begun: take memory block' /tmp/daemon
grep 'have to be' /tmp/daemon | head -n 1
expect "$(blocks 1 offline)" -eq 0 "no block left without room"
stop_daemon
sysctl -q -w vm.watermark_scale_factor=500
hog 960 6 >/tmp/hog 2>&1 &
hog=$!
until_true 30 grep -q filled /tmp/hog
grep -E '^(MemFree|MemTotal)' /proc/meminfo
# By hand, the kernel does as it is told, and the next page faults find nothing.
block=$(echo /sys/devices/system/node/node1/memory[0-9]* | cut -d ' ' -f 1)
(echo offline >"$block/state") 2>/dev/null &
by_hand=$!
status=0
wait "$hog" || status=$?
expect "$status" -eq 137 "where a block is taken by hand, the program is killed"
kill "$by_hand" 2>/dev/null || true
wait "$by_hand" || true
sysctl -q -w vm.watermark_scale_factor=10

echo "5: a program that asks for more than there is now is refused at once"
status=0
RESERVE=1 hog 2000 >/tmp/hog 2>&1 || status=$?
expect "$status" -eq 3 "before any memory can be brought in"
grep -i 'cannot allocate memory' /tmp/hog
terrace provision plan | grep 'is refused, before any memory can be brought in'
configured 'overcommit = true' >/tmp/floor.toml
start_daemon /tmp/floor.toml
RESERVE=1 hog 700 >/tmp/hog 2>&1 || { failed_hog; }
expect "$(tail -n 1 /tmp/hog)" = intact "with [kernel] overcommit it is not"
expect "$(cat /proc/sys/vm/overcommit_memory)" -eq 1 "which the daemon has set"
# What comes after this begins with a machine whose slow memory is hidden.
until_true 60 all_offline 1
stop_daemon
