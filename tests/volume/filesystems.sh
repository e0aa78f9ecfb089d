#!/usr/bin/env bash
# File systems on a volume: mkfs, a source tree unpacked, sync, umount, mount, diff -r, databases,
# two volumes on the partitions of one pool, a full disk; and the server killed while a tree is
# unpacked or a database is written, after which the file system mounts again and fsck finds it
# sound. Live, on a FUSE file and a loop device; as root.
#
#   tests/volume/filesystems.sh TERRACE [--short] [ext4 xfs btrfs f2fs … | none]
#
# With `none`, only what follows the file systems: databases, partitions, a full disk.
# TERRACE_TREE is the tree that is unpacked: by default the sources of this repository (--short),
# or /usr/include.
# Exit code 77: this machine lacks what is needed, and it is named.
set -euo pipefail

# What is mounted here is nobody else's business: a program that makes itself a namespace of mounts
# meanwhile would have copies of them, and devices would stay in use after they are unmounted here.
if [ -z "${TERRACE_OWN_MOUNTS-}" ] && unshare --mount true 2>/dev/null; then
    export TERRACE_OWN_MOUNTS=1
    exec unshare --mount --propagation private "$0" "$@"
fi

here=$(cd "$(dirname "$0")" && pwd)
terrace=$(realpath "${1:?usage: filesystems.sh TERRACE [--short] [KIND...]}")
shift
short=
if [ "${1:-}" = --short ]; then
    short=1
    shift
fi
kinds=("$@")
if [ -n "$short" ]; then
    rows=100
    size=96MiB
    delays=(0.05)
    tree=${TERRACE_TREE:-$here/../../crates}
    [ ${#kinds[@]} -gt 0 ] || kinds=(ext4)
else
    rows=500
    size=640MiB
    delays=(0.05 0.2 0.5)
    tree=${TERRACE_TREE:-/usr/include}
    [ ${#kinds[@]} -gt 0 ] || kinds=(ext4 xfs btrfs)
fi
[ "${kinds[*]}" != none ] || kinds=()

lacking() {
    echo "filesystems.sh: NOT TESTED: $1" >&2
    exit 77
}
[ "$(id -u)" = 0 ] || lacking "this is not root"
[ -e /dev/fuse ] || lacking "there is no /dev/fuse"
command -v losetup >/dev/null || lacking "losetup is not installed"
losetup --find >/dev/null 2>&1 || lacking "there is no free loop device"
[ -d "$tree" ] || lacking "$tree is no directory (TERRACE_TREE)"

place=$(mktemp -d /dev/shm/terrace-filesystems.XXXXXX)
# Databases are written by a user of their own.
chmod 755 "$place"
server=
# A second one, of a volume in a volume.
inner=
loop=
mounted=
# Loop devices on partitions, where the kernel reads no partition tables.
parts=()
postgres=

detach() {
    if [ -n "$mounted" ]; then
        umount "$mounted" 2>/dev/null || umount -l "$mounted" 2>/dev/null || true
        mounted=
    fi
    local part
    for part in "${parts[@]}"; do
        losetup --detach "$part" 2>/dev/null || true
    done
    parts=()
    if [ -n "$loop" ]; then
        losetup --detach "$loop" 2>/dev/null || true
        loop=
    fi
}
stop() {
    if [ -n "$postgres" ]; then
        kill_postgres
    fi
    if [ -n "$inner" ]; then
        kill "$inner" 2>/dev/null || true
        wait "$inner" 2>/dev/null || true
        inner=
    fi
    detach
    if [ -n "$server" ]; then
        kill "$server" 2>/dev/null || true
        wait "$server" 2>/dev/null || true
        server=
    fi
    umount -l "$place/disk" 2>/dev/null || true
}
trap 'stop; rm -rf "$place"' EXIT

# Serves the image as $place/disk and attaches a loop device to it.
serve() {
    : >"$place/disk"
    "$terrace" volume serve --fuse "$place/disk" "$1" 2>>"$place/said" &
    server=$!
    for _ in $(seq 1200); do
        [ -s "$place/disk" ] && break
        kill -0 "$server" 2>/dev/null || { cat "$place/said" >&2; exit 1; }
        sleep 0.05
    done
    [ -s "$place/disk" ] || { echo "the volume was not served" >&2; exit 1; }
    loop=$(losetup --find --show --direct-io=on --sector-size 4096 "$place/disk")
}

# Detaches, and ends the server, which must be content.
finish() {
    detach
    kill "$server"
    wait "$server" || { echo "the server failed:" >&2; cat "$place/said" >&2; exit 1; }
    server=
    "$terrace" volume check "$1" >/dev/null
}

# Kills the server, and takes away what it leaves behind.
strike() {
    kill -9 "$server"
    wait "$server" 2>/dev/null || true
    server=
}

attach_fs() {
    mkdir -p "$place/mnt"
    mount "$loop" "$place/mnt"
    mounted=$place/mnt
}

make_fs() {
    case $1 in
        ext4) mkfs.ext4 -q -F "$2" ;;
        xfs) mkfs.xfs -q -f "$2" ;;
        btrfs) mkfs.btrfs -q -f "$2" >/dev/null ;;
        f2fs) mkfs.f2fs -q -f "$2" ;;
        *) echo "$1: no such file system" >&2; exit 2 ;;
    esac
}

