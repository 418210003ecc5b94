"""What commands cost for a campaign of a thousand nodes: seconds, memory, lines, and the goals.

Run: PYTHONPATH=. python benchmarks/scale.py [--nodes 1000,10000] [--points 5] [--repeats 5]

This makes a campaign whose jobs have ended, with the files that they would have written: of each
repeat a log, a status file, the facts of all nodes and the samples of their GPUs (two minutes, one
per second). Then it runs each command as a process of its own. Seconds are those of the processor,
which other work on the machine changes least.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hpcbert.campaign.fingerprint import ENDING, name_record
from tests.kit.campaigns import STARTED, Built, campaign, node

SECONDS, LINE = 120, 30  # samples of a node, and of a line
RATE = 10.0  # samples/s of a node


@dataclass(frozen=True)
class Row:
    """A command, and its goals: seconds, kB of a file that it writes, lines that it prints."""

    name: str
    words: tuple[str, ...]
    seconds: float = 0.0
    lines: int = 0
    file: str = ""
    kilobytes: int = 0


ROWS = (
    Row("collect, first", ("collect",), seconds=3.0),
    Row("collect, again", ("collect",), seconds=1.0),
    Row("collect --json", ("collect", "--json")),
    Row("report", ("report", "--output", "out"), file="out/report.md", kilobytes=200),
    Row("audit", ("audit",), lines=200),
    Row("archive", ("archive", "--output", "out.zip"), seconds=10.0, file="out.zip"),
    Row("explain", ("explain",)),
    Row("monitor --once", ("monitor", "--once")),
    Row("show", ("show",)),
    Row("retry --dry-run", ("retry", "--dry-run")),
)


def write_nodes(path: Path, names: list[str]) -> None:
    """Write the facts of a repeat's nodes as `gather` of nodes.bash joins them."""
    facts = node(" ".join(names))
    environment = facts["image"]["environment"]
    environment["HPCBERT_NODE_IPS"] = ",".join(f"10.0.0.{name[1:]}" for name in names)[:4096]
    other = node(names[-1], host__cuda_driver="12.4")  # one node differs
    lines = [
        json.dumps(part)
        for part in (
            {"nodes": " ".join(names[:-1]), "host": facts["host"]},
            {"nodes": names[-1], "host": other["host"]},
            {"nodes": facts["nodes"], "image": facts["image"]},
        )
    ]
    path.write_text("".join(f"{line}\n" for line in lines))


def write_samples(folder: Path, stem: str, names: list[str], repeat: int) -> None:
    """Write the samples of a repeat's GPUs, as the job adds them up, and each node's."""
    rows = [
        (at, 2400.25 * len(names) + (at * 7 + repeat) % 90, 60000 + at) for at in range(SECONDS)
    ]
    total = {"nodes": len(names), "gpus": 8 * len(names), "samples": rows}
    (folder / f"{stem}{ENDING}").write_text(json.dumps(total))
    with gzip.open(folder / f"{stem}{ENDING}l.gz", "wt", compresslevel=6) as file:
        for place, name in enumerate(names):
            own = [
                f"[{at}.000,{2400 + (at * 7 + place + repeat) % 90}.25,{60000 + at}]"
                for at in range(SECONDS)
            ]
            for at in range(0, SECONDS, LINE):
                samples = ",".join(own[at : at + LINE])
                file.write(f'{{"node":"{name}","samples":[{samples}]}}\n')
            file.write(f'{{"node":"{name}","gpus":8,"count":{SECONDS}}}\n')


def make_campaign(folder: Path, nodes: int, points: int, repeats: int) -> Built:
    """Return a campaign whose jobs have ended."""
    shapes = [f"{nodes - point}n8g" for point in range(points)]
    built = campaign(folder / "runs", *shapes, repeats=repeats, scheduler="local")
    (built.directory / "env").mkdir(exist_ok=True)
    for array in built.campaign.arrays:
        names = [f"n{number:04}" for number in range(1, array.point.shape.nodes + 1)]
        shape = str(array.point.shape)
        for repeat in array.repeats:
            rate = RATE * len(names) * (1 + repeat / 1000)
            text = built.text(shape, rate)
            built.log(shape, repeat, f"this is repeat {repeat}\n{text}")
            start, step = STARTED
            nodelist = {"nodelist": f"n[0001-{len(names):04}]", "host": names[0]}
            built.mark(shape, repeat, {**start, **nodelist}, step)
            built.ended(shape, repeat)
            key = array.point.key
            write_nodes(name_record(built.directory, key, repeat, 0), names)
            write_samples(built.directory / "env", f"{key}.{repeat}.0", names, repeat)
    return built


def run_command(words: tuple[str, ...], folder: Path) -> tuple[float, float, int]:
    """Return a command's seconds of the processor, peak memory in MB, and lines printed."""
    argv = [sys.executable, "-m", "hpcbert", *words]
    environment = {**os.environ, "HPCBERT_RUNS": str(folder / "runs")}
    with (folder / "output").open("w+b") as output:
        process = subprocess.Popen(argv, cwd=folder, env=environment, stdout=output, stderr=output)
        _, code, usage = os.wait4(process.pid, 0)
        output.seek(0)
        printed = output.read()
    process.returncode = os.waitstatus_to_exitcode(code)
    if process.returncode not in {0, 4}:
        print(printed.decode()[-2000:], file=sys.stderr)
    seconds = usage.ru_utime + usage.ru_stime
    return seconds, usage.ru_maxrss / 1024, printed.count(b"\n")


def format_row(row: Row, folder: Path, directory: Path) -> str:
    """Run a row's command; return its line of the table, with the goals that it has."""
    seconds, memory, lines = run_command((*row.words, str(directory)), folder)
    size = (folder / row.file).stat().st_size / 1000 if row.file else 0.0
    limits = (
        (row.seconds, seconds, "s"),
        (row.lines, lines, "lines"),
        (row.kilobytes, size, "kB"),
    )
    goals = [
        f"<= {limit:g} {unit}: {'met' if value <= limit else '**missed**'}"
        for limit, value, unit in limits
        if limit
    ]
    size_cell = f"{size:,.0f}" if size else ""
    cells = [row.name, f"{seconds:.2f}", f"{memory:.0f}", f"{lines:,}", size_cell, "; ".join(goals)]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print a table for each number of nodes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--nodes", default="1000,10000", help="numbers of nodes, by commas")
    parser.add_argument("--points", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    for nodes in map(int, options.nodes.split(",")):
        with tempfile.TemporaryDirectory(prefix="hpcbert-scale-") as name:
            folder = Path(name)
            built = make_campaign(folder, nodes, options.points, options.repeats)
            size = f"{nodes:,} nodes, {options.points} points, {options.repeats} repeats"
            print(
                f"\n| {size} | s | MB | lines | kB of the file | goal |\n|---|---|---|---|---|---|"
            )
            for row in ROWS:
                print(format_row(row, folder, built.directory), flush=True)


if __name__ == "__main__":
    main()
