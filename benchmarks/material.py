"""The input of the benchmarks: logs, campaigns, recipes, sites, all below one folder."""

from __future__ import annotations

import dataclasses
import getpass
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path

from hpcbert.campaign import store
from hpcbert.commands.submit import write_campaign
from hpcbert.config import recipe, site
from hpcbert.model import Shape
from hpcbert.script.draft import Submitter, draft
from hpcbert.script.plan import Request, plan
from hpcbert.script.resolve import SubmitOptions

REPOSITORY = Path(__file__).resolve().parent.parent
LATER = "now+1hour"
SHAPES = ("1n1g", "1n2g", "1n4g", "1n8g", "2n8g", "4n8g")
SIZES, LARGE = 100, 2 << 30
INSIDE = Path("tensorflow", "resnet50")

# Lines as TensorFlow 2 printed them (Oneflow-Inc/DLPerf@e36df2e, Tensorflow/resnet50v1.5).
_HEADER = " 'train_dataset': {'augmenter': {'name': None, 'params': None},\n"
_NOISE = (
    "2020-08-26 15:12:{0:02}.{1:06}: W tensorflow/core/grappler/utils/graph_view.cc:{2}] node {1}"
    " of the graph was not optimized, batch {2}\n"
)
_INTERVAL = (
    "I0826 {7:02}:{0:02}:{1:02}.{2:06} 140405777909504 keras_utils.py:119] TimeHistory:"
    " {3:.2f} seconds, {4:.2f} examples/second between steps {5} and {6}\n"
)


def thirty(folder: Path, real: Path | None) -> Path:
    """Return a folder with DLPerf's thirty logs, or with thirty in their form."""
    target = folder / "thirty"
    for shape, repeat, data in _logs(real):
        _put(target / INSIDE / shape / f"rn50_b128_fp32_{repeat}.log", data)
    return target


def three_thousand(folder: Path, real: Path | None) -> Path:
    """Return a folder with a hundred copies of the thirty, each with another batch size."""
    target = folder / "three-thousand"
    for shape, repeat, data in _logs(real):
        for size in range(1, SIZES + 1):
            own = data.replace(b"'batch_size': 128", b"'batch_size': %d" % size)
            _put(target / INSIDE / shape / f"rn50_b{size}_fp32_{repeat}.log", own)
    return target


def large(folder: Path, real: Path | None) -> Path:
    """Return one log with a library's warnings before the first record."""
    data = next(data for shape, _, data in _logs(real) if shape == "1n1g")
    start = data.rfind(b"\n", 0, data.index(b"TimeHistory: ")) + 1
    noise = "".join(_NOISE.format(n % 60, n * 37 % 1000000, n % 900) for n in range(9000))
    path = folder / "large" / INSIDE / "1n1g" / "rn50_b128_fp32_1.log"
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.write(data[:start])
        while file.tell() < LARGE:
            file.write(noise.encode())
        file.write(data[start:])
    return path


def _put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _logs(real: Path | None) -> list[tuple[str, int, bytes]]:
    """Return shape, repeat and content of thirty logs."""
    if real is not None:
        paths = sorted(real.rglob("rn50_b128_fp32_*.log"))
        return [
            (one.parent.name, int(one.stem.rpartition("_")[2]), one.read_bytes()) for one in paths
        ]
    return [
        (shape, repeat, _made(shape, repeat).encode()) for shape in SHAPES for repeat in range(1, 6)
    ]


def _made(shape: str, repeat: int) -> str:
    """Return a log of TensorFlow's form and size: six intervals of a hundred steps."""
    gpus = Shape.parse(shape).gpus
    seconds = 40 + repeat / 8
    head = f" 'batch_size': 128, 'repeat': {repeat}, 'shape': '{shape}',\n" + _HEADER * 400
    moments = [round((at + 1) * seconds * 1e6) for at in range(6)]
    return head + "".join(
        _INTERVAL.format(
            moment // 60_000_000,
            moment // 1_000_000 % 60,
            moment % 1_000_000,
            seconds,
            128 * gpus * 100 / seconds,
            100 * at,
            100 * (at + 1),
            10 + repeat,  # its hour: runs of one point don't overlap
        )
        + _HEADER * 40
        for at, moment in enumerate(moments)
    )


def seen_by_nodes() -> Path:
    """Return a directory that the nodes of the current site see too."""
    runs = Path(site.load().runs)
    runs.mkdir(parents=True, exist_ok=True)
    return runs