check_fs() {
    case $1 in
        ext4) fsck.ext4 -fn "$2" ;;
        xfs) xfs_repair -n "$2" ;;
        btrfs) btrfs check --readonly "$2" ;;
        f2fs) fsck.f2fs --dry-run "$2" ;;
    esac >"$place/fsck" 2>&1 || { echo "fsck of $1:" >&2; cat "$place/fsck" >&2; exit 1; }
}

now() { date +%s.%N; }

tar -C "$tree" -cf "$place/tree.tar" .
# What it is compared with does not change meanwhile.
mkdir "$place/tree"
tar -C "$place/tree" -xf "$place/tree.tar"
tree=$place/tree
for kind in "${kinds[@]}"; do
    command -v "mkfs.$kind" >/dev/null || lacking "mkfs.$kind is not installed"
    grep -qw "$kind" /proc/filesystems || lacking "the kernel has no $kind"
    image=$place/$kind.vol
    "$terrace" volume create --size "$size" "$image" >/dev/null
    serve "$image"
    make_fs "$kind" "$loop"
    attach_fs
    begin=$(now)
    mkdir "$mounted/tree"
    tar -C "$mounted/tree" -xf "$place/tree.tar"
    sync -f "$mounted"
    took=$(awk "BEGIN { printf \"%.2f\", $(now) - $begin }")
    umount "$mounted"
    mounted=
    # Nothing of it is in a cache any more when it is compared.
    finish "$image"
    serve "$image"
    attach_fs
    diff -r --no-dereference "$tree" "$mounted/tree"
    tar -C "$mounted/tree" -cf - . | tar -C "$tree" -df - >/dev/null
    if command -v sqlite3 >/dev/null; then
        {
            echo "pragma journal_mode=wal; pragma synchronous=full;"
            echo "create table t(a integer primary key, b);"
            for i in $(seq $rows); do
                echo "insert into t(b) values(hex(randomblob(500)));"
                [ $((i % 7)) -ne 0 ] || echo "delete from t where a % 5 = $((i % 5));"
            done
        } | sqlite3 "$mounted/data.db" >/dev/null
        [ "$(sqlite3 "$mounted/data.db" 'pragma integrity_check')" = ok ]
    fi
    umount "$mounted"
    mounted=
    check_fs "$kind" "$loop"
    finish "$image"
    echo "$kind: unpacked and synchronised in $took s, the same after a remount, fsck is content"

    # The server is killed while a second tree is unpacked. What had been synchronised is there.
    for delay in "${delays[@]}"; do
        serve "$image"
        attach_fs
        rm -rf "$mounted/again"
        mkdir "$mounted/again"
        sync -f "$mounted"
        (tar -C "$mounted/again" -xf "$place/tree.tar"; sync -f "$mounted") 2>/dev/null &
        unpacking=$!
        sleep "$delay"
        strike
        wait "$unpacking" 2>/dev/null || true
        detach
        umount -l "$place/disk"
        serve "$image"
        # A mount replays the journal; then fsck may only find what is sound.
        attach_fs
        diff -r --no-dereference "$tree" "$mounted/tree"
        umount "$mounted"
        mounted=
        check_fs "$kind" "$loop"
        finish "$image"
        echo "$kind: the server killed after $delay s of unpacking: mounted again, fsck is content"
    done
    rm "$image"
done

