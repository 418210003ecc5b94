"""Nodes are drained, lost or cut off, and a disk is full: no number is wrong, and no job lost."""

from contextlib import suppress
from functools import partial

import pytest

from hpcbert.lab.daemons import run_ip
from hpcbert.lab.record import SWITCH
from hpcbert.system.runner import run
from tests.kit.waiting import until

pytestmark = pytest.mark.slurm


def test_the_directory_is_full(cluster):
    narrow = cluster.lab.directory.with_name("narrow")
    runs = cluster.folder(narrow)
    # More than is left of the last block that a file has already.
    noise = "head -c 16384 /dev/zero | tr '\\0' x; echo"
    campaign = cluster.submit({"1.*": f"gate; {noise}"}, node="n2", repeats=2, runs=runs)
    campaign.wait_half_way(1)
    manifest = campaign.directory / "manifest.json"
    before, ballast = manifest.read_bytes(), narrow / f"ballast-{runs.name}"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    campaign.go()
    queue = ("squeue", "-h", "-j", campaign.job, "-o", "%i")
    until(lambda: not cluster.must(*queue).split(), "both repeats are over")
    refused = cluster.hpcbert(*cluster.words(cluster.folder(), {}, runs=runs))
    assert refused.returncode != 0
    assert "No space left" in refused.stdout
    code, full = campaign.collect()
    assert (code, any(run["valid"] for run in full.values())) == (4, False)
    ballast.unlink()
    assert manifest.read_bytes() == before
    code, freed = campaign.collect()
    assert (code, any(run["valid"] for run in freed.values())) == (4, False)
    assert all(run["reasons"] for run in freed.values())


@pytest.mark.site("a node is drained")
def test_a_node_is_drained(cluster):
    campaign = cluster.submit({"1.*": "gate"}, node="n2", repeats=2)
    campaign.wait_half_way(1)
    cluster.set_node("n2", "drain")
    campaign.go()
    campaign.wait_pending(2, "ReqNodeNotAvail")
    # squeue's default view of an array is another moment's than its view of the elements. Slurm
    # 24.11 says that the node "may be reserved for other job".
    until(lambda: "drained" in campaign.look(2)["detail"], "monitor says why it waits")
    assert "sinfo -R" in campaign.look(2)["advice"]
    cluster.set_node("n2", "resume")
    campaign.check("COMPLETED", "COMPLETED")


@pytest.mark.site("a node is out of reach")
def test_a_link_is_cut(cluster):
    """Of two campaigns on the node, Slurm starts one again; each tells what happened to it."""
    switch = partial(run_ip, cluster.lab, cluster.lab.host(SWITCH), run=run)
    lost = cluster.submit({"*": "gate"}, node="n4", requeue=False)
    sent_back = cluster.submit({"*.0": "hang"}, node="n4")
    lost.wait_half_way(1)
    sent_back.wait_half_way(1)
    switch("link set n4 down\n")
    try:
        # On the other side of the cut it goes on to its end.
        lost.go()
        lost.follow()
        sent_back.wait_pending(1)
        until(lambda: sent_back.look()["attempts"], "monitor tells of the first attempt")
        (before,) = sent_back.look()["attempts"]
        assert (before["state"], before["nodes"], before["attempt"]) == ("NODE_FAIL", ["n4"], 0)
        first, second = sent_back.collect()[1][1]["attempts"]
        assert (first["state"], first["state_source"]) == ("NODE_FAIL", "sacct")
        assert second["attempt"] == 1
        text = cluster.hpcbert("collect", sent_back.directory).stdout
        assert "attempt 0 on n4 was NODE_FAIL: lost a node (n4)" in text
        # Slurm would start it at once on a node that does not know yet that it lost the job.
        cluster.set_node("n4", "drain")
    finally:
        switch("link set n4 up\n")
    cluster.wait_for_node("n4", "drained")
    cluster.vacate("n4")
    cluster.set_node("n4", "resume")
    sent_back.start_again(1)
    sent_back.check("COMPLETED", attempts={1: 1})
    lost.check("NODE_FAIL")
