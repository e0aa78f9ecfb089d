# shellcheck shell=sh disable=SC1091,SC2016,SC2034,SC2154
# DRAM for the kernel's own objects, by each remedy: DRAM fills with pages that cannot leave, and a
# program is killed while slow memory is free; unless cold pages move to slow memory that the
# kernel takes for slower (a DAX device), or a block of it may hold the kernel's objects. And slow
# memory in the processors' own node is used before DRAM.
. /tests/lib.sh
load pmem
load dax
terrace provision plan >/tmp/plan
cat /tmp/plan
grep "belongs to the processors' own node, so that the kernel uses it before DRAM" /tmp/plan

echo "slow memory in the processors' own node is used before DRAM"
own=
for block in /sys/devices/system/node/node0/memory[0-9]*; do
    if [ "$(cat "$block/state")" = offline ]; then own=$block; fi
done
expect "$own" != "" "there is such a block"
# free_in PATTERN: free pages of node 0's zones of these names.
free_in() {
    awk -v zones="$1" '/^Node/ { gsub(",", "", $2); is = $2 == 0 && $4 ~ zones }
        is && $1 == "pages" && $2 == "free" { sum += $3 } END { print sum + 0 }' /proc/zoneinfo
}
echo online_movable >"$own/state"
slow=$(free_in '^Movable$')
dram=$(free_in '^(DMA32|Normal)$')
hog 80 5 >/tmp/hog 2>&1 &
hog=$!
until_true 30 grep -q filled /tmp/hog
slow=$((slow - $(free_in '^Movable$')))
dram=$((dram - $(free_in '^(DMA32|Normal)$')))
wait "$hog"
echo "80 MiB: $slow pages of slow memory, $dram of DRAM"
expect "$slow" -gt 18000 "it fills slow memory"
expect "$dram" -lt 2000 "and next to no DRAM"
echo offline >"$own/state"

for namespace in /sys/bus/nd/devices/namespace*; do
    if [ "$(cat "$namespace/size")" -gt 0 ]; then
        terrace provision reload "${namespace##*/}" --destroy
    fi
done
device=$(basename /sys/bus/dax/devices/dax*)
echo "slow memory is free, and a program is killed for DRAM of the kernel's"
echo "$device" >/sys/bus/dax/drivers/device_dax/unbind
echo "$device" >/sys/bus/dax/drivers/kmem/new_id
set_blocks 1 online_movable
status=0
hog 900 >/tmp/hog 2>&1 || status=$?
expect "$status" -eq 137 "slow memory that is only movable is not enough"
set_blocks 1 offline
echo "$device" >/sys/bus/dax/drivers/kmem/unbind
echo "$device" >/sys/bus/dax/drivers/kmem/remove_id
echo "$device" >/sys/bus/dax/drivers/device_dax/bind

# The kernel would bring new blocks online by itself; the daemon keeps it from that.
echo online_movable >/sys/devices/system/memory/auto_online_blocks
for floor in demotion kernel-block; do
    cat >/tmp/floor.toml <<CONFIG
provision = 1
[pools]
nodes = [1]
[resolved]
thresholds = [0.5, 0.4, 0.3]
online = [1.0, 2.0]
hold = "1s"
[offline]
headroom = "32MiB"
unbind-after = "1s"
[kernel]
floor = "$floor"
CONFIG
    start_daemon /tmp/floor.toml
    expect "$(cat /sys/devices/system/memory/auto_online_blocks)" = offline "no block comes by itself"
    moved=$(awk '/^pgdemote/ { sum += $2 } END { print sum + 0 }' /proc/vmstat)
    hog 900 >/tmp/hog 2>&1 || { failed_hog; }
    expect "$(tail -n 1 /tmp/hog)" = intact "with a floor ($floor) it survives"
    if [ "$floor" = demotion ]; then
        moved=$(($(awk '/^pgdemote/ { sum += $2 } END { print sum + 0 }' /proc/vmstat) - moved))
        expect "$moved" -gt 1000 "pages have moved to slow memory"
        until_true 60 grep -q "done in .*make $device a device again" /tmp/daemon
        expect "$(cat /sys/kernel/mm/numa/demotion_enabled)" = true "demotion is on"
    else
        grep 'bring memory block .*, for the kernel, too' /tmp/daemon
        only_one() { [ "$(blocks 1 online)" -eq 1 ]; }
        until_true 60 only_one
        sleep 3
        expect "$(blocks 1 online)" -eq 1 "the kernel's block stays, the others leave"
    fi
    stop_daemon
done
