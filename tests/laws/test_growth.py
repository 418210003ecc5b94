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
from typing import Any

import pytest

from hpcbert.campaign.suspects import RetryPolicy
from hpcbert.cli.list import Filter, list_overviews
from hpcbert.commands import collect, retry
from hpcbert.commands.submit import submit, write_campaign
from hpcbert.model import Point, Shape
from hpcbert.scheduler.base import SchedulerContext
from hpcbert.scheduler.tracker import Tracker
from tests.kit import campaigns
from tests.kit.campaigns import STARTED, WRITTEN, Built, ended
from tests.kit.drafts import combined, drafted
from tests.kit.logs import log, write_file
from tests.kit.slurm import Slurm

pytestmark = pytest.mark.slow
FEW, MANY = 6, 24
# Beyond MANY / FEW: sorting takes a logarithm more, and some calls come once a block of data.
SLACK, SOME = 1.4, 64
# How often each function was called, by its place in the source.
Calls = dict[str, int]


def count_calls(act: Callable[[], object]) -> Calls:
    # Python keeps 512 compiled patterns; which are there depends on the tests before.
    re.purge()
    profile = cProfile.Profile()
    profile.runcall(act)
    stats = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    # What the stand-ins do is their own affair.
    return {
        f"{file}:{line} {name}": stat[1]
        for (file, line, name), stat in stats.items()
        if "tests/kit" not in file
    }


def shapes(number: int) -> list[str]:
    return [f"{nodes}n1g" for nodes in range(1, number + 1)]


def build_points(runs: Path, number: int) -> Built:
    built = campaigns.campaign(runs, *shapes(number), repeats=1)
    built.finish()
    return built


def build_repeats(runs: Path, number: int, name: str = "20261121-pytorch-abc") -> Built:
    built = campaigns.campaign(runs, "1n1g", name=name, repeats=number)
    built.finish()
    return built


def build_nodes(runs: Path, number: int) -> Built:
    shape, names = f"{number}n1g", [f"n{at}" for at in range(1, number + 1)]
    built = campaigns.campaign(runs, shape, repeats=1)
    built.mark(shape, 1, *STARTED, nodelist=",".join(names), host="n1", job="70_1")
    built.mark(shape, 1, *ended(0))
    built.log(shape, 1, built.text(shape, 10.0 * number))
    campaigns.write_nodes(built.directory, built.array(shape), 1, *map(campaigns.node, names))
    return built


def collect_paths(*paths: Path) -> Calls:
    states = campaigns.report_states()
    return count_calls(lambda: campaigns.collect_campaigns(*paths, states=states))


def make_slurm(built: Built, state: str, **changes: Any) -> Slurm:
    repeats = built.campaign.arrays[0].repeats
    return Slurm(
        sacct=["".join(built.sacct(repeat, state) for repeat in repeats)],
        **{"squeue": ["".join(built.squeue(repeat, state) for repeat in repeats)], **changes},
    )


def track_repeats(runs: Path, number: int) -> Calls:
    built = build_repeats(runs, number)
    tracker = Tracker([built], run=make_slurm(built, "RUNNING"))

    def poll() -> None:
        tracker.poll()
        tracker.has_news()
        tracker.is_over()
        assert not any(tracker.is_final(repeat.key) for repeat in built.repeats)

    return count_calls(poll)


def retry_repeats(runs: Path, number: int) -> Calls:
    built = build_repeats(runs, number)
    slurm = make_slurm(built, "FAILED", squeue=[""])
    return count_calls(lambda: retry.find_invalid(built.directory, RetryPolicy(), run=slurm))


def submit_points(runs: Path, number: int) -> Calls:
    built = campaigns.campaign(runs, *shapes(number), repeats=1, jobs=("",) * number)
    arrays = []
    for array in built.campaign.arrays:
        text = f"#!/bin/bash\n#SBATCH --job-name={array.name}\n#SBATCH --array=1-1\n"
        (built.directory / array.script).write_text(text)
        arrays.append(replace(array, script_sha256=hashlib.sha256(text.encode()).hexdigest()))
    built.change(arrays=tuple(arrays))
    slurm = Slurm()
    calls = count_calls(lambda: submit(built.directory, SchedulerContext(slurm)))
    assert slurm.count("sbatch") == number
    return calls


def draft_points(runs: Path, number: int) -> Calls:
    request = combined(Shape(1, 1), ("fp32",), tuple(range(1, number + 1)))
    return count_calls(lambda: write_campaign(drafted(runs, request)))


def list_campaigns(runs: Path, number: int) -> Calls:
    for index in range(number):
        build_repeats(runs, 2, f"20261121-pytorch-{index:03}")
    return count_calls(lambda: list_overviews(runs, Filter(), now=0))


def collect_campaigns_at_once(runs: Path, number: int) -> Calls:
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
    return collect_paths(runs)


def read_logs(folder: Path, number: int) -> Calls:
    for index in range(number):
        text = f"log {index}\n{log('1n1g', 10 + index / 100)}"
        write_file(folder, f"pytorch/1n1g/bert_b4_fp32_{index}.log", text)
    places, request = collect.find_places(), collect.CollectRequest()
    return count_calls(lambda: collect.load_result_set([str(folder)], places, request))


CASES: dict[str, Callable[[Path, int], Calls]] = {
    "collect-points": lambda folder, number: collect_paths(build_points(folder, number).directory),
    "collect-repeats": lambda folder, number: collect_paths(build_repeats(folder, number).directory),
    "collect-nodes": lambda folder, number: collect_paths(build_nodes(folder, number).directory),
    "track-repeats": track_repeats,
    "draft-points": draft_points,
    "submit-points": submit_points,
    "campaigns-at-once": collect_campaigns_at_once,
    "list-campaigns": list_campaigns,
    "retry-repeats": retry_repeats,
    "logs-of-repeats": read_logs,
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_of_four_times_as_much_nothing_is_called_more_than_four_times_as_often(
    tmp_path: Path, case: str
) -> None:
    count = CASES[case]
    count(tmp_path / "first", 2)  # imports
    small, large = count(tmp_path / "few", FEW), count(tmp_path / "many", MANY)
    most = {name: small.get(name, 0) * MANY / FEW * SLACK + SOME for name in large}
    assert {name: (small.get(name, 0), n) for name, n in large.items() if n > most[name]} == {}


@pytest.mark.parametrize("count", [draft_points, submit_points])
def test_a_point_more_is_flushed_twice_and_its_template_compiled_never(
    tmp_path: Path, count: Callable[[Path, int], Calls]
) -> None:
    """Once as its script is written, once before sbatch is called for it."""
    draft_points(tmp_path / "first", 2)
    small, large = count(tmp_path / "few", FEW), count(tmp_path / "many", MANY)
    flushes, compilations = (
        [sum(n for name, n in calls.items() if word in name) for calls in (small, large)]
        for word in ("posix.fsync", "jinja2/lexer.py")
    )
    assert flushes[1] - flushes[0] == MANY - FEW
    assert compilations[0] == compilations[1]
