"""Campaigns that are broken on purpose: how they are started, followed and judged."""

import json
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from hpcbert.lab.record import Lab
from hpcbert.system import runner
from tests.kit.cli import Cli, runs
from tests.kit.doctor import set_key
from tests.kit.logs import WORDS
from tests.kit.scripts import tool
from tests.kit.waiting import CEILING, unqueued, until

RATE = 100.0
# monitor asks more and more seldom while nothing changes, or nobody answers: up to 72 s apart.
LONG = 2 * CEILING
STAND_IN = Path(__file__).with_name("stand-in.bash").read_text()


@dataclass(frozen=True)
class Cluster:
    """A lab, its ordinary user, and their hpcbert."""

    lab: Lab
    user: runner.Runner
    hpcbert: Cli

    def root(self, *argv):
        return runner.run(argv, env=self.lab.daemon_environment)

    def must(self, *argv, as_root=False):
        """Run a command until it succeeds, for the controller may be away; return what it prints."""
        run = self.root if as_root else lambda *words: self.user(words)
        outcome = until(lambda: answer if (answer := run(*argv)).ok else None, " ".join(argv))
        return outcome.stdout if outcome else ""

    def set_node(self, name, state):
        words = ("scontrol", "update", f"nodename={name}", f"state={state}", "reason=test")
        self.must(*words, as_root=True)

    def wait_for_node(self, name, *states):
        """Wait until a node is in one of some states; with none, until it takes jobs.

        Slurm may drain one by itself that is slow to end what was left on it, or leave it down: an
        administrator who has seen to it resumes it.
        """
        words = ["sinfo", "-h", "-n", name, "-p", "gpu", "-o", "%T"]

        def is_ready():
            state = self.user(words).stdout.strip()
            if not states and state.startswith(("down", "drained")):
                self.root("scontrol", "update", f"nodename={name}", "state=resume")
            # A star: Slurm doesn't hear of the node yet.
            return state in (states or ("idle", "mixed", "allocated"))

        until(is_ready, lambda: f"{name} is {self.user(words)}")

    def vacate(self, name):
        """Wait until nothing is left on a node of jobs that ran there.

        A job that is started again on a node that still holds its last run makes Slurm drain it.
        """
        inside = ["nsenter", f"--target={self.lab.host(name).pid}", "--pid", "--mount"]
        count = (*inside, "pgrep", "--count", "slurmstepd")
        until(lambda: self.root(*count).stdout == "0\n", f"{name} is not vacant")

    def words(self, folder, plan, *words, node="n1", repeats=1, runs="", requeue=True):
        """Return the words that submit a campaign of one point on a node.

        Its program is in the folder. The plan says what it does, by patterns of REPEAT.ATTEMPT:
        `hang`, `gate` (wait for the file `go`), or other lines of bash.
        """
        cases = "\n".join(f"{pattern}) {action} ;;" for pattern, action in plan.items())
        text = STAND_IN.replace("PLAN", cases).replace("FOLDER", str(folder))
        program, site = tool(folder, "stand-in", text), self.lab.layout.site.read_text()
        if not requeue:
            site = set_key(site, "slurm", "requeue", "false")
        (folder / "site.toml").write_text(site)
        argv = [*WORDS, "--repeats", repeats, "--python", program, f"--site={folder}"]
        argv += ["--runs", runs or folder / "runs", f"--sbatch-arg=--nodelist={node}"]
        return [*argv, *words, "--json"]

    def folder(self, parent=None):
        path = Path(tempfile.mkdtemp(prefix="fault-", dir=parent or self.hpcbert.cwd))
        path.chmod(0o777)
        return path

    def submit(self, plan, *words, **options):
        """Submit a campaign whose repeats do as planned, and follow it with `monitor`."""
        folder = self.folder()
        data = self.hpcbert(*self.words(folder, plan, *words, **options), status=0).data
        return Campaign(self, folder, Path(data["directory"]))

    def resume(self, folder):
        (manifest,) = folder.glob("runs/*/manifest.json")
        words = ("--resume", manifest.parent.name, "--runs", folder / "runs", "--json")
        self.hpcbert("submit", *words, status=0)
        return Campaign(self, folder, manifest.parent)


