"""Up and down: nothing is left, whatever happened in between."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import count, islice, product
from pathlib import Path

import pytest

from hpcbert.errors import CheckError, SchedulerError, UsageError
from hpcbert.lab.lifecycle import down, status, up
from hpcbert.lab.record import MARK, Journal, Lab, LabPlan, Network, load, lock_lab
from hpcbert.system.processes import identify
from hpcbert.system.runner import Outcome, run
from tests.kit.waiting import CEILING, until

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("slurm_packages")]


def quiet(_: str) -> None:
    return


def small(directory: Path, **changes: object) -> LabPlan:
    return LabPlan(**{"directory": directory, "nodes": 2, "gpus_per_node": 1, **changes})  # type: ignore[arg-type]


@dataclass(frozen=True)
class Trace:
    """Where a lab can be seen from outside.

    Attributes:
        namespaces: Its nodes' namespaces, by which its processes are known. They are held open:
            Linux gives the number of one that is gone to the next one, which may be another lab's.
        kinds: How many namespaces of its own it had in all.
    """

    lab: Lab
    namespaces: frozenset[str]
    kinds: int

    def remains(self) -> list[str]:
        lab = self.lab
        paths = [path for path in (lab.root, lab.directory) if path.exists()]
        uplink = lab.network.uplink if lab.slot is not None else "none"
        links = [uplink] if Path("/sys/class/net", uplink).exists() else []
        mounts = [
            row for row in Path("/proc/mounts").read_text().splitlines() if str(lab.root) in row
        ]
        return [*map(str, paths), *links, *mounts, *self.processes()]

    def processes(self) -> list[str]:
        mark = f"{MARK}={self.lab.mark}".encode()
        pids = [path.name for path in Path("/proc").iterdir() if path.name.isdecimal()]
        return [p for p in pids if mark in environment(p) or self.namespaces & namespaces(p)]


def environment(pid: str) -> bytes:
    try:
        return Path("/proc", pid, "environ").read_bytes()
    except OSError:
        return b""


def namespaces(pid: str) -> frozenset[str]:
    try:
        return frozenset(str(path.readlink()) for path in Path("/proc", pid, "ns").iterdir())
    except OSError:
        return frozenset()


@pytest.fixture
def traced() -> Iterator[Callable[[Path], Trace]]:
    """Traces the lab of a directory."""
    with ExitStack() as exit_stack:

        def trace(directory: Path) -> Trace:
            lab = load(directory)
            assert lab is not None
            hosts = [str(process.pid) for process in lab.hosts.values() if process]
            theirs = frozenset[str]().union(*map(namespaces, hosts)) - namespaces("self")
            # To hold one of these keeps neither cables nor mounts alive.
            identifiers = set()
            for host, kind in product(hosts, ("uts", "ipc")):
                with suppress(OSError):  # A host may have ended with an `up` that was killed.
                    handle = os.open(f"/proc/{host}/ns/{kind}", os.O_RDONLY)
                    exit_stack.callback(os.close, handle)
                    identifiers.add(f"{kind}:[{os.fstat(handle).st_ino}]")
            return Trace(lab, frozenset(identifiers) - namespaces("self"), len(theirs))

        yield trace


@pytest.fixture
def directory(open_directory: Path) -> Iterator[Path]:
    path = open_directory / "other"
    yield path
    down(path, run=run, report=quiet)


def test_down_leaves_nothing_of_a_lab_with_a_running_job(
    directory: Path, traced: Callable[[Path], Trace]
):
    lab = up(small(directory), run=run, report=quiet)
    step = "sleep 600 & setsid sleep 600 & wait"
    words = ["sbatch", "--parsable", "--nodes=2", f"--chdir={lab.layout.runs}", "--wrap"]
    submitted = run([*words, f"srun bash -c '{step}'"], env=lab.daemon_environment)
    assert submitted.ok, submitted.stderr
    trace = traced(directory)
    until(lambda: len(trace.processes()) >= 18, trace.processes)
    assert trace.kinds == 2 * 5 + 1
    removal = down(directory, run=run, report=quiet)
    assert removal.remains == ()
    assert removal.ended >= 18
    assert trace.remains() == []
    again = down(directory, run=run, report=quiet)
    assert (again.ended, again.remains) == (0, ())


@pytest.mark.parametrize(
    "so_far",
    [
        pytest.param(lambda lab: "switch" in lab.hosts, id="switch"),
        pytest.param(lambda lab: lab.slot is not None, id="cable"),
        pytest.param(lambda lab: lab.layout.database.exists(), id="database tables"),
        pytest.param(lambda lab: "n1" in lab.hosts, id="first host"),
        pytest.param(lambda lab: lab.daemons.get("slurmctld") is not None, id="slurmctld"),
        pytest.param(lambda lab: lab.daemons.get("n2") is not None, id="all"),
    ],
)
def test_down_leaves_nothing_of_an_up_that_was_killed(
    directory: Path, traced: Callable[[Path], Trace], so_far: Callable[[Lab], bool]
):
    program = """
