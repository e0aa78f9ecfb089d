# shellcheck shell=sh disable=SC1091,SC2034,SC2154
# A volume on a DAX device, and on a file of a file system that is mounted with DAX: both promise what
# persistent memory gives, and say so.
. /tests/lib.sh
. /volume.sh
load pmem
load dax
load ublk
make_dax_device
image=/dev/$device

on() {
    terrace volume info "$image" | grep 'durability  *dax'
    serve "$image"
    mkfs.ext4 -q "$device"
    mkdir -p /tmp/mnt
    mount -t ext4 "$device" /tmp/mnt
    cp -r /hazards /tmp/mnt
    sync
    # The memory keeps what was synchronised.
    kill -9 "$server"
    wait "$server" || true
    umount -l /tmp/mnt
    terrace volume check "$image"
    serve "$image"
    mount -t ext4 "$device" /tmp/mnt
    diff -r /hazards /tmp/mnt/hazards
    umount /tmp/mnt
    finish 0
}

status=0
terrace volume create --size 1MiB "$image" 2>/tmp/refusal || status=$?
cat /tmp/refusal
expect "$status" -eq 2 "a device has its own size"
terrace volume create "$image"
on

mkfs.ext4 -q -b 4096 /dev/pmem0
mkdir /tmp/pmem
mount -t ext4 -o dax /dev/pmem0 /tmp/pmem
image=/tmp/pmem/disk.vol
terrace volume create --size 40MiB "$image"
on
umount /tmp/pmem
