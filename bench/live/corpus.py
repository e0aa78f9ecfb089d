#!/usr/bin/env python3
"""Writes the heap of a python process that holds typical objects: pages of a
real program, to fill memory with. Usage: corpus.py FILE [MiB]"""
import os, random, sys

if os.environ.get("PYTHONHASHSEED") != "0":
    os.environ["PYTHONHASHSEED"] = "0"
    os.execv(sys.executable, [sys.executable, *sys.argv])

want = int(sys.argv[2] if len(sys.argv) > 2 else 64) << 20
random.seed(1)
words = "the memory of a machine is not all equally fast and pages move".split()
keep, size = [], 0
while True:
    for i in range(2000):
        keep.append({
            "id": len(keep), "name": f"user-{random.randrange(10**6)}",
            "score": random.random(), "tags": random.sample(words, 4),
            "parent": random.choice(keep) if keep else None,
            "path": "/".join(random.choices(words, k=5)), "when": (2026, i % 12, i % 28),
        })
    heaps = []
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, mode, _, _, inode, *name = line.split()
            if mode == "rw-p" and inode == "0" and (not name or name[0] == "[heap]"):
                heaps.append([int(x, 16) for x in span.split("-")])
    if sum(b - a for a, b in heaps) > want * 5 // 4:
        break
with open("/proc/self/mem", "rb", 0) as memory, open(sys.argv[1], "wb") as out:
    zero, left = bytes(4096), want
    for start, end in heaps:
        for at in range(start, end, 4096):
            memory.seek(at)
            page = memory.read(4096)
            if page != zero and left:
                out.write(page)
                left -= 4096
