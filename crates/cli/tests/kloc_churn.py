"""Files that are written, renamed, linked, mapped, unlinked while they are open, and compared with
what was written, for so many seconds: kloc_churn.py DIRECTORY SECONDS SEED."""
import hashlib
import mmap
import os
import random
import sys
import time

directory, seconds, seed = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
rng = random.Random(seed)
os.chdir(directory)
files = {}  # name -> digest
checked = 0


def content(size):
    return rng.randbytes(size)


def digest(data):
    return hashlib.sha256(data).digest()


def check(data, expected, what):
    global checked
    checked += 1
    if digest(data) != expected:
        sys.exit(f"{what}: content has changed")


def read(name):
    with open(name, "rb") as file:
        return file.read()


def size():
    return rng.choice([1, 4095, 4096, 70_000, 1 << 20, 3 << 20])


number = 0
end = time.monotonic() + seconds
while time.monotonic() < end:
    number += 1
    name = f"f{seed}-{number}"
    what = rng.randrange(9)
    if what <= 1 or not files:
        data = content(size())
        with open(name, "wb") as file:
            file.write(data)
        files[name] = digest(data)
    else:
        old = rng.choice(list(files))
        if what == 2:
            check(read(old), files[old], "read")
        elif what == 3:
            os.rename(old, name)
            files[name] = files.pop(old)
            check(read(name), files[name], "renamed")
        elif what == 4:
            os.link(old, name)
            check(read(name), files[old], "hard link")
            os.unlink(old)
            files[name] = files.pop(old)
        elif what == 5:
            # Held by a mapping alone, and written through it.
            with open(old, "r+b") as file:
                mapped = mmap.mmap(file.fileno(), 0)
            data = bytearray(mapped)
            at = rng.randrange(len(data))
            mapped[at] = data[at] = rng.randrange(256)
            check(bytes(mapped), digest(data), "mapped")
            time.sleep(rng.random() / 100)
            check(bytes(mapped), digest(data), "mapped, later")
            mapped.close()
            files[old] = digest(data)
            check(read(old), files[old], "mapped and closed")
        elif what == 6:
            # Unlinked, and still open.
            with open(old, "rb") as file:
                os.unlink(old)
                expected = files.pop(old)
                time.sleep(rng.random() / 100)
                check(file.read(), expected, "unlinked")
        elif what == 7:
            # Written in place, and closed dirty.
            data = bytearray(read(old))
            at = rng.randrange(len(data))
            data[at] = rng.randrange(256)
            with open(old, "r+b") as file:
                file.seek(at)
                file.write(data[at : at + 1])
            files[old] = digest(data)
        else:
            os.unlink(old)
            del files[old]
    # So that there is always something that is old.
    while len(files) > 40:
        victim = next(iter(files))
        check(read(victim), files.pop(victim), "oldest")
        os.unlink(victim)
for name, expected in files.items():
    check(read(name), expected, "in the end")
print(checked)
