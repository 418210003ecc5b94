"""Campaigns that are broken on purpose: how they are started, followed and judged."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from hpcbert.lab.record import Lab
from hpcbert.system import runner
from hpcbert.system.processes import Process, list_processes, read_proc_file
from hpcbert.system.runner import Outcome
from tests.kit.lab_faults import start_requeued
from tests.kit.waiting import CEILING, unqueued, until

ITERS, HALF = 12, 6
RATE = 100.0
# Seconds that a command of Slurm's waits for an answer.
PATIENCE = 5
# monitor asks more and more seldom while nothing changes, or nobody answers: up to 72 s apart.
LONG = 2 * CEILING

# Prints what bert_pretrain.py prints, at 100 samples/s by its own time stamps. Between the halves
# it does what it is told for this repeat and attempt.
_STAND_IN = r"""#!/bin/bash
# submit asks an interpreter which modules it lacks.
[[ $1 != -c ]] || exit 0
begun=${EPOCHREALTIME/[.,]/}
emit() {
  for ((n = $1; n <= $2; n++)); do
    ((now = begun + n * 20000))
    printf 'iteration: %d/12 loss: 9.5 mlm_loss: 8.8 nsp_loss: 0.7 samples/s: 100.00 time: %d.%06d\n' \
      "$n" "$((now / 1000000))" "$((now % 1000000))"
  done
}
echo 'hpcbert-config {"batch_size_per_device": 2, "world_size": 1, "accumulation": 1,' \
  '"precision": "fp32", "global_batch_size": 2}'
