#!/bin/sh
# MariaDB: an InnoDB table with an index, looked up everywhere and around few places, changed, grouped.
#
#   mariadb.sh make DATA ROWS      makes it
#   mariadb.sh run DATA ROWS       starts a server, asks, and ends it
set -eu
what=$1 data=$2 rows=$3
user=$(id -un)
if [ "$what" = make ]; then
    mariadb-install-db --no-defaults --user="$user" --datadir="$data" --skip-test-db \
        --auth-root-authentication-method=normal >install.log 2>&1 || { cat install.log >&2; exit 1; }
fi
server=$(command -v mariadbd || echo /usr/sbin/mariadbd)
"$server" --no-defaults --user="$user" --datadir="$data" --socket="$PWD/socket" --skip-networking \
    --pid-file="$PWD/pid" --innodb-buffer-pool-size="$((rows / 2))K" --innodb-flush-log-at-trx-commit=0 \
    --innodb-doublewrite=0 --innodb-buffer-pool-dump-at-shutdown=0 --tmp-table-size=256M \
    --max-heap-table-size=256M >server.log 2>&1 &
server=$!
ask() { mariadb --no-defaults --user=root --socket="$PWD/socket" --batch --skip-column-names "$@"; }
tries=0
until ask -e "select 1" >/dev/null 2>&1; do
    tries=$((tries + 1))
    if [ $tries -gt 600 ] || ! kill -0 $server; then cat server.log >&2; exit 1; fi
    sleep 0.05
done
if [ "$what" = make ]; then
    ask -e "create database bench; use bench;
        create table t (id int primary key, k int, name varchar(40), note varchar(200), key by_key (k));
        insert into t select seq, (seq * 7919) % $rows, concat('user-', seq * 2654435761 % 100000000),
            concat('the memory of a machine is not all equally fast: ', hex(seq * 40503), ' and ', seq, md5(seq))
        from seq_1_to_$rows;"
else
    ask bench -e "
        select count(*), sum(length(name)), sum(t.id)
            from seq_1_to_$((rows / 2)) s straight_join t on t.k = (s.seq * 104729) % $rows;
        select count(*), sum(length(note)), sum(t.id)
            from seq_1_to_$rows s straight_join t
            on t.k = (s.seq * 104729) % if(s.seq % 10, $((rows / 10)), $rows);
        update t set note = concat(note, '+') where id % 7 = 0;
        select k % 10 d, count(*), max(note) from t group by d order by d;
        select count(*), max(n) from (select md5(k) m, count(*) n from t group by m) x;"
fi
kill -TERM $server
wait $server
