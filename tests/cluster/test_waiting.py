"""What can't start, or never does, on a real cluster: it is refused if possible, and its end is kept."""

import time
from pathlib import Path

import pytest

from hpcbert.model import parse_utc
from tests.kit.cases import cases

pytestmark = pytest.mark.slurm

POINT = ("--fw", "pytorch", "--device", "gpu", "--gpus-per-node", 1, "--repeats", 2, "--json")


def read_state(hpcbert, where):
    """Return the campaign's state in `list`, which equals that of `show`."""
    campaigns = hpcbert("list", "--json").data["campaigns"]
    states = {campaign["campaign"]: campaign["state"] for campaign in campaigns}
    assert hpcbert("show", "--json", where).data["state"] == states[where.name]
    return states[where.name]


def test_a_plan_has_slurms_own_start_and_what_is_free_and_submits_nothing(hpcbert, as_user):
    point = ("--fw", "pytorch", "--device", "gpu", "--gpus-per-node", 8, "--rehearse", "--json")
    (campaign,) = hpcbert("plan", "--nodes", 2, *point, "--time", "30", status=0).data["campaigns"]
    (point_plan,) = campaign["points"]
    began = parse_utc(point_plan["start"])
    assert began is not None
    assert abs(began - time.time()) < 3600
    assert point_plan["start_nodes"].startswith("n")
    assert (point_plan["node_hours"], point_plan["gpu_hours"]) == (5.0, 40.0)
    (partition,) = campaign["partitions"]
    assert (partition["nodes"], partition["fitting"], partition["usable"]) == (4, 4, 4)
    assert campaign["missing"] == []
    errors = hpcbert("plan", "--nodes", 5, *point, status=5).document["errors"]
    text = " ".join(error["message"] for error in errors)
    assert "has 4 nodes" in text
    assert "sbatch --test-only: " in text
    queue = as_user(["squeue", "--noheader", "--states=all", "--format=%Z"]).stdout
    assert str(hpcbert.cwd) not in queue


@cases
def test_what_plan_knows_to_be_impossible_submit_refuses(hpcbert, words):
    plan = hpcbert("plan", *POINT, *words, "--rehearse", status=5)
    result = hpcbert("submit", *POINT, *words, "--rehearse", status=2)
    sentences = [error["message"] for error in plan.document["errors"]]
    assert result.error["message"] in sentences
    assert not (hpcbert.cwd / "runs").exists()


def test_what_slurm_gives_as_the_reason_is_shown_and_kept(hpcbert, wait_for_end):
    text = (
        'schema = 1\nframeworks = "pytorch"\ndevice = "gpu"\nshapes = ["1n1g", "4n1g"]\n'
        'repeats = 2\n[slurm]\nexclude = "n4"\n'
    )
    (hpcbert.cwd / "campaign.toml").write_text(text)
    refused = hpcbert("submit", "campaign.toml", "--rehearse", "--json", status=2)
    assert "node configuration is not available" in refused.error["message"]
    assert "exclude fewer" in refused.error["hint"]
    forced = hpcbert("submit", *POINT, "--nodes", 4, "--exclude", "n4", "--force", status=0)
    where = wait_for_end(forced.data["directory"])
    assert read_state(hpcbert, where) == "waiting"
    result = hpcbert("monitor", where)
    assert "BadConstraints" in result.output
    assert "hpcbert retry" not in result.output
    assert read_state(hpcbert, where) == "ended"
    assert "BadConstraints" in hpcbert("show", where).stdout
    assert "BadConstraints" in hpcbert("collect", where).output
    assert read_state(hpcbert, where) == "incomplete"


def test_a_campaign_that_was_cancelled_while_it_waited_has_ended(hpcbert, wait_for_end):
    later = ("submit", *POINT, "--nodes", 1, "--force", "--sbatch-arg=--begin=now+1hour")
    for program in ("hpcbert", "scancel"):
        submission = hpcbert(*later, status=0).data
        where = Path(submission["directory"])
        assert read_state(hpcbert, where) == "waiting"
        if program == "hpcbert":
            hpcbert("cancel", "--yes", where, status=0)
        else:
            assert hpcbert.run(["scancel", submission["arrays"][0]["job_id"]]).ok
            hpcbert("monitor", wait_for_end(str(where)))
        assert read_state(hpcbert, where) == "ended"
        assert "CANCELLED: was cancelled" in hpcbert("show", where).stdout
