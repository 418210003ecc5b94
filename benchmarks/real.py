"""Run every recipe that supports the CPU for real: prepare, submit, collect; keep the results.

    python benchmarks/real.py                   # all of them, on a lab's Slurm where root can
    python benchmarks/real.py --fw tf2 --fw mxnet
    python benchmarks/real.py --page            # write the page from the rows on record

Rows go to docs/reference/frameworks.tsv, one per framework and number of ranks, and from there to
the table in docs/reference/frameworks.md. Programs, environments and data stay in .real/, so that a
second run takes minutes. If a repository can't be reached: --repository tf2=/path/to/another.
"""

from __future__ import annotations

import argparse
import csv
import importlib.metadata
import json
import os
import re
import shlex
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcbert.config import recipe as recipes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hpcbert.config.recipe import Recipe

HERE = Path(__file__).resolve().parent.parent
TEMPLATES = HERE / "templates"
ROWS, PAGE = (HERE / "docs" / "reference" / f"frameworks.{end}" for end in ("tsv", "md"))
BEGIN, END = "<!-- runs -->\n", "<!-- end of runs -->\n"
SIZES = (1, 2)
# The shortest run that shows that a program trains; and the different options that recipes need.
USUAL = ("--batch-size", "4", "--iters", "12", "--skip", "2")
OWN: dict[str, tuple[str, ...]] = {
    # Its first line is that of the third step. Here, loading data in separate processes takes
    # longer than training.
    "deepspeed": ("--skip", "4", "--set", "num_workers=0"),
    # Its data already have negative samples.
    "paddle18": ("--set", "negative_samples=false"),
}
# The installed packages that belong to a framework.
NAMED = re.compile(
    r"(tensorflow|torch|transformers|accelerate|mosaicml|mxnet|oneflow|paddlepaddle|paddlenlp|mindspore|deepspeed|horovod|gluonnlp|"
    r"tf-models)[\w.-]*==[\w.+-]+",
    re.IGNORECASE,
)
# The beginning of a result for a framework that could not be installed.
UNPREPARED = "not prepared: "
# Why other recipes never ran on a machine without GPUs.
REPLAYED = "needs GPUs: tests replay its log and compare its flags with the program's"
# Recipes without run.sh.j2.
ONLY_READ = "hpcbert reads its logs, and does not start it"
REFUSED = "refused:"


Key = tuple[str, str]


class Row(NamedTuple):
    """The result of one run of a framework."""

    framework: str
    program: str
    packages: str
    python: str
    device: str
    ranks: str
    scheduler: str
    date: str
    samples_per_second: str
    result: str


def read() -> list[Row]:
    with ROWS.open(encoding="utf-8", newline="") as file:
        return [Row(**one) for one in csv.DictReader(file, delimiter="\t")]


def write(rows: Iterable[Row]) -> None:
    with ROWS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow(Row._fields)
        ordered = sorted(rows, key=lambda one: (one.framework, int(one.ranks)))
        writer.writerows(ordered)


def merged(rows: dict[Key, Row], made: Iterable[Row]) -> dict[Key, Row]:
    """Return rows, with new ones instead of older ones of the same run.

    A program that can't be installed today does not invalidate an earlier run.
    """
    new = {(one.framework, one.ranks): one for one in made}
    kept = {key for key, one in new.items() if key in rows and one.result.startswith(UNPREPARED)}
    return rows | {key: one for key, one in new.items() if key not in kept}


def known() -> list[Recipe]:
    return [recipes.load(path.parent) for path in sorted(TEMPLATES.glob("*/recipe.toml"))]


# --- The page -----------------------------------------------------------------------------------


