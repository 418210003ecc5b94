"""What a job finds in partitions, and whether accounting lets it start."""

from pathlib import Path
from typing import Any

import pytest

from hpcbert.finding import Finding
from hpcbert.model import JobRequest
from hpcbert.scheduler import create_scheduler
from hpcbert.scheduler.base import SchedulerContext
from hpcbert.scheduler.slurm.admission import find_obstacles
from hpcbert.scheduler.slurm.cluster import Cluster
from tests.kit import drafts
from tests.kit.cases import cases, read_constant
from tests.kit.slurm import Answers, partition

SHARED = Path("/shared/runs")


def list_obstacles(
    answers: Answers | None = None, *, runs: Path = SHARED, **fields: Any
) -> list[Finding]:
    """Return what stands in the way of a job of one node and its 8 GPUs, or of other fields."""
    answers = answers or Answers(sinfo=read_constant(__file__, "SINFO"), partitions="")
    usual = {"partition": "gpu", "nodes": 1, "time_limit": "01:00:00", "gres": "gpu:8"}
    job = JobRequest(**{**usual, "tasks_per_node": 8, **fields})
    return list(find_obstacles([job], runs, Cluster(SchedulerContext(answers))))


@pytest.fixture
def answers(monkeypatch):
    """A cluster that enforces accounting."""
    monkeypatch.setattr("hpcbert.system.files.user_name", lambda _: "me")
    return Answers(**read_constant(__file__, "ENFORCING"))


@cases
def test_what_fits_no_partition_is_named_with_what_would(
    request_fields, name, detail, hint, status
):
    assert_found(list_obstacles(**request_fields), name, detail, hint, status or "fail")


@cases
def test_what_accounting_lets_wait_for_ever_is_named(request_fields, name, detail, hint, answers):
    assert_found(list_obstacles(answers, **request_fields), name, detail, hint)


def assert_found(
    findings: list[Finding], name: str | None, detail: str, hint: str, status: str = "fail"
) -> None:
    """Check for a finding of that name, or for none."""
    assert [(finding.name, finding.status) for finding in findings] == [(name, status)] * bool(name)
    assert all(detail in finding.detail and hint in finding.hint for finding in findings)


@pytest.mark.parametrize("place", ["/tmp/x/runs", "/dev/shm/runs", "/run/user/1/runs", "link"])
def test_a_directory_of_this_machine_is_refused_where_nodes_are_others(
    place, tmp_path, monkeypatch
):
    (tmp_path / "link").symlink_to("/dev/shm")
    (finding,) = list_obstacles(runs=tmp_path / place)
    assert finding.name == "runs directory"
    assert "local to each machine" in finding.detail

    class Here:
        nodename = "c1.example.org"

    monkeypatch.setattr("os.uname", Here)
    alone = Answers(sinfo="gpu*|up|1|infinite|1-infinite|gpu:8|c1\n", partitions="")
    assert list_obstacles(alone, runs=tmp_path / place) == []


@cases
def test_a_campaign_records_that_its_partition_shares_nodes(sharing, slurm, tmp_path, *, shares):
    rules = partition().replace("MaxNodes", f"OverSubscribe={sharing} MaxNodes")
    site = drafts.site(tmp_path, f"[slurm]\n{slurm}\n")
    backend = create_scheduler("slurm", SchedulerContext(Answers(partitions=rules)))
    assert backend.fit(drafts.OPTIONS, site, drafts.load()).shares_nodes == shares


def test_a_demanded_account_is_named(answers):
    answers.user = "me|\n"
    (finding,) = list_obstacles(answers)
    assert (finding.name, finding.detail) == ("account", "Jobs here must name an account.")
    assert "proj, short" in finding.hint


def test_an_account_stands_for_those_below_it_since_23_02(answers):
    answers.partitions = partition("gpu", accounts="root")
    assert list_obstacles(answers)
    answers.config = answers.config.replace("22.05.8", "24.11.5")
    assert list_obstacles(answers) == []


@pytest.mark.parametrize("silent", ["own", "config"])
def test_what_is_not_enforced_or_not_told_is_passed_over(silent, answers):
    answers.complaints = {silent: "Access/permission denied\n"}
    assert list_obstacles(answers, partition="closed", nodes=2, account="none", qos="gold") == []
    nothing = Answers(sinfo="sinfo: error", partitions="")
    assert list_obstacles(nothing, partition="gpus", nodes=99, runs=Path("/tmp")) == []
