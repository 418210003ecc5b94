"""Jobs that decide on a real cluster: which batch, which nodes and GPUs, and how many repeats."""

import json
import time

import pytest

from hpcbert.campaign import record, store
from tests.kit.cases import read_constant
from tests.kit.cli import first_row, runs
from tests.kit.logs import START, WORDS, log, stand_in
from tests.kit.scripts import tool
from tests.kit.waiting import until

pytestmark = pytest.mark.slurm

POINT = ("submit", "--fw", "pytorch", "--json", "--device", "gpu")


def test_the_largest_batch_is_found_on_two_nodes(hpcbert, wait_for_end):
    words = ("--nodes", "2", "--gpus-per-node", "2", "--precision", "fp32", "--repeats", "2")
    result = hpcbert(*POINT, *words, "--batch-size", "max", "--rehearse", status=0)
    directory = wait_for_end(result.data["directory"])
    (path,) = directory.glob("status/*.search.jsonl")
    events = [json.loads(line) for line in path.read_text().splitlines()]
    sizes = [event["size"] for event in events if event["event"] == "probe"]
    assert sizes == [32, 64, 128, 256, 192, 160, 176, 184]
    results = [(event["size"], event["repeat"]) for event in events if event["event"] == "found"]
    assert results == [(176, 1)]
    ran = [file.read_text() for file in path.parent.glob("*_bmax.[12].jsonl")]
    assert ['"batch":176' in text for text in ran] == [True, True]


def test_repeats_end_when_the_median_is_known_well_enough(hpcbert, wait_for_end):
    text = read_constant(__file__, "STEADY")
    text = text.format(shift=START + 1.2, log=log("1n1g", 10.0, batch=2))
    program = tool(hpcbert.cwd, "steady", text)
    words = ("--python", program, "--repeats", "auto", "--max-repeats", "9")
    result = hpcbert(*POINT, *WORDS[3:], *words, status=0)
    directory = wait_for_end(result.data["directory"])
    # Accounting may say for a while that a repeat runs that was taken out of the queue.
    hpcbert("monitor", directory, status=0)
    row = first_row(hpcbert("collect", directory, "--json", status=0).document)
    assert row["repeats"] == {"ok": 5, "asked": 5}
    # Five, and another for each that a busy machine spoilt.
    ran = len(row["runs"])
    assert row["adaptive"]["unneeded"] == list(range(ran + 1, 10))
    assert ran < 9, row["runs"]
    counts = hpcbert("monitor", directory, "--once", "--json").data["repeats"]
    assert (counts["asked"], counts["unneeded"]) == (9, 9 - ran)
    assert "has nothing to retry" in hpcbert("retry", directory, "--dry-run").stdout


def test_a_failed_repeat_runs_again_on_another_node(hpcbert, as_user, work):
    flag, began = work / "flag", f"{work}/began"
    flag.touch()
    # All repeats at once, each on a node of its own; the second fails as long as a file is there.
    together = f"[[ -e {began}.1 && -e {began}.2 && -e {began}.3 ]]"
    meet = f"touch {began}.$SLURM_ARRAY_TASK_ID; until {together}; do sleep 0.1; done"
    bad = f"{meet}; if [[ $SLURM_ARRAY_TASK_ID == 2 && -e {flag} ]]; then exit 7; fi"
    program = stand_in(work, f"{bad}\nif [[ $SLURM_PROCID != 0 ]]; then exit 0; fi", gpus=8)
    shape = ("--gpus-per-node", "8", "--repeats", "3", "--concurrent-repeats", "3")
    result = hpcbert(*WORDS, *shape, "--python", program, "--wait", "--json", status=4)
    before = runs(result.document)
    assert [before[n]["valid"] for n in (1, 2, 3)] == [True, False, True]
    (bad_node,) = before[2]["nodes"]
    assert [bad_node] not in (before[1]["nodes"], before[3]["nodes"])
    flag.unlink()
    (array,) = hpcbert("retry", "--json", status=0).data["campaigns"][0]["arrays"]
    assert [(repeat["repeat"], repeat["state"]) for repeat in array["repeats"]] == [(2, "FAILED")]
    (exclusion,) = array["excluded"]
    assert exclusion["node"] == bad_node
    assert "all successful repeats ran elsewhere" in exclusion["why"]
    shown = as_user(["scontrol", "show", "job", array["job_id"]]).stdout
    assert f"ExcNodeList={bad_node}" in shown
    # While it waits or runs, and when it is good, there is nothing more to submit.
    assert hpcbert("retry", "--json").data["campaigns"][0]["arrays"] == []
    run = runs(hpcbert("retry", "--wait", "--json", status=0).document)[2]
    assert (run["valid"], run["attempt"]) == (True, 1)
    assert run["state_source"] in {"sacct", "squeue"}
    assert run["nodes"] != [bad_node]
    assert [attempt["state"] for attempt in run["attempts"]] == ["FAILED", "COMPLETED"]
    # The job says itself what the queue gave it, once for each attempt.
    (directory,) = (hpcbert.cwd / "runs").iterdir()
    first_array, *_ = store.read_manifest(directory).arrays
    events = record.read_record(directory / first_array.status(2)).events
    starts = [event for event in events if event["event"] == "start"]
    assert [(event["attempt"], event["restarts"]) for event in starts] == [(0, 0), (1, 0)]
    assert len({event["job"] for event in starts}) == 2
    assert all(event["partition"] for event in starts)
    assert all(abs(event["time"] - time.time()) < 3600 for event in starts)


