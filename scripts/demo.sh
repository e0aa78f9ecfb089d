#!/usr/bin/env bash
# The demonstration: redis-server is filled with a data set, queried by
# redis-benchmark and read back whole; first unmanaged, then under `terrace run`
# with a quarter of the memory that it had. The data must be the same.
#
#   scripts/demo.sh [TERRACE]        DEMO_KEYS=200000 changes the size
set -euo pipefail

shown=${1:-target/release/terrace}
terrace=$(realpath "$shown")
keys=${DEMO_KEYS:-150000}
queries=${DEMO_QUERIES:-100000}

scratch=$(mktemp -d)
server=
cleanup() {
    if [ -n "$server" ] && kill -0 "$server" 2>/dev/null; then
        kill "$server"
        wait "$server" || true
    fi
    rm -rf "$scratch"
}
trap cleanup EXIT
cd "$scratch"

# The data: values of 200 to 1800 bytes, text that repeats as real records do,
# one in four hardly compressible. Redis' own protocol, so that it can be piped.
make_data() {
    LC_ALL=C awk -v keys="$keys" '
        function set(key, value) {
            printf "*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n", \
                length(key), key, length(value), value
        }
        BEGIN {
            srand(42)
            for (i = 0; i < keys; i++) {
                value = sprintf("{\"id\": %d, \"owner\": \"user-%d\"", i, rand() * 100000)
                fields = 3 + int(rand() * 25)
                for (f = 0; f < fields; f++)
                    value = value sprintf(", \"field-%d\": \"%x%x%x\"", f, \
                        rand() * 268435456, rand() * 268435456, \
                        i % 4 ? f : rand() * 268435456)
                set(sprintf("key:%012d", i), value "}")
            }
        }'
}
make_reads() {
    LC_ALL=C awk -v keys="$keys" 'BEGIN { for (i = 0; i < keys; i++) printf "GET key:%012d\n", i }'
}

cli() { redis-cli -s "$scratch/socket" "$@"; }
now() { date +%s%N; }
seconds() { awk -v from="$1" -v to="$2" 'BEGIN { printf "%.2f", (to - from) / 1e9 }'; }

# One run: run NAME COMMAND-PREFIX... ; leaves its figures in NAME_* variables.
run() {
    local name=$1 began after line
    shift
    "$@" redis-server --port 0 --unixsocket "$scratch/socket" --save "" --appendonly no \
        --daemonize no >"$name.log" 2>&1 &
    server=$!
    for _ in $(seq 500); do
        if [ "$(cli ping 2>/dev/null)" = PONG ]; then break; fi
        if ! kill -0 "$server" 2>/dev/null; then
            cat "$name.log" >&2
            server=
            return 1
        fi
        sleep 0.02
    done

    began=$(now)
    cli --pipe <data >fill.out
    grep -q 'errors: 0' fill.out || { cat fill.out >&2; return 1; }
    after=$(now)
    printf -v "${name}_fill" %s "$(seconds "$began" "$after")"
    echo "  filled with $keys keys in $(seconds "$began" "$after") s"

    began=$(now)
    line=$(redis-benchmark -s "$scratch/socket" -q -t get -n "$queries" -r "$keys" -P 8 \
        | tr '\r' '\n' | grep -o 'GET: .*' | tail -n 1)
    after=$(now)
    printf -v "${name}_query" %s "$(seconds "$began" "$after")"
    echo "  queried $queries times at random: $line"

    began=$(now)
    printf -v "${name}_sum" %s "$(cli <reads | sha256sum | cut -d ' ' -f 1)"
    after=$(now)
    printf -v "${name}_read" %s "$(seconds "$began" "$after")"
    echo "  read back whole in $(seconds "$began" "$after") s"

    # Asked of the server itself: under Terrace the process we started is another.
    printf -v "${name}_pid" %s "$(cli info server | tr -d '\r' | sed -n 's/^process_id://p')"
    local pid_variable=${name}_pid
    printf -v "${name}_peak" %s "$(awk '/^VmHWM:/ { print $2 }' "/proc/${!pid_variable}/status")"
    cli shutdown nosave >/dev/null 2>&1 || true
    wait "$server"
    server=
}

echo "making the data set"
make_data >data
make_reads >reads

echo "redis-server, unmanaged"
plain_peak=0 plain_sum='' plain_fill=0 plain_query=0 plain_read=0
run plain
budget=$((plain_peak / 4))

echo "redis-server under terrace run --fast ${budget}KiB (a quarter of $((plain_peak / 1024)) MiB)"
managed_peak=0 managed_sum='' managed_fill=0 managed_query=0 managed_read=0
# What is measured below is memory that Terrace compresses itself, whatever swap is on.
run managed "$terrace" run --engine pager --fast "${budget}KiB" --report report.txt --

echo
printf '%-22s %14s %14s\n' '' unmanaged managed
printf '%-22s %14s %14s\n' 'DRAM for its data' "$((plain_peak / 1024)) MiB" "$((budget / 1024)) MiB"
printf '%-22s %14s %14s\n' 'peak RSS, store too' "$((plain_peak / 1024)) MiB" "$((managed_peak / 1024)) MiB"
printf '%-22s %12s s %12s s\n' 'fill' "$plain_fill" "$managed_fill"
printf '%-22s %12s s %12s s\n' 'random queries' "$plain_query" "$managed_query"
printf '%-22s %12s s %12s s\n' 'read back whole' "$plain_read" "$managed_read"
printf '%-22s %14s %14s\n' 'sha256 of every value' "${plain_sum:0:12}" "${managed_sum:0:12}"
echo
cat report.txt
echo
if [ "$plain_sum" != "$managed_sum" ]; then
    echo "THE RESULTS DIFFER." >&2
    exit 1
fi
times() { awk -v a="$1" -v b="$2" 'BEGIN { if (b > 0) printf "%.1f times as long", a / b; else print "an unknown time" }'; }
cat <<END
What was shown
  One redis-server, not changed and not recompiled, ran twice with the same data: with all of
  its $((plain_peak / 1024)) MiB in DRAM, and with $((budget / 1024)) MiB of them there. The other pages lay compressed in
  RAM. Compressed pages come on top of the budget: peak RSS includes them.

What it means
  The contents of every value are identical. Random queries took $(times "$managed_query" "$plain_query") as
  in DRAM (other work on this machine shows in both). That is a hard case: every key is as likely
  as any other, so no page is worth keeping. A program that uses a part of its memory most of the
  time pays less. The report above says where the time went; docs/glossary.md has its words.

What to try next
  $shown doctor                                  what this machine supports
  $shown run --fast 64MiB -- YOUR PROGRAM        your own program, and its slowdown
  $shown run --fast 64MiB --record run.terrace -- YOUR PROGRAM
  $shown report run.terrace -o run.html          the run as an HTML page
  $shown sim --policy memtis                     a machine with Optane, simulated
  docs/getting-started.md goes on from here.
END
