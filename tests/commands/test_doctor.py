"""The doctor: what becomes of its job, and whether it finds the faults that are planted."""

import functools
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from hpcbert.commands import checks, doctor
from hpcbert.errors import Interruption
from hpcbert.finding import Finding
from hpcbert.model import Shape
from hpcbert.scheduler.base import SchedulerContext
from hpcbert.scheduler.slurm import examine
from hpcbert.script import materials
from hpcbert.slurm import state_sources
from hpcbert.system.runner import Outcome, Runner, run
from tests.kit import drafts
from tests.kit.cases import cases, read_constant
from tests.kit.doctor import find_missed, select_faults
from tests.kit.paths import REPOSITORY
from tests.kit.slurm import DENIED, Answers, Slurm, failed
from tests.kit.waiting import CEILING

pytestmark = pytest.mark.slow


def examine_nodes(folder: Path, slurm: Runner, patience: float = 0.0) -> list[Finding]:
    """Examine two nodes; whatever happens, it leaves no directory behind."""
    site = drafts.site(folder, "[slurm]\npoll_floor = 0.1\n")
    visit = doctor.Visit(Shape(2, 1), patience, drafts.SUBMITTER)
    try:
        return list(doctor.examine_nodes(site, (), visit, run=slurm))
    finally:
        assert not list((folder / "runs").glob(".doctor-*"))


def test_a_job_that_does_not_start_is_cancelled_and_a_refusal_is_reported(tmp_path):
    slurm = Slurm()
    (finding,) = examine_nodes(tmp_path, slurm)
    assert (finding.name, finding.status) == ("job", "fail")
    assert "did not start" in finding.detail
    assert [job.alive() for job in slurm.jobs.values()] == [[]]
    refusal = failed("sbatch: error: Batch job submission failed: Invalid qos specification")
    (finding,) = examine_nodes(tmp_path, Slurm(sbatch=refusal))
    assert "Invalid qos specification" in finding.detail
    assert "--resume" not in finding.hint
    (tmp_path / "runs").rmdir()
    (tmp_path / "runs").write_text("a file")
    (finding,) = examine_nodes(tmp_path, Slurm())
    assert (finding.name, finding.remedy) == ("runs (nodes)", "--runs ~/runs")


# Slurm 22.05.8 gives the second, when a prolog ends with status 1.
@pytest.mark.parametrize("reason", ["launch failed requeued held", "JobHeldAdmin"])
def test_a_failed_prolog_is_the_finding_with_its_nodes(reason, tmp_path):
    """A job that a prolog failed waits in held state, and its node is drained."""
    slurm = Slurm(sinfo="n2|Prolog error\n")

    def hold(argv: Sequence[str], **options: Any) -> Outcome:
        outcome = slurm(argv, **options)
        return replace(outcome, stdout=outcome.stdout.replace("|None|", f"|{reason}|"))

    (finding,) = examine_nodes(tmp_path, hold)
    assert (finding.code, finding.nodes, finding.remedy) == ("prolog", ("n2",), "--exclude n2")


def test_a_job_whose_script_bash_never_reads_says_why(tmp_path, monkeypatch):
    """The file ends bash on the nodes only."""
    monkeypatch.setenv("BASH_ENV", "/etc/start")
    monkeypatch.setattr(doctor, "_OUTPUT_SECONDS", 0.0)
    monkeypatch.setattr(state_sources, "VISIBILITY_DELAY", 0.0)
    slurm = Slurm(srun="")

    def end(_: str) -> None:
        for job in slurm.jobs.values():
            job.end("COMPLETED")

    slurm.before = end
    (finding,) = examine_nodes(tmp_path, slurm)
    assert (finding.name, finding.remedy) == ("BASH_ENV", "unset BASH_ENV")
    assert "/etc/start" in finding.detail


@pytest.mark.parametrize("moment", ["sbatch", "job", "SIGTERM", "SIGHUP", "answer of sbatch"])
def test_who_interrupts_leaves_no_job_behind(tmp_path, monkeypatch, moment):
    monkeypatch.setattr(doctor, "_POLL_SECONDS", 0.0)
    slurm = Slurm(dies=moment == "answer of sbatch")
    looks: list[str] = []

    def interrupt(program: str) -> None:
        looks.extend(["sacct"] if program == "sacct" and slurm.jobs else [])
        if program == "sbatch" if moment == "sbatch" else len(looks) > (moment == "job"):
            slurm.before = lambda _: None
            if moment.startswith("SIG"):
                signal.raise_signal(signal.Signals[moment])
            raise KeyboardInterrupt

    slurm.before = interrupt
    with pytest.raises((KeyboardInterrupt, Interruption)):
        examine_nodes(tmp_path, slurm, 60.0)
    assert slurm.dies or slurm.before is not interrupt
    assert not any(job.alive() for job in slurm.jobs.values())


