"""Up and down: nothing is left, whatever happened in between; what a lab needs, and its people."""

import os
import pwd
import shutil
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from functools import partial
from itertools import count, islice, product
from pathlib import Path

import click
import pytest

from hpcbert.errors import CheckError, SchedulerError, UsageError
from hpcbert.lab import files, lifecycle
from hpcbert.lab.record import MARK, Journal, Lab, LabPlan, Network, load, lock_lab
from hpcbert.system.processes import boot_id, identify
from hpcbert.system.runner import Outcome, run
from tests.kit.cases import read_constant
from tests.kit.lab import account_stem, started
from tests.kit.waiting import CEILING, until


def up(directory, **changes):
    plan = LabPlan(**{"directory": directory, "nodes": 2, "gpus_per_node": 1, **changes})
    return lifecycle.up(plan, run=run, report=lambda _: None)


def down(directory):
    return lifecycle.down(directory, run=run, report=lambda _: None)


def namespaces(pid):
    with suppress(OSError):
        return {str(path.readlink()) for path in Path("/proc", pid, "ns").iterdir()}
    return set()


class Trace:
    """Where the lab of a directory can be seen from outside.

    Its processes are known by their mark and their nodes' namespaces. These are held open: Linux
    gives the number of one that is gone to the next one, which may be another lab's.
    """

    def __init__(self, directory, exit_stack):
        lab, self.held = load(directory), set[str]()
        assert lab
        self.lab, hosts = lab, [process for process in lab.hosts.values() if process]
        # To hold one of these keeps neither cables nor mounts alive.
        for host, kind in product(hosts, ("uts", "ipc")):
            with suppress(OSError):  # A host may have ended with an `up` that was killed.
                handle = os.open(f"/proc/{host.pid}/ns/{kind}", os.O_RDONLY)
                exit_stack.callback(os.close, handle)
                self.held.add(f"{kind}:[{os.fstat(handle).st_ino}]")
        self.held -= namespaces("self")

    def remains(self):
        lab, mounts = self.lab, Path("/proc/mounts").read_text().splitlines()
        paths = [lab.root, lab.directory]
        if lab.slot is not None:
            paths.append(Path("/sys/class/net", lab.network.uplink))
        remaining = [str(path) for path in paths if path.exists()]
        return [*remaining, *(row for row in mounts if str(lab.root) in row), *self.processes()]

    def processes(self):
        pids = []
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                is_marked = f"{MARK}={self.lab.mark}".encode() in (path / "environ").read_bytes()
                if is_marked or self.held & namespaces(path.name):
                    pids.append(path.name)
        return pids


@pytest.fixture
def traced():
    with ExitStack() as exit_stack:
        yield partial(Trace, exit_stack=exit_stack)


@pytest.fixture
def directory(slurm_packages, open_directory):
    path = open_directory / "other"
    yield path
    down(path)


def test_down_leaves_nothing_of_a_lab_with_a_running_job(directory, traced):
    lab = up(directory)
    step = "sleep 600 & setsid sleep 600 & wait"
    words = ["sbatch", "--parsable", "--nodes=2", f"--chdir={lab.layout.runs}", "--wrap"]
    submitted = run([*words, f"srun bash -c '{step}'"], env=lab.daemon_environment)
    assert submitted.ok, submitted.stderr
    trace = traced(directory)
    until(lambda: len(trace.processes()) >= 18, trace.processes)
    hosts = (namespaces(str(process.pid)) for process in lab.hosts.values())
    assert len(set().union(*hosts) - namespaces("self")) == 2 * 5 + 1
    removal = down(directory)
    assert removal.remains == ()
    assert removal.ended >= 18
    assert trace.remains() == []
    assert down(directory) == lifecycle.Removal()


