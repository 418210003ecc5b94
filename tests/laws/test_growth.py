"""What is done per point, repeat, log and node grows no faster than their number: calls of functions
are counted, not seconds, so that a busy machine makes no difference."""

import cProfile
import os
import pstats
import re
from time import gmtime, strftime

import pytest

from hpcbert.campaign.foreign import CollectRequest
from hpcbert.campaign.suspects import RetryPolicy
from hpcbert.cli.list import Filter, list_overviews
from hpcbert.commands import collect, retry
from hpcbert.commands.submit import submit, write_campaign
from hpcbert.model import Point, Shape
from hpcbert.scheduler.base import SchedulerContext
from hpcbert.scheduler.tracker import Tracker
from tests.kit import campaigns
from tests.kit.campaigns import STARTED, WRITTEN, campaign, ended
from tests.kit.drafts import combined, drafted
from tests.kit.logs import log, write_file
from tests.kit.slurm import Slurm

pytestmark = pytest.mark.slow
FEW, MANY = 6, 24


def count_calls(act):
    """Return how often each function was called, by its place in the source."""
    # Python keeps 512 compiled patterns; which are there depends on the tests before.
    re.purge()
    profile = cProfile.Profile()
    profile.runcall(act)
    stats = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    return {f"{file}:{line} {name}": stat[1] for (file, line, name), stat in stats.items()}


def check_growth(folder, count):
    """Of four times as much, nothing is called more than four times as often; return both counts.

    Beyond that: sorting takes a logarithm more, and some calls come once a block of data.
    """
    count(folder / "first", 2)  # imports
    small, large = count(folder / "few", FEW), count(folder / "many", MANY)
    for name, calls in large.items():
        most = small.get(name, 0) * MANY / FEW * 1.4 + 64
        assert calls <= most or "tests/kit" in name, (name, small.get(name, 0), calls)
    return small, large


def test_collected_points_repeats_nodes_and_campaigns(tmp_path):
    def count_collect(folder):
        states = campaigns.report_states()
        return count_calls(lambda: campaigns.collect_campaigns(folder, states=states))

    def collect_points(runs, number):
        shapes = [f"{nodes}n1g" for nodes in range(1, number + 1)]
        return count_collect(campaign(runs, *shapes, repeats=1).finish().directory)

    def collect_repeats(runs, number):
        return count_collect(campaign(runs, "1n1g", repeats=number).finish().directory)

    def collect_nodes(runs, number):
        shape, names = f"{number}n1g", [f"n{at}" for at in range(1, number + 1)]
        built = campaign(runs, shape, repeats=1)
        built.mark(shape, 1, *STARTED, nodelist=",".join(names), host="n1", job="70_1")
        built.mark(shape, 1, *ended(0))
        built.log(shape, 1, built.text(shape, 10.0 * number))
        campaigns.write_nodes(built.directory, built.array(shape), 1, *map(campaigns.node, names))
        return count_collect(built.directory)

    def collect_campaigns(runs, number):
        """They ran at the same time, each on a node of its own."""
        start, step = STARTED
        stamp = strftime("%Y%m%dT%H%M%SZ", gmtime(WRITTEN - 60))
        for index in range(number):
            name, host = f"{stamp}-pytorch-n{index}", f"n{index}"
            point = Point("pytorch", name, Shape(1, 1), "fp32", 4)
            built = campaign(runs, "1n1g", name=name, repeats=1, point=point)
            built.mark("1n1g", 1, {**start, "nodelist": host, "host": host}, step, time=WRITTEN)
            built.mark("1n1g", 1, *ended(0), time=WRITTEN + 30)
            os.utime(built.status_path("1n1g", 1), (WRITTEN + 30, WRITTEN + 30))
            built.log("1n1g", 1, built.text("1n1g", 10.0, start=WRITTEN))
        return count_collect(runs)

    for count in (collect_points, collect_repeats, collect_nodes, collect_campaigns):
        check_growth(tmp_path / count.__name__, count)


def test_tracked_and_retried_repeats(tmp_path):
    def make_slurm(built, state):
        repeats = built.campaign.arrays[0].repeats
        queued = [built.squeue(repeat, state) for repeat in repeats if state == "RUNNING"]
        accounted = [built.sacct(repeat, state) for repeat in repeats]
        return Slurm(sacct="".join(accounted), squeue="".join(queued))

    def track_repeats(runs, number):
        built = campaign(runs, "1n1g", repeats=number).finish()
        tracker = Tracker([built], SchedulerContext(make_slurm(built, "RUNNING")))

        def poll():
            tracker.poll()
            tracker.has_news()
            tracker.is_over()
            assert not any(tracker.is_final(repeat.key) for repeat in built.repeats)

        return count_calls(poll)

    def retry_repeats(runs, number):
        built = campaign(runs, "1n1g", repeats=number).finish()
        slurm = make_slurm(built, "FAILED")
        context = SchedulerContext(slurm)
        return count_calls(lambda: retry.find_invalid(built.directory, RetryPolicy(), context))

    for count in (track_repeats, retry_repeats):
        check_growth(tmp_path / count.__name__, count)


def test_drafted_and_submitted_points_are_flushed_once_each_and_no_template_is_compiled(tmp_path):
    """As their script is written, and before sbatch is called for them."""

    def draft(runs, number):
        return drafted(runs, combined(Shape(1, 1), ("fp32",), tuple(range(1, number + 1))))

    def draft_points(runs, number):
        return count_calls(lambda: write_campaign(draft(runs, number)))

    def submit_points(runs, number):
        written, slurm = draft(runs, number), Slurm()
        write_campaign(written)
        calls = count_calls(lambda: submit(written.directory, SchedulerContext(slurm)))
        assert slurm.count("sbatch") == number
        return calls

    for name, count in (("draft", draft_points), ("submit", submit_points)):
        small, large = check_growth(tmp_path / name, count)
        more = {name: large[name] - small.get(name, 0) for name in large}
        # conftest.py has a stand-in for fsync.
        assert sum(n for name, n in more.items() if name.endswith(" fsync")) == MANY - FEW
        assert sum(n for name, n in more.items() if "jinja2/lexer.py" in name) == 0


def test_listed_campaigns_and_read_logs(tmp_path):
    def list_campaigns(runs, number):
        for index in range(number):
            campaign(runs, "1n1g", repeats=2, name=f"20261121-pytorch-{index:03}").finish()
        return count_calls(lambda: list_overviews(runs, Filter(), now=0))

    def read_logs(folder, number):
        for index in range(number):
            text = f"log {index}\n{log('1n1g', 10 + index / 100)}"
            write_file(folder, f"pytorch/1n1g/bert_b4_fp32_{index}.log", text)
        places, request = collect.find_places(), CollectRequest()
        return count_calls(lambda: collect.load_result_set([str(folder)], places, request))

    for count in (list_campaigns, read_logs):
        check_growth(tmp_path / count.__name__, count)