emit 1 6
case $SLURM_ARRAY_TASK_ID.${SLURM_RESTART_COUNT:-0} in
PLAN
esac
emit 7 12
"""
HANG = "sleep 600"


def wait_for(event: str, condition: Callable[[], Any]) -> Any:
    return until(condition, event)


@dataclass(frozen=True)
class Expected:
    """What must come of a campaign.

    Attributes:
        states: Last state of each repeat.
        valid: Repeats that count; each of them with the number that was really reached.
        attempts: Attempt that is shown of a repeat, where it is not the first.
        sources: Who may have told the states.
        jobs: Jobs in Slurm that bear the campaign's name: one, not fewer, not more.
    """

    states: Mapping[int, str]
    valid: frozenset[int] = frozenset()
    attempts: Mapping[int, int] = field(default_factory=dict)
    sources: frozenset[str] = frozenset({"sacct", "squeue"})
    jobs: int = 1


def _pid_namespace(process: Process) -> Path | None:
    try:
        return Path(f"/proc/{process.pid}/ns/pid").readlink()
    except OSError:
        return None


def stopped(folder: Path) -> bool:
    """Say whether a program of a folder, a stand-in, is stopped."""
    ours = [
        process
        for process in list_processes()
        if str(folder).encode() in read_proc_file(process.pid, "cmdline")
    ]
    return any(b"\nState:\tT" in read_proc_file(our.pid, "status") for our in ours)


@dataclass
class Cluster:
    lab: Lab
    as_user: Any
    python: str
    checkout: Path
    narrow: Path
    work: Path

    def root(self, *argv: str) -> Outcome:
        """Run a command as root; the controller may be away for a moment."""
        env = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", **self.lab.environment}
        return runner.run(argv, env=env)

    def user(self, *argv: str, timeout: float = CEILING) -> Outcome:
        outcome: Outcome = self.as_user(
            argv, env=self.lab.environment, cwd=self.work, timeout=timeout
        )
        return outcome

    def must(self, *argv: str) -> str:
        """Run a command as the user until it succeeds; return what it prints."""
        outcome: Outcome = wait_for(
            " ".join(argv), lambda: answer if (answer := self.user(*argv)).ok else None
        )
        return outcome.stdout

    def hpcbert(self, *words: str, timeout: float = CEILING) -> Outcome:
        outcome: Outcome = self.as_user(
            [self.python, "-m", "hpcbert", *words],
            env={**self.lab.environment, "PYTHONPATH": str(self.checkout)},
            cwd=self.work,
            timeout=timeout,
        )
        return outcome

    def mend(self, *, alone: bool) -> None:
        """After a fault that did not end as it should, make the lab fit for the next."""
        if alone:
            self.user("scancel", "--me")
        for name in self.lab.plan.node_names:
            self.root("scontrol", "update", f"nodename={name}", "state=resume")

    def clear(self) -> None:
        """Leave an empty queue and usable nodes to the tests that come after."""
        self.mend(alone=True)
        queue = ["squeue", "-h", "--user", self.must("id", "-un").strip()]
        wait_for("the queue is empty", lambda: unqueued(self.user(*queue)))

    def vacate(self, name: str) -> None:
        """Wait until nothing is left on a node of jobs that ran there.

        A job that is started again on a node that still holds its last run makes Slurm drain it.
        """
        namespace = _pid_namespace(self.lab.host(name))

        def is_vacant() -> bool:
            processes = (other for other in list_processes() if _pid_namespace(other) == namespace)
            lines = [read_proc_file(process.pid, "cmdline") for process in processes]
            return not any(b"slurmstepd" in line for line in lines)

        wait_for(f"{name} is vacant", is_vacant)

    def folder(self, parent: Path | None = None) -> Path:
        path = Path(tempfile.mkdtemp(prefix="fault-", dir=parent or self.work))
        path.chmod(0o777)
        return path

    def stand_in(self, folder: Path, plan: Mapping[str, str]) -> Path:
        """Write a training program; `plan` has what it does, by patterns of REPEAT.ATTEMPT."""
        path = folder / "stand-in"
        cases = "\n".join(f"{pattern}) {action} ;;" for pattern, action in plan.items())
        path.write_text(_STAND_IN.replace("PLAN", cases.replace("FOLDER", str(folder))))
        path.chmod(0o755)
        return path

    def without_requeue(self) -> str:
        """Write a site.toml under which Slurm starts no job again; return the option for it."""
        text = Path(self.lab.environment["HPCBERT_SITE"]).read_text()
        path = self.folder() / "site.toml"
        path.write_text(text.replace("[slurm]\n", "[slurm]\nrequeue = false\n"))
        path.chmod(0o644)
        return f"--site={path}"

    def submission(
        self, plan: Mapping[str, str], *words: str, repeats: int, runs: Path | None = None
    ) -> tuple[Path, list[str]]:
        """Return the folder of a campaign to be and the words that submit it."""
        folder = self.folder()
        program = self.stand_in(folder, plan)
        argv = ["submit", "--fw", "pytorch", "--model", "bert-tiny", "--batch-size", "2"]
        argv += ["--iters", str(ITERS), "--skip", "2", "--repeats", str(repeats)]
        argv += ["--python", str(program), "--runs", str(runs or folder / "runs")]
        return folder, [*argv, *words, "--json"]

    def submit(
        self, plan: Mapping[str, str], *words: str, repeats: int = 1, runs: Path | None = None
    ) -> Campaign:
        """Submit a campaign whose repeats do as planned, and start to follow it."""
        folder, argv = self.submission(plan, *words, repeats=repeats, runs=runs)
        outcome = self.hpcbert(*argv)
        assert outcome.ok, outcome.stdout + outcome.stderr
        return self.campaign(folder, Path(json.loads(outcome.stdout)["data"]["directory"]))

    def campaign(self, folder: Path, directory: Path) -> Campaign:
        return Campaign(self, folder, directory)


def _half_way(log: Path) -> bool:
    return log.exists() and f"iteration: {HALF}/" in log.read_text()


GATE = "until [[ -e FOLDER/go ]]; do sleep 0.1; done"


class Campaign:
    def __init__(self, cluster: Cluster, folder: Path, directory: Path) -> None:
        self.cluster, self.folder, self.directory = cluster, folder, directory
        words = ("monitor", str(directory), "--json")
        self._ending = ThreadPoolExecutor(1).submit(cluster.hpcbert, *words, timeout=LONG)

    @property
    def array(self) -> dict[str, Any]:
        manifest = json.loads((self.directory / "manifest.json").read_text())
        array: dict[str, Any] = manifest["arrays"][0]
        return array

    @property
    def job(self) -> str:
        return str(self.array["job_id"])

    def go(self) -> None:
        (self.folder / "go").touch()

    def log(self, repeat: int, attempt: int = 0) -> Path:
        path: Path = self.directory / self.array["log"].replace("{repeat}", str(repeat))
        return path.with_name(f"{path.stem}.r{attempt}.log") if attempt else path

    def in_step(self, *repeats: int, attempt: int = 0) -> None:
        for repeat in repeats:
            wait_for("the log is half way", partial(_half_way, self.log(repeat, attempt)))

    def waits(self, repeat: int, reason: str = "") -> None:
        words = ["squeue", "-h", "-r", "-t", "pending", "-j", self.job, "-o", "%i|%r"]
        wait_for(
            f"{self.job}_{repeat} waits for {reason}",
            lambda: any(
                line.startswith(f"{self.job}_{repeat}|") and reason in line
                for line in self.cluster.user(*words).stdout.splitlines()
            ),
        )

    def start_now(self, repeat: int) -> None:
        """Take away the two minutes for which Slurm puts a requeued job off."""
        start_requeued(self.cluster.root, f"{self.job}_{repeat}")

    def jobs(self) -> set[str]:
        name = self.array["name"]
        queue = ["squeue", "-h", "-a", "-t", "all", f"--name={name}", "-o", "%F"]
        ids = set(self.cluster.must(*queue).split())
        if self.cluster.lab.plan.accounting:
            words = ["sacct", "-X", "-n", "-P", "-D", f"--name={name}", "-o", "JobID", "-S"]
            rows = self.cluster.must(*words, "now-1hours").splitlines()
            ids |= {row.partition("_")[0] for row in rows}
        return ids

    def collect(self) -> tuple[int, list[dict[str, Any]]]:
        outcome = self.cluster.hpcbert("collect", str(self.directory), "--json")
        assert outcome.stdout, outcome.stderr[-2000:]
        document = json.loads(outcome.stdout)
        assert document["exit_code"] == outcome.returncode
        tables = document["data"]["tables"] if document["data"] else []
        return outcome.returncode, [
            run for table in tables for row in table["rows"] for run in row["runs"]
        ]

    def told(self) -> list[dict[str, Any]]:
        outcome = self._ending.result(LONG + 10)
        assert outcome.returncode == 0, outcome.stdout + outcome.stderr
        *events, document = map(json.loads, outcome.stdout.splitlines())
        assert document["data"]["over"] is True
        return events

    def look(self, repeat: int) -> dict[str, Any]:
        outcome = self.cluster.hpcbert("monitor", str(self.directory), "--once", "--json")
        *events, _ = map(json.loads, outcome.stdout.splitlines())
        state: dict[str, Any] = next(event for event in events if event["repeat"] == repeat)
        return state

    def check(self, expected: Expected) -> None:
        """Compare what monitor and collect say with what must come of it."""
        events = self.told()
        last = {event["repeat"]: event for event in events}
        assert {repeat: event["state"] for repeat, event in last.items()} == expected.states
        happy = {event["repeat"] for event in events if event["kind"] == "succeeded"}
        assert happy == {n for n, word in expected.states.items() if word == "COMPLETED"}
        code, runs = self.collect()
        runs_by_repeat = {run["repeat"]: run for run in runs}
        assert {repeat: run["state"] for repeat, run in runs_by_repeat.items()} == expected.states
        assert {repeat for repeat, run in runs_by_repeat.items() if run["valid"]} == expected.valid
        for repeat, run in runs_by_repeat.items():
            assert run["valid"] is (run["reasons"] == [])
            assert (run["throughput"] is not None) is run["valid"]
            assert run["attempt"] == expected.attempts.get(repeat, 0)
            if run["valid"]:
                assert abs(run["throughput"] - RATE) < RATE * 1e-6
            if run["state"] != "UNKNOWN":
                assert run["state_source"] in expected.sources, run
        assert code == (0 if len(expected.valid) == len(expected.states) else 4)
        assert len(self.jobs()) == expected.jobs
