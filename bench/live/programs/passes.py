#!/usr/bin/env python3
"""Passes over an array of 8-byte numbers: sums, a change in place, look-ups in a
part of it and everywhere. By numpy, or by the standard library's array.
Usage: passes.py numpy|array COUNT"""
import random, sys

count = int(sys.argv[2])
random.seed(1)
if sys.argv[1] == "numpy":
    import numpy

    x = numpy.arange(count, dtype=numpy.int64) * 7919 % 1000003
    for i in range(6):
        print(int(x.sum()), int(x[:: 512].max()))
        x += i
        hot = numpy.random.default_rng(i).integers(0, count // 10, 2_000_000)
        all = numpy.random.default_rng(i).integers(0, count, 200_000)
        print(int(x[hot].sum()), int(x[all].sum()))
else:
    from array import array

    piece = array("q", (i * 7919 % 1000003 for i in range(250_000)))
    x = array("q")
    for start in range(0, count, len(piece)):
        x.extend(piece)
        x[start] = start
    for i in range(3):
        print(sum(x), max(x[::512]))
        for start in range(0, count, len(piece)):
            x[start] += i
        print(sum(x[random.randrange(count // 10)] for _ in range(1_000_000)))
        print(sum(x[random.randrange(count)] for _ in range(30_000)))
