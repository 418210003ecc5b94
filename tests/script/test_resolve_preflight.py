"""The job before all points: its script, and what it makes of what it measures."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hpcbert.commands.submit import write_campaign
from hpcbert.errors import UsageError
from hpcbert.model import Shape
from hpcbert.script.draft import Draft
from hpcbert.timelimit import TimeLimit
from tests.kit.cases import cases, read_constant
from tests.kit.drafts import combined, drafted, reference, settled
from tests.kit.scripts import slurm_in, tool
from tests.kit.waiting import CEILING


def draft_preflight(where, shape="4n8g", device="gpu", limit="01:00:00", **options) -> Draft:
    request = combined(Shape.parse(shape), ("fp32",), device=device, repeats=2)
    site = reference(where, slurm={"time_limit": TimeLimit.parse(limit)})
    site = settled(site, "nccl-tests", options={"program": "/opt/a b/all_reduce_perf"})
    return drafted(site, request, options={"preflight": True, **options})


def test_it_is_one_job_on_the_nodes_of_the_largest_point_and_no_point_itself(tmp_path):
    draft = draft_preflight(tmp_path)
    campaign, check = draft.campaign, draft.campaign.preflight
    assert check is campaign.arrays[-1] is campaign.in_order[0]
    assert check is not None
    assert check not in campaign.measured
    assert {array.point for array, _ in campaign.current} == set(campaign.of_point)
    assert check.point not in campaign.of_point
    request = check.request
    assert (request.nodes, request.array, request.time_limit) == (4, "", "00:30:00")
    assert "/opt/a b/all_reduce_perf" in draft.scripts[check.name]
    assert "--minbytes 32M --maxbytes 256M" in draft.scripts[check.name]
    assert draft.lock.points == tuple(campaign.of_point)


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_without_gpus_for_certain_the_reference_program_measures(tmp_path, device):
    draft = draft_preflight(tmp_path, "4n1g", device, "00:10:00")
    check = draft.campaign.arrays[-1]
    assert "--all-reduce 16" in draft.scripts[check.name]
    assert "scripts/bert_pretrain.py" in {target for target, _ in draft.copies}
    assert check.request.time_limit == "00:10:00"
    # The campaign measures the same program with the same shape: no two share a status file.
    assert len({array.point.key for array in draft.campaign.arrays}) == 2


@cases
def test_one_node_has_nothing_to_be_compared_with(tmp_path, shape, options, why):
    with pytest.raises(UsageError, match=why) as caught:
        draft_preflight(tmp_path, shape, "cpu", **options)
    assert "--preflight" in caught.value.hint


class Check:
    """A preflight's script and Slurm's commands, of which `squeue` lists waiting jobs."""

    jobs: tuple[str, ...] = ("51|4|||{}", "52|2|n7||{}", "53|1|||/elsewhere")

    def __init__(self, folder: Path, shape: str = "4n8g", limit: str = "01:00:00") -> None:
        self.folder, self.draft = folder, draft_preflight(folder, shape, limit=limit)
        write_campaign(self.draft)
        self.nodes = [f"n{number}" for number in range(1, int(shape[0]) + 1)]

    def run(self, table: str = "", usable: int = 8, **variables: str):
        """Run it where `table` has the speed of nodes; return its status and its events by kind."""
        directory = self.draft.directory
        words = {"jobs": "\n".join(self.jobs).format(*[directory] * 3), "usable": usable}
        tools = self.folder / "tools"
        environment = slurm_in(tools)
        for name, text in read_constant(__file__, "TOOLS").items():
            tool(tools, name, text % words if name in ("squeue", "sinfo") else text)
        environment |= {"SLURM_JOB_ID": "50", "SLURM_JOB_PARTITION": "gpu", "TABLE": table}
        environment |= {"RECORD": f"{self.folder}/record", "CAMPAIGN": str(directory), **variables}
        environment["SLURM_JOB_NODELIST"] = ",".join(self.nodes)
        others = {n: text for n, text in os.environ.items() if not n.startswith("SLURM")}
        result = subprocess.run(
            ["bash", str(directory / "scripts/preflight.sbatch")],
            env={**others, **environment}, cwd=self.folder,
            capture_output=True, text=True, check=False, timeout=CEILING,
        )  # fmt: skip
        events: dict[str, list[dict[str, Any]]] = {}
        for line in (directory / self.draft.campaign.arrays[-1].status(1)).read_text().splitlines():
            events.setdefault(json.loads(line)["event"], []).append(json.loads(line))
        assert events["end"][-1]["exit"] == result.returncode, result.stderr
        return result.returncode, events

    def lines(self, name: str) -> list[str]:
        path = self.folder / f"record.{name}"
        return sorted(path.read_text().splitlines()) if path.exists() else []


@pytest.mark.slow
@cases
def test_a_node_far_below_the_others_is_named_and_its_neighbours_are_not(
    tmp_path, shape, table, slow: list[str]
):
    check = Check(tmp_path, shape)
    status, events = check.run(table)
    assert status == 0
    assert [event["name"] for event in events["node"]] == check.nodes
    assert [event["name"] for event in events["node"] if event["slow"]] == slow
    assert events["node"][2 if "n1" in slow else 0]["inside"] == 40125
    assert bool(check.lines("update")) == bool(slow)


@pytest.mark.slow
@cases
def test_waiting_jobs_keep_away_as_far_as_they_can(
    tmp_path, *, jobs, usable, refusal,
    update, spared,
):  # fmt: skip
    check = Check(tmp_path)
    check.jobs = jobs or check.jobs
    status, events = check.run("n2 9.5", usable, REFUSES=refusal or "")
    assert status == 0
    assert {event["job"]: event["why"] for event in events["spared"]} == spared
    if update is None:
        assert "left-out" not in events
        return
    assert check.lines("update") == [f"update JobId=52 ExcNodeList={update}"]
    assert [(event["job"], event["nodes"]) for event in events["left-out"]] == [("52", update)]


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "cancelled"), [("00:30:00", []), ("00:00:20", ["51", "52"])])
def test_at_its_time_limit_it_gives_up_and_not_where_it_may_come_back(tmp_path, limit, cancelled):
    check = Check(tmp_path, "2n8g", limit)
    status, _ = check.run(TERMINATED="1")
    assert status == 143
    assert check.lines("cancel") == cancelled


@pytest.mark.slow
@pytest.mark.parametrize("nodes", ["1234", "13"])
def test_where_nothing_is_measured_nothing_runs(tmp_path, nodes):
    check = Check(tmp_path)
    status, _ = check.run("\n".join(f"n{number} hangs" for number in nodes))
    assert status == 1
    assert check.lines("cancel") == ["51", "52"]
    assert not check.lines("update")