def test_no_job_is_tried_while_the_controller_is_away(tmp_path):
    slurm = Slurm(away={"scontrol"}, sbatch="slurm 22.05.8")
    visit = doctor.Visit(Shape(2, 1), 60.0, drafts.SUBMITTER)
    site = drafts.site(tmp_path)
    findings = {finding.name: finding for finding in doctor.examine(site, run=slurm, visit=visit)}
    assert (findings["slurmctld"].status, findings["job"].status) == ("fail", "fail")
    assert "not tried" in findings["job"].detail
    assert slurm.called("sbatch") == [("sbatch", "--version")]


@pytest.mark.slurm
def test_containers_are_examined_from_inside_a_job(as_user, checkout, work, lab):
    """The lab has no pyxis: its srun refuses the options."""
    folder = work / "with a space"
    as_user(["mkdir", "-p", str(folder)])
    (folder / "site.toml").write_text(
        'schema = 1\nname = "lab"\nscheduler = "slurm"\nruns = "runs"\n'
        '[container]\nruntime = "pyxis"\n[frameworks.pytorch]\nimage = "/etc/passwd"\n'
    )
    words = ["doctor", "--site", str(folder), "--nodes", "4", "--fw", "pytorch", "--json"]
    env = {"PYTHONPATH": str(checkout.path), "HPCBERT_SITE": ""}
    argv = [checkout.python, "-m", "hpcbert", *words]
    result = as_user(argv, env=env, cwd=folder, timeout=CEILING)
    assert result.returncode == 5, result.stdout + result.stderr
    findings = {finding["name"]: finding for finding in json.loads(result.stdout)["data"]}
    assert findings["user-namespaces (n[1-4])"]["status"] == "ok"
    assert findings["account (n[1-4])"]["status"] == "ok"
    image, plugin = findings["image (n[1-4])"], findings["plugin (n[1-4])"]
    assert (image["status"], image["change"]) == ("fail", "site.toml: container.images")
    if "--container-image" not in run(["srun", "--help"], env=os.environ).stdout:
        assert (plugin["status"], plugin["change"]) == ("fail", "plugstack.conf")
    assert not list((folder / "runs").glob(".doctor-*"))


def run_script(text: str, folder: Path) -> Iterable[Finding]:
    """Run a script of the doctor as a node would, by shell lines of the table."""
    env = {"SLURMD_NODENAME": "n1", "PATH": "/usr/bin:/bin", "HOME": "/"}
    env["SHELL_FILES"] = str(REPOSITORY / "hpcbert/shell")
    return checks.find_problems(run(["bash", "-c", text], env=env, cwd=folder).stdout, {})


def run_hello(rank: int, folder: Path) -> Iterable[Finding]:
    """Run hello.py as one of two ranks; the port of the first is taken, or nobody listens."""
    text = (REPOSITORY / "hpcbert/workloads/hello.py").read_text()
    program = folder / "hello.py"
    program.write_text(text.replace("PATIENCE = 10.0", "PATIENCE = 0.2"))
    with socket.socket() as listener:
        listener.bind(("", 0))
        if rank == 0:
            listener.listen()
        env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(listener.getsockname()[1])}
        env |= {"SLURM_NTASKS": "2", "SLURM_PROCID": str(rank), "SLURMD_NODENAME": f"n{rank + 1}"}
        words = [sys.executable, "-S", str(program), "no", "; there are: eth0"]
        return checks.find_problems(run(words, env=env).stdout, {})


def end_in_start_file(folder: Path) -> Iterable[Finding]:
    (folder / "start").write_text("echo Welcome\nexit 3\n")
    return checks.check_start_file({"BASH_ENV": str(folder / "start"), "PATH": "/bin"}, run=run)


