#!/usr/bin/env bash
# What `terrace kloc run` costs and keeps, beside its peers, as two tables. For root.
#
#   bench/kloc/run.sh TARGET [costs|misses]
#
# TARGET is the directory of what was built (target/release). Files are on ext4 on a loop device
# over memory: asynchronous like a disk, and nobody else's. The group is KLOC_GROUP_MIB (256).
set -euo pipefail

target=${1:?usage: run.sh TARGET [costs|misses]}
what=${2:-all}
limit=$((${KLOC_GROUP_MIB:-256} << 20))
work=$(mktemp -d /dev/shm/terrace-kloc-bench.XXXXXX)
group=
loop=
clean() {
    umount "$work/mount" 2>/dev/null || true
    if [ -n "$loop" ]; then losetup -d "$loop" || true; fi
    if [ -n "$group" ]; then rmdir "$group" 2>/dev/null || true; fi
    rm -rf "$work"
}
trap clean EXIT

truncate -s 3G "$work/disk"
mkfs.ext4 -q -F "$work/disk"
mkdir "$work/mount"
loop=$(losetup --find --show "$work/disk")
mount "$loop" "$work/mount"
bench=$target/examples/kloc_bench
if [ "$what" != misses ]; then
    "$bench" costs "$target/terrace" "$work/mount"
fi
if [ "$what" != costs ]; then
    if [ -e /sys/fs/cgroup/memory/memory.limit_in_bytes ]; then
        group=/sys/fs/cgroup/memory/terrace-kloc-bench-$$
        mkdir "$group"
        echo "$limit" >"$group/memory.limit_in_bytes"
    else
        group=/sys/fs/cgroup/terrace-kloc-bench-$$
        mkdir "$group"
        echo "$limit" >"$group/memory.max"
    fi
    "$bench" misses "$target/terrace" "$work/mount" "$group"
fi
