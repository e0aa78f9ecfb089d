"""The table of `engines.sh`: medians by threads and hot set."""

import json
import statistics
import sys

UNITS = {"MiB": 1 << 20, "GiB": 1 << 30}


def size(text):
    """Bytes of `512MiB`."""
    return int(text[:-3]) * UNITS[text[-3:]]


def spread(values, digits):
    """`0.61 (0.58-0.64)`: the median with the least and the most; one value alone."""
    middle = f"{statistics.median(values):.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def main(pager, kernel):
    points = {}

    def add(threads, hot, system, run):
        points.setdefault((threads, hot), {}).setdefault(system, []).append(run)

    for line in lines(pager):
        for system, name in (("kernel", "zram"), ("terrace", "pager")):
            add(line["threads"], line["hot_bytes"], name, line[system]["gups"])
    peaks = {}
    for line in lines(kernel):
        at = (line["threads"], size(line["hot"]))
        add(*at, "kernel", line["gups"])
        peaks.setdefault(at, []).append(line["report"])

    print(
        "GUPS, 4 GiB in 1 GiB, medians with the least and the most of all rounds: million updates a "
        "second, and the 99.9th percentile of an update in us; of the kernel engine also the most "
        "resident as a share of the budget, and its own processor time"
    )
    print(
        f"{'threads':<8} {'hot':<9} {'zram alone':>36} {'pager':>36} {'kernel engine':>36} "
        f"{'peak':>7} {'own':>6}"
    )
    for (threads, hot), systems in sorted(points.items()):
        cells = []
        for system in ("zram", "pager", "kernel"):
            runs = systems.get(system, [])
            rates = spread([run["updates_per_second"] / 1e6 for run in runs], 2)
            tails = spread([run["p999_ns"] / 1e3 for run in runs], 0)
            cells.append(f"{rates:>17} {tails:>18}")
        reports = peaks[threads, hot]
        peak = max(r["resident_peak"] / r["budget"] for r in reports)
        own = statistics.median(r["own_cpu"] / r["elapsed"] for r in reports)
        print(
            f"{threads:<8} {hot >> 20:>5} MiB {cells[0]:>36} {cells[1]:>36} {cells[2]:>36} "
            f"{peak * 100:6.1f}% {own * 100:5.0f}%"
        )


main(*sys.argv[1:])
