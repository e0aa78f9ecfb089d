"""The programs of `govern.sh`, and the table of what was forecast and what was saved.

    govern.py run NAME SECONDS      a program; prints how much work it did
    govern.py table FILE            a line of JSON for each run: name, plain, governed, report
"""

import json
import os
import random
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20
PAGE = 4096


class Clock:
    """Counts work until the time is over."""

    def __init__(self, seconds):
        self.end = time.monotonic() + seconds
        self.begin = time.monotonic()
        self.work = 0

    def now(self):
        return time.monotonic() - self.begin

    def goes_on(self):
        return time.monotonic() < self.end

    def spin(self):
        for _ in range(20000):
            self.work += 1


def filled(mib):
    memory = bytearray(mib * MIB)
    for at in range(0, len(memory), PAGE):
        memory[at : at + 8] = at.to_bytes(8, "little")
    return memory


def parts(clock):
    """Walks through parts every 1, 4, 16, 64 s; one is never touched."""
    every = [(1, 32), (4, 32), (16, 64), (64, 64), (0, 64)]
    memory = [filled(mib) for _, mib in every]
    due = [0.0 for _ in every]
    while clock.goes_on():
        now = clock.now()
        for i, (seconds, _) in enumerate(every):
            if seconds and now >= due[i]:
                due[i] = now + seconds
                for at in range(0, len(memory[i]), PAGE):
                    memory[i][at] ^= 1
        clock.spin()


def skewed(clock):
    """Touches pages by a power law: few often, most hardly ever."""
    memory = filled(256)
    pages = len(memory) // PAGE
    numbers = random.Random(1)
    while clock.goes_on():
        for _ in range(50):
            page = int(pages * numbers.random() ** 6)
            memory[page * PAGE] ^= 1
        clock.spin()


def cache(clock):
    """A dictionary of objects that is looked up, mostly what is new; the oldest makes room for a new one."""
    numbers = random.Random(2)
    size = 200_000
    table = {i: bytes(600) + i.to_bytes(8, "little") for i in range(size)}
    newest = size
    while clock.goes_on():
        for _ in range(40):
            # An object is the less wanted the older it is.
            age = int(size * numbers.random() ** 5)
            _ = table[newest - 1 - age]
        for _ in range(2):
            del table[newest - size]
            table[newest] = bytes(600) + newest.to_bytes(8, "little")
            newest += 1
        clock.spin()


def phases(clock):
    """Another quarter of its memory each 40 s."""
    quarters = [filled(64) for _ in range(4)]
    while clock.goes_on():
        memory = quarters[int(clock.now() // 40) % 4]
        for at in range(0, len(memory), PAGE * 16):
            memory[at] ^= 1
        clock.spin()


def sweep(clock):
    """Walks through all of its memory every 20 s, and uses a quarter of it all the time."""
    hot, all_of_it = filled(64), filled(192)
    due = 20.0
    while clock.goes_on():
        for at in range(0, len(hot), PAGE * 16):
            hot[at] ^= 1
        if clock.now() >= due:
            due += 20.0
            for at in range(0, len(all_of_it), PAGE):
                all_of_it[at] ^= 1
        clock.spin()


def sqlite(clock):
    """A database in memory, of which rows are looked up by a power law."""
    database = sqlite3.connect(":memory:")
    database.execute("create table rows (id integer primary key, text)")
    rows = 300_000
    database.executemany("insert into rows values (?, ?)", ((i, f"{i:0600}") for i in range(rows)))
    numbers = random.Random(3)
    while clock.goes_on():
        for _ in range(50):
            wanted = int(rows * numbers.random() ** 6)
            database.execute("select text from rows where id = ?", (wanted,)).fetchone()
        clock.spin()


def redis(clock):
    """A server with 200,000 values, which a client asks for by a power law."""
    serve(clock, "redis-server")


def valkey(clock):
    """The same with valkey's server, which `setup.sh bench` puts where VALKEY_SERVER says."""
    serve(clock, os.environ.get("VALKEY_SERVER", "valkey-server"))


def serve(clock, program):
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/socket"
        server = subprocess.Popen(
            [program, "--port", "0", "--unixsocket", path, "--save", "", "--dir", directory],
            stdout=subprocess.DEVNULL,
        )
        try:
            talk(clock, path)
        finally:
            server.terminate()
            server.wait()


def talk(clock, path):
    client = socket.socket(socket.AF_UNIX)
    for _ in range(500):
        try:
            client.connect(path)
            break
        except OSError:
            time.sleep(0.01)
    answers = client.makefile("rb")

    def ask(*words):
        parts = b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)
        client.sendall(b"*%d\r\n" % len(words) + parts)
        head = answers.readline()
        if head.startswith(b"$") and not head.startswith(b"$-1"):
            return answers.read(int(head[1:]) + 2)
        return head

    values = 200_000
    for i in range(values):
        ask(b"SET", b"k%d" % i, (b"%d " % i) * 120)
    numbers = random.Random(4)
    while clock.goes_on():
        for _ in range(50):
            ask(b"GET", b"k%d" % int(values * numbers.random() ** 6))
            clock.work += 1000


PROGRAMS = {
    "parts": parts,
    "skewed": skewed,
    "cache": cache,
    "phases": phases,
    "sweep": sweep,
    "sqlite": sqlite,
    "redis": redis,
    "valkey": valkey,
}


def table(path):
    runs = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            run = json.loads(line)
            runs.setdefault(run["name"], []).append(run)
    print(
        "MiB that could be out at 2 % by the forecast (least to most), that were out of late, "
        "the difference; slowdown by pages that came back, and by the work that was done"
    )
    print(f"{'program':<10} {'forecast':>16} {'out':>12} {'differs':>9} {'estimated':>11} {'by work':>9}")
    for name, group in runs.items():
        rows = []
        for run in group:
            report = run["report"]
            at = [f for f in report["forecasts"] if abs(f["slowdown"] - 0.02) < 1e-9]
            if not at:
                continue
            rows.append(
                (
                    at[0]["least"] / MIB,
                    at[0]["middle"] / MIB,
                    at[0]["most"] / MIB,
                    report["swapped_lately"] / MIB,
                    report["slowdown"] or 0.0,
                    run["plain"] / run["governed"] - 1,
                )
            )
        if not rows:
            print(f"{name:<10} {'none yet':>16}: no curve was whole before it ended")
            continue
        least, middle, most, out, slower, work = (
            statistics.median(row[i] for row in rows) for i in range(6)
        )
        differs = f"{out / middle - 1:+.0%}" if middle else "-"
        print(
            f"{name:<10} {least:>7.0f}-{most:<8.0f} {out:>12.0f} {differs:>9} "
            f"{slower:>11.2%} {work:>9.2%}"
        )


if sys.argv[1] == "table":
    table(sys.argv[2])
else:
    clock = Clock(float(sys.argv[3]))
    PROGRAMS[sys.argv[2]](clock)
    print(clock.work)
