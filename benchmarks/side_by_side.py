"""Side by side with peers: start-up, submission, status and collection, as ratios to a floor.

Every figure is the median wall time of whole processes, the candidates taking turns with the floor
(bare python, bare sbatch, bare sacct, cat), so that a ratio holds when the machine's speed drifts.
Peers come from the package index, each into an environment of its own below --peers.

    python benchmarks/side_by_side.py --logs DIR        # start-up and collection; no Slurm needed
    . /var/lib/hpcbert-lab/env.sh; python benchmarks/side_by_side.py --slurm

DIR holds the 30 logs of Oneflow-Inc/DLPerf@e36df2e (ResNet-50 on TensorFlow 2), the only complete
five-run set in public; without it logs made from a recipe's sample stand in.
"""

from __future__ import annotations

import argparse
import dataclasses
import getpass
import json
import os
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from hpcbert.campaign import store
from hpcbert.config import recipe, site
from hpcbert.flows.submit import write
from hpcbert.model import Shape
from hpcbert.script.draft import Submitter, draft
from hpcbert.script.plan import Request
from hpcbert.script.resolve import SubmitOptions

REPOSITORY = Path(__file__).resolve().parent.parent
PEERS = {
    "submitit": "submitit==1.5.4",
    "reframe": "reframe-hpc==4.10.4",
    "simple_slurm": "simple-slurm",
}
LATER = "now+1hour"
SUBMITIT_ARRAY = """
import submitit, sys
executor = submitit.SlurmExecutor(folder=sys.argv[1])
later = {"begin": "now+1hour"}
executor.update_parameters(time=1, array_parallelism=1, additional_parameters=later)
executor.map_array(abs, [1] * int(sys.argv[2]))
"""
SIMPLE_ARRAY = """
import sys
from simple_slurm import Slurm
Slurm(array=range(1, int(sys.argv[1]) + 1), begin="now+1hour").sbatch("true")
"""
SUBMITIT_STATUS = """
import sys
from submitit.slurm.slurm import SlurmJob
jobs = [SlurmJob(sys.argv[1], f"{sys.argv[2]}_{index}") for index in range(1, 1001)]
jobs[0].watcher.update()
print(sum(job.watcher.get_state(job.job_id, mode="cache") == "COMPLETED" for job in jobs))
"""


@dataclass(frozen=True)
class Case:
    """One thing to measure: a floor and the candidates that take turns with it."""

    name: str
    floor: tuple[str, list[str]]
    candidates: dict[str, list[str]]


def seconds(argv: list[str], folder: Path) -> float:
    """Run a command once, whole process, and return its wall time."""
    started = time.perf_counter()
    done = subprocess.run(argv, cwd=folder, capture_output=True, check=False, timeout=300)
    elapsed = time.perf_counter() - started
    if done.returncode not in (0, 4):
        raise SystemExit(f"{argv}: {done.returncode}\n{done.stderr.decode()[-2000:]}")
    return elapsed


def measure(case: Case, runs: int, folder: Path) -> dict[str, dict[str, float]]:
    """Return median, minimum and ratio to the floor for each candidate."""
    commands = {case.floor[0]: case.floor[1], **case.candidates}
    times: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(runs + 1):
        for name, argv in commands.items():
            elapsed = seconds(argv, folder)
            if turn:  # the first turn warms caches
                times[name].append(elapsed)
    floor = times[case.floor[0]]
    return {
        name: {
            "median_ms": 1000 * statistics.median(found),
            "min_ms": 1000 * min(found),
            "ratio": statistics.median(a / b for a, b in zip(found, floor, strict=True)),
            "beyond_floor_ms": 1000
            * statistics.median(a - b for a, b in zip(found, floor, strict=True)),
        }
        for name, found in times.items()
    }


def report(case: Case, figures: dict[str, dict[str, float]]) -> None:
    print(f"\n{case.name}\n{'':28}{'median ms':>11}{'min ms':>10}{'x floor':>9}{'beyond ms':>11}")
    for name, row in figures.items():
        print(
            f"  {name:26}{row['median_ms']:11.1f}{row['min_ms']:10.1f}"
            f"{row['ratio']:9.2f}{row['beyond_floor_ms']:11.1f}"
        )


