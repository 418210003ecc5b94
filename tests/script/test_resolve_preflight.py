"""The job before all points: its script, and what it makes of what it measures."""

from __future__ import annotations

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

# Measures 40 GB/s, or what $TABLE says of the first of its nodes that is in it: `n2 9.5`.
SRUN = read_constant(__file__, "SRUN")
# Slurm ends the job while a step runs.
TERMINATED = """#!/bin/bash
kill -TERM "$(sed -En 's/.*"pid":([0-9]+).*/\\1/p' "$CAMPAIGN"/status/preflight_*.jsonl)"
exec sleep 0.2
"""
SCONTROL = """
case $1 in
  show) if [[ $2 == hostnames ]]; then tr , '\\n' <<<"$3"; fi ;;
  update) echo "$@" >>"$RECORD.update"; if [[ -n ${REFUSES:-} ]]; then echo "$REFUSES" >&2; exit 1; fi ;;
esac
"""


def draft_preflight(
    where: Path,
    shape: str = "4n8g",
    device: str = "gpu",
    *,
    limit: str = "01:00:00",
    **options: Any,
) -> Draft:
    request = combined(Shape.parse(shape), ("fp32",), device=device, repeats=2)
    site = reference(where, slurm={"time_limit": TimeLimit.parse(limit)})
    site = settled(site, "nccl-tests", options={"program": "/opt/a b/all_reduce_perf"})
    return drafted(site, request, options={"preflight": True, **options})


def find_script(draft: Draft) -> str:
    return draft.scripts[draft.campaign.arrays[-1].name]


def test_it_is_one_job_on_the_nodes_of_the_largest_point_and_no_point_itself(
    tmp_path: Path,
) -> None:
    draft = draft_preflight(tmp_path)
    check = draft.campaign.preflight
    assert check is draft.campaign.arrays[-1] is draft.campaign.in_order[0]
    assert check not in draft.campaign.measured
    assert {array.point for array, _ in draft.campaign.current} == set(draft.campaign.of_point)
    assert check is not None
    assert check.point not in draft.campaign.of_point
    request = check.request
    assert (request.nodes, request.array, request.time_limit) == (4, "", "00:30:00")
    assert "/opt/a b/all_reduce_perf" in find_script(draft)
    assert "--minbytes 32M --maxbytes 256M" in find_script(draft)
    assert draft.lock.points == tuple(draft.campaign.of_point)


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_without_gpus_for_certain_the_reference_program_measures(
    tmp_path: Path, device: str
) -> None:
    draft = draft_preflight(tmp_path, "4n1g", device, limit="00:10:00")
    assert "--all-reduce 16" in find_script(draft)
    assert "scripts/bert_pretrain.py" in {target for target, _ in draft.copies}
    assert draft.campaign.arrays[-1].request.time_limit == "00:10:00"
    # The campaign measures the same program with the same shape: no two share a status file.
    assert len({array.point.key for array in draft.campaign.arrays}) == 2


@cases
def test_one_node_has_nothing_to_be_compared_with(
    tmp_path: Path, shape: str, options: dict[str, Any], why: str
) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        draft_preflight(tmp_path, shape, "cpu", **options)
    assert "--preflight" in caught.value.hint


