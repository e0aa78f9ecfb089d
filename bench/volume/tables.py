#!/usr/bin/env python3
"""The tables of this directory's README, from one run:

    terrace volume bench --like-dax --peers --served --depth 1,4,16 --json /dev/shm | bench/volume/tables.py
"""

import json
import sys

KIB = {512: "512 B", 4096: "4 KiB"}
WAYS = {"write": "written", "read": "read"}


def spread(value, times, digits):
    """`2649 (2626 to 2809)`."""
    median, low, high = (f"{value[key] * times:.{digits}f}" for key in ("median", "low", "high"))
    return f"{median} ({low} to {high})"


def table(head, lines):
    print("| " + " | ".join(head) + " |")
    print("|---" * len(head) + "|")
    for line in lines:
        print("| " + " | ".join(line) + " |")
    print()


def names(rows):
    """What was measured, in the order of the run."""
    return list(dict.fromkeys(row["target"] for row in rows))


def main():
    document = json.load(sys.stdin)
    sections = {section["sector"]: section for section in document["library"]}
    every = [row for section in sections.values() for row in section["rows"]]

    def find(sector, way, target, threads=1):
        rows = sections.get(sector, {"rows": []})["rows"]
        same = (
            row
            for row in rows
            if row["target"] == target
            and row["job"]["way"] == way
            and row["job"]["threads"] == threads
        )
        return next(same, None)

    def cell(row, show):
        return show(row) if row else "-"

    columns = [(sector, way) for sector in (4096, 512) if sector in sections for way in WAYS]
    heads = [f"{KIB[sector]} {WAYS[way]}" for sector, way in columns]

    print("One thread; thousands a second of a processor's time, the least and the largest of the turns:\n")
    show = lambda row: spread(row["per_second"], 1e-3, 0)
    lines = [
        [name] + [cell(find(*column, name), show) for column in columns] for name in names(every)
    ]
    table([""] + heads, lines)

    def ratio(sector, way, ours, peer):
        rows = find(sector, way, ours), find(sector, way, peer)
        if None in rows or not rows[1]["per_second"]["median"]:
            return None
        return rows[0]["per_second"]["median"] / rows[1]["per_second"]["median"]

    durable, flush, block = "volume, durable on return", "volume, durable at flush", "libpmemblk"
    aims = [
        ("durable on return, of libpmemblk", "write", durable, block, {4096: 1.6, 512: 1.6}),
        ("durable at flush, of libpmemblk", "write", flush, block, {4096: 2.0, 512: 2.5}),
        ("durable at flush, of a non-temporal copy", "write", flush, "non-temporal copy", {4096: 0.8}),
        ("read, of libpmemblk", "read", flush, block, {4096: 0.85, 512: 2.0}),
    ]
    lines = []
    for what, way, ours, peer, least in aims:
        for sector, aim in least.items():
            found = ratio(sector, way, ours, peer)
            if found is not None:
                holds = "holds" if found >= aim else "**missed**"
                lines.append([f"{what}, {KIB[sector]}", f"{aim}", f"{found:.2f}", holds])
    for sector, section in sections.items():
        mount = section["mount_ns_per_sector"]
        if mount:
            holds = "holds" if mount["median"] <= 5 else "**missed**"
            what = f"mount, ns a sector of {KIB[sector]}"
            lines.append([what, "5", spread(mount, 1, 1), holds])
    served = document.get("served") or {"rows": []}
    at_once = [row for row in served["rows"] if row["job"]["depth"] == 1 and row["p50_us"]]
    for way in WAYS:
        times = {row["target"]: row["p50_us"] for row in at_once if row["job"]["way"] == way}
        kit = times.get("nbdkit memory")
        for name, aim, what in (
            ("volume over NBD", 0.75, "p50 over NBD, of nbdkit's"),
            ("volume as FUSE file", 20, "p50 of the FUSE file, µs"),
        ):
            if name not in times or (aim < 1 and not kit):
                continue
            found = times[name]["median"] / (kit["median"] if aim < 1 else 1)
            shown = f"{found:.2f}" if aim < 1 else spread(times[name], 1, 1)
            holds = "holds" if found <= aim else "**missed**"
            lines.append([f"{what}, {WAYS[way]}", f"{aim}", shown, holds])
    table(["", "aim", "is", ""], lines)

    most = max((row["job"]["threads"] for row in every), default=1)
    if most > 1:
        print(f"{most} threads by the clock: thousands a second of both together, and how many times one thread's:\n")

        def scaled(sector, way, name):
            rows = find(sector, way, name, most), find(sector, way, name)
            if None in rows:
                return "-"
            both, one = (row["per_second_by_clock"] for row in rows)
            return f"{spread(both, 1e-3, 0)}, {both['median'] / one['median']:.2f}"

        lines = [[name] + [scaled(*column, name) for column in columns] for name in names(every)]
        table([""] + heads, lines)

    rows = served["rows"]
    if rows:
        for depth in sorted({row["job"]["depth"] for row in rows}):
            print(f"Servers, depth {depth}: p50 in µs, and of nbdkit's; thousands of requests a second:\n")

            def one(name, way):
                same = [
                    row
                    for row in rows
                    if row["job"]["depth"] == depth and row["job"]["way"] == way
                ]
                row = next((row for row in same if row["target"] == name), None)
                kit = next((row for row in same if "nbdkit" in row["target"]), None)
                if not row or not row["p50_us"]:
                    return ["-", "-", "-"]
                of = f"{row['p50_us']['median'] / kit['p50_us']['median']:.2f}" if kit else "-"
                return [spread(row["p50_us"], 1, 1), of, spread(row["per_second"], 1e-3, 1)]

            taken = [row for row in rows if row["job"]["depth"] == depth]
            lines = [[name] + one(name, "write") + one(name, "read") for name in names(taken)]
            table(["", "written", "of nbdkit", "thousands/s", "read", "of nbdkit", "thousands/s"], lines)


if __name__ == "__main__":
    main()
