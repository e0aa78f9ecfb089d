"""Dictionaries, lists, strings and byte arrays far beyond the budget; prints a
digest after every step, so that the first wrong one is known."""

import gc
import hashlib


def digest(name, parts):
    state = hashlib.sha256()
    for part in parts:
        state.update(repr(part).encode())
    print(name, state.hexdigest(), flush=True)


def numbers(seed):
    while True:
        seed = (seed * 6364136223846793005 + 1442695040888963407) & (2**64 - 1)
        yield seed >> 33


source = numbers(42)
table = {f"key-{i}-{next(source)}": (i, next(source), str(next(source))) for i in range(180_000)}
digest("table", table.items())

ordered = sorted(table.values(), key=lambda entry: entry[1])
digest("ordered", ordered)

for key in list(table)[::3]:
    del table[key]
for i in range(30_000):
    table[f"new-{i}"] = [next(source)] * 3
digest("changed", table.items())

blob = bytearray()
for i in range(300):
    blob += next(source).to_bytes(8, "little") * 8192
for i in range(0, len(blob), 4096):
    blob[i] = (blob[i] + 1) % 256
print("blob", hashlib.sha256(blob).hexdigest(), len(blob), flush=True)
del blob[: len(blob) // 2]
print("half", hashlib.sha256(blob).hexdigest(), len(blob), flush=True)

words = " ".join(ordered[i][2] for i in range(0, len(ordered), 2))
print("words", hashlib.sha256(words.encode()).hexdigest(), flush=True)
counts = {}
for character in words:
    counts[character] = counts.get(character, 0) + 1
print("counts", sorted(counts.items()), flush=True)

cycles = [[] for _ in range(60_000)]
for i, cycle in enumerate(cycles):
    cycle.append(cycles[(i * 7919) % len(cycles)])
del cycles
gc.collect()
digest("still", table.items())
