# shellcheck shell=sh disable=SC1091,SC2154
# The kernel's own client of network block devices: a file system on a volume over a UNIX socket.
. /tests/lib.sh
load nbd
image=/tmp/nbd.vol
terrace volume create --size 48MiB "$image"
attach() {
    terrace volume serve --socket /tmp/socket "$image" 2>/tmp/said &
    server=$!
    until [ -S /tmp/socket ]; do
        kill -0 "$server"
        sleep 0.1
    done
    nbd-client -unix /tmp/socket /dev/nbd0 -block-size 4096
}
detach() {
    nbd-client -d /dev/nbd0
    kill -TERM "$server"
    wait "$server"
    cat /tmp/said
    terrace volume check "$image"
}
attach
expect "$(cat /sys/block/nbd0/size)" -gt 80000 "it has the volume's size"
mkfs.ext4 -q /dev/nbd0
mkdir -p /tmp/mnt
mount -t ext4 /dev/nbd0 /tmp/mnt
cp -r /hazards /tmp/mnt
sync
umount /tmp/mnt
detach
attach
mount -t ext4 /dev/nbd0 /tmp/mnt
diff -r /hazards /tmp/mnt/hazards
umount /tmp/mnt
fsck.ext4 -fn /dev/nbd0
detach
rm "$image"
