"""What is done per point, repeat, log and node grows no faster than their number.

Calls of functions are counted, not seconds: the count is the same on a busy machine. Work on what
is already there, such as imports, is done once before, so that the counts are of the growing part.
"""

from __future__ import annotations

import cProfile
import hashlib
import os
import pstats
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import gmtime, strftime

import pytest

from hpcbert.campaign import store
from hpcbert.campaign.suspects import RetryPolicy
from hpcbert.cli.list import Filter, list_overviews
from hpcbert.commands import retry
from hpcbert.commands.collect import CollectRequest, find_places, load_result_set
from hpcbert.commands.submit import submit, write_campaign
from hpcbert.model import Point, Shape
from hpcbert.scheduler.base import SchedulerContext
from hpcbert.scheduler.tracker import Tracker
from tests.kit import campaigns
from tests.kit.campaigns import (
    STARTED,
    WRITTEN,
    Built,
    collect_campaigns,
    ended,
    node,
    report_states,
    write_nodes,
)
from tests.kit.drafts import combined, drafted
from tests.kit.logs import log, write_file
from tests.kit.slurm import Slurm

pytestmark = pytest.mark.slow

FEW, MANY = 8, 32
# Beyond MANY / FEW: sorting takes a logarithm more, and some calls come once a block of data.
SLACK, SOME = 1.4, 64

KIT = str(Path("tests", "kit"))
# How often each function was called, by its place in the source.
Calls = dict[str, int]
Count = Callable[[Path, int], Calls]


def calls(act: Callable[[], object]) -> Calls:
    # Python keeps 512 compiled patterns; which are there depends on the tests before.
    re.purge()
    profile = cProfile.Profile()
    profile.runcall(act)
    stats = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    return {f"{file}:{line} {name}": stat[1] for (file, line, name), stat in stats.items()}


def points(runs: Path, number: int) -> Built:
    shapes = [f"{nodes}n1g" for nodes in range(1, number + 1)]
    built = campaigns.campaign(runs, *shapes, repeats=1)
    built.finish()
    return built


def repeats(runs: Path, number: int, name: str = "20261121-pytorch-abc") -> Built:
    built = campaigns.campaign(runs, "1n1g", name=name, repeats=number)
    built.finish()
    return built


def lines(built: Built, state: str) -> Slurm:
    places = [
        (repeat, at) for at, array in enumerate(built.campaign.arrays) for repeat in array.repeats
    ]
    return Slurm(
        sacct=["".join(built.sacct(repeat, state, array=at) for repeat, at in places)],
        squeue=["".join(built.squeue(repeat, state, array=at) for repeat, at in places)],
    )


def collecting(built: Built) -> Calls:
    return calls(lambda: collect_campaigns(built.directory, states=report_states()))


def tracking(built: Built) -> Calls:
    tracker = Tracker([built], run=lines(built, "RUNNING"))

    def poll() -> None:
        tracker.poll()
        tracker.has_news()
        tracker.is_over()
        assert not any(tracker.is_final(repeat.key) for repeat in built.repeats)

    return calls(poll)


def retrying(built: Built) -> Calls:
    slurm = lines(built, "FAILED")
    slurm.squeue = [""]
    return calls(lambda: retry.find_invalid(built.directory, RetryPolicy(), run=slurm))


def submitting(runs: Path, number: int) -> Calls:
    shapes = [f"{nodes}n1g" for nodes in range(1, number + 1)]
    built = campaigns.campaign(runs, *shapes, repeats=1, jobs=("",) * number)
    arrays = []
    for array in built.campaign.arrays:
        text = f"#!/bin/bash\n#SBATCH --job-name={array.name}\n#SBATCH --array=1-1\n"
        (built.directory / array.script).write_text(text)
        digest = hashlib.sha256(text.encode()).hexdigest()
        arrays.append(replace(array, script_sha256=digest))
    store.write_manifest(built.directory, replace(built.campaign, arrays=tuple(arrays)))
    slurm = Slurm()
    counts = calls(lambda: submit(built.directory, SchedulerContext(slurm)))
    assert slurm.count("sbatch") == number
    # What the stand-in does is its own affair.
    return {name: count for name, count in counts.items() if KIT not in name}


