"""The cost of the view of `hpcbert monitor`: processor time, memory, bytes to the terminal.

Run: PYTHONPATH=. python benchmarks/view.py [REPEATS [SECONDS]]

This makes an artificial campaign with so many repeats (10,000): half have ended, and some run and
write to their logs. The sacct and squeue of its Slurm print a file and count their calls. `hpcbert
monitor` watches it on a terminal of 160x50 for so many seconds (60) after its start, with the clock
and the poll floor of a site. The output has its processor time as a share of one core, its peak
memory, the bytes per second that it sends to the terminal, and its queries of Slurm per minute.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import sys
import tempfile
import termios
import threading
import time
from pathlib import Path

from tests.kit.campaigns import campaign

POINTS = 40
FLOOR = 10  # seconds between two polls
WARM = 90.0  # seconds: monitor confirms an end over some polls before it stops asking
SITE = f"""\
schema = 1
name = "made up"
scheduler = "slurm"
runs = "runs"
[slurm]
poll_floor = {FLOOR}
"""


def make(folder: Path, repeats: int) -> str:
    """Make the campaign and its Slurm; return the directory of the commands."""
    each = repeats // POINTS
    shapes = [f"1n{number + 1}g" for number in range(POINTS)]
    one = campaign(folder / "runs", *shapes, repeats=each)
    told, queue = [], []
    for place, shape in enumerate(shapes):
        for number in range(1, each + 1):
            if place < POINTS // 2:
                state = "FAILED" if number % 20 == 0 else "COMPLETED"
                one.mark(
                    shape,
                    number,
                    {"event": "start", "time": 1},
                    {"event": "finished", "time": 61, "exit": 0},
                )
            else:
                state = "RUNNING" if place == POINTS // 2 else "PENDING"
            told.append(one.sacct(number, state, array=place))
            if state in {"RUNNING", "PENDING"}:
                queue.append(one.squeue(number, state, array=place))
    (folder / "bin").mkdir()
    for name, lines in (("sacct", told), ("squeue", queue)):
        (folder / f"{name}.txt").write_text("".join(lines))
        script = folder / "bin" / name
        script.write_text(f"#!/bin/sh\necho >>'{folder}/calls'\nexec cat '{folder}/{name}.txt'\n")
        script.chmod(0o755)
    stop = threading.Event()

    def write() -> None:
        iteration = 0
        while not stop.wait(1.0):
            iteration = min(119, iteration + 1)
            for number in range(1, 41):
                text = one.text(shapes[POINTS // 2], 8.0, last=iteration, iters=120)
                one.log(shapes[POINTS // 2], number, text)

    threading.Thread(target=write, daemon=True).start()
    return str(folder / "bin")


def calls(folder: Path) -> int:
    """Return how often sacct and squeue were called so far."""
    return (folder / "calls").stat().st_size


def used(pid: int) -> float:
    """Return the processor time of a process so far, seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 60.0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        path = make(folder, repeats)
        (folder / "site.toml").write_text(SITE)
        pid, screen = pty.fork()
        if not pid:
            os.chdir(folder)
            os.environ.update(PATH=f"{path}:{os.environ['PATH']}", TERM="xterm", LANG="C.UTF-8")
            program = Path(sys.executable).with_name("hpcbert")
            os.execv(program, [str(program), "monitor"])
        fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 160, 0, 0))
        keys = [b"\x1b[B"] * 21 + [b"\x1b[C"] + [b"\x1b[B"] * 30
        last = b""
        sent, began, start, cpu, asked = 0, time.monotonic(), 0.0, 0.0, 0
        while time.monotonic() - (start or began) < (seconds if start else 2 * WARM):
            if select.select([screen], [], [], 0.2)[0]:
                try:
                    data = os.read(screen, 1 << 16)
                except OSError:
                    print(last.decode(errors="replace"))
                    raise
                last = (last + data)[-4000:]
                sent += len(data)
            if not start and time.monotonic() - began > WARM:
                if keys:
                    os.write(screen, keys.pop(0))
                else:
                    start, cpu, sent, asked = time.monotonic(), used(pid), 0, calls(folder)
        span = time.monotonic() - start
        share = (used(pid) - cpu) / span
        memory = next(
            int(line.split()[1]) / 1024
            for line in Path(f"/proc/{pid}/status").read_text().splitlines()
            if line.startswith("VmHWM")
        )
        queries = 60 * (calls(folder) - asked) / span
        os.write(screen, b"q")
        print(
            f"{repeats} repeats: {share:.1%} of a core, {memory:.0f} MiB, {sent / span:.0f} B/s, "
            f"{queries:.1f} queries a minute"
        )


if __name__ == "__main__":
    main()
