"""What was published of real logs, and what the recipes read in them.

`python -m tests.recipes.published` prints docs/reference/published-cells.md.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import tomli

from hpcbert.logs.scan import Reading, read
from hpcbert.logs.setting import Setting
from tests.kit.cases import read_constant
from tests.kit.needs import SHARED, Log, index
from tests.kit.recipes import HERE, grammar

# The index's word for a framework, and the recipe that reads its logs.
RECIPES: dict[str, str] = read_constant(__file__, "RECIPES")
# Cells that no rule of a recipe gives to EXACT, and why.
UNEXPLAINED: list[Mapping[str, Any]] = tomli.loads((HERE / "unexplained.toml").read_text())["cell"]
EXACT = 5e-5
# Warm-up iterations that reports left out, beside the protocols' own.
_SKIPS = (0, 1, 2, 5, 20, 100)
# Rules and warm-ups (None: the protocol's window) that gave a published value: what often did is
# tried first.
_HITS: Counter[tuple[str, int | None]] = Counter()


def find_recipe(log: Log) -> str:
    if "PerfZero" in log.framework:
        return "perfzero"
    if log.name.startswith("mlcommons"):
        return "mlperf-bert"
    return RECIPES[log.framework.partition("(")[0]]


def make_setting(log: Log, skip: int, iters: int) -> Setting:
    return Setting(
        nodes=log.nodes or None, gpus=log.gpus or None,
        batch_size_per_device=log.batch_size or None, skip=skip, iters=iters,
    ).settled({})[0]  # fmt: skip


@cache
def read_log(log: Log, rule: str, skip: int, iters: int) -> Reading:
    log_grammar = grammar(find_recipe(log))
    return read(log.path, log_grammar, log_grammar.rule(rule), make_setting(log, skip, iters))


def find_difference(log: Log) -> float:
    """Return how far the nearest reading is from what was published; the first exact one will do.

    By each rule of the recipe, after each warm-up that reports left out, to the end of the log.
    """
    rules, nearest = grammar(find_recipe(log)).rules, float("inf")
    windows = [(rule.name, skip) for rule in rules for skip in (None, *_SKIPS)]
    for window in sorted(windows, key=lambda window: -_HITS[window]):
        rule, skip = window
        iters = 120 if skip is None else read_log(log, rule, 0, 1 << 40).iteration
        value = read_log(log, rule, 20 if skip is None else skip, iters).throughput
        if value is not None:
            nearest = min(nearest, abs(value - log.published) / log.published)
        if nearest <= EXACT:
            _HITS[window] += 1
            break
    return nearest


def format_page(shared: Path = SHARED) -> str:
    """Return the page of the published cells that no rule reproduces."""
    names = {(log.name, log.published): log.name for log in index(shared) if log.published}
    places = {name: name.split("/", 2) for name in names.values()}
    repositories = {name: place[0].replace("+", "/") for name, place in places.items()}
    lines = ["| log | published, samples/s | why |", "|---|---:|---|"]
    for cell in UNEXPLAINED:
        _, version, path = places[cell["log"]]
        where = f"{repositories[cell['log']]}@{version.rpartition('-')[2]}, `{path}`"
        lines.append(f"| {where} | {cell['published']} | {cell['why']} |")
    counts = Counter(repositories[name] for name in names.values())
    page: str = read_constant(__file__, "PAGE")
    return page.format(
        count=len(names), logs=len(places), cells="\n".join(lines),
        shares=", ".join(f"{count} of {name}" for name, count in counts.most_common()),
        exact=len(names) - len(UNEXPLAINED),
    )  # fmt: skip


if __name__ == "__main__":
    sys.stdout.write(format_page())
