"""The main job as an ordinary user on a real cluster: submit, monitor, collect."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

from hpcbert.script.quoting import directive
from tests.kit.cli import Cli
from tests.kit.logs import WORDS, stand_in
from tests.kit.waiting import unqueued, until


def logs_under(work: Path) -> str:
    """Return the ends of all logs: what a rank that failed said is nowhere else."""
    parts = [f"\n--- {path}\n{path.read_text()[-4000:]}" for path in sorted(work.rglob("*.log"))]
    return "".join(parts)


def test_sbatch_reads_directives_as_they_were_typed(as_user: Any) -> None:
    for text in (
        *("a b", 'a"b', "a'b", "a\\b", "a#b", "#", "$(id)", "`id`", "a;b", "%j", "-x"),
        *("é ü", " ", "a\\", "!"),
    ):
        line = directive(f"--comment={text}")
        script = f"#!/bin/bash\n#SBATCH --begin=now+1hour\n#SBATCH {line}\ntrue\n"
        job = as_user(["sbatch", "--parsable", "--output=/dev/null"], stdin=script)
        assert job.ok, job.stderr
        number = job.stdout.strip()
        queue = as_user(["squeue", "--noheader", f"--jobs={number}", "--format=%k"])
        as_user(["scancel", number])
        assert queue.stdout == f"{text}\n"


def wait_for(as_user: Any, directory: str) -> None:
    """Wait until the queue holds no job of this campaign."""
    name = Path(directory).name

    def is_over() -> bool:
        return unqueued(as_user(["squeue", "--noheader", "--format=%j"]), name)

    until(is_over, "jobs are still queued", pause=0.5)


def test_a_rehearsal_gets_every_node_gpu_and_rank_and_makes_no_table(
    hpcbert: Cli, as_user: Any
) -> None:
    result = hpcbert(
        "submit", "--nodes", "4", "--gpus-per-node", "8", "--fw", "oneflow", "--rehearse", "--json"
    )
    assert result.ok, result.stderr
    campaign = result.data
    (array,) = campaign["arrays"]
    wait_for(as_user, campaign["directory"])
    fields = "JobID,State,ExitCode,AllocTRES%80,NNodes"
    words = ["sacct", "-X", "-P", "-n", "-j", array["job_id"], "-o", fields]

    def rows_of_all() -> list[list[str]]:
        table = [line.split("|") for line in as_user(words).stdout.splitlines()]
        return table if len(table) == 5 and all(row[1] == "COMPLETED" for row in table) else []

    # Accounting lags behind the queue.
    rows = until(rows_of_all, lambda: as_user(words).stdout, pause=0.5)
    assert [row[0] for row in rows] == [f"{array['job_id']}_{n}" for n in range(1, 6)]
    for row in rows:
        assert row[1:3] == ["COMPLETED", "0:0"]
        assert "gres/gpu=32" in row[3]
        assert row[4] == "4"
    folder = Path(campaign["directory"]) / "logs/oneflow/bert/bz32/4n8g"
    for repeat in range(1, 6):
        log = (folder / f"bert_b32_fp32_{repeat}.log").read_text()
        ranks = re.findall(r"REHEARSAL rank=(\d+)/4 .* node=(\d)/4 host=(\w+) gpus=(\S+)", log)
        assert sorted(int(rank) for rank, *_ in ranks) == [0, 1, 2, 3]
        assert {host for _, _, host, _ in ranks} == {"n1", "n2", "n3", "n4"}
        assert {gpus for *_, gpus in ranks} == {"0,1,2,3,4,5,6,7"}
    table = hpcbert("collect", campaign["directory"])
    assert table.returncode != 0
    assert not re.search(r"\d+\.\d\d ", table.stdout)
    assert "rehears" in (table.stdout + table.stderr).lower()


def test_ranks_train_over_tcp_between_nodes_and_give_a_table(
    hpcbert: Cli, checkout: Any, work: Path
) -> None:
    result = hpcbert(
        *("submit", "--fw", "pytorch", "--nodes", "2", "--gpus-per-node", "1", "--scaling"),
        *("--model", "bert-tiny", "--batch-size", "2", "--iters", "6", "--skip", "2"),
        *("--repeats", "1", "--python", checkout.python, "--wait", "--json"),
    )
    assert result.returncode == 0, result.stderr + logs_under(work)
    (table,) = result.data["tables"]
    assert [row["shape"] for row in table["rows"]] == ["1n1g", "2n1g"]
    for row in table["rows"]:
        assert row["repeats"] == {"ok": 1, "asked": 1}
        assert row["median"] > 0
        assert all(run["state"] == "COMPLETED" for run in row["runs"])
        for run in row["runs"]:
            assert [environment["node"] for environment in run["environments"]] == run["nodes"]
        assert "mixed-environment" not in row["flags"]
        # Where controller and job agree, accounting, which may lag behind, is not waited for.
        assert {run["state_source"] for run in row["runs"]} <= {"sacct", "squeue"}


def test_repeats_that_run_at_once_on_a_node_are_marked(hpcbert: Cli, work: Path) -> None:
    """The lab's site lets jobs share nodes."""
    begun = f"{shlex.quote(str(hpcbert.cwd))}/begun"
    both = f"touch {begun}.$SLURM_ARRAY_TASK_ID\nuntil [[ -e {begun}.1 && -e {begun}.2 ]]; do sleep 0.1; done"
    result = hpcbert(
        *(*WORDS, "--repeats", "2", "--concurrent-repeats", "2", "--sbatch-arg=--nodelist=n1"),
        *("--python", stand_in(hpcbert.cwd, both), "--wait", "--json"),
    )
    assert result.returncode == 0, result.stderr + logs_under(work)
    (table,) = result.data["tables"]
    (row,) = table["rows"]
    assert "shared-nodes" in row["flags"], [run["reasons"] for run in row["runs"]]
    assert row["median"] > 0
    for status in work.rglob("status/*.jsonl"):
        events = [json.loads(line) for line in status.read_text().splitlines()]
        (begun,) = [event for event in events if event["event"] == "step"]
        # The lab's controller has this machine's clock; a busy one takes its time between the two.
        assert abs(begun["ahead"]) < 60


