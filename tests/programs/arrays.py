"""Large arrays: sorting, linear algebra in integers, and fancy indexing."""

import hashlib

import numpy as np

random = np.random.Generator(np.random.PCG64(7))
values = random.integers(0, 1 << 40, 6_000_000, dtype=np.int64)
print("values", hashlib.sha256(values).hexdigest())
order = np.argsort(values, kind="stable")
print("order", hashlib.sha256(order).hexdigest())
table = values.reshape(2000, 3000) % 1000
print("product", hashlib.sha256((table[:200] @ table[:200].T)).hexdigest())
print("sums", int(table.sum()), int(values[order[::17]].sum()))
values[order] = np.arange(values.size)
print("ranks", hashlib.sha256(values).hexdigest())