# A database with several clients, as `pgbench` has it, and the volume's server killed under it. What
# a client was told is committed must be there: every transfer adds the same amount to an account, a
# teller, a branch and a history, so their sums tell.
pg=$(find /usr/lib/postgresql -maxdepth 2 -name bin 2>/dev/null | sort -V | tail -n 1)
# A disk that fails leaves the database no way to end in good order.
kill_postgres() {
    local all
    mapfile -t all < <(pgrep -P "$postgres" || true)
    kill -9 "$postgres" "${all[@]}" 2>/dev/null || true
    wait "$postgres" 2>/dev/null || true
    postgres=
}
start_postgres() {
    # Not by a function, so that this is the server's own number.
    setpriv --reuid=postgres --regid=postgres --init-groups \
        "$pg/postgres" -D "$mounted/pg" -c listen_addresses= -c unix_socket_directories="$place/pg" \
        -c shared_buffers=32MB >>"$place/postgres.log" 2>&1 &
    postgres=$!
    local i
    for i in $(seq 300); do
        if "$pg/pg_isready" -q -h "$place/pg" -U postgres; then return; fi
        kill -0 "$postgres" 2>/dev/null || break
        sleep 0.1
    done
    tail -n 20 "$place/postgres.log" >&2
    echo "the database did not start (after $i looks)" >&2
    exit 1
}
end_postgres() {
    kill -INT "$postgres"
    wait "$postgres" || true
    postgres=
}
query() { "$pg/psql" -h "$place/pg" -U postgres -Atqc "$1"; }
if [ -n "$short" ]; then
    :
elif [ -z "$pg" ] || ! command -v setpriv >/dev/null; then
    echo "filesystems.sh: NOT TESTED: PostgreSQL on a volume (scripts/setup.sh foreign installs it)" >&2
else
    "$terrace" volume create --size 512MiB "$place/pg.vol" >/dev/null
    mkdir -p "$place/pg"
    chown postgres "$place/pg"
    serve "$place/pg.vol"
    make_fs ext4 "$loop"
    attach_fs
    mkdir "$mounted/pg"
    chown postgres "$mounted/pg"
    chmod 700 "$mounted/pg"
    setpriv --reuid=postgres --regid=postgres --init-groups "$pg/initdb" -D "$mounted/pg" -A trust -U postgres >/dev/null
    start_postgres
    "$pg/pgbench" -h "$place/pg" -U postgres -q -i -s 4 postgres 2>/dev/null
    "$pg/pgbench" -h "$place/pg" -U postgres -T 5 -c 4 -n postgres >"$place/pgbench" 2>&1
    echo "pgbench, 4 clients: $(sed -n 's/^tps = //p' "$place/pgbench") transfers a second"
    for _ in 1 2; do
        "$pg/pgbench" -h "$place/pg" -U postgres -T 20 -c 4 -n -l --log-prefix="$place/pg/log" \
            postgres >/dev/null 2>&1 &
        clients=$!
        sleep 2
        before=$(query 'select count(*) from pgbench_history')
        strike
        wait "$clients" 2>/dev/null || true
        kill_postgres
        detach
        umount -l "$place/disk"
        serve "$place/pg.vol"
        attach_fs
        start_postgres
        after=$(query 'select count(*) from pgbench_history')
        [ "$after" -ge "$before" ] || { echo "$before transfers were seen, $after are left" >&2; exit 1; }
        sums=$(query 'select distinct s from (select sum(abalance) s from pgbench_accounts
            union all select sum(tbalance) from pgbench_tellers
            union all select sum(bbalance) from pgbench_branches
            union all select sum(delta) from pgbench_history) sums')
        [ "$(echo "$sums" | wc -l)" = 1 ] || { echo "the sums differ: $sums" >&2; exit 1; }
        echo "pgbench: the server killed after $before transfers, $after are there, all sums agree"
    done
    end_postgres
    umount "$mounted"
    mounted=
    check_fs ext4 "$loop"
    finish "$place/pg.vol"
    rm "$place/pg.vol"
fi

