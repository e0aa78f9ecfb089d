# shellcheck shell=sh disable=SC1091,SC2016,SC2034,SC2154
# A virtual machine whose host runs the daemon (host/provision_virtual.sh): its memory grows while
# a program needs it, and shrinks after.
. /tests/lib.sh
load virtio
before=$(mem_total)
# One block may lie in the kernel's own zone.
sysctl -q -w vm.watermark_scale_factor=500
# What is written to the log comes out at the end.
echo "GUEST wants a daemon" >/dev/console
until_true 100 test "$(cat /sys/bus/virtio/drivers/virtio_mem/*/uevent 2>/dev/null | wc -l)" -gt 0
hog 300 20 >/tmp/hog 2>&1 &
hog=$!
grew() { [ "$(mem_total)" -ge $((before + 200 * 1024)) ]; }
until_true 100 grew
echo "from $before to $(mem_total) KiB"
hog 400 >/tmp/more 2>&1 || { cat /tmp/more; false; }
wait "$hog"
shrunk() { [ "$(mem_total)" -le $((before + 128 * 1024)) ]; }
until_true 150 shrunk
echo "and back to $(mem_total) KiB"
