#!/usr/bin/env python3
"""polars: frames that are made, grouped, joined and sorted. Whole numbers only, of which sums do not
depend on the order. Usage: frames.py ROWS"""
import sys

import polars as pl

rows = int(sys.argv[1])
frame = pl.select(id=pl.int_range(rows, dtype=pl.Int64)).with_columns(
    k=pl.col("id") * 7919 % (rows // 10),
    value=pl.col("id") * 2654435761 % 1000003,
    text=pl.format("user-{}", pl.col("id") * 40503 % 100003),
)
for i in range(3):
    groups = frame.group_by("k").agg(pl.len().alias("n"), pl.col("value").sum().alias("sum"))
    print(groups.height)
    print(groups.select(pl.col("sum").max(), (pl.col("sum") * pl.col("k") % 9973).sum().alias("mixed")).row(0))
    joined = frame.join(groups, on="k").filter(pl.col("value") % 7 == i)
    print(joined.height, joined.select((pl.col("sum") - pl.col("value")).sum()).item())
    texts = frame.group_by("text").agg(pl.len().alias("n")).sort("n", "text", descending=True)
    print(texts.row(0), texts.row(-1))
    ordered = frame.sort("value", "id")
    print(ordered.row(0), ordered.row(rows // 2), ordered.row(-1))
    frame = frame.with_columns(value=pl.col("value") + i)
