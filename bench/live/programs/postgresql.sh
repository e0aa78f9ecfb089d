#!/bin/sh
# PostgreSQL with shared buffers, sorts that need memory of their own, and one client at a time, whose
# random numbers are the same each time. Prints what must be the same wherever it runs.
#
#   postgresql.sh make BIN DATA SCALE      makes a database
#   postgresql.sh run BIN DATA SCALE       starts its server, asks, and ends it
set -eu
what=$1 bin=$2 data=$3 scale=$4
export PGHOST="$PWD" PGUSER=bench PGDATABASE=postgres LC_ALL=C
if [ "$what" = make ]; then
    "$bin/initdb" -D "$data" -A trust -U bench --no-sync >initdb.log 2>&1 || { cat initdb.log >&2; exit 1; }
fi
"$bin/postgres" -D "$data" -k "$PWD" -c listen_addresses= -c shared_buffers="$((24 * scale))MB" -c fsync=off \
    -c synchronous_commit=off -c max_parallel_workers_per_gather=0 -c autovacuum=off -c jit=off >server.log 2>&1 &
server=$!
tries=0
until "$bin/pg_isready" -q; do
    tries=$((tries + 1))
    if [ $tries -gt 600 ] || ! kill -0 $server; then cat server.log >&2; exit 1; fi
    sleep 0.05
done
if [ "$what" = make ]; then
    "$bin/pgbench" -i -q -s "$scale" >pgbench.log 2>&1
else
    "$bin/pgbench" -n -c 1 -t "$((800 * scale))" --random-seed=7 >pgbench.log 2>&1
    "$bin/pgbench" -n -c 1 -t "$((4000 * scale))" --random-seed=8 -S -M prepared >>pgbench.log 2>&1
    sed -n 's/^number of transactions actually processed/processed/p' pgbench.log
    "$bin/psql" -At -c "select count(*), sum(abalance) from pgbench_accounts" \
        -c "select count(*), sum(delta) from pgbench_history" \
        -c "set work_mem = '1GB'" \
        -c "select md5(string_agg(v, ',' order by v)) from (select md5(i::text) v from generate_series(1, $((80000 * scale))) i) s" \
        -c "select count(*), sum(n) from (select v % 1000003, count(*) n from generate_series(1, $((150000 * scale))) v group by 1) s"
fi
kill -INT $server
status=0
wait $server || status=$?
echo "ended with $status"
