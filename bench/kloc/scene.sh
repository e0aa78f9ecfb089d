# shellcheck shell=bash
# Where the benches of kernel objects take place: a file system on a loop device over memory, which is
# asynchronous like a disk and nobody else's, and a control group. Both go when the script ends, however
# it does. For root; run.sh and rocksdb.sh read this file.
#
#   scene NAME SIZE      makes the file system, of at most so much (`3G`), at $mount
#   scene_group          makes the control group, at $group, without a limit
#   group_limit BYTES    gives it that limit
#
# $work is a directory for what else there is to write. A process that is named in $daemon ends with the
# scene.

work=
mount=
group=
daemon=
scene_name=
scene_loop=

scene_clean() {
    if [ -n "$daemon" ]; then kill "$daemon" 2>/dev/null || true; fi
    umount "$mount" 2>/dev/null || true
    if [ -n "$scene_loop" ]; then losetup -d "$scene_loop" || true; fi
    if [ -n "$group" ]; then rmdir "$group" 2>/dev/null || true; fi
    rm -rf "$work"
}

scene() {
    local size=$2
    scene_name=terrace-kloc-$1
    work=$(mktemp -d "/dev/shm/$scene_name.XXXXXX")
    mount=$work/mount
    trap scene_clean EXIT
    truncate -s "$size" "$work/disk"
    mkfs.ext4 -q -F "$work/disk"
    mkdir "$mount"
    scene_loop=$(losetup --find --show "$work/disk")
    mount "$scene_loop" "$mount"
}

scene_group() {
    local root=/sys/fs/cgroup
    # Version 1 has a tree for memory alone.
    if [ -e "$root/memory/memory.limit_in_bytes" ]; then root=$root/memory; fi
    mkdir "$root/$scene_name-$$"
    group=$root/$scene_name-$$
}

group_limit() {
    local limit=$group/memory.max
    if [ -e "$group/memory.limit_in_bytes" ]; then limit=$group/memory.limit_in_bytes; fi
    echo "$1" >"$limit"
}