def drafting(runs: Path, number: int) -> Calls:
    request = combined(Shape(1, 1), ("fp32",), tuple(range(1, number + 1)))
    return calls(lambda: write_campaign(drafted(runs, request)))


def listing(runs: Path, number: int) -> Calls:
    for index in range(number):
        repeats(runs, 2, f"20261121-pytorch-{index:03}")
    return calls(lambda: list_overviews(runs, Filter(), now=0))


def campaigns_at_once(runs: Path, number: int) -> Calls:
    """Collect campaigns of one folder that ran at the same time, each on a node of its own."""
    start, step = STARTED
    stamp = strftime("%Y%m%dT%H%M%SZ", gmtime(WRITTEN - 60))
    for index in range(number):
        name, host = f"{stamp}-pytorch-n{index}", f"n{index}"
        point = Point("pytorch", name, Shape(1, 1), "fp32", 4)
        built = campaigns.campaign(runs, "1n1g", name=name, repeats=1, point=point)
        built.mark("1n1g", 1, {**start, "nodelist": host, "host": host}, step, time=WRITTEN)
        built.mark("1n1g", 1, *ended(0), time=WRITTEN + 30)
        os.utime(built.status_path("1n1g", 1), (WRITTEN + 30, WRITTEN + 30))
        built.log("1n1g", 1, built.text("1n1g", 10.0, start=WRITTEN))
    return calls(lambda: collect_campaigns(runs, states=report_states()))


def nodes(runs: Path, number: int) -> Built:
    built = campaigns.campaign(runs, f"{number}n1g", repeats=1)
    shape, nodelist = f"{number}n1g", f"n[1-{number}]" if number > 1 else "n1"
    built.mark(shape, 1, *STARTED, nodelist=nodelist, host="n1", job="70_1")
    built.mark(shape, 1, *ended(0))
    built.log(shape, 1, built.text(shape, 10.0 * number))
    names = (f"n{at}" for at in range(1, number + 1))
    write_nodes(built.directory, built.campaign.arrays[0], 1, *map(node, names))
    return built


def logs_of_repeats(folder: Path, number: int) -> Calls:
    for index in range(number):
        text = f"log {index}\n{log('1n1g', 10 + index / 100)}"
        write_file(folder, f"pytorch/1n1g/bert_b4_fp32_{index}.log", text)
    at = find_places()
    return calls(lambda: load_result_set([str(folder)], at, CollectRequest()))


CASES: dict[str, Count] = {
    "collect-points": lambda folder, number: collecting(points(folder, number)),
    "collect-repeats": lambda folder, number: collecting(repeats(folder, number)),
    "collect-nodes": lambda folder, number: collecting(nodes(folder, number)),
    "track-repeats": lambda folder, number: tracking(repeats(folder, number)),
    "draft-points": drafting,
    "submit-points": submitting,
    "campaigns-at-once": campaigns_at_once,
    "list-campaigns": listing,
    "retry-repeats": lambda folder, number: retrying(repeats(folder, number)),
    "logs-of-repeats": logs_of_repeats,
}


@pytest.mark.parametrize("case", CASES)
def test_of_four_times_as_much_nothing_is_called_more_than_four_times_as_often(
    tmp_path: Path, case: str
) -> None:
    count = CASES[case]
    count(tmp_path / "first", 2)  # imports
    small, large = count(tmp_path / "few", FEW), count(tmp_path / "many", MANY)
    most = {name: small.get(name, 0) * MANY / FEW * SLACK + SOME for name in large}
    assert {name: (small.get(name, 0), n) for name, n in large.items() if n > most[name]} == {}


def test_a_point_more_is_flushed_twice_and_its_template_compiled_never(tmp_path: Path) -> None:
    """Once as its script is written, once before sbatch is called for it."""
    drafting(tmp_path / "first", 2)
    steps = {
        "draft": [drafting(tmp_path / f"draft {number}", number) for number in (FEW, MANY)],
        "submit": [submitting(tmp_path / f"submit {number}", number) for number in (FEW, MANY)],
    }
    for small, large in steps.values():
        assert count_calls(large, "posix.fsync") - count_calls(small, "posix.fsync") == MANY - FEW
        assert count_calls(large, "jinja2/lexer.py") == count_calls(small, "jinja2/lexer.py")


def count_calls(counts: Calls, word: str) -> int:
    return sum(count for name, count in counts.items() if word in name)
