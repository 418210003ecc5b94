"""What a job finds in partitions, and whether accounting lets it start."""

from dataclasses import replace

import pytest

from hpcbert.model import JobRequest
from hpcbert.scheduler import create_scheduler
from hpcbert.scheduler.base import SchedulerContext
from hpcbert.scheduler.slurm.admission import find_obstacles
from hpcbert.scheduler.slurm.cluster import Cluster
from tests.kit import drafts
from tests.kit.cases import cases, read_constant
from tests.kit.slurm import Answers, partition


def list_obstacles(answers=None, *, runs="/shared/runs", **fields):
    """Return what stands in the way of a job of one node and its 8 GPUs, or of other fields."""
    answers = answers or Answers(sinfo=read_constant(__file__, "SINFO"), partitions="")
    usual = {"partition": "gpu", "nodes": 1, "time_limit": "01:00:00", "gres": "gpu:8"}
    job = JobRequest(**{**usual, "tasks_per_node": 8, **fields})
    return list(find_obstacles([job], runs, Cluster(SchedulerContext(answers))))


@pytest.fixture
def answers(me):
    """A cluster that enforces accounting."""
    return Answers(**read_constant(__file__, "ENFORCING"))


@cases
def test_what_keeps_a_job_from_starting_is_named_with_what_would_start(
    request_fields, name, detail, hint, answers, *, status, enforced
):
    findings = list_obstacles(answers if enforced else None, **request_fields)
    expected = [(name, status or "fail")] if name else []
    assert [(finding.name, finding.status) for finding in findings] == expected
    assert all(detail in finding.detail and hint in finding.hint for finding in findings)


def test_a_directory_of_this_machine_is_refused_where_nodes_are_others(tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to("/dev/shm")
    places = ("/tmp/x/runs", "/dev/shm/runs", "/run/user/1/runs", tmp_path / "link")
    for place in places:
        (finding,) = list_obstacles(runs=tmp_path / place)
        assert finding.name == "runs directory"
        assert "local to each machine" in finding.detail

    class Here:
        nodename = "c1.example.org"

    monkeypatch.setattr("os.uname", Here)
    alone = Answers(sinfo="gpu*|up|1|infinite|1-infinite|gpu:8|c1\n", partitions="")
    assert [list_obstacles(alone, runs=tmp_path / place) for place in places] == [[]] * 4


@cases
def test_a_campaign_records_that_its_partition_shares_nodes(sharing, slurm, tmp_path, *, shares):
    rules = partition().replace("MaxNodes", f"OverSubscribe={sharing} MaxNodes")
    site = drafts.site(tmp_path, f"[slurm]\n{slurm}\n")
    backend = create_scheduler("slurm", SchedulerContext(answers := Answers(partitions=rules)))
    assert backend.fit(drafts.OPTIONS, site, drafts.load()).shares_nodes == shares
    assert (len(answers.environments) > 1) is (not slurm), "only what matters is asked: no MPI"


def test_a_demanded_account_is_named_and_what_is_not_enforced_or_not_told_is_passed_over(answers):
    (finding,) = list_obstacles(replace(answers, user="me|\n"))
    assert (finding.name, finding.detail) == ("account", "Jobs here must name an account.")
    assert "proj, short" in finding.hint
    for silent in ("own", "config"):
        quiet = replace(answers, complaints={silent: "Access/permission denied\n"})
        assert list_obstacles(quiet, partition="closed", nodes=2, account="none", qos="gold") == []
    nothing = Answers(sinfo="sinfo: error", partitions="")
    assert list_obstacles(nothing, partition="gpus", nodes=99, runs="/tmp") == []
    # An account stands for those below it since 23.02.
    answers.partitions = partition("gpu", accounts="root")
    assert list_obstacles(answers)
    answers.config = answers.config.replace("22.05.8", "24.11.5")
    assert list_obstacles(answers) == []
