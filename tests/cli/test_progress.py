"""What `submit --wait` prints while it waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.cli.progress import Display, list_numbers, report_finished_points
from hpcbert.commands.monitor import Change, View, open_campaign
from hpcbert.slurm.states import RepeatState
from tests.kit.campaigns import Built, report_states


def changes(watched: TrackedCampaign, *words: str, default: str = "COMPLETED") -> list[Change]:
    """Return all repeats of a campaign as changes, with a state for each repeat number."""
    states = report_states(*words, default=default)(watched)
    return [Change(repeat, states[repeat.key], 0.0) for repeat in watched.repeats]


def print_after(events: Sequence[Change]) -> list[str]:
    states: dict[tuple[str, int], RepeatState] = {
        change.repeat.key: change.state for change in events
    }
    return report_finished_points(events, states)


@pytest.mark.parametrize(
    ("last", "efficiencies"),
    [("COMPLETED", ["100.0%", "90.0%"]), ("RUNNING", ["100.0%"]), ("FAILED", ["100.0%", "95.0%"])],
)
def test_finished_points_have_medians_and_efficiencies(
    build: Callable[..., Built], last: str, efficiencies: list[str]
) -> None:
    built = build("1n1g", "1n2g", repeats=2)
    for shape, rates in {"1n1g": (100, 100), "1n2g": (190, 170)}.items():
        for repeat, rate in enumerate(rates, 1):
            built.complete(shape, repeat, rate)
    watched = open_campaign(built.directory)
    states = report_states()(watched)
    final_key = watched.repeats[-1].key
    states = {**states, final_key: report_states(default=last)(watched)[final_key]}
    lines = list_numbers(watched, states, "samples")
    assert [line.partition("efficiency ")[2].partition(",")[0] for line in lines] == efficiencies


@pytest.mark.parametrize(
    ("last", "end"),
    [
        *((word, ", 1/2 repeats") for word in ("FAILED", "CANCELLED", "NODE_FAIL")),
        *((word, "") for word in ("RUNNING", "PENDING", "REQUEUED", "UNKNOWN")),
    ],
)
def test_a_point_is_printed_when_it_is_over_with_what_counts(
    build: Callable[..., Built], last: str, end: str
) -> None:
    built = build("1n1g", repeats=2)
    built.complete("1n1g", 1, 100)
    lines = print_after(changes(open_campaign(built.directory), "COMPLETED", last))
    assert [line.endswith(end) for line in lines] == ([True] if end else [])


def test_an_outage_of_slurm_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    troubles = ("down", "", "down", "down", "down", "", "gone", "gone")
    show = Display().watching().view
    assert show
    for trouble in troubles:
        show(View((), {}, 0.0, trouble))
    lines = ["Slurm does not answer: down", "Slurm does not answer: gone"]
    assert capsys.readouterr().err.splitlines() == lines