def test_what_did_not_end_well_is_in_no_median(hpcbert: Cli, as_user: Any, work: Path) -> None:
    """Five repeats: one good, one cancelled, one failed, one timed out, one truncated."""
    program, steady = hpcbert.cwd / "python stand-in", stand_in(hpcbert.cwd, ":")
    program.write_text(f"""#!/bin/bash
case $SLURM_ARRAY_TASK_ID in
  2|4) exec sleep 600 ;;
  3) exit 7 ;;
  5) "{steady}" | head -n 8 ; exit 0 ;;
esac
exec "{steady}"
""")
    program.chmod(0o755)
    result = hpcbert(
        *(*WORDS, "--concurrent-repeats", "5", "--time", "01:00:00"),
        *("--python", str(program), "--json"),
    )
    assert result.ok, result.stderr
    campaign = result.data
    (array,) = campaign["arrays"]
    log = Path(campaign["directory"]) / "logs/pytorch/bert/bz2/1n1g/bert_b2_fp32_2.log"
    until(log.exists, "the second repeat never began")
    as_user(["scancel", f"{array['job_id']}_2"])
    # A time limit is of minutes at least; the end that follows from it may come sooner.
    sooner = ["scontrol", "update", f"JobId={array['job_id']}_4", "EndTime=now+2"]
    until(lambda: as_user(sooner).ok, lambda: as_user(sooner).stderr, pause=0.5)
    wait_for(as_user, campaign["directory"])
    outcome = hpcbert("collect", campaign["directory"], "--json")
    assert outcome.returncode == 4
    (row,) = outcome.data["tables"][0]["rows"]
    assert row["repeats"] == {"ok": 1, "asked": 5}
    runs = {run["repeat"]: run for run in row["runs"]}
    good = runs.pop(1)
    assert good["valid"]
    assert row["median"] == good["throughput"]
    assert "incomplete" in row["flags"]
    words = {repeat: run["state"] for repeat, run in runs.items()}
    assert words == {2: "CANCELLED", 3: "FAILED", 4: "TIMEOUT", 5: "COMPLETED"}
    assert all(run["throughput"] is None and run["reasons"] for run in runs.values())
    text = hpcbert("collect", campaign["directory"])
    assert text.returncode == 4
    for word in ("CANCELLED", "FAILED", "TIMEOUT", "1/5"):
        assert word in text.stdout
