"""Faults that a script plants: the doctor's own programs, and commands that say what Slurm's would."""

from __future__ import annotations

import functools
import shutil
import socket
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from hpcbert.commands import checks
from hpcbert.finding import Finding
from hpcbert.model import Shape
from hpcbert.scheduler.base import SchedulerContext
from hpcbert.scheduler.slurm.examine import examine_site, find_failed_prologs
from hpcbert.script import materials
from hpcbert.system.runner import Outcome, run
from tests.kit import drafts
from tests.kit.cases import cases, read_constant
from tests.kit.doctor import FAULTS, Fault, find_missed, select_faults
from tests.kit.paths import REPOSITORY
from tests.kit.slurm import DENIED, Answers

PAGE = REPOSITORY / "docs/reference/checks.md"
WORKLOADS = REPOSITORY / "hpcbert/workloads"
ENFORCED = (
    "ClusterName = c\nSLURM_VERSION = {}\nAccountingStorageEnforce = associations,limits,qos\n"
)
USUAL = read_constant(__file__, "USUAL")
QUERIES = read_constant(__file__, "QUERIES")


def run_look(tmp_path: Path, *words: str, start: str = "") -> Iterable[Finding]:
    """Run look.sh as a node would, with no patience."""
    text = (REPOSITORY / "hpcbert/shell/look.sh").read_text().replace("LATE=10", "LATE=0")
    script = tmp_path / "look.sh"
    script.write_text(text)
    argv = ["bash", "-c", f'{start} exec bash "$0" "$@"', str(script), *words]
    outcome = run(argv, env={"SLURMD_NODENAME": "n1", "PATH": "/usr/bin:/bin", "HOME": "/"})
    return checks.find_problems(outcome.stdout, {})


def campaign(tmp_path: Path) -> str:
    (tmp_path / "campaign/scripts").mkdir(parents=True)
    (tmp_path / "campaign/scripts/look.sh").touch()
    return str(tmp_path / "campaign")


def miss_runs(tmp_path: Path) -> Iterable[Finding]:
    return run_look(tmp_path, "node", str(tmp_path / "none"), str(tmp_path), "", "--", "n1")


def fill_disk(tmp_path: Path) -> Iterable[Finding]:
    """No file may have content: what writes meet on a full disk, but for the errno."""
    words = ("node", campaign(tmp_path), str(tmp_path), "", "--", "n1")
    return run_look(tmp_path, *words, start='trap "" XFSZ; ulimit -f 0;')


def run_hello(tmp_path: Path, rank: int, port: int) -> Iterable[Finding]:
    """Run hello.py as one of two ranks, with little patience."""
    program = tmp_path / "hello.py"
    text = (WORKLOADS / "hello.py").read_text()
    program.write_text(text.replace("PATIENCE = 10.0", "PATIENCE = 0.2"))
    env = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "SLURM_NTASKS": "2",
        "SLURM_PROCID": str(rank),
        "SLURMD_NODENAME": f"n{rank + 1}",
    }
    words = [sys.executable, "-S", str(program), "no", "; there are: eth0"]
    return checks.find_problems(run(words, env=env).stdout, {})


def separate_nodes(tmp_path: Path) -> Iterable[Finding]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))  # and nobody listens
        return run_hello(tmp_path, 1, int(listener.getsockname()[1]))


def occupy_port(tmp_path: Path) -> Iterable[Finding]:
    with socket.socket() as listener:
        listener.bind(("", 0))
        listener.listen()
        return run_hello(tmp_path, 0, int(listener.getsockname()[1]))


def silence_node(tmp_path: Path) -> Iterable[Finding]:
    return checks.find_missing_nodes(
        "n1\ttmp\tok\tx\n", Shape(2, 1).nodes, "srun: error: Node failure on n2"
    )


def hide_enroot(tmp_path: Path) -> Iterable[Finding]:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "cat", "stat", "df", "awk", "id", "uname", "getent", "head", "unshare"):
        (tools / name).symlink_to(str(shutil.which(name)))
    text = (
        (REPOSITORY / "hpcbert/shell/probe.sh")
        .read_text()
        .replace("PATH=$PATH:/usr/sbin:/sbin", "")
    )
    env = {"PATH": str(tools), "HOME": str(tools), "SLURMD_NODENAME": "n1"}
    return checks.find_problems(run(["bash", "-c", text, "probe", "--enroot"], env=env).stdout, {})


def leave_container(tmp_path: Path) -> Iterable[Finding]:
    output = "hpcbert: n2: not in the container: this node has no pyxis in its plugstack.conf\n"
    return checks.find_missing_ranks(output, ("n1", "n2"), "pyxis")