def peers(folder: Path) -> dict[str, str]:
    """Return each peer's interpreter, installing what is not there yet."""
    found = {}
    for name, requirement in PEERS.items():
        python = folder / name / "bin" / "python"
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", folder / name], check=True)
            command = [python, "-m", "pip", "install", "--quiet", requirement]
            if subprocess.run(command, check=False).returncode:
                print(
                    f"note: {requirement} can't be installed here and is left out", file=sys.stderr
                )
                shutil.rmtree(folder / name)
                continue
        found[name] = str(python)
    return found


def startup(pythons: dict[str, str]) -> Case:
    hpcbert = [sys.executable, "-m", "hpcbert"]
    candidates = {
        "hpcbert --help": [*hpcbert, "--help"],
        "hpcbert submit --help": [*hpcbert, "submit", "--help"],
        "hpcbert --version": [*hpcbert, "--version"],
    }
    if "submitit" in pythons:
        candidates["submitit, import"] = [pythons["submitit"], "-c", "import submitit"]
    if "simple_slurm" in pythons:
        candidates["simple_slurm, import"] = [pythons["simple_slurm"], "-c", "import simple_slurm"]
    if "reframe" in pythons:
        program = str(Path(pythons["reframe"]).parent / "reframe")
        candidates["reframe --version"] = [program, "--version"]
    return Case("start-up", ("python -c pass", [sys.executable, "-c", "pass"]), candidates)


def sample_logs(target: Path, sizes: int) -> None:
    """Make 30 logs for each of some batch sizes, in DLPerf's layout, from OneFlow's sample."""
    text = (REPOSITORY / "templates" / "oneflow" / "sample.log").read_text()
    for size in range(1, sizes + 1):
        for shape in ("1n1g", "1n2g", "1n4g", "1n8g", "2n8g", "4n8g"):
            folder = target / f"logs/oneflow/bert/bz{size}/{shape}"
            folder.mkdir(parents=True)
            nodes, gpus = shape[0], shape[2]
            log = text.replace("num_nodes = 4", f"num_nodes = {nodes}")
            log = log.replace("gpu_num_per_node = 8", f"gpu_num_per_node = {gpus}")
            log = log.replace("batch_size_per_device = 32", f"batch_size_per_device = {size}")
            for repeat in range(1, 6):
                (folder / f"bert_b{size}_fp32_{repeat}.log").write_text(log)


def collection(folder: Path, logs: Path | None) -> list[Case]:
    hpcbert = [sys.executable, "-m", "hpcbert", "collect"]
    floor = ("python -c pass", [sys.executable, "-c", "pass"])
    cases = []
    if logs is not None:
        files = [str(path) for path in sorted(logs.absolute().rglob("*.log"))]
        recipes = str(REPOSITORY / "tests" / "foreign" / "recipes")
        words = [*hpcbert, str(logs.absolute()), "--fw", "tf2-resnet", "--templates", recipes]
        cases.append(
            Case(
                f"collect {len(files)} DLPerf logs",
                floor,
                {"cat": ["cat", *files], "hpcbert collect": words},
            )
        )
    for sizes in (1, 100):
        target = folder / f"logs-{sizes}"
        sample_logs(target, sizes)
        cat = ["find", str(target), "-name", "*.log", "-exec", "cat", "{}", "+"]
        words = [*hpcbert, str(target)]
        name = f"collect {30 * sizes} made logs"
        cases.append(
            Case(
                name, ("find and cat", cat), {"python -c pass": floor[1], "hpcbert collect": words}
            )
        )
    return cases