def table(rows: Sequence[Row], found: Sequence[Recipe]) -> str:
    """Return the page's tables: recipes that ran, and recipes that are only replayed."""
    titles = ("framework", "program", "packages", "Python", "device", "ranks", "scheduler", "date")
    lines = [f"| {' | '.join((*titles, 'samples/s', 'result'))} |"]
    lines += ["|---|---|---|---|---|---:|---|---|---:|---|"]
    lines += [f"| {' | '.join(one)} |" for one in rows]
    ran = {one.framework for one in rows}
    lines += ["", "| framework | |", "|---|---|"]
    for one in found:
        if one.name not in ran:
            reason = "not run yet: replayed" if "cpu" in one.devices else REPLAYED
            lines.append(f"| {one.name} | {reason if one.has_script else ONLY_READ} |")
    return "\n".join([*lines, ""])


def page(rows: Sequence[Row], found: Sequence[Recipe], text: str) -> str:
    head, _, rest = text.partition(BEGIN)
    return f"{head}{BEGIN}{table(rows, found)}{END}{rest.partition(END)[2]}"


def write_page() -> None:
    PAGE.write_text(page(read(), known(), PAGE.read_text(encoding="utf-8")), encoding="utf-8")


# --- Runs ---------------------------------------------------------------------------------------


class Place(NamedTuple):
    """A place for runs: a directory with a site.toml, and its environment."""

    folder: Path
    scheduler: str
    env: dict[str, str]

    def hpcbert(self, *words: str) -> dict[str, Any]:
        """Run a command line; return its document."""
        argv = [sys.executable, "-m", "hpcbert", *words, "--site", str(self.folder), "--json"]
        print("$ hpcbert", shlex.join(words), flush=True)
        done = subprocess.run(
            argv, cwd=self.folder, env=self.env, stdout=subprocess.PIPE, text=True, check=False
        )
        document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        for error in document["errors"]:
            print("  error:", error["message"], error["hint"], flush=True)
        return document


@contextmanager
def place(
    folder: Path, scheduler: str, chosen: Sequence[Recipe], repositories: dict[str, str]
) -> Iterator[Place]:
    """Yield a place to run in: a lab's Slurm while it is needed, or the local queue."""
    folder.mkdir(parents=True, exist_ok=True)
    # Otherwise CPUs decide the share of memory, and two ranks need more than theirs for some.
    lines = ["schema = 1", 'name = "real"', f'scheduler = "{scheduler}"']
    lines += ["[nodes]", "gpus_per_node = 2", "[slurm]", 'memory = "0"', "poll_floor = 0.5"]
    lines += ["[env]", 'OMP_NUM_THREADS = "1"']
    for one in chosen:
        lines += [f"[frameworks.{one.name}]"]
        lines += ['data = "synthetic"', "samples = 1024"] if one.dataset else []
        own = one.for_device("cpu").environment is None  # its modules are next to hpcbert
        lines += [f"python = {json.dumps(sys.executable)}"] if own else []
        other = repositories.get(one.name)
        lines += [f"repository = {json.dumps(other)}"] if other else []
    (folder / "site.toml").write_text("\n".join([*lines, ""]))
    env = {**os.environ, "PYTHONPATH": str(HERE)}
    with ExitStack() as stack:
        if scheduler == "slurm":
            env["SLURM_CONF"] = stack.enter_context(lab(folder / "lab"))
        yield Place(folder, scheduler, env)


@contextmanager
def lab(folder: Path) -> Iterator[str]:
    """Run Slurm on this machine; yield its configuration's path."""
    command = [sys.executable, "-m", "hpcbert", "lab"]
    where = ["--directory", str(folder)]
    up = ["up", *where, "--nodes", "1", "--gpus-per-node", "2", "--json"]
    done = subprocess.run([*command, *up], stdout=subprocess.PIPE, text=True, check=True)
    try:
        yield json.loads(done.stdout)["data"]["environment"]["SLURM_CONF"]
    finally:
        subprocess.run([*command, "down", *where], check=True)


def model(found: Recipe) -> str:
    models = found.for_device("cpu").models
    return next((name for name in models if name.endswith("bert-tiny")), models[0])