def end_in_start_file(tmp_path: Path) -> Iterable[Finding]:
    file = tmp_path / "start"
    file.write_text("echo Welcome\nexit 3\n")
    return checks.check_start_file({"BASH_ENV": str(file), "PATH": "/usr/bin:/bin"}, run=run)


def fail_prolog(_: Path) -> Iterable[Finding]:
    """Answer as sinfo of 22.05.8 does after slurmd's prologs ended with status 1."""
    text = "n[2-3]|Prolog error\nn4|Not responding\n"
    return find_failed_prologs(SchedulerContext(lambda argv, **_: Outcome(tuple(argv), 0, text)))


def name_absent_image(tmp_path: Path) -> Iterable[Finding]:
    text = '[container]\nruntime = "enroot"\n[frameworks.oneflow]\nimage = "/no/image.sqsh"\n'
    site = drafts.site(tmp_path, text)
    recipe = drafts.load("oneflow")
    return checks.find_framework_obstacles(site, recipe, materials.find_inputs(site, recipe, {}))


def query(
    tmp_path: Path,
    *,
    site: str = "",
    answers: Mapping[str, Any] = USUAL,
    demand: str = "",
    version: str = "24.11.5",
    client: str = "slurm 24.11.5",
) -> Iterable[Finding]:
    """Ask a cluster that commands make up, at a site with more lines.

    Args:
        demand: What sbatch refuses a job without.
    """
    texts = {name: text for name, text in answers.items() if name != "private"}
    complaints = {"sinfo": DENIED} if "private" in answers else {}
    cluster = Answers(**{"config": ENFORCED.format(version), **texts}, complaints=complaints)

    def program(argv: Sequence[str], **_: Any) -> Outcome:
        if argv[0] != "sbatch":
            return cluster(argv)
        if "--version" in argv:
            return Outcome(tuple(argv), 0, client)
        complaint = "" if demand in " ".join(argv) else f"sbatch: error: {demand}"
        return Outcome(tuple(argv), int(bool(complaint)), "", complaint)

    start = 'schema = 1\nname = "x"\nscheduler = "slurm"\nruns = "/shared/runs"\n'
    settings = drafts.site(tmp_path, f"[slurm]\n{site}\n", start=start)
    return examine_site(settings, SchedulerContext(program, environ={}), 1)


PLANTERS: dict[str, Callable[[Path], Iterable[Finding]]] = {
    "`runs` is a different directory on a node, or missing": miss_runs,
    "`runs` is full, or the quota is used up": fill_disk,
    "an interface does not connect the nodes": separate_nodes,
    "the port where ranks meet is taken": occupy_port,
    "fewer nodes answer than were requested": silence_node,
    "bash ends in the file that `BASH_ENV` names": end_in_start_file,
    "a prolog fails": fail_prolog,
    "the image does not exist": name_absent_image,
    "enroot is not installed on a node": hide_enroot,
    "ranks are not in the container": leave_container,
    **{title: functools.partial(query, **values) for title, values in QUERIES.items()},
}
SCRIPTED = select_faults("script")


def test_every_fault_of_a_script_is_planted() -> None:
    assert set(PLANTERS) == {fault.title for fault in SCRIPTED}


@pytest.mark.slow
@pytest.mark.parametrize("fault", SCRIPTED, ids=lambda case: case.title.replace("`", ""))
def test_what_a_script_plants_is_found(
    fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcbert.system.files.user_name", lambda _: "me")
    monkeypatch.setattr("hpcbert.system.files.is_in_any_group", lambda groups: "users" in groups)
    findings = [
        {"code": finding.code, **asdict(finding)} for finding in PLANTERS[fault.title](tmp_path)
    ]
    assert not find_missed((fault,), findings), "\n".join(map(str, findings))


@cases
def test_a_notice_is_not_a_version(
    printed: str, newer: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcbert.system.files.user_name", lambda _: "me")
    details = [finding.detail for finding in query(tmp_path, client=printed)]
    assert any("newer than the controller" in detail for detail in details) == newer
    assert not any("hours" in detail for detail in details)


@cases
def test_gpus_that_an_argument_requests_are_seen(
    argument: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, bare: bool
) -> None:
    monkeypatch.setattr("hpcbert.system.files.user_name", lambda _: "me")
    findings = query(tmp_path, site=f'gres = ""\nsbatch_args = ["{argument}"]')
    assert any("no job gets a GPU" in finding.hint for finding in findings) == bare


def test_the_page_lists_every_fault() -> None:
    codes = dict.fromkeys(fault.code for fault in FAULTS)
    rows = [
        f"| `{code}` | {'; '.join(fault.title for fault in FAULTS if fault.code == code)} |"
        for code in codes
    ]
    text = PAGE.read_text()
    heading = "| check | faults |\n|---|---|\n"
    assert heading + "\n".join(rows) + "\n" in text