# Two volumes of one pool, as in the paper's Figure 6: the pool is a block device with partitions,
# each partition holds a volume of its own, and a file system lies on each of these.
if command -v sfdisk >/dev/null; then
    "$terrace" volume create --size 96MiB "$place/outer.vol" >/dev/null
    serve "$place/outer.vol"
    # It asks a kernel for the partitions that may have no notion of them.
    printf 'label: gpt\n,40MiB\n,\n' | sfdisk -q --no-reread --no-tell-kernel "$loop"
    while read -r begin count; do
        parts+=("$(losetup --find --show --direct-io=on --sector-size 4096 \
            --offset $((begin * 4096)) --sizelimit $((count * 4096)) "$loop")")
    done < <(sfdisk --dump "$loop" | sed -n 's/.*start= *\([0-9]*\), size= *\([0-9]*\),.*/\1 \2/p')
    [ "${#parts[@]}" = 2 ] || { echo "there are ${#parts[@]} partitions" >&2; exit 1; }
    number=0
    for part in "${parts[@]:0:2}"; do
        number=$((number + 1))
        "$terrace" volume create "$part" >/dev/null
        # On the inner volume, through a server of its own.
        : >"$place/inner"
        "$terrace" volume serve --fuse "$place/inner" "$part" 2>>"$place/said" &
        inner=$!
        for _ in $(seq 1200); do
            [ -s "$place/inner" ] && break
            sleep 0.05
        done
        inner_loop=$(losetup --find --show --direct-io=on --sector-size 4096 "$place/inner")
        parts+=("$inner_loop")
        mkfs.ext4 -q -F "$inner_loop"
        losetup --detach "$inner_loop"
        kill "$inner"
        wait "$inner" || { cat "$place/said" >&2; exit 1; }
        inner=
        "$terrace" volume dump "$part" "$place/dumped" >/dev/null
        fsck.ext4 -fn "$place/dumped" >/dev/null 2>&1
        rm "$place/dumped"
        "$terrace" volume check "$part" >/dev/null
        "$terrace" volume info --json "$part" | grep '"uuid"' >"$place/uuid.$number"
    done
    if cmp -s "$place/uuid.1" "$place/uuid.2"; then
        echo "both volumes have the same uuid" >&2
        exit 1
    fi
    finish "$place/outer.vol"
    rm "$place/outer.vol"
    echo "two volumes on the partitions of one pool: each holds a file system, fsck is content"
else
    echo "filesystems.sh: NOT TESTED: partitions (sfdisk is not installed: fdisk)" >&2
fi

# A full disk under group commit: an image with holes, on a file system without room for them. The
# client is told, nothing is lost, and when there is room again the same server goes on.
if [ -n "$short" ]; then
    :
elif ! /usr/bin/python3 -c 'import nbd' 2>/dev/null; then
    echo "filesystems.sh: NOT TESTED: a full disk (python3-libnbd is not installed)" >&2
else
    truncate -s 32M "$place/small"
    mkfs.ext4 -q -F -m 0 "$place/small"
    loop=$(losetup --find --show "$place/small")
    attach_fs
    "$terrace" volume create --size 16MiB --durability process-crash-only "$place/whole" >/dev/null
    cp --sparse=always "$place/whole" "$mounted/disk.vol"
    # Something else takes the room, but for some blocks.
    fallocate -l "$(($(stat -f -c '%a * %S' "$mounted") - (2 << 20)))" "$mounted/other"
    "$terrace" volume serve --socket "$place/socket" "$mounted/disk.vol" 2>>"$place/said" &
    server=$!
    for _ in $(seq 1200); do
        [ -S "$place/socket" ] && break
        sleep 0.05
    done
    grep -q 'group-commit' "$place/said"
    /usr/bin/python3 - "$place/socket" "$mounted/other" <<'PYTHON'
import errno, nbd, os, sys
h = nbd.NBD()
h.connect_unix(sys.argv[1])
size = 64 << 10
def content(i): return bytes([i % 250 + 1]) * size
written = []
full = False
for i in range(h.get_size() // size):
    try:
        h.pwrite(content(i), i * size, nbd.CMD_FLAG_FUA)
        written.append(i)
    except nbd.Error as error:
        assert error.errnum in (errno.ENOSPC, errno.EIO), error
        full = True
        break
assert full and written, (full, written)
print(f"a full disk: told after {len(written)} writes of 64 KiB")
for i in written:
    assert h.pread(size, i * size) == content(i), i
os.unlink(sys.argv[2])
i = len(written)
h.pwrite(content(i), i * size, nbd.CMD_FLAG_FUA)
h.shutdown()
PYTHON
    kill "$server"
    wait "$server" || { cat "$place/said" >&2; exit 1; }
    server=
    "$terrace" volume check "$mounted/disk.vol" >/dev/null
    detach
    echo "a full disk: the rest was written when there was room, the volume is sound"
fi
