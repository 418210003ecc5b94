"""The doctor: what becomes of its job, and whether it finds the faults that are planted."""

import os
import signal
import sys
from dataclasses import asdict, replace

import pytest

from hpcbert.commands import checks, doctor
from hpcbert.errors import Interruption
from hpcbert.model import Shape
from hpcbert.scheduler.slurm import examine
from hpcbert.slurm import state_sources
from hpcbert.system.runner import Outcome, run
from tests.kit import drafts
from tests.kit.cases import cases, read_constant
from tests.kit.doctor import FAULTS, find_missed
from tests.kit.paths import REPOSITORY
from tests.kit.slurm import DENIED, Answers, Slurm, failed

pytestmark = pytest.mark.slow

SCRIPTS = read_constant(__file__, "SCRIPTS")
QUERIES = read_constant(__file__, "QUERIES")


def examine_nodes(folder, slurm, patience=0.0):
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
    # While the controller is away, none is tried.
    slurm = Slurm(away={"scontrol"}, sbatch="slurm 22.05.8")
    visit = doctor.Visit(Shape(2, 1), 60.0, drafts.SUBMITTER)
    results = doctor.examine(drafts.site(tmp_path), run=slurm, visit=visit)
    findings = {finding.name: finding for finding in results}
    assert (findings["slurmctld"].status, findings["job"].status) == ("fail", "fail")
    assert "not tried" in findings["job"].detail
    assert slurm.called("sbatch") == [("sbatch", "--version")]
    (tmp_path / "runs").rmdir()
    (tmp_path / "runs").write_text("a file")
    (finding,) = examine_nodes(tmp_path, Slurm())
    assert (finding.name, finding.remedy) == ("runs (nodes)", "--runs ~/runs")


def test_a_job_that_a_prolog_holds_says_why(tmp_path):
    # Slurm 22.05.8 gives the second reason, when a prolog ends with status 1; the node is drained.
    for reason in ("launch failed requeued held", "JobHeldAdmin"):
        slurm = Slurm(sinfo="n2|Prolog error\n")

        def hold(argv, reason=reason, slurm=slurm, **options):
            outcome = slurm(argv, **options)
            return replace(outcome, stdout=outcome.stdout.replace("|None|", f"|{reason}|"))

        (finding,) = examine_nodes(tmp_path, hold)
        assert (finding.code, finding.nodes, finding.remedy) == ("prolog", ("n2",), "--exclude n2")


@pytest.mark.parametrize("has_output_file", [False, True])
def test_a_job_that_printed_nothing_wrote_elsewhere_or_bash_never_read_it(
    tmp_path, monkeypatch, has_output_file
):
    # The file ends bash on the nodes only; with an output elsewhere, it may be innocent.
    monkeypatch.setenv("BASH_ENV", "/etc/start")
    monkeypatch.setattr(doctor, "_OUTPUT_SECONDS", 0.0)
    monkeypatch.setattr(state_sources, "VISIBILITY_DELAY", 0.0)
    slurm = Slurm()

    def end(_):
        for job in slurm.jobs.values():
            job.end("COMPLETED")
            for folder in tmp_path.rglob("slurm") if has_output_file else ():
                (folder / "1.out").touch()

    slurm.before = end
    (finding,) = examine_nodes(tmp_path, slurm)
    if has_output_file:
        assert (finding.name, finding.remedy) == ("BASH_ENV", "unset BASH_ENV")
        assert "/etc/start" in finding.detail
    else:
        assert (finding.name, finding.remedy) == ("runs (nodes)", "--runs ~/runs")
        assert "no output" in finding.detail
        assert "nothing else was checked" in finding.detail


@pytest.mark.parametrize("moment", ["sbatch", "job", "SIGTERM", "SIGHUP", "answer of sbatch"])
def test_who_interrupts_leaves_no_job_behind(tmp_path, monkeypatch, moment):
    monkeypatch.setattr(doctor, "_POLL_SECONDS", 0.0)
    slurm = Slurm(dies=moment == "answer of sbatch")

    def interrupt(program):
        looks = slurm.count("sacct") if slurm.jobs else 0
        if program == "sbatch" if moment == "sbatch" else looks > (moment == "job"):
            slurm.before = lambda _: None
            if moment.startswith("SIG"):
                signal.raise_signal(signal.Signals[moment])
            raise KeyboardInterrupt

    slurm.before = interrupt
    with pytest.raises((KeyboardInterrupt, Interruption)):
        examine_nodes(tmp_path, slurm, 60.0)
    assert slurm.dies or slurm.before is not interrupt
    assert not any(job.alive() for job in slurm.jobs.values())


