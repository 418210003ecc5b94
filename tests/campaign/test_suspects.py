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


def list_suspects(*runs: Run, elsewhere: tuple[Run, ...] = (), **down: bool) -> dict[str, str]:
    return Suspicion({POINT: runs, "another point": elsewhere}, UP | down).of(POINT)


@pytest.mark.parametrize("word", ["NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL"])
def test_the_node_that_slurm_lost_is_suspected_even_if_it_was_good_before(word):
    suspects = list_suspects(valid_run(1, "n1"), failed_run(2, word, "n1"))
    assert suspects == {"n1": f"repeat 2 of {POINT} was {word} on it"}


def test_of_several_nodes_those_that_are_down_or_never_worked_are_suspected():
    lost = failed_run(1, "NODE_FAIL", "n1", "n2", "n3")
    ((node, reason),) = list_suspects(lost, n2=False).items()
    assert (node, reason.endswith("it is down")) == ("n2", True)
    lost = failed_run(1, "NODE_FAIL", "n1", "n2")
    assert list(list_suspects(lost, elsewhere=(valid_run(1, "n1", "n3"),))) == ["n2"]


@pytest.mark.parametrize("word", ["FAILED", "TIMEOUT", "UNKNOWN"])
def test_a_node_with_failures_only_is_suspected_if_others_of_the_point_are_good(word):
    valid, failed = valid_run(1, "n1", "n2"), failed_run(2, word, "n2", "n3")
    assert list(list_suspects(valid, failed)) == ["n3"]
    # Where nothing of the point ended well, the point is to blame.
    assert list_suspects(failed, elsewhere=(valid,)) == {}


@pytest.mark.parametrize("word", ["CANCELLED", "PREEMPTED", "OUT_OF_MEMORY", "COMPLETED"])
def test_what_is_no_fault_of_a_node_speaks_against_none(word):
    assert list_suspects(valid_run(1, "n1"), failed_run(2, word, "n2")) == {}


def test_an_exclusion_leaves_enough_nodes_to_the_point():
    """Never more than a quarter; one that is down costs nothing; none where nodes are unknown."""
    verdict = limit_exclusions(dict.fromkeys(("n1", "n2", "n3"), "why"), UP, needed=2)
    assert verdict.excluded == (("n1", "why"), ("n2", "why"))
    assert verdict.spared == (("n3", "why"),)
    four = dict.fromkeys(("n1", "n2", "n3", "n4"), True)
    assert limit_exclusions({"n1": "why"}, four, needed=4).excluded == ()
    assert limit_exclusions({"n1": "why"}, four, needed=3).excluded == (("n1", "why"),)
    nodes = {"n1": False, "n2": True, "n3": True}
    verdict = limit_exclusions({"n1": "lost", "n2": "failed"}, nodes, needed=2)
    assert (verdict.excluded, verdict.spared) == ((("n1", "lost"),), (("n2", "failed"),))
    assert limit_exclusions({"n1": "why"}, {}, needed=1).spared == (("n1", "why"),)


def test_sinfo_is_read_with_its_marks():
    text = (
        "n1|gpu*|idle\nn2|gpu*|mixed\nn3|gpu*|down*\nn4|gpu*|drained\nn5|other|idle\n"
        "n6|gpu*|idle*\nnonsense\n"
    )
    expected = {"n1": True, "n2": True, "n3": False, "n4": False, "n6": False}
    assert read_usable_nodes(text, "") == read_usable_nodes(text, "gpu") == expected
    assert read_usable_nodes(text, "other") == {"n5": True}