def submission(folder: Path, pythons: dict[str, str]) -> list[Case]:
    script = folder / "bare.sbatch"
    script.write_text(f"#!/bin/bash\n#SBATCH --array=1-5%1\n#SBATCH --begin={LATER}\ntrue\n")
    hundred = folder / "hundred.sh"
    hundred.write_text(f"for i in $(seq 100); do sbatch --parsable {script}; done\n")
    sizes = ",".join(str(size) for size in range(1, 101))
    hpcbert = [
        sys.executable,
        "-m",
        "hpcbert",
        "submit",
        "--fw",
        "pytorch",
        "--runs",
        str(folder / "runs"),
    ]
    hpcbert += [f"--sbatch-arg=--begin={LATER}"]
    five = {"hpcbert submit": hpcbert}
    if "submitit" in pythons:
        five["submitit map_array"] = [
            pythons["submitit"],
            "-c",
            SUBMITIT_ARRAY,
            str(folder / "submitit"),
            "5",
        ]
    if "simple_slurm" in pythons:
        five["simple_slurm"] = [pythons["simple_slurm"], "-c", SIMPLE_ARRAY, "5"]
    return [
        Case("submit an array of five", ("sbatch", ["sbatch", "--parsable", str(script)]), five),
        Case(
            "submit 100 points, five repeats each",
            ("100 x sbatch", ["bash", str(hundred)]),
            {"hpcbert submit": [*hpcbert, "--batch-size", sizes]},
        ),
    ]


def thousand(folder: Path) -> tuple[Path, str]:
    """Run an array of 1,000 elements to its end and make a campaign of it."""
    here = dataclasses.replace(site.load(), runs=str(folder / "runs"))
    found = recipe.load(REPOSITORY / "templates" / "pytorch")
    options = SubmitOptions("slurm", (REPOSITORY / "templates",), concurrent=1000)
    submitter = Submitter(getpass.getuser(), ("benchmark",), time.time(), secrets.token_hex(3))
    request = Request(Shape(1, 1), repeats=1000)
    made = draft(request, here, found, options=options, submitter=submitter)
    write(made)
    (array,) = made.campaign.arrays
    words = [
        "sbatch",
        "--parsable",
        "--array=1-1000",
        f"--job-name={array.name}",
        "--output=/dev/null",
    ]
    job_id = subprocess.run(
        [*words, "--wrap=true"], capture_output=True, text=True, check=True
    ).stdout.strip()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    done = dataclasses.replace(array, state="submitted", job_id=job_id, submitted=stamp)
    store.write_manifest(made.directory, store.update_array(made.campaign, done))
    while subprocess.run(["squeue", "-h", "-j", job_id], capture_output=True, check=False).stdout:
        time.sleep(1)
    time.sleep(3)  # accounting lags behind the queue
    return made.directory, job_id


def status(folder: Path, pythons: dict[str, str]) -> Case:
    directory, job_id = thousand(folder)
    hpcbert = [sys.executable, "-m", "hpcbert", "monitor", str(directory), "--once"]
    sacct = ["sacct", "-X", "-P", "-n", "-j", job_id, "-o", "JobID,State,ExitCode,NodeList"]
    candidates = {"hpcbert monitor --once": hpcbert}
    if "submitit" in pythons:
        words = [pythons["submitit"], "-c", SUBMITIT_STATUS, str(folder), job_id]
        candidates["submitit, one watcher"] = words
    return Case("status of 1,000 finished elements", ("sacct", sacct), candidates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=7, help="counted turns of each command")
    parser.add_argument("--logs", type=Path, help="DLPerf's 30 logs")
    parser.add_argument("--peers", type=Path, default=REPOSITORY / ".setup" / "peers")
    parser.add_argument(
        "--slurm", action="store_true", help="also what needs a cluster, as the lab"
    )
    parser.add_argument("--json", type=Path, help="write all figures to a file")
    words = parser.parse_args()
    pythons = peers(words.peers)
    folder = Path(
        tempfile.mkdtemp(prefix="hpcbert-bench-", dir=os.environ.get("HPCBERT_BENCH_DIR"))
    )
    try:
        cases = [startup(pythons), *collection(folder, words.logs)]
        if words.slurm:
            cases += [*submission(folder, pythons), status(folder, pythons)]
        figures = {}
        for case in cases:
            figures[case.name] = measure(case, words.runs, folder)
            report(case, figures[case.name])
        if words.json:
            words.json.write_text(json.dumps(figures, indent=1) + "\n")
    finally:
        if words.slurm:
            subprocess.run(["scancel", "--user", getpass.getuser(), "--state=PENDING"], check=False)
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