def run(found: Recipe, where: Place) -> list[Row]:
    """Take one framework from prepare to collect, on one rank and on two."""
    device = ("--fw", found.name, "--device", "cpu")
    document = where.hpcbert("prepare", *device)
    parts = (document["data"] or {}).get("parts", [])
    failed = [f"{one['kind']}: {one['detail']}" for one in parts if one["status"] == "failed"]
    failed = failed or [one["message"] for one in document["errors"]]
    about = described(found, parts)
    rows = []
    for ranks in SIZES:
        words = (*device, "--model", model(found), "--gpus-per-node", str(ranks), "--repeats", "1")
        # If submit refuses with a reason, that is not a failure.
        alone = found.for_device("cpu").alone if ranks > 1 else ""
        done = (
            {"result": f"{REFUSED} {alone}"}
            if failed or alone
            else trained(
                where.hpcbert("submit", *words, *USUAL, *OWN.get(found.name, ()), "--wait")
            )
        )
        number = f"{done['number']:.2f}" if done.get("number") else ""
        result = UNPREPARED + failed[0] if failed else str(done["result"])
        shown = " ".join(result.replace("|", "/").split())[:160]
        date = time.strftime("%Y-%m-%d", time.gmtime())
        rows.append(
            Row(found.name, *about, "cpu", str(ranks), where.scheduler, date, number, shown)
        )
    return rows


def described(found: Recipe, parts: Sequence[dict[str, Any]]) -> tuple[str, str, str]:
    """Return program, packages and Python of the prepared parts."""
    python, installed = ".".join(map(str, sys.version_info[:3])), []
    for one in parts:
        if one["kind"] == "environment" and one["path"]:
            record = json.loads(Path(f"{one['path']}.json").read_text())
            python, installed = record["python"], record["packages"]
    if not installed:
        installed = [f"{one}=={importlib.metadata.version(one)}" for one in ("torch",)]
    names = [one for one in installed if NAMED.fullmatch(one)]
    source, here = found.for_device("cpu").source, found.for_device("cpu").environment
    program = f"{source.repository.removesuffix('.git').rpartition('/')[2]}@{source.commit[:8]}"
    if here and here.program:
        program = next((one for one in names if one.startswith("tf-models")), "a package")
    elif not source.commit:
        program = "hpcbert's own"
    patches = len(source.patches) + len(here.patches if here else ())
    program += f", {patches} patch{'es' * (patches > 1)}" if patches else ""
    return program, " ".join(names), python


def trained(document: dict[str, Any]) -> dict[str, Any]:
    """Return the number of a run and its outcome."""
    tables = (document["data"] or {}).get("tables") or []
    rows = [row for one in tables if one["device"] == "cpu" for row in one["rows"]]
    if not rows:
        messages = [error["message"] for error in document["errors"]]
        return {"result": f"no table: {'; '.join(messages)}"}
    (row,) = rows
    reasons = [reason["detail"] for one in row["runs"] for reason in one["reasons"]]
    return {"number": row["median"], "result": "; ".join(reasons) or "trained"}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--fw", action="append", default=[], help="only this framework; repeatable")
    parser.add_argument("--dir", type=Path, default=HERE / ".real", help="where it is all made")
    parser.add_argument("--scheduler", choices=["local", "slurm"], help="a lab's Slurm, or local")
    parser.add_argument("--repository", action="append", default=[], metavar="FW=PLACE")
    parser.add_argument("--page", action="store_true", help="run nothing, write the page")
    given = parser.parse_args()
    if given.page:
        write_page()
        return 0
    able = [one for one in known() if "cpu" in one.devices]
    chosen = [one for one in able if not given.fw or one.name in given.fw]
    scheduler = given.scheduler or ("slurm" if os.geteuid() == 0 else "local")
    rows, bad = {(one.framework, one.ranks): one for one in read()}, []
    others = dict(one.split("=", 1) for one in given.repository)
    with place(given.dir.absolute(), scheduler, chosen, others) as where:
        for found in chosen:
            made = run(found, where)
            rows = merged(rows, made)
            ended = [one for one in made if not one.result.startswith(REFUSED)]
            bad += [one for one in ended if not one.samples_per_second]
            write(rows.values())
            write_page()
            for one in made:
                print(f"{one.framework} {one.ranks}: {one.samples_per_second or '-'} {one.result}")
    return 4 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
