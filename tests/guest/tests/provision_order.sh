# shellcheck shell=sh disable=SC1091,SC2016,SC2034,SC2154
# Near slow memory is used before another socket's DRAM, on a stock kernel: it is a node of its
# own at a smaller distance. And page descriptors can lie in the memory that they describe.
. /tests/lib.sh
load pmem
load dax
for namespace in /sys/bus/nd/devices/namespace*; do
    if [ "$(cat "$namespace/size")" -gt 0 ]; then
        terrace provision reload "${namespace##*/}" --destroy
    fi
done
terrace provision plan
for node in /sys/devices/system/node/node[0-9]*; do
    echo "${node##*/}: distances $(cat "$node/distance"), processors $(cat "$node/cpulist")"
done
# distance_of NODE: from node 0. The list has the nodes that are there, in their order.
distance_of() {
    place=1
    for other in /sys/devices/system/node/node[0-9]*; do
        if [ "${other##*/node}" -lt "$1" ]; then place=$((place + 1)); fi
    done
    cut -d ' ' -f "$place" /sys/devices/system/node/node0/distance
}
# as_memory DEVICE [1]: with 1, its page descriptors lie in itself.
as_memory() {
    echo "$1" >/sys/bus/dax/drivers/device_dax/unbind
    echo "${2:-0}" >"/sys/bus/dax/devices/$1/memmap_on_memory"
    echo "$1" >/sys/bus/dax/drivers/kmem/new_id
}
as_device() {
    echo "$1" >/sys/bus/dax/drivers/kmem/unbind
    echo "$1" >/sys/bus/dax/drivers/kmem/remove_id
    echo "$1" >/sys/bus/dax/drivers/device_dax/bind
}
# on NODE: how many pages of the running hog lie there.
on() { tr ' ' '\n' <"/proc/$hog/numa_maps" | sed -n "s/^N$1=//p" | awk '{ n += $1 } END { print n + 0 }'; }
# other_sockets NODE: fills 500 MiB with slow memory of this node online, and counts the pages in
# the other socket's DRAM.
other_sockets() {
    set_blocks "$1" online_movable
    hog 500 5 >/tmp/hog 2>&1 &
    hog=$!
    until_true 30 grep -q filled /tmp/hog
    elsewhere=$(on 1)
    echo "500 MiB: $(on 0) pages in DRAM, $elsewhere in the other socket's, $(on "$1") in slow memory"
    wait "$hog"
    set_blocks "$1" offline
}
sysctl -q -w vm.watermark_scale_factor=500

near=
far=
for device in /sys/bus/dax/devices/dax*; do
    device=${device##*/}
    node=$(cat "/sys/bus/dax/devices/$device/target_node")
    before=$(mem_total)
    free=$(sed -n 's/^MemFree: *\([0-9]*\) kB/\1/p' /proc/meminfo)
    as_memory "$device"
    in_dram=$((free - $(sed -n 's/^MemFree: *\([0-9]*\) kB/\1/p' /proc/meminfo)))
    distance=$(distance_of "$node")
    echo "$device is node $node, at $distance"
    as_device "$device"
    free=$(sed -n 's/^MemFree: *\([0-9]*\) kB/\1/p' /proc/meminfo)
    as_memory "$device" 1
    in_itself=$((free - $(sed -n 's/^MemFree: *\([0-9]*\) kB/\1/p' /proc/meminfo)))
    echo "page descriptors of $device: $in_dram KiB of DRAM, $in_itself KiB where they lie in itself"
    expect "$in_itself" -lt $((in_dram / 2)) "page descriptors in the memory itself spare DRAM"
    as_device "$device"
    case $distance in
    17) near=$device near_node=$node ;;
    31) far=$device far_node=$node ;;
    *) false ;;
    esac
done
# Neither nodes nor devices are numbered as QEMU's are, whose first one is the far one.
echo "near is $near, node $near_node; far is $far, node $far_node"
as_memory "$far"
other_sockets "$far_node"
expect "$elsewhere" -gt 10000 "far slow memory is used after the other socket's DRAM"
as_device "$far"
as_memory "$near"
other_sockets "$near_node"
expect "$elsewhere" -eq 0 "near slow memory is used before it"
as_device "$near"

# The daemon takes the near one, whatever its number.
cat >/tmp/near.toml <<CONFIG
provision = 1
[pools]
nodes = [$near_node]
[online]
memmap-on-memory = true
[resolved]
thresholds = [0.5, 0.4, 0.3]
online = [1.0, 2.0]
hold = "1s"
[offline]
headroom = "32MiB"
unbind-after = "1s"
CONFIG
start_daemon /tmp/near.toml
hog 500 3 >/tmp/hog 2>&1 &
hog=$!
until_true 30 grep -q filled /tmp/hog
echo "with the daemon: $(on 0) pages in DRAM, $(on 1) in the other socket's, $(on "$near_node") in slow memory"
wait "$hog"
grep "make $near memory" /tmp/daemon
if grep "make $far memory" /tmp/daemon; then false; fi
until_true 60 grep -q "done in .*make $near a device again" /tmp/daemon
stop_daemon
