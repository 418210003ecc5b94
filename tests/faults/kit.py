"""Campaigns that are broken on purpose: how they are started, followed and judged."""

import json
import tempfile
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hpcbert.lab.record import Lab
from hpcbert.system import runner
from hpcbert.system.processes import list_processes, read_proc_file
from hpcbert.system.runner import Outcome, Runner
from tests.kit.cli import Cli, CliResult
from tests.kit.lab_faults import start_requeued
from tests.kit.waiting import CEILING, unqueued, until

RATE = 100.0
# monitor asks more and more seldom while nothing changes, or nobody answers: up to 72 s apart.
LONG = 2 * CEILING
# What repeats do between their halves.
HANG, GATE = "sleep 600", "until [[ -e FOLDER/go ]]; do sleep 0.1; done"
_STAND_IN = Path(__file__).with_name("stand-in.bash").read_text()


@dataclass(frozen=True)
class Cluster:
    """A lab, its ordinary user, and their hpcbert."""

    lab: Lab
    user: Runner
    hpcbert: Cli

    def root(self, *argv: str) -> Outcome:
        return runner.run(argv, env=self.lab.daemon_environment)

    def must(self, *argv: str, as_root: bool = False) -> str:
        """Run a command until it succeeds, for the controller may be away; return what it prints."""
        run = self.root if as_root else lambda *words: self.user(words)
        outcome = until(lambda: answer if (answer := run(*argv)).ok else None, " ".join(argv))
        return outcome.stdout if outcome else ""

    def set_node(self, name: str, state: str) -> None:
        words = ("scontrol", "update", f"nodename={name}", f"state={state}", "reason=test")
        self.must(*words, as_root=True)

    def wait_for_node(self, name: str, *states: str) -> None:
        """Wait until a node is in one of some states; with none, until it takes jobs.

        Slurm may drain one by itself that is slow to end what was left on it, or leave it down: an
        administrator who has seen to it resumes it.
        """
        words = ["sinfo", "-h", "-n", name, "-p", "gpu", "-o", "%T"]

        def is_ready() -> bool:
            state = self.user(words).stdout.strip()
            if not states and state.startswith(("down", "drained")):
                self.root("scontrol", "update", f"nodename={name}", "state=resume")
            # A star: Slurm doesn't hear of the node yet.
            return state in (states or ("idle", "mixed", "allocated"))

        until(is_ready, lambda: f"{name} is {self.user(words)}")

    def vacate(self, name: str) -> None:
        """Wait until nothing is left on a node of jobs that ran there.

        A job that is started again on a node that still holds its last run makes Slurm drain it.
        """

        def namespace_of(pid: int) -> Path | None:
            try:
                return Path(f"/proc/{pid}/ns/pid").readlink()
            except OSError:
                return None

        namespace = namespace_of(self.lab.host(name).pid)

        def is_vacant() -> bool:
            pids = [other.pid for other in list_processes() if namespace_of(other.pid) == namespace]
            return not any(b"slurmstepd" in read_proc_file(pid, "cmdline") for pid in pids)

        until(is_vacant, f"{name} is not vacant")

    def clear(self) -> None:
        """Leave an empty queue and usable nodes to the tests that come after."""
        self.user(["scancel", "--me"])
        until(lambda: unqueued(self.user(["squeue", "-h", "--me"])), "the queue is not empty")
        for name in self.lab.plan.node_names:
            self.wait_for_node(name)

    def words(
        self, folder: Path, plan: Mapping[str, str], *words: str, **options: Any
    ) -> list[str]:
        """Return the words that submit a campaign whose repeats do as planned.

        Args:
            folder: A place for its program.
            plan: What the program does, by patterns of REPEAT.ATTEMPT.
            words: More words.
            options: `repeats`, 1 by default, `runs`, and `requeue`, whether Slurm starts it again.
        """
        program, site = folder / "stand-in", self.lab.layout.site.read_text()
        cases = "\n".join(f"{pattern}) {action} ;;" for pattern, action in plan.items())
        program.write_text(_STAND_IN.replace("PLAN", cases.replace("FOLDER", str(folder))))
        program.chmod(0o755)
        if not options.get("requeue", True):
            site = site.replace("[slurm]\n", "[slurm]\nrequeue = false\n")
        (folder / "site.toml").write_text(site)
        argv = ["submit", "--fw", "pytorch", "--model", "bert-tiny", "--batch-size", "2"]
        argv += ["--iters", "12", "--skip", "2", "--repeats", str(options.get("repeats", 1))]
        argv += ["--python", str(program), "--runs", str(options.get("runs", folder / "runs"))]
        return [*argv, f"--site={folder / 'site.toml'}", *words, "--json"]

    def folder(self, parent: Path | None = None) -> Path:
        path = Path(tempfile.mkdtemp(prefix="fault-", dir=parent or self.hpcbert.cwd))
        path.chmod(0o777)
        return path

    def submit(self, plan: Mapping[str, str], *words: str, **options: Any) -> "Campaign":
        """Submit a campaign whose repeats do as planned, and follow it with `monitor`."""
        folder = self.folder()
        data = self.hpcbert(*self.words(folder, plan, *words, **options), status=0).data
        return Campaign(self, folder, Path(data["directory"]))


