#!/usr/bin/env bash
# Records what the five programs of KLOCs' Table 3 ask the kernel for, so that `terrace reproduce klocs`
# replays it in place of calls that are made up. For root, with tracefs, in a directory on ext4.
#
#   bench/kloc/record.sh TERRACE DIRECTORY
#
#   ONLY="a b"    record these: rocksdb redis filebench cassandra spark
#
# RocksDB's db_bench, Redis with its own benchmark as clients, fio for Filebench, Cassandra (of Maven
# Central) with a client of ours that makes YCSB's requests, TeraSort in Spark (of PyPI). What is not
# there is named and left out (scripts/setup.sh bench-kloc-record installs all): its calls stay made up.
# A recording that is there already is kept as it is.
set -euo pipefail

# How much each does. The paper's programs have 40 GB of data on machines with 16 threads for them. A
# replay takes its scale from the recording, so these numbers may be any; a recording of a million
# calls takes about a minute to make, and some to replay.
LIMIT=${LIMIT:-2000000}                                # calls of a recording at most
THREADS=${THREADS:-16}                                 # of Table 3
ROCKSDB_KEYS=${ROCKSDB_KEYS:-100000}                   # of 4000 B, as in io-programs.toml
ROCKSDB_OPERATIONS=${ROCKSDB_OPERATIONS:-5000}         # of each thread
ROCKSDB_TABLE=${ROCKSDB_TABLE:-$((1 << 20))}           # bytes; the paper has hundreds of 4 MB
REDIS_INSTANCES=${REDIS_INSTANCES:-4}
REDIS_KEYS=${REDIS_KEYS:-5000}                         # of 3500 B, of each instance
REDIS_ROUNDS=${REDIS_ROUNDS:-6}                        # of half as many sets, each with a checkpoint
REDIS_PORT=${REDIS_PORT:-17379}                        # and those after it
FIO_FILE_MIB=${FIO_FILE_MIB:-16}                       # of each thread
FIO_READS=${FIO_READS:-16000}                          # of each thread
CASSANDRA_KEYS=${CASSANDRA_KEYS:-40000}                # of 1000 B
CASSANDRA_OPERATIONS=${CASSANDRA_OPERATIONS:-60000}
CASSANDRA_PORT=${CASSANDRA_PORT:-17042}                # and the one before it, among nodes
SPARK_MIB=${SPARK_MIB:-64}                             # that are sorted

terrace=$(realpath "${1:?usage: record.sh TERRACE DIRECTORY}")
mkdir -p "${2:?usage: record.sh TERRACE DIRECTORY}"
directory=$(realpath "$2")
here=$(cd "$(dirname "$0")" && pwd)
fetched=$(realpath -m "${CARGO_TARGET_DIR:-$here/../../target}")
# Where scripts/setup.sh puts what is in no package of Debian's.
spark=${SPARK_PYTHON:-$fetched/kloc-spark/bin/python}
client=${CLIENT_PYTHON:-$fetched/kloc-client/bin/python}
cassandra=${CASSANDRA:-$fetched/kloc-cassandra}
export LC_ALL=C

fail() {
    echo "record.sh: $1" >&2
    exit 1
}
[ "$(id -u)" = 0 ] || fail "the kernel's tracepoints are for root"
grep -q ' tracefs ' /proc/self/mounts \
    || fail "tracefs is not mounted (mount -t tracefs nodev /sys/kernel/tracing)"
# Only ext4 tells which file is made or deleted.
[ "$(stat -f -c %T "$directory")" = ext2/ext3 ] || fail "$directory is not on ext4"

work=$(mktemp -d "$directory/recording.XXXXXX")
recorder=
clients=
# The recorded program is a process group of its own; this file has its number while it runs.
group=$work/group
clean() {
    [ -z "$clients" ] || kill "$clients" 2>/dev/null || true
    [ ! -s "$group" ] || kill -- -"$(cat "$group")" 2>/dev/null || true
    [ -z "$recorder" ] || kill "$recorder" 2>/dev/null || true
    wait
    rm -rf "$work"
}
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

options=()
failed=
# wanted NAME PROGRAM...: whether to record it; if so, its data have a directory, $data.
wanted() {
    local name=$1 program
    shift
    case " ${ONLY:-$name} " in
    *" $name "*) ;;
    *) return 1 ;;
    esac
    if [ -e "$directory/$name.calls" ]; then
        echo "$name: $directory/$name.calls is there and is kept" >&2
        return 1
    fi
    for program in "$@"; do
        if ! command -v "$program" >/dev/null; then
            echo "$name: NOT RECORDED, $program is not there: its calls stay made up" >&2
            return 1
        fi
    done
    data=$work/$name
    mkdir "$data"
}

