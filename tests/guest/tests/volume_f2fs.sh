# shellcheck shell=sh disable=SC1091,SC2034,SC2154
# F2FS on a volume, as in the paper: a tree is unpacked, compared after a remount, and the server is
# killed while a second one is unpacked. Wants a kernel with F2FS: make guest-f2fs.
. /tests/lib.sh
. /volume.sh
load ublk
load f2fs
grep -q f2fs /proc/filesystems || { echo "the kernel has no F2FS (GUEST_FLAVOUR=full)"; exit 1; }
image=/tmp/disk.vol
terrace volume create --size 100MiB "$image"
serve "$image"
mkfs.f2fs -q -f "$device"
mkdir -p /tmp/mnt
mount -t f2fs "$device" /tmp/mnt
tar -C / -cf /tmp/tree.tar hazards bin
tar -C /tmp/mnt -xf /tmp/tree.tar
sync
umount /tmp/mnt
fsck.f2fs --dry-run "$device"
finish 0
serve "$image"
mount -t f2fs "$device" /tmp/mnt
diff -r /bin /tmp/mnt/bin
mkdir /tmp/mnt/again
sync
(tar -C /tmp/mnt/again -xf /tmp/tree.tar; sync) >/dev/null 2>&1 &
unpacking=$!
sleep 1
kill -9 "$server"
wait "$server" || true
wait "$unpacking" || true
umount -l /tmp/mnt
terrace volume check "$image"
serve "$image"
mount -t f2fs "$device" /tmp/mnt
diff -r /bin /tmp/mnt/bin
umount /tmp/mnt
fsck.f2fs --dry-run "$device"
finish 0
rm "$image"
