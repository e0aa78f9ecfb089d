# shellcheck shell=sh disable=SC1091,SC2034,SC2154
# A volume and the kernel's BTT on equal halves of the same memory: ext4, trees unpacked, packed and
# compared, five times by turns. Times and ratios are shown (`make bench-btt`), and prove nothing but that
# both work: the guest is emulated.
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
# Some large files and some hundred small ones, 8 MB in all, however large the programs of the guest are.
mkdir -p /tmp/tree/small
cp -r /hazards /tmp/tree
for copy in 1 2 3; do cp /bin/busybox "/tmp/tree/large$copy"; done
awk 'BEGIN {
    for (i = 0; i < 500; i++) {
        file = "/tmp/tree/small/" i
        for (line = 0; line < 120; line++) print "file", i, "line", line, "of a small one" >file
        close(file)
    }
}'
tar -C /tmp/tree -cf /tmp/tree.tar .
mkdir -p /tmp/mnt
# The clock has hundredths of a second, so four trees are timed at once.
now() { cut -d ' ' -f 1 /proc/uptime; }
# between FROM TO: seconds.
between() { awk -v from="$1" -v to="$2" 'BEGIN { printf "%.2f\n", to - from }'; }
# spread: the median of the numbers, the least and the largest.
spread() {
    sort -n | awk '{ all[NR] = $1 }
        END { printf "%s (%s to %s)", all[int((NR + 1) / 2)], all[1], all[NR] }'
}
turns=5
turn=0
while [ "$turn" -lt "$turns" ]; do
    turn=$((turn + 1))
    for which in volume btt; do
        if [ "$which" = volume ]; then disk=$device; else disk=$peer; fi
        mkfs.ext4 -q -F "$disk"
        mount -t ext4 "$disk" /tmp/mnt
        begun=$(now)
        for copy in 1 2 3 4; do
            mkdir "/tmp/mnt/$copy"
            tar -C "/tmp/mnt/$copy" -xf /tmp/tree.tar
        done
        sync
        unpacked=$(now)
        umount /tmp/mnt
        mount -t ext4 "$disk" /tmp/mnt
        again=$(now)
        tar -C /tmp/mnt -cf /dev/null .
        packed=$(now)
        for copy in 1 2 3 4; do diff -r /tmp/tree "/tmp/mnt/$copy"; done
        umount /tmp/mnt
        between "$begun" "$unpacked" >>"/tmp/untar.$which"
        between "$again" "$packed" >>"/tmp/tar.$which"
    done
done
for work in untar tar; do
    expect "$(wc -l <"/tmp/$work.btt")" -eq "$turns" "turns of $work"
    awk 'NR == FNR { ours[FNR] = $1; next } { printf "%.2f\n", ours[FNR] / $1 }' \
        "/tmp/$work.volume" "/tmp/$work.btt" >"/tmp/$work.ratios"
    echo "$work: volume/BTT $(spread <"/tmp/$work.ratios"), of $turns turns;" \
        "seconds $(spread <"/tmp/$work.volume") and $(spread <"/tmp/$work.btt")"
done
finish 0
rm -r "$image" /tmp/tree /tmp/tree.tar