def test_containers_are_examined_from_inside_a_job(as_user, checkout, work, lab):
    """The lab has no pyxis: its srun refuses the options."""
    folder = work / "with a space"
    as_user(["mkdir", "-p", str(folder)])
    container = '[container]\nruntime = "pyxis"\n[frameworks.pytorch]\nimage = "/etc/passwd"\n'
    drafts.site(folder, f'runs = "runs"\n{container}')
    hpcbert = checkout.cli(folder, as_user, HPCBERT_SITE="")
    words = ("doctor", "--site", folder, "--nodes", "4", "--fw", "pytorch", "--json")
    findings = {finding["name"]: finding for finding in hpcbert(*words, status=5).data}
    assert findings["user-namespaces (n[1-4])"]["status"] == "ok"
    assert findings["account (n[1-4])"]["status"] == "ok"
    image, plugin = findings["image (n[1-4])"], findings["plugin (n[1-4])"]
    assert (image["status"], image["change"]) == ("fail", "site.toml: container.images")
    if "--container-image" not in run(["srun", "--help"], env=os.environ).stdout:
        assert (plugin["status"], plugin["change"]) == ("fail", "plugstack.conf")
    assert not list((folder / "runs").glob(".doctor-*"))


def query(folder, *, site="", answers=None, demand="", version="24.11.5", client="slurm 24.11.5"):
    """Ask commands that answer as Slurm's, where sbatch refuses a job without `demand`."""
    texts = {"config": read_constant(__file__, "ENFORCED").format(version)}
    texts |= read_constant(__file__, "USUAL") if answers is None else answers
    complaints = {"sinfo": DENIED} if texts.pop("private", "") else {}
    cluster = Answers(**texts, complaints=complaints)

    def program(argv, **_):
        if argv[0] != "sbatch":
            return cluster(argv)
        if "--version" in argv:
            return Outcome(tuple(argv), 0, client)
        complaint = "" if demand in " ".join(argv) else f"sbatch: error: {demand}"
        return Outcome(tuple(argv), int(bool(complaint)), "", complaint)

    settings = drafts.site(folder, f'runs = "/shared/runs"\n[slurm]\n{site}\n')
    return examine.examine_site(settings, drafts.hurried(program)._replace(environ={}), 1)


def list_missed(title, results):
    """Return the faults of a title that none of these results reports."""
    findings = [{"code": result.code, **asdict(result)} for result in results]
    return find_missed(findings, "script", title=title)


@pytest.mark.parametrize("title", [*SCRIPTS, *QUERIES], ids=lambda title: title.replace("`", ""))
def test_what_a_script_or_an_answer_of_slurm_plants_is_found(title, tmp_path, me):
    if title in QUERIES:
        results = list(query(tmp_path, **QUERIES[title]))
    else:
        env = {"SLURMD_NODENAME": "n1", "PATH": "/usr/bin:/bin", "HOME": "/"}
        env |= {"PYTHON": sys.executable, "SHELL_FILES": str(REPOSITORY / "hpcbert/shell")}
        output = run(["bash", "-c", SCRIPTS[title]], env=env, cwd=tmp_path).stdout
        results = list(checks.find_problems(output, {}))
    assert not list_missed(title, results), "\n".join(map(str, results))


def test_what_a_file_or_the_output_of_a_job_plants_is_found(tmp_path):
    start = tmp_path / "start"
    start.write_text("echo Welcome\nexit 3\n")
    # What sinfo of 22.05.8 prints after slurmd's prologs ended with status 1.
    drained = Slurm(sinfo="n[2-3]|Prolog error\nn4|Not responding\n")
    text = '[container]\nruntime = "enroot"\n[frameworks.oneflow]\nimage = "/no/image.sqsh"\n'
    site = drafts.site(tmp_path, text)
    # What hello.py prints is in tests/workloads.
    port = "n1\tport\tfail\t29500: Address already in use\n"
    silent, missing = "n1\ttmp\tok\tx\n", "srun: error: Node failure on n2"
    outside = "hpcbert: n2: not in the container: this node has no pyxis\n"
    ended = checks.check_start_file({"BASH_ENV": str(start), "PATH": "/bin"}, run=run)
    planted = {
        "the port where ranks meet is taken": checks.find_problems(port, {}),
        "bash ends in the file that `BASH_ENV` names": ended,
        "a prolog fails": examine.find_failed_prologs(drafts.hurried(drained)),
        "the image does not exist": doctor.examine(site, run=Answers(), frameworks=["oneflow"]),
        "fewer nodes answer than were requested": checks.find_missing_nodes(silent, 2, missing),
        "ranks are not in the container": checks.find_missing_ranks(outside, ("n1", "n2"), "pyxis"),
    }
    for title, results in planted.items():
        assert not list_missed(title, list(results)), title
    titles = {fault.title for fault in FAULTS if fault.context == "script"}
    assert titles == {*SCRIPTS, *QUERIES, *planted}


@cases
def test_a_notice_is_not_a_version_and_an_argument_may_request_gpus(
    question, words, tmp_path, me, *, is_reported
):
    texts = [f"{finding.detail} {finding.hint}" for finding in query(tmp_path, **question)]
    assert any(words in text for text in texts) == is_reported
    assert not any("hours" in text for text in texts)