class Campaign:
    """A campaign of one point, which `monitor` follows to its end."""

    def __init__(self, cluster, folder, directory):
        self.cluster, self.folder, self.directory = cluster, folder, directory
        monitor = partial(cluster.hpcbert, "monitor", directory, "--json", timeout=LONG)
        self._monitor = ThreadPoolExecutor(1).submit(monitor)
        (self.array,) = json.loads((directory / "manifest.json").read_text())["arrays"]
        self.job = self.array["job_id"]

    def log(self, repeat):
        return self.directory / self.array["log"].replace("{repeat}", str(repeat))

    def go(self):
        (self.folder / "go").touch()

    def wait_half_way(self, *repeats):
        logs = [self.log(repeat) for repeat in repeats]

        def are_half_way():
            return all(log.exists() and "iteration: 6/" in log.read_text() for log in logs)

        until(are_half_way, f"{repeats} are half way")

    def wait_pending(self, repeat, reason=""):
        words = ["squeue", "-h", "-r", "-t", "pending", "-j", self.job, "-o", "%i|%r"]

        def is_pending():
            lines = self.cluster.user(words).stdout.splitlines()
            return any(f"{self.job}_{repeat}|" in line and reason in line for line in lines)

        until(is_pending, f"{self.job}_{repeat} waits for {reason}")

    def start_again(self, repeat):
        """Start a repeat that was sent back, without the two minutes for which Slurm puts it off.

        Its last run must have left its node, which refuses a run with a credential that is as old,
        in whole seconds, as the clean-up after the run before it. The job is FAILED then: "Job
        credential revoked" (slurmd, slurm_cred_revoke; seen with 22.05.8).
        """
        job, cluster = f"{self.job}_{repeat}", self.cluster
        update = ("scontrol", "update", f"jobid={job}", "starttime=now+1")

        def has(state):
            return f"JobState={state}" in cluster.user(["scontrol", "show", "job", job]).stdout

        until(lambda: has("PENDING"), f"{job} has left")
        until(lambda: has("RUNNING") or cluster.root(*update).ok, f"{job} can't be started")

    def look(self, repeat=1):
        events = self.cluster.hpcbert("monitor", self.directory, "--once", "--json").events
        return next(event for event in events if event["repeat"] == repeat)

    def follow(self):
        """Wait until `monitor` ends, and return its events."""
        result = self._monitor.result(LONG + 10)
        assert result.ok, result
        assert result.data["over"] is True
        return result.events

    def collect(self):
        result = self.cluster.hpcbert("collect", self.directory, "--json")
        return result.returncode, runs(result.document) if result.data else {}

    def check(self, *states, valid=None, attempts=None, sources=("sacct", "squeue")):
        """Compare what monitor and collect say of the repeats with their states; return the runs.

        Valid ones have the true number; by default, those that completed. Attempts, by repeats, are
        those shown that are not the first; sources are those that may have told the states.
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
        # One job in Slurm bears the name: not fewer, not more.
        name, must = f"--name={self.array['name']}", self.cluster.must
        ids = set(must("squeue", "-ha", "-t", "all", name, "-o", "%F").split())
        if self.cluster.lab.plan.accounting:
            rows = must("sacct", "-XnPD", name, "-o", "JobID", "-S", "now-1hours").splitlines()
            ids |= {row.partition("_")[0] for row in rows}
        assert len(ids) == 1
        return runs


@pytest.fixture(scope="module")
def impatient(lab):
    """Half of Slurm's own time is what a command waits for a controller or node that is away."""
    conf, env = lab.layout.slurm_conf.read_text(), lab.daemon_environment

    def configure(text):
        lab.layout.slurm_conf.write_text(text)
        until(lambda: runner.run(["scontrol", "reconfigure"], env=env).ok, "it is configured")

    configure(f"{conf}MessageTimeout=5\n")
    yield
    configure(conf)


@pytest.fixture
def cluster(lab, as_user, checkout, work, impatient):
    """The lab; an empty queue and usable nodes are left to the tests that come after."""
    cluster = Cluster(lab, as_user, checkout.cli(work, as_user))
    yield cluster
    as_user(["scancel", "--me"])
    until(lambda: unqueued(as_user, "", "--me"), "the queue is not empty")
    for name in lab.plan.node_names:
        cluster.wait_for_node(name)
