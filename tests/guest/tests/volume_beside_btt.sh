# shellcheck shell=sh disable=SC1091,SC2034,SC2154
# A volume and the kernel's BTT on equal halves of the same memory: ext4, a tree unpacked, packed and
# compared, three times by turns. Times are shown (VERBOSE=1), and prove nothing but that both work:
# the guest is emulated.
. /tests/lib.sh
. /volume.sh
load pmem
load ublk
for bus in /sys/bus/nd/devices/ndbus*; do
    if [ "$(cat "$bus/provider")" = e820 ]; then region=$(echo "$bus"/region[0-9]*); fi
done
namespace=$(basename "$region"/namespace[0-9]*)
btt=$(cat "$region/btt_seed")
echo "$namespace" >/sys/bus/nd/drivers/nd_pmem/unbind
cat /proc/sys/kernel/random/uuid >"$region/$btt/uuid"
echo 4096 >"$region/$btt/sector_size"
echo "$namespace" >"$region/$btt/namespace"
echo "$btt" >/sys/bus/nd/drivers/nd_pmem/bind
peer=/dev/$(basename "$region/$btt"/block/*)
expect "$(cat "/sys/block/${peer##*/}/queue/logical_block_size")" -eq 4096 "BTT has sectors of 4 KiB"

# Memory, not persistent, which costs the same here.
image=/tmp/beside.vol
terrace volume create --size "$(($(cat "/sys/block/${peer##*/}/size") / 2 + 1024))KiB" "$image"
serve "$image"
tar -C / -cf /tmp/tree.tar hazards bin
mkdir -p /tmp/mnt
now() { cut -d ' ' -f 1 /proc/uptime; }
for turn in 1 2 3; do
    for disk in "$device" "$peer"; do
        mkfs.ext4 -q -F "$disk"
        mount -t ext4 "$disk" /tmp/mnt
        begun=$(now)
        tar -C /tmp/mnt -xf /tmp/tree.tar
        sync
        unpacked=$(now)
        umount /tmp/mnt
        mount -t ext4 "$disk" /tmp/mnt
        again=$(now)
        tar -C /tmp/mnt -cf /dev/null .
        packed=$(now)
        diff -r /hazards /tmp/mnt/hazards
        umount /tmp/mnt
        echo "turn $turn, $disk: untar $begun to $unpacked s, tar $again to $packed s"
    done
done
finish 0
rm "$image"
