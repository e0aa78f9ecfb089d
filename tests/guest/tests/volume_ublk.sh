# shellcheck shell=sh disable=SC1091,SC2154
# A volume as a block device of its own: a file system on it, also after the server was killed; what
# is refused; what a server that ends leaves behind.
. /tests/lib.sh
image=/tmp/disk.vol

status=0
terrace volume create --size 48MiB "$image"
terrace volume serve --ublk "$image" >/tmp/refusal 2>&1 || status=$?
cat /tmp/refusal
expect "$status" -eq 3 "without the module it is refused"
terrace doctor | grep 'a block device (--ublk)  *no: /dev/ublk-control'
load ublk
terrace doctor | grep 'a block device (--ublk)  *yes$'

. /volume.sh
serve "$image"
expect "$(cat "/sys/block/${device##*/}/size")" -gt 80000 "it has the volume's size"
expect "$(cat "/sys/block/${device##*/}/queue/logical_block_size")" -eq 4096 "and its sectors"
grep -q 'write back' "/sys/block/${device##*/}/queue/write_cache"
mkfs.ext4 -q "$device"
mkdir -p /tmp/mnt
mount -t ext4 "$device" /tmp/mnt
tar -C / -cf /tmp/tree.tar bin hazards
tar -C /tmp/mnt -xf /tmp/tree.tar
sync
umount /tmp/mnt
# In good order; nothing of it is in a cache any more.
finish 0
[ ! -e "$device" ]
terrace volume check "$image"

serve "$image"
mount -t ext4 "$device" /tmp/mnt
diff -r /bin /tmp/mnt/bin
diff -r /hazards /tmp/mnt/hazards
# The server is killed while a second tree is unpacked.
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
mount -t ext4 "$device" /tmp/mnt
diff -r /bin /tmp/mnt/bin
rm -rf /tmp/mnt/again
# Who still uses it gets errors, and the server says so.
finish 1
grep -q 'was still used' /tmp/said
umount -l /tmp/mnt

serve "$image"
mount -t ext4 "$device" /tmp/mnt
umount /tmp/mnt
fsck.ext4 -fn "$device"
# What is discarded reads as zeros, and is free.
blkdiscard "$device"
dd if="$device" bs=1M 2>/dev/null | tr -d '\0' | wc -c >/tmp/count
expect "$(cat /tmp/count)" -eq 0 "zeros"
finish 0
expect "$(terrace_written)" -eq 0 "no block holds a sector"

serve --read-only "$image"
expect "$(cat "/sys/block/${device##*/}/ro")" -eq 1 "it is read-only"
if dd if=/dev/zero of="$device" bs=4096 count=1 oflag=direct 2>/dev/null; then exit 1; fi
finish 0
rm "$image"
