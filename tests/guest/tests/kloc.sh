# shellcheck shell=sh disable=SC1091,SC2016,SC2034,SC2154
# Files on a stock kernel: trampolines see each open and close, a stream leaves a group that is
# short, and where there is a slow node, pages move there. No content changes.
. /tests/lib.sh
. /kloc.sh
load pmem
# The device comes a moment after its modules.
until [ -b /dev/pmem0 ]; do sleep 0.1; done
mkfs.ext4 -q -b 4096 /dev/pmem0
mkdir -p /tmp/files
mount -t ext4 /dev/pmem0 /tmp/files

mkdir -p /sys/fs/cgroup/kloc
echo +memory >/sys/fs/cgroup/cgroup.subtree_control
echo 16M >/sys/fs/cgroup/kloc/memory.max
begin --cgroup kloc
grep -o '"hooks":"[a-z]*"' /tmp/answer
expect "$(grep -c '"hooks":"trampolines"' /tmp/answer)" -eq 1 "trampolines are used"
sh -c 'echo $$ >/sys/fs/cgroup/kloc/cgroup.procs
    for i in 1 2 3 4 5 6 7 8; do
        head -c 3145728 /dev/urandom >/tmp/files/stream$i; sleep 1
    done
    sha256sum /tmp/files/stream* >/tmp/sums'
until_asked 60 '"outcome": "dropped"' why /tmp/files/stream1
cat /tmp/answer
sha256sum -c /tmp/sums
finish
grep -A 14 '"totals"' /tmp/kloc.out
expect "$(reported /tmp/kloc.out lost)" -eq 0 "no event was lost"

# files_on NODE: what pages of files take there, in KiB.
files_on() { sed -n 's/.* FilePages: *\([0-9]*\) kB/\1/p' "/sys/devices/system/node/node$1/meminfo"; }

# The machine is always fuller than that: what is closed moves to node 1, and stays cached.
begin --high 2% --low 1% --device /dev/pmem0
before=$(files_on 1)
sh -c 'head -c 3145728 /dev/urandom >/tmp/files/moved; sha256sum /tmp/files/moved >/tmp/sums'
until_asked 60 '"outcome": "moved"' why /tmp/files/moved
cat /tmp/answer
grep -q '"node": 1' /tmp/answer
expect "$(reported /tmp/answer cached)" -ge 3145728 "it is still cached"
# What is being written moves a moment later.
patience=60
until [ "$(($(files_on 1) - before))" -ge 3072 ]; do
    patience=$((patience - 1))
    [ "$patience" -gt 0 ] || { cat /sys/devices/system/node/node1/meminfo /tmp/kloc.out; exit 1; }
    sleep 1
done
sha256sum -c /tmp/sums
finish
# Who has moved the pages had them mapped for that, and is gone.
expect "$(($(files_on 1) - before))" -ge 3072 "they lie on node 1 without the daemon, too"
sha256sum -c /tmp/sums

# Names in the kernel's cache, and what is asked of the journal, by file. A list opens no file by
# its name, so what it says of a link and of its end comes from the hooks on names.
begin --objects --device /dev/pmem0
echo content >/tmp/files/one
ln /tmp/files/one /tmp/files/two
until_asked 60 '"names": 2' list
rm /tmp/files/two
patience=60
while asked list >/tmp/answer && grep -q '"names": 2' /tmp/answer; do
    patience=$((patience - 1))
    [ "$patience" -gt 0 ] || { cat /tmp/answer /tmp/kloc.out; exit 1; }
    sleep 1
done
asked report >/tmp/report
asked why /tmp/files/one >/tmp/answer
cat /tmp/report /tmp/answer
expect "$(reported /tmp/answer names)" -eq 1 "one name is left"
expect "$(grep -c 'names of the file, as they come and go' /tmp/report)" -eq 1 "names are told"
sync
if grep -q btf_trace_ext4_journal_start_inode /sys/kernel/btf/vmlinux; then
    until_asked 60 '"journal_blocks": [1-9]' why /tmp/files/one
    expect "$(grep -c 'blocks that files asked for' /tmp/report)" -eq 1 "the journal is of files"
else
    expect "$(grep -c 'handles that were started' /tmp/report)" -eq 1 "the journal is the machine's"
    expect "$(grep -c 'no tracepoint ext4_journal_start_inode' /tmp/report)" -eq 1 "it is told why"
fi
finish
umount /tmp/files
