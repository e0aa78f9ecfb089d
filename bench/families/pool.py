#!/usr/bin/env python3
"""A pool of four workers that read and rewrite what they have from their parent (each object's count
of references is in it), and make as much again of their own. For decision 0013.
Usage: pool.py; terrace run --engine pager --fast 100MiB -- python3 pool.py"""
import hashlib
import multiprocessing
import random

OBJECTS, OWN = 250_000, 60_000
inherited = {i: str(i) * 3 for i in range(OBJECTS)}


def work(seed):
    choose = random.Random(seed)
    own = [hashlib.md5(f"({seed}, {i})".encode()).hexdigest() for i in range(OWN)]
    length = 0
    for _ in range(OWN):
        i = choose.randrange(OBJECTS)
        assert inherited[i] == str(i) * 3
        length += len(own[i % OWN])
    return length


if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    with multiprocessing.Pool(4) as pool:
        print(sum(pool.map(work, range(12))))
