"""Which nodes a retry keeps away from."""

from hpcbert.campaign.suspects import Suspicion, limit_exclusions
from hpcbert.model import Run
from tests.kit.cases import cases

POINT = "bert-base_2n8g_fp32_b32"
UP = {f"n{number}": True for number in range(1, 9)}


def make_run(state, *nodes):
    valid = state == "COMPLETED"
    return Run(1 if valid else 2, 0, 8.0 if valid else None, valid, (), state, "sacct", "", nodes)


def list_suspects(*runs, elsewhere=(), **down):
    return Suspicion({POINT: runs, "another point": elsewhere}, UP | down).of(POINT)


def test_a_node_that_slurm_lost_is_suspected_even_if_it_was_good_before():
    for word in ("NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL"):
        suspects = list_suspects(make_run("COMPLETED", "n1"), make_run(word, "n1"))
        assert suspects == {"n1": f"repeat 2 of {POINT} was {word} on it"}
        # Of several, those that are down, or else those that never worked.
        ((node, reason),) = list_suspects(make_run(word, "n1", "n2", "n3"), n2=False).items()
        assert (node, reason.endswith("it is down")) == ("n2", True)
        elsewhere = (make_run("COMPLETED", "n1", "n3"),)
        assert list(list_suspects(make_run(word, "n1", "n2"), elsewhere=elsewhere)) == ["n2"]


@cases
def test_failures_speak_against_a_node_if_others_of_the_point_are_good(word, suspects):
    valid, failed = make_run("COMPLETED", "n1", "n2"), make_run(word, "n2", "n3")
    assert tuple(list_suspects(valid, failed)) == suspects
    # Where nothing of the point ended well, the point is to blame.
    assert list_suspects(failed, elsewhere=(valid,)) == {}


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