# begin NAME <SCRIPT: runs a script under the recorder. The recorder reads what the kernel writes down
# as fast as it can. The program comes after it (nice), or it would fall behind and events be lost.
begin() {
    local name=$1
    {
        echo "[ \"\${1:-}\" = again ] || exec setsid --wait nice -n 19 bash '$work/$name.sh' again"
        echo "echo \$\$ >'$group'"
        cat
    } >"$work/$name.sh"
    "$terrace" record --calls --limit "$LIMIT" -o "$work/$name.calls" -- \
        bash "$work/$name.sh" </dev/null >"$work/$name.out" 2>"$work/$name.err" &
    recorder=$!
}

# finish NAME WHAT: waits for its end. WHAT says how large it is.
finish() {
    local name=$1 what=$2 status=0
    wait "$recorder" || status=$?
    recorder=
    rm -f "$group"
    if [ "$status" -eq 0 ]; then
        mv "$work/$name.calls" "$directory/$name.calls"
        echo "$name: $what" >&2
        grep -E '^(calls|threads|files|sockets|recording) |warning|lost|not recorded' \
            "$work/$name.err" | sed 's/^/  /' >&2 || true
    else
        tail -n 5 "$work/$name.out" "$work/$name.err" >&2
        echo "$name: NOT RECORDED, it failed ($status): its calls stay made up" >&2
        failed=1
    fi
    rm -rf "$data"
}

# patiently SECONDS COMMAND...: until it succeeds, or the recorded program has ended.
patiently() {
    local tries=$(($1 * 5))
    shift
    until "$@" >/dev/null 2>&1; do
        tries=$((tries - 1))
        if [ "$tries" -le 0 ] || ! kill -0 "$recorder" 2>/dev/null; then return 1; fi
        sleep 0.2
    done
}

# --- RocksDB: half reads, half writes ---------------------------------------------------------------
# Its buffers are as much smaller as its data are: 64 MiB of 40 GB, 8 MiB of block cache. A tenth of
# the tables are open, as LevelDB's 1000 of 10 000. db_bench fills the tables in order first.
if wanted rocksdb db_bench; then
    bytes=$((ROCKSDB_KEYS * 4000))
    scale=$((40000000000 / bytes))
    begin rocksdb <<SCRIPT
set -e
common=(--db="$data" --num=$ROCKSDB_KEYS --value_size=4000 --compression_type=none --seed=1
    --write_buffer_size=$(((64 << 20) / scale)) --cache_size=$(((8 << 20) / scale))
    --target_file_size_base=$ROCKSDB_TABLE --max_bytes_for_level_base=$((4 * ROCKSDB_TABLE))
    --open_files=$((bytes / ROCKSDB_TABLE / 10)) --max_background_jobs=2)
db_bench "\${common[@]}" --benchmarks=fillseq --threads=1 --disable_wal=1
db_bench "\${common[@]}" --benchmarks=readrandomwriterandom --use_existing_db=1 --threads=$THREADS \
    --reads=$ROCKSDB_OPERATIONS --readwritepercent=50
SCRIPT
    finish rocksdb "$ROCKSDB_KEYS keys, $((bytes >> 20)) MiB, 1:$scale of the paper's 40 GB;\
 $ROCKSDB_OPERATIONS operations of each of $THREADS threads"
fi

