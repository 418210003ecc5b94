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
from tests.kit.cases import read_constant
from tests.kit.needs import SHARED, Log, index
from tests.kit.recipes import HERE, NAMES, grammar

# The index's word for a framework, and the recipe that reads its logs.
RECIPES: dict[str, str] = read_constant(__file__, "RECIPES")
# Warm-up iterations that reports left out, beside the protocols' own.
SKIPS = (0, 1, 2, 5, 20, 100)
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


def find_recipe(log: Log) -> str:
    if "PerfZero" in log.framework:
        return "perfzero"
    if log.name.startswith("mlcommons"):
        return "mlperf-bert"
    return RECIPES[log.framework.partition("(")[0]]


def is_here(log: Log) -> bool:
    return find_recipe(log) in NAMES


def make_setting(log: Log, skip: int, iters: int) -> Setting:
    return Setting(
        nodes=log.nodes or None,
        gpus=log.gpus or None,
        batch_size_per_device=log.batch_size or None,
        skip=skip,
        iters=iters,
    ).settled({})[0]


def list_readings(log: Log) -> tuple[tuple[str, str, Reading], ...]:
    """Return what each rule of the recipe reads: its name, the window, the reading."""
    # Several numbers were published of one log: it is read once.
    return _list_readings(log._replace(published=float(log.published > 0), note=""))


@cache
def _list_readings(log: Log) -> tuple[tuple[str, str, Reading], ...]:
    return tuple(_read_log(log))


def _read_log(log: Log) -> Iterator[tuple[str, str, Reading]]:
    log_grammar = grammar(find_recipe(log))
    skips = SKIPS if log.published else UNPUBLISHED_SKIPS
    for rule in log_grammar.rules:
        reading = read(log.path, log_grammar, rule, make_setting(log, 0, 1 << 40))
        yield rule.name, "protocol", read(log.path, log_grammar, rule, make_setting(log, 20, 120))
        if rule.kind == "footer":
            continue
        for skip in skips:
            window = make_setting(log, skip, reading.iteration)
            yield (
                rule.name,
                f"{skip}:{reading.iteration}",
                read(log.path, log_grammar, rule, window),
            )


def find_nearest(log: Log) -> Cell:
    cells = [
        Cell(log, reading.throughput, rule, window) for rule, window, reading in list_readings(log)
    ]
    return min(cells, key=lambda cell: cell.difference)


def format_table(shared: Path = SHARED) -> str:
    lines = ["| log | published | ours | difference | rule | window |", "|---|---|---|---|---|---|"]
    for log in index(shared):
        if log.published and is_here(log):
            cell = find_nearest(log)
            ours = "-" if cell.value is None else f"{cell.value:.3f}"
            numbers = f"{log.published:.9g} | {ours} | {cell.difference:.1e}"
            lines.append(f"| {log.name} | {numbers} | {cell.rule} | {cell.window} |")
    return "\n".join(lines) + "\n"


PAGE: str = read_constant(__file__, "PAGE")


def _name_repository(name: str) -> str:
    return name.partition("/")[0].replace("+", "/")


def _locate_log(name: str) -> str:
    """Return where a log was published: repository, commit and path."""
    _, version, path = name.split("/", 2)
    return f"{_name_repository(name)}@{version.rpartition('-')[2]}, `{path}`"


def format_page(unexplained: Sequence[Mapping[str, Any]], shared: Path = SHARED) -> str:
    """Return the page of the published cells that no rule reproduces."""
    published_logs = {(log.name, log.published) for log in index(shared) if log.published}
    repositories = Counter(_name_repository(name) for name, _ in published_logs)
    lines = ["| log | published, samples/s | why |", "|---|---:|---|"]
    lines += [
        f"| {_locate_log(cell['log'])} | {cell['published']} | {cell['why']} |"
        for cell in unexplained
    ]
    shares = [f"{count} of {name}" for name, count in repositories.most_common()]
    return PAGE.format(
        count=len(published_logs),
        logs=len({name for name, _ in published_logs}),
        shares=", ".join(shares),
        exact=len(published_logs) - len(unexplained),
        cells="\n".join(lines),
    )


if __name__ == "__main__":
    cells = tomli.loads((HERE / "unexplained.toml").read_text())["cell"]
    sys.stdout.write(format_page(cells) if "--page" in sys.argv else format_table())
