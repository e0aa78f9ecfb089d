"""A process with much memory forks again and again; parent and children read
all of it and change their own copies at the same time."""

import hashlib
import multiprocessing
import os

PAGES = 24_000
memory = bytearray(PAGES * 4096)
for page in range(PAGES):
    memory[page * 4096 : page * 4096 + 64] = hashlib.sha512(str(page).encode()).digest()
    if page % 3 == 0:
        memory[page * 4096 + 64 : page * 4096 + 3000] = (str(page) * 3000).encode()[:2936]
objects = {i: str(i * 7919) for i in range(120_000)}


def work(number):
    """Changes a part, and returns the digest of everything."""
    for page in range(number, PAGES, 7):
        memory[page * 4096 + 100] = (number + page) % 256
    for i in range(number, len(objects), 11):
        objects[i] = f"changed by {number}"
    state = hashlib.sha256(memory)
    for i in range(len(objects)):
        state.update(objects[i].encode())
    return state.hexdigest()


def in_child(number):
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ours)
        os.write(theirs, work(number).encode())
        os._exit(number)
    os.close(theirs)
    return pid, ours


children = [in_child(number) for number in range(1, 4)]
print("parent", work(0))
for number, (pid, ours) in enumerate(children, start=1):
    result = os.read(ours, 64).decode()
    _, status = os.waitpid(pid, 0)
    print("child", number, result, os.waitstatus_to_exitcode(status))
print("parent", work(0))

with multiprocessing.get_context("fork").Pool(2, maxtasksperchild=1) as pool:
    for result in pool.map(work, range(3), chunksize=1):
        print("pool", result)
print("parent", work(0))
