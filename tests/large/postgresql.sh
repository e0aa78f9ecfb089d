#!/bin/sh
# PostgreSQL from an empty directory to an orderly end: initdb, a load of one client whose random
# numbers are the same each time, sorts that need memory of their own, a fast shutdown by SIGINT
# from this script. Prints what must be the same wherever it runs.
set -eu
bin=$1
initdb=$bin/initdb
"$initdb" -D data -A trust -U bench --no-sync >initdb.log 2>&1 || { cat initdb.log >&2; exit 1; }
"$bin/postgres" -D data -k "$PWD" -c listen_addresses= -c shared_buffers=32MB -c fsync=off \
    -c max_parallel_workers_per_gather=0 -c autovacuum=off >server.log 2>&1 &
server=$!
export PGHOST="$PWD" PGUSER=bench PGDATABASE=postgres
tries=0
until "$bin/pg_isready" -q; do
    tries=$((tries + 1))
    if [ $tries -gt 600 ] || ! kill -0 $server; then cat server.log >&2; exit 1; fi
    sleep 0.1
done
"$bin/pgbench" -i -q -s 2 >pgbench.log 2>&1
"$bin/pgbench" -c 1 -t 300 --random-seed=7 >>pgbench.log 2>&1
"$bin/pgbench" -c 4 -j 2 -t 100 -S >>pgbench.log 2>&1
sed -n 's/^number of transactions actually processed/processed/p' pgbench.log
"$bin/psql" -At -c "select count(*), sum(abalance) from pgbench_accounts" \
    -c "select count(*), sum(delta) from pgbench_history" \
    -c "set work_mem = '128MB'" \
    -c "select md5(string_agg(v, ',' order by v)) from (select md5(i::text) v from generate_series(1, 300000) i) s" \
    -c "select count(*), sum(n) from (select v % 100003, count(*) n from generate_series(1, 600000) v group by 1) s"
kill -INT $server
status=0
wait $server || status=$?
echo "ended with $status"
grep -c 'database system is shut down' server.log