def fail_prolog(_: Path) -> Iterable[Finding]:
    """Answer as sinfo of 22.05.8 does after slurmd's prologs ended with status 1."""
    text = "n[2-3]|Prolog error\nn4|Not responding\n"
    context = SchedulerContext(lambda argv, **_: Outcome(tuple(argv), 0, text))
    return examine.find_failed_prologs(context)


def name_absent_image(folder: Path) -> Iterable[Finding]:
    text = '[container]\nruntime = "enroot"\n[frameworks.oneflow]\nimage = "/no/image.sqsh"\n'
    site, recipe = drafts.site(folder, text), drafts.load("oneflow")
    return checks.find_framework_obstacles(site, recipe, materials.find_inputs(site, recipe, {}))


def query(
    folder: Path,
    *,
    site: str = "",
    answers: Mapping[str, Any] = read_constant(__file__, "USUAL"),
    demand: str = "",
    version: str = "24.11.5",
    client: str = "slurm 24.11.5",
) -> Iterable[Finding]:
    """Ask commands that answer as Slurm's, where sbatch refuses a job without `demand`."""
    texts = {name: text for name, text in answers.items() if name != "private"}
    complaints = {"sinfo": DENIED} if "private" in answers else {}
    cluster = Answers(
        **{"config": read_constant(__file__, "ENFORCED").format(version), **texts},
        complaints=complaints,
    )

    def program(argv: Sequence[str], **_: Any) -> Outcome:
        if argv[0] != "sbatch":
            return cluster(argv)
        if "--version" in argv:
            return Outcome(tuple(argv), 0, client)
        complaint = "" if demand in " ".join(argv) else f"sbatch: error: {demand}"
        return Outcome(tuple(argv), int(bool(complaint)), "", complaint)

    start = 'schema = 1\nname = "x"\nscheduler = "slurm"\nruns = "/shared/runs"\n'
    settings = drafts.site(folder, f"[slurm]\n{site}\n", start=start)
    return examine.examine_site(settings, SchedulerContext(program, environ={}), 1)


PLANTERS: dict[str, Callable[[Path], Iterable[Finding]]] = {
    "an interface does not connect the nodes": functools.partial(run_hello, 1),
    "the port where ranks meet is taken": functools.partial(run_hello, 0),
    "bash ends in the file that `BASH_ENV` names": end_in_start_file,
    "a prolog fails": fail_prolog,
    "the image does not exist": name_absent_image,
    "fewer nodes answer than were requested": lambda _: checks.find_missing_nodes(
        "n1\ttmp\tok\tx\n", 2, "srun: error: Node failure on n2"
    ),
    "ranks are not in the container": lambda _: checks.find_missing_ranks(
        "hpcbert: n2: not in the container: this node has no pyxis\n", ("n1", "n2"), "pyxis"
    ),
}


@pytest.fixture
def _me(monkeypatch):
    monkeypatch.setattr("hpcbert.system.files.user_name", lambda _: "me")
    monkeypatch.setattr("hpcbert.system.files.is_in_any_group", lambda groups: "users" in groups)


@pytest.mark.usefixtures("_me")
@pytest.mark.parametrize(
    "fault", select_faults("script"), ids=lambda case: case.title.replace("`", "")
)
def test_what_a_script_plants_is_found(fault, tmp_path):
    scripts, queries = read_constant(__file__, "SCRIPTS"), read_constant(__file__, "QUERIES")
    if fault.title in scripts:
        results = run_script(scripts[fault.title], tmp_path)
    elif fault.title in queries:
        results = query(tmp_path, **queries[fault.title])
    else:
        results = PLANTERS[fault.title](tmp_path)
    findings = [{"code": finding.code, **asdict(finding)} for finding in results]
    assert not find_missed((fault,), findings), "\n".join(map(str, findings))


@pytest.mark.usefixtures("_me")
@cases
def test_a_notice_is_not_a_version(printed, newer, tmp_path):
    details = [finding.detail for finding in query(tmp_path, client=printed)]
    assert any("newer than the controller" in detail for detail in details) == newer
    assert not any("hours" in detail for detail in details)


@cases
def test_gpus_that_an_argument_requests_are_seen(argument, tmp_path, monkeypatch, *, bare):
    monkeypatch.setattr("hpcbert.system.files.user_name", lambda _: "me")
    findings = query(tmp_path, site=f'gres = ""\nsbatch_args = ["{argument}"]')
    assert any("no job gets a GPU" in finding.hint for finding in findings) == bare
