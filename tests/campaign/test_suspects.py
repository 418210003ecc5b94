"""Which nodes a retry keeps away from."""

from __future__ import annotations

import pytest

from hpcbert.campaign.suspects import Suspicion, limit_exclusions
from hpcbert.model import Run
from hpcbert.slurm.inventory import read_usable_nodes

POINT = "bert-base_2n8g_fp32_b32"
UP = {f"n{number}": True for number in range(1, 9)}


def failed_run(repeat: int, state: str, *nodes: str) -> Run:
    return Run(repeat, 0, None, False, (), state, "sacct", "", nodes)


def valid_run(repeat: int, *nodes: str) -> Run:
    return Run(repeat, 0, 8.0, True, (), "COMPLETED", "sacct", "", nodes)


def list_suspects(
    *runs: Run, elsewhere: tuple[Run, ...] = (), nodes: dict[str, bool] = UP
) -> dict[str, str]:
    return Suspicion({POINT: runs, "another point": elsewhere}, nodes).of(POINT)


@pytest.mark.parametrize("word", ["NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL"])
def test_the_node_that_slurm_lost_is_suspected_even_if_it_was_good_before(word: str) -> None:
    suspects = list_suspects(valid_run(1, "n1"), failed_run(2, word, "n1"))
    assert list(suspects) == ["n1"]
    assert f"repeat 2 of {POINT} was {word} on it" in suspects["n1"]


def test_of_several_nodes_the_one_that_is_down_is_to_blame() -> None:
    lost = failed_run(1, "NODE_FAIL", "n1", "n2", "n3")
    suspects = list_suspects(lost, nodes={**UP, "n2": False})
    assert list(suspects) == ["n2"]
    assert "it is down" in suspects["n2"]


def test_if_none_is_down_those_on_which_nothing_ended_well_are() -> None:
    lost = failed_run(1, "NODE_FAIL", "n1", "n2")
    assert list(list_suspects(lost, elsewhere=(valid_run(1, "n1", "n3"),))) == ["n2"]


@pytest.mark.parametrize("word", ["FAILED", "TIMEOUT", "UNKNOWN"])
def test_a_node_on_which_only_failures_ran_is_suspected_if_others_of_the_point_are_good(
    word: str,
) -> None:
    valid, failed = valid_run(1, "n1", "n2"), failed_run(2, word, "n2", "n3")
    assert list(list_suspects(valid, failed)) == ["n3"]
    # Where nothing of the point ended well, the point is to blame.
    assert list_suspects(failed, elsewhere=(valid,)) == {}


@pytest.mark.parametrize("word", ["CANCELLED", "PREEMPTED", "OUT_OF_MEMORY", "COMPLETED"])
def test_what_is_no_fault_of_a_node_speaks_against_none(word: str) -> None:
    assert list_suspects(valid_run(1, "n1"), failed_run(2, word, "n2")) == {}


def test_never_more_than_a_quarter_is_kept_away_from() -> None:
    suspects = dict.fromkeys(("n1", "n2", "n3"), "why")
    verdict = limit_exclusions(suspects, UP, needed=2)
    assert [node for node, _ in verdict.excluded] == ["n1", "n2"]
    assert [node for node, _ in verdict.spared] == ["n3"]


def test_as_many_nodes_are_left_as_the_point_takes() -> None:
    four = dict.fromkeys(("n1", "n2", "n3", "n4"), True)
    assert limit_exclusions({"n1": "why"}, four, needed=4).excluded == ()
    assert limit_exclusions({"n1": "why"}, four, needed=3).excluded == (("n1", "why"),)


def test_a_node_that_is_down_costs_nothing() -> None:
    nodes = {"n1": False, "n2": True, "n3": True}
    verdict = limit_exclusions({"n1": "lost", "n2": "failed"}, nodes, needed=2)
    assert (verdict.excluded, verdict.spared) == ((("n1", "lost"),), (("n2", "failed"),))


def test_while_nobody_tells_how_many_nodes_there_are_none_is_excluded() -> None:
    assert limit_exclusions({"n1": "why"}, {}, needed=1).spared == (("n1", "why"),)


def test_sinfo_is_read_with_its_marks() -> None:
    text = (
        "n1|gpu*|idle\nn2|gpu*|mixed\nn3|gpu*|down*\nn4|gpu*|drained\nn5|other|idle\n"
        "n6|gpu*|idle*\nnonsense\n"
    )
    expected = {"n1": True, "n2": True, "n3": False, "n4": False, "n6": False}
    assert read_usable_nodes(text, "") == read_usable_nodes(text, "gpu") == expected
    assert read_usable_nodes(text, "other") == {"n5": True}