@pytest.mark.parametrize("point", ["switch", "database tables", "slurmctld"])
def test_down_leaves_nothing_of_an_up_that_was_killed(directory, traced, point):
    words = [sys.executable, "-c", read_constant(__file__, "UP"), str(directory)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as process:

        def reached():
            assert process.poll() is None
            if (lab := load(directory)) is None:
                return False
            if point == "database tables":
                return lab.layout.database.exists()
            return point in lab.hosts or lab.daemons.get(point) is not None

        until(reached, "it never came so far", pause=0.001)
        process.kill()
    trace = traced(directory)
    assert down(directory).remains == ()
    assert trace.remains() == []


def test_up_says_why_a_daemon_failed_and_down_cleans_up(directory, traced):
    with pytest.raises(SchedulerError, match="Nonsense") as caught:
        up(directory, accounting=False, settings=("Nonsense=1",))
    assert "slurmctld" in caught.value.where
    trace = traced(directory)
    assert down(directory).remains == ()
    assert trace.remains() == []


def test_what_others_have_is_passed_over_and_kept(directory, traced):
    """A link of the first free slot's name, a port of the second, a directory, a mount, a process."""

    def is_free(network):
        routes = run(["ip", "-4", "route", "show", "root", network.prefix]).stdout.strip()
        return not Path("/sys/class/net", network.uplink).exists() and not routes

    directory.mkdir()
    small = {"directory": directory, "nodes": 1, "gpus_per_node": 1, "accounting": False}
    plans = (LabPlan(**small, name=f"lab{number}") for number in count())
    plan = next(p for p in plans if all(is_free(Network(slot)) for slot in islice(p.slots(), 3)))
    first, second, third = islice(plan.slots(), 3)
    foreign = Network(first).uplink
    assert run(["ip", "link", "add", "name", foreign, "type", "bridge"]).ok
    try:
        with socket.create_server(("", Network(second).controller_port)):
            lab = lifecycle.up(plan, run=run, report=lambda _: None)
        assert lab.slot == third
        assert lifecycle.status(directory, run=run).healthy
        inside = lab.layout.runs / "a mount"
        inside.mkdir()
        assert run(["mount", "-t", "tmpfs", "tmpfs", str(inside)]).ok
        trace = traced(directory)
        with subprocess.Popen(["sleep", "3600"]) as bystander:
            try:
                # From another mount namespace, too.
                program = read_constant(__file__, "DOWN")
                words = ["unshare", "--mount", sys.executable, "-c", program, str(directory)]
                outcome = run(words, timeout=CEILING)
                assert outcome.stdout == f"('mount {inside}',)\n", outcome.stderr
                assert bystander.poll() is None
            finally:
                bystander.kill()
        assert trace.processes() == []
        assert load(directory) is not None
        assert run(["umount", str(inside)]).ok
        assert down(directory).remains == ()
        assert Path("/sys/class/net", foreign).exists()
    finally:
        run(["ip", "link", "del", "dev", foreign])
    assert list(directory.iterdir()) == []
    directory.rmdir()


def test_two_labs_live_side_by_side_and_a_directory_may_hold_a_space(
    lab, as_user, traced, tmp_path
):
    directory = tmp_path / "a lab"
    small = {"directory": directory, "nodes": 2, "gpus_per_node": 1, "accounting": False}
    with started(LabPlan(**small, name="other")) as other:
        trace = traced(directory)
        assert " " not in str(other.root)
        outcome = as_user(["sinfo", "-h", "-o", "%D", "-p", "gpu"], env=other.environment)
        assert outcome.stdout.split() == ["2"]
        step = ["srun", "--nodes=2", "--gres=gpu:1", "hostname", "-i"]
        ran = as_user(step, env=other.environment, cwd=other.layout.runs)
        addresses = {other.network.address(node) for node in ("n1", "n2")}
        assert set(ran.stdout.split()) == addresses
        assert as_user(["srun", "hostname", "-i"]).stdout.strip() not in addresses
    assert trace.remains() == []
    assert lifecycle.status(lab.directory, run=run).healthy


def test_up_and_down_refuse_what_is_in_use(lab, tmp_path, monkeypatch):
    (tmp_path / "thesis.tex").write_text("mine")
    for directory, complaint in ((tmp_path, "not empty"), (lab.directory, "already has a lab")):
        with pytest.raises(UsageError, match=complaint):
            up(directory)
    assert (tmp_path / "thesis.tex").read_text() == "mine"
    monkeypatch.setattr("hpcbert.lab.record.LOCK_PATIENCE", 0.1)
    with lock_lab(lab.directory), pytest.raises(CheckError, match="Another process"):
        down(lab.directory)


def test_down_where_no_lab_lives_touches_no_process(slurm_packages, tmp_path):
    assert down(tmp_path / "none") == down(tmp_path) == lifecycle.Removal()
    with pytest.raises(UsageError, match="no lab") as caught:
        lifecycle.status(tmp_path, run=run)
    assert f"hpcbert lab up --directory {tmp_path}" in caught.value.hint
    directory = tmp_path / "lab"
    directory.mkdir()
    (directory / ".lab.json.x7").write_text('{"sch')  # an `up` that never wrote its record
    assert down(directory).remains == ()
    assert not directory.exists()
    directory.mkdir()
    plan, daemons = LabPlan(directory=directory), {"n1": identify(os.getpid())}
    Journal(Lab(plan, "ab12cd34ef", "another boot", directory, (directory,), daemons=daemons))
    assert not lifecycle.status(directory, run=run).daemons[-4].alive
    assert down(directory) == lifecycle.Removal()
    assert not directory.exists()


def test_what_is_missing_comes_with_the_command_that_installs_it(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PLUGINS", f"{tmp_path.relative_to('/')}/*.so")
    for name, packages in lifecycle._PACKAGES.items():
        moved = {f"{tmp_path}{key}": value for key, value in packages.items()}
        monkeypatch.setitem(lifecycle._PACKAGES, name, moved)
    with pytest.raises(CheckError) as caught:
        lifecycle.check_packages(accounting=True)
    assert "slurmctld" in caught.value.message
    command, names = caught.value.hint.split(" --no-install-recommends ")
    assert command == "apt-get install"
    assert names.split() == read_constant(__file__, "PACKAGES").split()
    without = set(lifecycle.find_missing(accounting=False).values())
    assert not without & {"mariadb-server", "slurmdbd", "slurm-wlm-mysql-plugin"}
    for plugin, is_needed in (("mpi_pmi2.so", False), ("mpi_pmix.so", True)):
        (tmp_path / plugin).touch()
        assert files.has_pmix() == is_needed
        assert ("libpmix.so" in lifecycle.find_missing(accounting=True)) == is_needed


def test_only_root_may_where_the_kernel_lets_it(tmp_path, monkeypatch):
    def refuse(argv, **_):
        return Outcome((), 1, stderr="unshare failed: Operation not permitted")

    with pytest.raises(CheckError, match="Operation not permitted") as refused:
        lifecycle.check_abilities(refuse)
    assert "container" in refused.value.hint
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for action in (up, down):
        with pytest.raises(UsageError, match="Only root") as caught:
            action(tmp_path / "lab")
        assert "sudo" in caught.value.hint
        assert not (tmp_path / "lab").exists()


def test_hpcbert_is_seen_by_a_user_who_can_not_read_where_it_lies(
    slurm_packages, open_directory, monkeypatch
):
    closed, root = open_directory / "closed", open_directory / "people"
    root.mkdir()
    closed.mkdir(mode=0o700)
    outcome = run(["/usr/bin/python3", "-m", "venv", "--without-pip", str(closed / "venv")])
    assert outcome.ok, outcome.stderr
    (packages,) = (closed / "venv").glob("lib/python*/site-packages")
    shutil.copytree(Path(click.__file__).parent, packages / "click")
    monkeypatch.setattr(sys, "prefix", str(closed / "venv"))
    plan = LabPlan(directory=root, user=f"{account_stem(open_directory)}-d")
    journal = Journal(Lab(plan=plan, mark="people", boot=boot_id(), root=root))
    try:
        lifecycle.add_user(journal, run)
        entry, programs = pwd.getpwnam(plan.user), journal.lab.programs
        become = ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups"]
        result = run([*become, f"{programs}/hpcbert", "--version"], cwd=Path(entry.pw_dir))
        assert result.stdout.startswith("hpcbert "), result.stderr
        profile = Path(entry.pw_dir, ".profile").read_text()
        assert f". {journal.lab.layout.env_sh}" in profile
    finally:
        remains = lifecycle.remove_user(journal.lab, run)
    assert remains == ()
    assert str(root) not in Path("/proc/self/mountinfo").read_text()
    with pytest.raises(KeyError):
        pwd.getpwnam(plan.user)
    shutil.rmtree(root)