# --- Redis: 75 % sets, checkpoints ------------------------------------------------------------------
# The clients are not recorded. Each checkpoint has a name of its own, and one that is not the last is
# deleted: that another file takes its name no tracepoint tells.
redis_clients() {
    local n round port
    for n in $(seq "$REDIS_INSTANCES"); do
        port=$((REDIS_PORT + n))
        (
            patiently 60 redis-cli -p "$port" ping || exit 0
            # benchmark COMMAND REQUESTS CONNECTIONS
            benchmark() {
                redis-benchmark -p "$port" -t "$1" -n "$2" -c "$3" -r "$REDIS_KEYS" -d 3500 -q
            }
            benchmark set $((2 * REDIS_KEYS)) 4
            for round in $(seq "$REDIS_ROUNDS"); do
                benchmark get $((REDIS_KEYS / 6)) 1 &
                benchmark set $((REDIS_KEYS / 2)) 3
                wait
                redis-cli -p "$port" config set dbfilename "dump-$round.rdb"
                redis-cli -p "$port" bgsave
            done
            # The last one is written.
            while redis-cli -p "$port" info persistence | grep -q 'rdb_bgsave_in_progress:1'; do
                sleep 0.2
            done
            redis-cli -p "$port" shutdown nosave
        ) >/dev/null 2>&1 &
    done
    wait
    touch "$work/redis.over"
}
redis_script() {
    local n
    for n in $(seq "$REDIS_INSTANCES"); do
        mkdir "$data/$n"
        printf '%s\n' "port $((REDIS_PORT + n))" "bind 127.0.0.1" "dir $data/$n" 'save ""' \
            "appendonly no" "rdbcompression no" "loglevel warning" >"$work/redis-$n.conf"
        echo "redis-server '$work/redis-$n.conf' &"
    done
    cat <<SCRIPT
perl -e '
    my \$over = shift;
    until (-e \$over) {
        for my \$place (@ARGV) {
            my @all = sort { (stat \$b)[9] <=> (stat \$a)[9] } glob("\$place/dump-*.rdb");
            unlink @all[1 .. \$#all] if @all > 1;
        }
        select undef, undef, undef, 0.2;
    }' '$work/redis.over' '$data'/*
# What did not end by itself.
kill \$(jobs -p) 2>/dev/null
wait
exit 0
SCRIPT
}
if wanted redis redis-server redis-benchmark redis-cli perl; then
    begin redis < <(redis_script)
    redis_clients &
    clients=$!
    wait "$clients" || true
    clients=
    touch "$work/redis.over"
    bytes=$((REDIS_INSTANCES * REDIS_KEYS * 3500))
    finish redis "$REDIS_INSTANCES instances of $REDIS_KEYS keys, $((bytes >> 20)) MiB,\
 1:$((14000000000 / bytes)) of the paper's 14 GB; $REDIS_ROUNDS checkpoints of each"
fi

# --- Filebench: half sequential, half random --------------------------------------------------------
# fio makes the files in pieces of 1 MiB, and reads them in blocks of 4 KiB.
if wanted filebench fio; then
    begin filebench <<SCRIPT
exec fio --name=filebench --directory="$data" --numjobs=$THREADS --thread --ioengine=psync \
    --rw=randread --percentage_random=50 --bs=4k,1m --size=${FIO_FILE_MIB}m \
    --io_size=$((FIO_READS * 4))k --norandommap --randrepeat=1 --invalidate=0 --fallocate=none \
    --unlink=1 --output-format=terse
SCRIPT
    bytes=$((THREADS * FIO_FILE_MIB << 20))
    finish filebench "$THREADS files of $FIO_FILE_MIB MiB, 1:$((40000000000 / bytes)) of the paper's\
 40 GB; $FIO_READS reads of each thread"
fi

# --- Cassandra: half reads, half writes, by YCSB's distribution -------------------------------------
# The memtable and the row cache are as much smaller as the data are (io-programs.toml: 256 MiB and
# 512 MB of 40 GB), but at least what Cassandra takes. Files are read and written by calls, not by
# mappings, of which tracepoints tell faults alone.
cassandra_configuration() {
    local place=$1
    mkdir -p "$place"
    cat >"$place/cassandra.yaml" <<YAML
cluster_name: recorded
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
endpoint_snitch: SimpleSnitch
seed_provider:
  - class_name: org.apache.cassandra.locator.SimpleSeedProvider
    parameters:
      - seeds: "127.0.0.1:$((CASSANDRA_PORT - 1))"
listen_address: 127.0.0.1
rpc_address: 127.0.0.1
storage_port: $((CASSANDRA_PORT - 1))
native_transport_port: $CASSANDRA_PORT
start_native_transport: true
num_tokens: 1
data_file_directories: ["$data/data"]
commitlog_directory: $data/commitlog
hints_directory: $data/hints
saved_caches_directory: $data/saved_caches
cdc_raw_directory: $data/cdc_raw
commitlog_sync: periodic
commitlog_sync_period: 1000ms
commitlog_segment_size: 4MiB
commitlog_total_space: 64MiB
commitlog_compression:
  - class_name: LZ4Compressor
disk_access_mode: standard
memtable_heap_space: 16MiB
memtable_offheap_space: 16MiB
row_cache_size: 8MiB
key_cache_size: 1MiB
file_cache_size: 32MiB
concurrent_reads: $THREADS
concurrent_writes: $THREADS
YAML
    cat >"$place/logback.xml" <<XML
<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%level %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="out"/></root>
</configuration>
XML
    # What Cassandra uses of the JDK's own packages.
    local one
    for one in java.base/jdk.internal.misc java.management.rmi/com.sun.jmx.remote.internal.rmi \
        java.rmi/sun.rmi.registry java.rmi/sun.rmi.server java.sql/java.sql java.base/java.lang.ref \
        jdk.unsupported/sun.misc jdk.compiler/com.sun.tools.javac.file jdk.attach/sun.tools.attach; do
        echo "--add-exports=$one=ALL-UNNAMED"
    done >"$place/options"
    for one in java.base/java.lang.module java.base/jdk.internal.loader java.base/jdk.internal.ref \
        java.base/jdk.internal.reflect java.base/jdk.internal.math java.base/jdk.internal.module \
        java.base/jdk.internal.util.jar jdk.management/com.sun.management.internal \
        java.base/sun.nio.ch java.base/java.io java.base/java.lang.reflect java.base/java.lang \
        java.base/java.util java.base/java.nio jdk.compiler/com.sun.tools.javac; do
        echo "--add-opens=$one=ALL-UNNAMED"
    done >>"$place/options"
    printf '%s\n' -Xms512M -Xmx512M -Xss512k -XX:+UseG1GC -XX:-UsePerfData \
        -Djdk.attach.allowAttachSelf=true -Djava.net.preferIPv4Stack=true \
        -Dio.netty.tryReflectionSetAccessible=true "-Djava.io.tmpdir=$place" \
        "-Dlogback.configurationFile=$place/logback.xml" \
        "-Dcassandra.config=file://$place/cassandra.yaml" "-Dcassandra.storagedir=$data" \
        "-Dcassandra.logdir=$place" -Dcassandra-foreground=yes -Dcassandra.ring_delay_ms=0 \
        -Dcassandra.skip_wait_for_gossip_to_settle=0 -Dcassandra.superuser_setup_delay_ms=0 \
        >>"$place/options"
    for one in "$cassandra"/jars/jamm-*.jar; do
        [ ! -e "$one" ] || echo "-javaagent:$one" >>"$place/options"
    done
}
cassandra_clients() {
    # It takes some 20 s to begin, and longer where each of its calls is written down.
    patiently 300 bash -c "exec 3<>/dev/tcp/127.0.0.1/$CASSANDRA_PORT" || return 1
    "$client" "$here/ycsb.py" "$CASSANDRA_PORT" "$THREADS" "$CASSANDRA_KEYS" "$CASSANDRA_OPERATIONS"
}
if wanted cassandra java "$client" && {
    compgen -G "$cassandra/jars/cassandra-all-*.jar" >/dev/null || {
        echo "cassandra: NOT RECORDED, $cassandra has no jars: its calls stay made up" >&2
        false
    }
}; then
    cassandra_configuration "$work/cassandra-conf"
    begin cassandra <<SCRIPT
java @"$work/cassandra-conf/options" -cp "$work/cassandra-conf:$cassandra/jars/*" \
    org.apache.cassandra.service.CassandraDaemon &
echo \$! >"$work/cassandra.pid"
# It is told to end by a signal.
wait
[ -e "$work/cassandra.over" ]
SCRIPT
    cassandra_clients >"$work/clients.out" 2>&1 &
    clients=$!
    if wait "$clients"; then
        touch "$work/cassandra.over"
    else
        tail -n 5 "$work/clients.out" >&2
    fi
    clients=
    [ ! -s "$work/cassandra.pid" ] || kill "$(cat "$work/cassandra.pid")" 2>/dev/null || true
    bytes=$((CASSANDRA_KEYS * 1000))
    finish cassandra "$CASSANDRA_KEYS keys, $((bytes >> 20)) MiB, 1:$((40000000000 / bytes)) of the\
 paper's 40 GB; $CASSANDRA_OPERATIONS operations by $THREADS threads"
fi

# --- Spark: TeraSort --------------------------------------------------------------------------------
if wanted spark java "$spark"; then
    begin spark <<<"exec '$spark' '$here/terasort.py' '$data' $THREADS $SPARK_MIB"
    finish spark "$SPARK_MIB MiB are sorted, 1:$((20000000000 / (SPARK_MIB << 20))) of 20 GB, the half of the\
 paper's 40 GB that the made-up form sorts"
fi

for name in rocksdb redis filebench cassandra spark; do
    [ ! -e "$directory/$name.calls" ] || options+=(--trace "$name=$directory/$name.calls")
done
[ "${#options[@]}" -gt 0 ] || fail "there is no recording"
echo "$terrace reproduce klocs ${options[*]}"
[ -z "$failed" ]