import signal, sys
from pathlib import Path
from hpcbert.lab.record import LabPlan
from hpcbert.lab.lifecycle import up
from hpcbert.system.runner import run
up(LabPlan(directory=Path(sys.argv[1]), nodes=2, gpus_per_node=1), run=run, report=print)
signal.pause()  # It is killed in any case, however late.
"""
    words = [sys.executable, "-c", program, str(directory)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as process:

        def reached() -> bool:
            assert process.poll() is None
            return (lab := load(directory)) is not None and so_far(lab)

        until(reached, "it never came so far", pause=0.001)
        process.send_signal(signal.SIGKILL)
    trace = traced(directory)
    assert down(directory, run=run, report=quiet).remains == ()
    assert trace.remains() == []


def test_up_says_why_a_daemon_failed_and_down_cleans_up(
    directory: Path, traced: Callable[[Path], Trace], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("hpcbert.lab.files.slurm_conf", lambda *_, **__: "Nonsense=1\n")
    with pytest.raises(SchedulerError, match="Nonsense") as caught:
        up(small(directory, accounting=False), run=run, report=quiet)
    assert "slurmctld" in caught.value.where
    trace = traced(directory)
    assert down(directory, run=run, report=quiet).remains == ()
    assert trace.remains() == []


def test_down_keeps_a_directory_that_was_there_and_what_is_mounted_in_it(
    directory: Path, traced: Callable[[Path], Trace]
):
    """From another mount namespace too, and next to processes of others."""
    program = """
import sys
from pathlib import Path
from hpcbert.lab.lifecycle import down
from hpcbert.system.runner import run
print(down(Path(sys.argv[1]), run=run, report=lambda _: None).remains)
"""
    directory.mkdir()
    lab = up(small(directory, nodes=1, accounting=False), run=run, report=quiet)
    inside = lab.layout.runs / "a mount"
    inside.mkdir()
    assert run(["mount", "-t", "tmpfs", "tmpfs", str(inside)]).ok
    trace = traced(directory)
    with subprocess.Popen(["sleep", "3600"]) as bystander:
        words = ["unshare", "--mount", sys.executable, "-c", program, str(directory)]
        outcome = run(words, timeout=CEILING)
        assert outcome.stdout == f"('mount {inside}',)\n", outcome.stderr
        assert bystander.poll() is None
        bystander.kill()
    assert trace.processes() == []
    assert load(directory) is not None
    assert run(["umount", str(inside)]).ok
    assert down(directory, run=run, report=quiet).remains == ()
    assert list(directory.iterdir()) == []
    directory.rmdir()


def test_what_others_occupy_is_passed_over_and_never_removed(directory: Path):
    """A link of the first free slot's name, and a port of the second."""

    def is_free(network: Network) -> bool:
        routes = run(["ip", "-4", "route", "show", "root", network.prefix]).stdout.strip()
        return not Path("/sys/class/net", network.uplink).exists() and not routes

    plans = (small(directory, name=f"lab{n}", nodes=1, accounting=False) for n in count())
    plan = next(p for p in plans if all(is_free(Network(slot)) for slot in islice(p.slots(), 3)))
    first, second, third = islice(plan.slots(), 3)
    foreign = Network(first).uplink
    assert run(["ip", "link", "add", "name", foreign, "type", "bridge"]).ok
    try:
        with socket.create_server(("", Network(second).controller_port)):
            assert up(plan, run=run, report=quiet).slot == third
        assert status(directory, run=run).healthy
        assert down(directory, run=run, report=quiet).remains == ()
        assert Path("/sys/class/net", foreign).exists()
    finally:
        run(["ip", "link", "del", "dev", foreign])


