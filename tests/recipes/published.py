"""What was published of real logs, and what the recipes read in them.

`python -m tests.recipes.published` prints the table: published, ours, relative difference, rule.
With `--page` it prints docs/reference/published-cells.md.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import tomli

from hpcbert.logs.scan import Reading, read
from hpcbert.logs.setting import Setting
from tests.kit.recipes import HERE, NAMES, grammar
from tests.kit.shared import SHARED, Log, index

# The index's word for a framework, and the recipe that reads its logs.
RECIPES = {
    "deepspeed": "deepspeed",
    "megatron": "megatron",
    "ngc_pytorch": "ngc-pytorch",
    "ngc_tf1": "ngc-tf1",
    "ngc_tf2": "tf2",
    "oneflow": "oneflow",
    "paddle": "paddle",
    "paddle_static": "paddle18",
    "tf2_official": "tf2",
}
# Warm-up iterations that reports left out, beside the protocols' own.
SKIPS = (0, 1, 2, 5, 10, 20, 100)
# Of a log without a published number: the whole of it, and what follows a warm-up.
UNPUBLISHED_SKIPS = (0, 20)
EXACT = 5e-5


class Cell(NamedTuple):
    """The reading of a log that comes nearest to what was published."""

    log: Log
    value: float | None
    rule: str
    window: str

    @property
    def difference(self) -> float:
        if self.value is None:
            return float("inf")
        return abs(self.value - self.log.published) / self.log.published


def recipe_of(log: Log) -> str:
    if "PerfZero" in log.framework:
        return "perfzero"
    if log.name.startswith("mlcommons"):
        return "mlperf-bert"
    return RECIPES[log.framework.partition("(")[0]]


def is_here(log: Log) -> bool:
    """Say whether the log's recipe has come to be."""
    return recipe_of(log) in NAMES


def setting(log: Log, skip: int, iters: int) -> Setting:
    return Setting(
        nodes=log.nodes or None,
        gpus=log.gpus or None,
        batch_size_per_device=log.batch_size or None,
        skip=skip,
        iters=iters,
    ).settled({})[0]


def readings(log: Log) -> tuple[tuple[str, str, Reading], ...]:
    """Return what each rule of the recipe reads: its name, the window, the reading."""
    # Several numbers were published of one log: it is read once.
    return _readings(log._replace(published=float(log.published > 0), note=""))


@cache
def _readings(log: Log) -> tuple[tuple[str, str, Reading], ...]:
    return tuple(_read(log))


def _read(log: Log) -> Iterator[tuple[str, str, Reading]]:
    known = grammar(recipe_of(log))
    skips = SKIPS if log.published else UNPUBLISHED_SKIPS
    for rule in known.rules:
        reading = read(log.path, known, rule, setting(log, 0, 1 << 40))
        yield rule.name, "protocol", read(log.path, known, rule, setting(log, 20, 120))
        if rule.kind == "footer":
            continue
        for skip in skips:
            window = setting(log, skip, reading.iteration)
            yield rule.name, f"{skip}:{reading.iteration}", read(log.path, known, rule, window)


def nearest(log: Log) -> Cell:
    """Return the reading that comes nearest to the published value."""
    cells = [Cell(log, reading.throughput, rule, window) for rule, window, reading in readings(log)]
    return min(cells, key=lambda cell: cell.difference)


def table(shared: Path = SHARED) -> str:
    """Return all published values as a Markdown table."""
    lines = ["| log | published | ours | difference | rule | window |", "|---|---|---|---|---|---|"]
    for log in index(shared):
        if log.published and is_here(log):
            cell = nearest(log)
            ours = "-" if cell.value is None else f"{cell.value:.3f}"
            numbers = f"{log.published:.9g} | {ours} | {cell.difference:.1e}"
            lines.append(f"| {log.name} | {numbers} | {cell.rule} | {cell.window} |")
    return "\n".join(lines) + "\n"


PAGE = """\
# Published cells that no rule reproduces

Other projects published {count} throughputs with their {logs} logs: {shares}.
A rule of the framework's recipe [reproduces](../explanation/numbers.md) {exact} of them to within
5e-5 over some window of the log. No rule reproduces these:

{cells}

In OneFlow's report of 2020-08-22 (Oneflow-Inc/DLPerf@c89430b, bert_base_fp32_report_0822.md), the
medians for batch sizes 24 and 48 per GPU do not follow from the published runs. The report lists 14
or 8 values for a cell, and does not say which seven of them a median comes from.
"""


def _repository(name: str) -> str:
    return name.partition("/")[0].replace("+", "/")


def _place(name: str) -> str:
    """Return where a log was published: repository, commit and path."""
    _, version, path = name.split("/", 2)
    return f"{_repository(name)}@{version.rpartition('-')[2]}, `{path}`"


def page(unexplained: Sequence[Mapping[str, Any]], shared: Path = SHARED) -> str:
    """Return the page of the published cells that no rule reproduces."""
    known = {(log.name, log.published) for log in index(shared) if log.published}
    repositories = Counter(_repository(name) for name, _ in known)
    lines = ["| log | published, samples/s | why |", "|---|---:|---|"]
    lines += [
        f"| {_place(cell['log'])} | {cell['published']} | {cell['why']} |" for cell in unexplained
    ]
    shares = [f"{count} of {name}" for name, count in repositories.most_common()]
    return PAGE.format(
        count=len(known),
        logs=len({name for name, _ in known}),
        shares=", ".join(shares),
        exact=len(known) - len(unexplained),
        cells="\n".join(lines),
    )


if __name__ == "__main__":
    cells = tomli.loads((HERE / "unexplained.toml").read_text())["cell"]
    sys.stdout.write(page(cells) if "--page" in sys.argv else table())