def test_points_exclude_a_slow_node_and_none_runs_where_nothing_can_be_measured(
    hpcbert, lab, wait_for_end
):
    program = tool(hpcbert.cwd, "all_reduce_perf", read_constant(__file__, "ALL_REDUCE"))
    site = lab.layout.site.read_text() + "\n[frameworks.nccl-tests]\n"
    (hpcbert.cwd / "site.toml").write_text(f'{site}options = {{ program = "{program}" }}\n')
    preflight = ("--site", ".", "--rehearse", "--preflight", "--concurrent-points")
    shape = ("--gpus-per-node", 1, "--repeats", 1, "--nodes")

    def submit(*words):
        campaign = hpcbert(*POINT, *preflight, *shape, *words, status=0).data
        directory = wait_for_end(campaign["directory"])
        return campaign, hpcbert("monitor", "--once", "--json", directory).data, directory

    campaign, data, _ = submit(4, "--scaling")
    assert data["repeats"] == {"asked": 3, "succeeded": 3}
    messages = data["campaigns"][0]["preflight"]
    assert messages[0].startswith("n2 is far below the others: the preflight measured 9.5 GB/s")
    measured = [array for array in campaign["arrays"] if array["model"] == "bert-base"]
    jobs = {array["shape"]: array["job_id"] for array in measured}
    largest = f"Job {jobs['4n1g']} runs on them nevertheless: it takes 4 nodes, and 3 others"
    assert largest in messages[-1]
    for shape_name, job in jobs.items():
        words = ["sacct", "-X", "-P", "-n", "-j", job, "-o", "NodeList"]
        used = hpcbert.run(words).stdout.split()[0]
        names = hpcbert.run(["scontrol", "show", "hostnames", used]).stdout.split()
        assert ("n2" in names) == (shape_name == "4n1g"), (shape_name, names)
    program.unlink()
    _, data, directory = submit(2)
    (message,) = data["campaigns"][0]["preflight"]
    assert "failed, so no point runs" in message
    assert (data["repeats"], data["over"]) == ({"asked": 1, "failed": 1}, True)
    names = [path.name for path in (directory / "status").iterdir()]
    assert names == ["preflight_2n1g_fp32_b1.1.jsonl"]

    def is_on_record():
        # Who asks while Slurm has not settled the end yet leaves it out.
        hpcbert("monitor", "--once", directory, status=0)
        listed = hpcbert("list", "--json", status=0).data["campaigns"]
        states = {entry["campaign"]: entry["state"] for entry in listed}
        return states[directory.name] in {"ended", "rehearsed"}

    until(is_on_record, "list never says that it ended")


@pytest.mark.needs("cpus")
@pytest.mark.parametrize(
    ("args", "shown"),
    [("", {"0,1"}), ("--gpus-per-task=1", {"0", "1"}), ("--gpu-bind=single:1", {"0", "1"})],
)
@pytest.mark.site("a GPU and CPUs for each rank")
def test_each_rank_has_a_gpu_and_cpus_of_its_own(hpcbert, args, shown):
    program = tool(hpcbert.cwd, "python stand-in", read_constant(__file__, "PLACE"))
    words = json.dumps([args] if args else [])
    (hpcbert.cwd / "site.toml").write_text(read_constant(__file__, "SITE").format(args=words))
    shape = ("--nodes", "2", "--gpus-per-node", "2", "--repeats", "1")
    result = hpcbert(
        "submit", "--site", ".", "--fw", "pytorch", *shape, "--python", program, "--wait", "--json"
    )
    (log,) = (hpcbert.cwd / "runs").rglob("logs/**/*.log")
    text = log.read_text()
    ranks = sorted(line.split()[1:] for line in text.splitlines() if line.startswith("at "))
    # One node after another is filled with ranks.
    places = [["0", "0", "0"], ["1", "0", "1"], ["2", "1", "0"], ["3", "1", "1"]]
    assert [rank[:3] for rank in ranks] == places, (result.stderr, text)
    assert {rank[3] for rank in ranks} == shown
    for _, _, local, visible, device, cpus, threads, _ in ranks:
        assert device == (local if "," in visible else "0")
        assert (cpus, threads) == (local, "1")
    assert len({rank[7] for rank in ranks}) == 1
    assert ("NCCL may have to copy" in text) == bool(args)
    (status,) = (hpcbert.cwd / "runs").rglob("status/*.jsonl")
    assert ('"apart":true' in status.read_text()) == bool(args)