def test_two_labs_live_side_by_side_and_a_directory_may_hold_a_space(
    lab: Lab, as_user: Callable[..., Outcome], traced: Callable[[Path], Trace], tmp_path: Path
):
    directory = tmp_path / "a lab"
    other = up(small(directory, name="other", accounting=False), run=run, report=quiet)
    trace = traced(directory)
    try:
        assert " " not in str(other.root)
        outcome = as_user(["sinfo", "-h", "-o", "%D", "-p", "gpu"], env=other.environment)
        assert outcome.stdout.split() == ["2"]
        step = ["srun", "--nodes=2", "--gres=gpu:1", "hostname", "-i"]
        ran = as_user(step, env=other.environment, cwd=other.layout.runs)
        addresses = {other.network.address(node) for node in ("n1", "n2")}
        assert set(ran.stdout.split()) == addresses
        assert as_user(["srun", "hostname", "-i"]).stdout.strip() not in addresses
    finally:
        assert down(directory, run=run, report=quiet).remains == ()
    assert trace.remains() == []
    assert status(lab.directory, run=run).healthy


def test_up_and_down_refuse_what_is_in_use(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "thesis.tex").write_text("mine")
    for directory, complaint in ((tmp_path, "not empty"), (lab.directory, "already has a lab")):
        with pytest.raises(UsageError, match=complaint):
            up(LabPlan(directory=directory), run=run, report=quiet)
    assert (tmp_path / "thesis.tex").read_text() == "mine"
    monkeypatch.setattr("hpcbert.lab.record.LOCK_PATIENCE", 0.1)
    with lock_lab(lab.directory), pytest.raises(CheckError, match="Another process"):
        down(lab.directory, run=run, report=quiet)


def test_down_where_there_never_was_a_lab_does_nothing(tmp_path: Path):
    assert down(tmp_path / "none", run=run, report=quiet).ended == 0
    assert down(tmp_path, run=run, report=quiet).ended == 0
    assert tmp_path.exists()


def test_down_removes_what_an_up_left_that_never_wrote_its_record(tmp_path: Path):
    directory = tmp_path / "lab"
    directory.mkdir()
    (directory / ".lab.json.x7").write_text('{"sch')
    assert down(directory, run=run, report=quiet).remains == ()
    assert not directory.exists()


def test_down_after_a_reboot_touches_no_process(tmp_path: Path):
    ourselves = identify(os.getpid())
    directory = tmp_path / "lab"
    directory.mkdir()
    plan = LabPlan(directory=directory)
    paths = (directory,)
    Journal(Lab(plan, "ab12cd34ef", "another boot", directory, paths, daemons={"n1": ourselves}))
    assert not status(directory, run=run).daemons[-4].alive
    removal = down(directory, run=run, report=quiet)
    assert (removal.ended, removal.remains) == (0, ())
    assert not directory.exists()


def test_status_without_a_lab_says_so(tmp_path: Path):
    with pytest.raises(UsageError, match="no lab"):
        status(tmp_path, run=run)
