"""What `submit --wait` prints while it waits."""

from __future__ import annotations

import pytest

from hpcbert.cli.progress import Display, list_numbers, report_finished_points
from hpcbert.commands.monitor import Change, View, open_campaign
from tests.kit.campaigns import Build, report_states


@pytest.mark.parametrize(
    ("last", "efficiencies"),
    [("COMPLETED", ["100.0%", "90.0%"]), ("RUNNING", ["100.0%"]), ("FAILED", ["100.0%", "95.0%"])],
)
def test_finished_points_have_medians_and_efficiencies(
    build: Build, last: str, efficiencies: list[str]
) -> None:
    built = build("1n1g", "1n2g", repeats=2)
    for shape, rates in {"1n1g": (100, 100), "1n2g": (190, 170)}.items():
        for repeat, rate in enumerate(rates, 1):
            built.complete(shape, repeat, rate)
    watched = open_campaign(built.directory)
    final = {watched.repeats[-1].key: report_states(default=last)(watched)[watched.repeats[-1].key]}
    lines = list_numbers(watched, {**report_states()(watched), **final}, "samples")
    assert [line.partition("efficiency ")[2].partition(",")[0] for line in lines] == efficiencies


@pytest.mark.parametrize(
    ("last", "is_over"),
    [
        *((word, True) for word in ("FAILED", "CANCELLED", "NODE_FAIL")),
        *((word, False) for word in ("RUNNING", "PENDING", "REQUEUED", "UNKNOWN")),
    ],
)
def test_a_point_is_printed_when_it_is_over_with_what_counts(
    build: Build, last: str, is_over: bool
) -> None:
    built = build("1n1g", repeats=2)
    built.complete("1n1g", 1, 100)
    watched = open_campaign(built.directory)
    states = report_states("COMPLETED", last)(watched)
    changes = [Change(repeat, states[repeat.key], 0.0) for repeat in watched.repeats]
    lines = report_finished_points(changes, states)
    assert [line.endswith(", 1/2 repeats") for line in lines] == [True] * is_over


def test_an_outage_of_slurm_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    show = Display().watching().view
    assert show
    for trouble in ("down", "", "down", "down", "down", "", "gone", "gone"):
        show(View((), {}, 0.0, trouble))
    lines = ["Slurm does not answer: down", "Slurm does not answer: gone"]
    assert capsys.readouterr().err.splitlines() == lines