class Campaign:
    """A campaign of one point, which `monitor` follows to its end."""

    def __init__(self, cluster: Cluster, folder: Path, directory: Path) -> None:
        self.cluster, self.folder, self.directory = cluster, folder, directory
        monitor = partial(cluster.hpcbert, "monitor", directory, "--json", timeout=LONG)
        self._monitor = ThreadPoolExecutor(1).submit(monitor)

    @property
    def array(self) -> dict[str, Any]:
        array: dict[str, Any] = json.loads((self.directory / "manifest.json").read_text())[
            "arrays"
        ][0]
        return array

    @property
    def job(self) -> str:
        return str(self.array["job_id"])

    def log(self, repeat: int) -> Path:
        path: Path = self.directory / self.array["log"].replace("{repeat}", str(repeat))
        return path

    def go(self) -> None:
        (self.folder / "go").touch()

    def wait_half_way(self, *repeats: int) -> None:
        logs = [self.log(repeat) for repeat in repeats]

        def are_half_way() -> bool:
            return all(log.exists() and "iteration: 6/" in log.read_text() for log in logs)

        until(are_half_way, f"{repeats} are half way")

    def wait_pending(self, repeat: int, reason: str = "") -> None:
        words = ["squeue", "-h", "-r", "-t", "pending", "-j", self.job, "-o", "%i|%r"]

        def is_pending() -> bool:
            lines = self.cluster.user(words).stdout.splitlines()
            return any(f"{self.job}_{repeat}|" in line and reason in line for line in lines)

        until(is_pending, f"{self.job}_{repeat} waits for {reason}")

    def wait_unqueued(self) -> None:
        words = ["squeue", "-h", "-t", "pending,running,suspended,completing", "-j", self.job]
        until(lambda: unqueued(self.cluster.user(words)), "it is still queued", pause=0.2)

    def start_again(self, repeat: int) -> None:
        """Start a repeat that was sent back, without the two minutes for which Slurm puts it off.

        Its last run must have left its node.
        """
        job = f"{self.job}_{repeat}"
        words = ["scontrol", "show", "job", job]
        until(lambda: "JobState=PENDING" in self.cluster.user(words).stdout, f"{job} has left")
        start_requeued(self.cluster.root, job)

    def look(self, repeat: int = 1) -> dict[str, Any]:
        """Return what `monitor --once` says of a repeat."""
        events = self.cluster.hpcbert("monitor", self.directory, "--once", "--json").events
        return next(event for event in events if event["repeat"] == repeat)

    def follow(self) -> list[dict[str, Any]]:
        """Wait until `monitor` ends, and return its events."""
        result: CliResult = self._monitor.result(LONG + 10)
        assert result.ok, result
        assert result.data["over"] is True
        return result.events

    def collect(self) -> tuple[int, dict[int, dict[str, Any]]]:
        """Return collect's exit status and its runs by their repeats."""
        result = self.cluster.hpcbert("collect", self.directory, "--json")
        tables = result.data["tables"] if result.data else []
        runs = [run for table in tables for row in table["rows"] for run in row["runs"]]
        return result.returncode, {run["repeat"]: run for run in runs}

    def check(
        self,
        *states: str,
        valid: Collection[int] | None = None,
        attempts: Mapping[int, int] | None = None,
        sources: Collection[str] = ("sacct", "squeue"),
    ) -> dict[int, dict[str, Any]]:
        """Compare what monitor and collect say with what must come of it; return the runs.

        Args:
            states: Last state of each repeat.
            valid: Repeats that count, those that completed by default: with the true number.
            attempts: Attempts that are shown, where it is not the first, by repeats.
            sources: Who may have told the states.
        """
        expected = dict(enumerate(states, start=1))
        completed = {repeat for repeat, state in expected.items() if state == "COMPLETED"}
        valid = completed if valid is None else valid
        last = {event["repeat"]: event for event in self.follow()}
        assert {repeat: event["state"] for repeat, event in last.items()} == expected
        assert {n for n, event in last.items() if event["kind"] == "succeeded"} == completed
        code, runs = self.collect()
        assert {repeat: run["state"] for repeat, run in runs.items()} == expected
        assert {repeat for repeat, run in runs.items() if run["valid"]} == set(valid), runs
        for repeat, run in runs.items():
            assert run["valid"] is (run["reasons"] == []) is (run["throughput"] is not None)
            assert run["attempt"] == (attempts or {}).get(repeat, 0)
            assert not run["valid"] or abs(run["throughput"] - RATE) < RATE * 1e-6
            assert run["state"] == "UNKNOWN" or run["state_source"] in sources, run
        assert code == (0 if len(valid) == len(states) else 4)
        self.check_jobs()
        return runs

    def check_jobs(self) -> None:
        """See that one job in Slurm bears the name: not fewer, not more."""
        name, cluster = self.array["name"], self.cluster
        ids = set(cluster.must("squeue", "-ha", "-t", "all", f"--name={name}", "-o", "%F").split())
        if cluster.lab.plan.accounting:
            words = ("sacct", "-XnPD", f"--name={name}", "-o", "JobID", "-S", "now-1hours")
            ids |= {row.partition("_")[0] for row in cluster.must(*words).splitlines()}
        assert len(ids) == 1


def are_stopped(*folders: Path) -> bool:
    """Say whether a program of each folder, a stand-in, is stopped."""

    def is_stopped(folder: Path) -> bool:
        return any(
            str(folder).encode() in read_proc_file(process.pid, "cmdline")
            and b"\nState:\tT" in read_proc_file(process.pid, "status")
            for process in list_processes()
        )

    return all(map(is_stopped, folders))
