#!/usr/bin/env python3
"""The table of tails.sh: medians over the runs of each row, and all touches by powers of two.

tails.py ROWS, a line for each run: the row's name, and the two lines of tails.c, between bars.
"""

import collections
import statistics
import sys


def main(path):
    runs = collections.defaultdict(list)
    for line in open(path, encoding="utf-8"):
        name, figures, histogram = line.rstrip("\n").split("|")
        runs[name].append(([float(one) for one in figures.split()], histogram))
    heads = ("p50", "p99", "p99.9", "least to greatest", "p99.99", "greatest", "touches s", "updates s")
    print(f"{'first touches, µs':<22}" + "".join(f"{head:>{len(head) + 5}}" for head in heads))
    for name, all_of_it in runs.items():
        columns = list(zip(*(figures for figures, _ in all_of_it)))
        p50, p99, p999, p9999, most = (statistics.median(one) / 1000 for one in columns[1:6])
        touches, updates = (statistics.median(one) for one in columns[6:8])
        spread = f"{min(columns[3]) / 1000:.1f}-{max(columns[3]) / 1000:.1f}"
        cells = (
            f"{p50:.1f}", f"{p99:.1f}", f"{p999:.1f}", spread, f"{p9999:.1f}", f"{most:.1f}",
            f"{touches:.3f}", f"{updates:.3f}",
        )
        print(f"{name:<22}" + "".join(f"{one:>{len(head) + 5}}" for one, head in zip(cells, heads)))
        touched = collections.Counter()
        for _, histogram in all_of_it:
            for pair in histogram.split():
                least, count = pair.split(":")
                touched[int(least)] += int(count)
        print("    " + " ".join(f"{least}:{count}" for least, count in sorted(touched.items())))


main(sys.argv[1])
