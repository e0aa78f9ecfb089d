#!/bin/sh
# RocksDB's own benchmark: records in random order are written, read, and read around few places. Of its
# output only what does not depend on time.
#
#   db_bench.sh RECORDS
set -eu
db_bench --db="$PWD/db" --benchmarks=fillrandom,readrandom,readrandom --seed=7 --num="$1" --reads="$1" \
    --value_size=400 --cache_size="$((500 * $1))" --write_buffer_size="$((100 * $1))" --compression_type=lz4 \
    --bloom_bits=10 --disable_wal=1 --threads=1 >output.log 2>&1 || { cat output.log >&2; exit 1; }
# Each of the reads with what it found.
grep -o '([0-9]* of [0-9]* found)' output.log
rm -r db
