"""Requests as YCSB's workload A makes them, to Cassandra: half reads, half updates, keys by its
zipfian distribution (0.99), values of 1000 B, from several threads.

    ycsb.py PORT THREADS KEYS OPERATIONS

First all keys are written once. For bench/kloc/record.sh; needs cassandra-driver of PyPI.
"""

import bisect
import itertools
import random
import sys
import threading
import time

from cassandra.cluster import Cluster
from cassandra.io.asyncioreactor import AsyncioConnection

PORT, THREADS, KEYS, OPERATIONS = (int(word) for word in sys.argv[1:5])
VALUE = 1000
ZIPFIAN = 0.99


def connected():
    """Its port is open before it answers."""
    for attempt in itertools.count():
        cluster = Cluster(["127.0.0.1"], port=PORT, connection_class=AsyncioConnection)
        try:
            return cluster, cluster.connect()
        except Exception:
            cluster.shutdown()
            if attempt == 30:
                raise
            time.sleep(1)


def value(source):
    return source.randbytes(VALUE)


def main():
    cluster, session = connected()
    session.default_timeout = 60
    session.execute(
        "CREATE KEYSPACE ycsb WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
    )
    # Random values cannot be compressed. Rows are kept in the row cache.
    session.execute(
        "CREATE TABLE ycsb.usertable (id text PRIMARY KEY, field blob) WITH "
        "compression = {'enabled': 'false'} AND "
        "caching = {'keys': 'ALL', 'rows_per_partition': 'ALL'}"
    )
    write = session.prepare("INSERT INTO ycsb.usertable (id, field) VALUES (?, ?)")
    read = session.prepare("SELECT field FROM ycsb.usertable WHERE id = ?")
    weights = itertools.accumulate(1 / rank**ZIPFIAN for rank in range(1, KEYS + 1))
    sums = list(weights)
    # Which key has which rank is chance, as in YCSB.
    keys = [f"user{number}" for number in range(KEYS)]
    random.Random(1).shuffle(keys)
    failures = []

    def work(number):
        source = random.Random(number)
        try:
            for key in keys[number::THREADS]:
                session.execute(write, (key, value(source)))
            loaded.wait()
            for _ in range(OPERATIONS // THREADS):
                key = keys[bisect.bisect_left(sums, source.random() * sums[-1])]
                if source.random() < 0.5:
                    session.execute(read, (key,))
                else:
                    session.execute(write, (key, value(source)))
        except Exception as error:
            failures.append(error)
            loaded.abort()

    loaded = threading.Barrier(THREADS)
    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cluster.shutdown()
    if failures:
        sys.exit(f"ycsb.py: {failures[0]!r}")


main()