def bare_script(folder: Path, repeats: int = 5) -> Path:
    """Return a script of an array that does nothing and starts later."""
    path = folder / f"bare-{repeats}.sbatch"
    path.write_text(f"#!/bin/sh\n#SBATCH --array=1-{repeats}%1\n#SBATCH --begin={LATER}\ntrue\n")
    return path


def thousand(folder: Path) -> tuple[Path, str]:
    """Run an array of 1,000 elements to its end; return a campaign of it, and the job's id."""
    here = dataclasses.replace(site.load(), runs=str(folder / "runs"))
    found = recipe.load(REPOSITORY / "templates" / "pytorch")
    options = SubmitOptions("slurm", (REPOSITORY / "templates",), concurrent=1000)
    submitter = Submitter(getpass.getuser(), ("benchmark",), time.time(), secrets.token_hex(3))
    request = Request(Shape(1, 1), repeats=1000)
    made = draft(plan(found, here, request), options=options, submitter=submitter)
    write_campaign(made)
    (array,) = made.campaign.arrays
    words = ["sbatch", "--parsable", "--array=1-1000", f"--job-name={array.name}"]
    words += ["--output=/dev/null", "--wrap=true"]
    job = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    done = dataclasses.replace(array, state="submitted", job_id=job, submitted=stamp)
    store.write_manifest(made.directory, dataclasses.replace(made.campaign, arrays=(done,)))
    # The jobs leave the queue first; accounting lags behind.
    ended = ["sacct", "-n", "-X", "-P", "-j", job, "-s", "CD,F,CA,TO,NF", "-o", "State"]
    while len(subprocess.run(ended, capture_output=True, check=True).stdout.splitlines()) < 1000:
        time.sleep(1)
    return made.directory, job


_RECIPE = """\
schema = 1
title = "A program that takes no time"
launch = "per-gpu"
models = ["bert-base"]
precisions = ["fp32"]
files = ["train.sh"]

[batch_sizes]
fp32 = 32

[[log.records]]
name = "step"
contains = "samples/s"
match = 'step (?P<iteration>\\d+) of \\d+ \\| loss (?P<loss>\\S+) \\| (?P<rate>\\S+) samples/s'

[[log.rules]]
name = "rate"
kind = "rate"
record = "step"
"""
_TRAIN = """\
#!/bin/bash
echo "this is $$ at $EPOCHREALTIME"
for ((step = 1; step <= $1; step++)); do
  echo "step $step of $1 | loss 2.5 | 4800 samples/s"
done
"""


def instant(folder: Path) -> Path:
    """Return a folder of recipes with one, `instant`, that prints its log and ends."""
    own = folder / "recipes" / "instant"
    own.mkdir(parents=True, exist_ok=True)
    (own / "recipe.toml").write_text(_RECIPE)
    (own / "train.sh").write_text(_TRAIN)
    line = 'exec -- bash {{ files["train.sh"] }} {{ protocol.iters }}\n'
    (own / "run.sh.j2").write_text(line)
    return own.parent


def local_site(folder: Path) -> Path:
    """Return a site for only this machine."""
    path = folder / "local.toml"
    command = [sys.executable, "-m", "hpcbert", "init", "--local", "--output", str(path), "--force"]
    subprocess.run(command, check=True, capture_output=True, cwd=folder)
    return path


def slurm_site(folder: Path, floor: float) -> Path:
    """Return the current site with another minimum interval between two polls, in seconds."""
    text = Path(os.environ["HPCBERT_SITE"]).read_text()
    lines = [line for line in text.splitlines() if not line.startswith("poll_floor")]
    at = lines.index("[slurm]") + 1
    path = folder / f"slurm-{floor:g}.toml"
    path.write_text("\n".join([*lines[:at], f"poll_floor = {floor:g}", *lines[at:], ""]))
    return path


def reframe_check(folder: Path) -> Path:
    """Return five tests for ReFrame that do nothing."""
    path = folder / "five.py"
    path.write_text("""\
import reframe as rfm
import reframe.utility.sanity as sn


@rfm.simple_test
class Nothing(rfm.RunOnlyRegressionTest):
    number = parameter(range(5))
    valid_systems = ['*']
    valid_prog_environs = ['*']
    executable = 'true'

    @sanity_function
    def always(self):
        return sn.assert_true(True)
""")
    return path