class Bench:
    """Runs a preflight's script with stand-ins for Slurm's commands."""

    def __init__(
        self, tmp_path: Path, shape: str, *, usable: int = 8, limit: str = "01:00:00"
    ) -> None:
        self.tmp_path, self.made = tmp_path, draft_preflight(tmp_path, shape, limit=limit)
        write_campaign(self.made)
        self.nodes = [f"n{number}" for number in range(1, int(shape[0]) + 1)]
        self.tools = tmp_path / "tools"
        self.environment = {
            **{name: text for name, text in os.environ.items() if not name.startswith("SLURM")},
            **slurm_in(self.tools, SCONTROL),
            "RECORD": str(tmp_path / "record"),
            "SLURM_JOB_ID": "50",
            "SLURM_JOB_PARTITION": "gpu",
            "SLURM_JOB_NODELIST": ",".join(self.nodes),
        }
        self.say("srun", SRUN)
        self.say("getent", '#!/bin/bash\necho "10.0.0.${2#n} STREAM $2"\n')
        states = "".join(f"n{number} mixed\n" for number in range(1, usable + 1))
        self.say("sinfo", f"#!/bin/bash\nprintf '{states}n99 down*\\n'\n".replace("\n'", "'"))
        self.waiting("51|4|||{}", "52|2|n7||{}", "53|1|||/elsewhere")

    def say(self, name: str, text: str) -> None:
        tool(self.tools, name, text)

    def waiting(self, *lines: str) -> None:
        text = "\n".join(lines).format(*[self.made.directory] * len(lines))
        self.say("squeue", f"#!/bin/bash\ncat <<'EOF'\n{text}\nEOF\n")
        self.say("scancel", '#!/bin/bash\necho "$@" >>"$RECORD.cancel"\n')
        self.say("sleep", "#!/bin/bash\n")

    def run(self, table: str = "", **env: str) -> tuple[int, dict[str, list[dict[str, Any]]]]:
        result = subprocess.run(
            ["bash", str(self.made.directory / "scripts/preflight.sbatch")],
            env={**self.environment, "TABLE": table, **env}, cwd=self.tmp_path,
            capture_output=True, text=True, check=False, timeout=CEILING,
        )  # fmt: skip
        check = self.made.campaign.preflight
        assert check is not None
        events_by_kind: dict[str, list[dict[str, Any]]] = {}
        for line in (self.made.directory / check.status(1)).read_text().splitlines():
            event = json.loads(line)
            events_by_kind.setdefault(event["event"], []).append(event)
        assert events_by_kind["end"][-1]["exit"] == result.returncode, result.stderr
        return result.returncode, events_by_kind

    def wrote(self, name: str) -> list[str]:
        path = self.tmp_path / f"record.{name}"
        return path.read_text().splitlines() if path.exists() else []


@pytest.mark.slow
@cases
def test_a_node_far_below_the_others_is_named_and_its_neighbours_are_not(
    tmp_path: Path, shape: str, table: str, slow: list[str]
) -> None:
    bench = Bench(tmp_path, shape)
    status, events_by_kind = bench.run(table)
    assert status == 0
    assert [event["name"] for event in events_by_kind["node"]] == bench.nodes
    assert [event["name"] for event in events_by_kind["node"] if event["slow"]] == slow
    assert events_by_kind["node"][2 if "n1" in slow else 0]["inside"] == 40125
    assert bool(bench.wrote("update")) == bool(slow)


@pytest.mark.slow
def test_waiting_jobs_of_the_campaign_keep_away_as_far_as_enough_nodes_are_left(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, "4n8g", usable=4)
    _, events_by_kind = bench.run("n2 9.5")
    assert bench.wrote("update") == ["update JobId=52 ExcNodeList=n2,n7"]
    assert [(event["job"], event["nodes"]) for event in events_by_kind["left-out"]] == [
        ("52", "n2,n7")
    ]
    (spared,) = events_by_kind["spared"]
    assert (spared["job"], spared["why"]) == ("51", "it takes 4 nodes, and 3 others are left")


@pytest.mark.slow
def test_a_job_that_names_a_slow_node_is_not_made_impossible(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "4n8g")
    bench.waiting("51|2||n1,n2|{}", "52|2||n1,n3|{}")
    _, events_by_kind = bench.run("n2 9.5")
    assert bench.wrote("update") == ["update JobId=52 ExcNodeList=n2"]
    (spared,) = events_by_kind["spared"]
    assert (spared["job"], spared["why"]) == ("51", "it asks for that node by name")


@pytest.mark.slow
def test_what_slurm_refuses_is_written_down(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "4n8g")
    status, events_by_kind = bench.run("n2 9.5", REFUSES='slurm_update error: "no"')
    assert status == 0
    assert {event["why"] for event in events_by_kind["spared"]} == {'slurm_update error: "no"'}
    assert "left-out" not in events_by_kind


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "cancelled"), [("00:30:00", []), ("00:00:20", ["51", "52"])])
def test_at_its_time_limit_it_gives_up_and_not_where_it_may_come_back(
    tmp_path: Path, limit: str, cancelled: list[str]
) -> None:
    bench = Bench(tmp_path, "2n8g", limit=limit)
    bench.say("srun", TERMINATED)
    status, _ = bench.run(CAMPAIGN=str(bench.made.directory))
    assert status == 143
    assert sorted(bench.wrote("cancel")) == cancelled


@pytest.mark.slow
@pytest.mark.parametrize("table", ["n1 hangs\nn2 hangs\nn3 hangs\nn4 hangs", "n1 hangs\nn3 hangs"])
def test_where_nothing_is_measured_nothing_runs(tmp_path: Path, table: str) -> None:
    bench = Bench(tmp_path, "4n8g")
    status, _ = bench.run(table)
    assert status == 1
    assert sorted(bench.wrote("cancel")) == ["51", "52"]
    assert not bench.wrote("update")
