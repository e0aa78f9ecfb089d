# shellcheck shell=sh disable=SC1091,SC2016,SC2034,SC2154
# Hot misses beside a stream, by the kernel's classic lists, by its multi-generational ones (MGLRU), and
# with the daemon beside either: a table each. What it measures is misses, which emulation does not
# change; its times say nothing. `make bench-kloc-guest` builds what it needs.
. /tests/lib.sh
[ -x /bin/kloc_bench ] || { echo "kloc_bench was not built: make bench-kloc-guest"; exit 1; }
load pmem
until [ -b /dev/pmem0 ]; do sleep 0.1; done
mkfs.ext4 -q -b 4096 /dev/pmem0
mkdir -p /tmp/files
mount -t ext4 /dev/pmem0 /tmp/files
echo +memory >/sys/fs/cgroup/cgroup.subtree_control
mkdir -p /sys/fs/cgroup/lru
echo 24M >/sys/fs/cgroup/lru/memory.max
uname -r
for lists in classic mglru; do
    if [ -e /sys/kernel/mm/lru_gen/enabled ]; then
        if [ "$lists" = mglru ]; then echo y; else echo n; fi >/sys/kernel/mm/lru_gen/enabled
    elif [ "$lists" = mglru ]; then
        echo "this kernel has no MGLRU"
        continue
    fi
    # What is on the lists is what was put there under the same kind of lists.
    echo 3 >/proc/sys/vm/drop_caches
    echo "lists: $lists, $(cat /sys/kernel/mm/lru_gen/enabled 2>/dev/null || true)"
    KLOC_POLICIES="kernel,O_DIRECT of B,ours" kloc_bench misses /bin/terrace /tmp/files /sys/fs/cgroup/lru 2>/dev/null >/tmp/table
    cat /tmp/table
    # A row of the kernel, one of a job that leaves A alone, one of ours, and no cell that failed.
    expect "$(grep -c '^| kernel \|^| O_DIRECT of B \|^| ours ' /tmp/table)" -eq 3 "all rows"
    # An OOM kill in the kernel's row is a finding; in ours it is a failure.
    expect "$(grep -c '^| ours .*failed' /tmp/table || true)" -eq 0 "ours goes through"
done
umount /tmp/files
