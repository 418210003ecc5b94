"""The job before all points: its script, and what it makes of what it measures."""

from collections import defaultdict

import pytest

from hpcbert.campaign.record import read_record
from hpcbert.errors import UsageError
from hpcbert.model import Shape
from hpcbert.timelimit import TimeLimit
from tests.kit.cases import cases, read_constant
from tests.kit.drafts import combined, drafted, reference, settled
from tests.kit.scripts import run_script, tool


def draft_preflight(where, shape="4n8g", device="gpu", limit="01:00:00", **options):
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
    # Without GPUs for certain, the reference program measures.
    for device in ("cpu", "auto"):
        draft = draft_preflight(tmp_path, "4n1g", device, "00:10:00")
        check = draft.campaign.arrays[-1]
        assert "--all-reduce 16" in draft.scripts[check.name]
        assert "scripts/bert_pretrain.py" in {target for target, _ in draft.copies}
        assert check.request.time_limit == "00:10:00"
        # The campaign measures the same program with the same shape: no two share a status file.
        assert len({array.point.key for array in draft.campaign.arrays}) == 2


def test_one_node_has_nothing_to_be_compared_with(tmp_path):
    for shape, options, why in (
        ("1n8g", {}, "every point has one node only"),
        ("1n1g", {"scheduler": "local"}, "no effect with the local scheduler"),
    ):
        with pytest.raises(UsageError, match=why) as caught:
            draft_preflight(tmp_path, shape, "cpu", **options)
        assert "--preflight" in caught.value.hint


def check(folder, table="", shape="4n8g", *, limit="01:00:00", usable=8, jobs=(), **more):
    """Run it where `table` has the speed of nodes; return its status, its events by kind, and its orders."""
    draft, tools = draft_preflight(folder, shape, limit=limit), folder / "tools"
    environment = {"SLURM_JOB_ID": "50", "SLURM_JOB_PARTITION": "gpu", "TABLE": table, **more}
    jobs = "\n".join(jobs or ("51|4|||{}", "52|2|n7||{}", "53|1|||/elsewhere"))
    words = {"jobs": jobs.replace("{}", str(draft.directory)), "usable": usable}
    for name, text in read_constant(__file__, "TOOLS").items():
        tool(tools, name, text % words if name in ("squeue", "sinfo") else text)
    names = [f"n{number}" for number in range(1, int(shape[0]) + 1)]
    environment |= {"CAMPAIGN": str(draft.directory), "SLURM_JOB_NODELIST": ",".join(names)}
    array, orders = draft.campaign.arrays[-1], folder / "record.orders"
    orders.touch()
    result = run_script(draft, folder, array, **environment)
    events = defaultdict(list)
    for event in read_record(draft.directory / array.status(1)).events:
        events[event["event"]].append(event)
    assert events["end"][-1]["exit"] == result.returncode, result.stderr
    return result.returncode, events, sorted(orders.read_text().splitlines())


@pytest.mark.slow
@cases
def test_a_node_far_below_the_others_is_named_and_its_neighbours_are_not(
    tmp_path, shape, table, slow: list[str]
):
    status, events, orders = check(tmp_path, table, shape)
    assert status == 0
    names = [event["name"] for event in events["node"]]
    assert names == [f"n{number}" for number in range(1, int(shape[0]) + 1)]
    assert [event["name"] for event in events["node"] if event["slow"]] == list(slow)
    assert events["node"][2 if "n1" in slow else 0]["inside"] == 40125
    assert bool(orders) == bool(slow)


@pytest.mark.slow
@cases
def test_waiting_jobs_keep_away_as_far_as_they_can(
    tmp_path, *, jobs, usable, refusal, update, spared
):
    more = {"usable": usable, "jobs": jobs, "REFUSES": refusal or ""}
    status, events, orders = check(tmp_path, "n2 9.5", **more)
    assert status == 0
    assert {event["job"]: event["why"] for event in events["spared"]} == spared
    if update is None:
        assert "left-out" not in events
        return
    assert orders == [f"update JobId=52 ExcNodeList={update}"]
    assert [(event["job"], event["nodes"]) for event in events["left-out"]] == [("52", update)]


@pytest.mark.slow
def test_at_its_time_limit_it_gives_up_and_where_nothing_is_measured_nothing_runs(tmp_path):
    # Before its time limit it may come back.
    for number, (limit, cancelled) in enumerate((("00:30:00", []), ("00:00:20", ["51", "52"]))):
        folder = tmp_path / str(number)
        status, _, orders = check(folder, shape="2n8g", limit=limit, TERMINATED="1")
        assert (status, orders) == (143, cancelled)
    for nodes in ("1234", "13"):
        table = "\n".join(f"n{number} hangs" for number in nodes)
        status, _, orders = check(tmp_path / nodes, table)
        assert (status, orders) == (1, ["51", "52"])
