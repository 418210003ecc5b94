"""Checks: what scripts say on nodes becomes findings; what is known before a submission is said."""

import ast
import re
import shutil

import pytest
import tomli

from hpcbert.commands import checks
from hpcbert.system.runner import Outcome, run
from tests.kit import drafts
from tests.kit.cases import cases, read_constant
from tests.kit.cli import Cli, run_here
from tests.kit.doctor import FAULTS
from tests.kit.paths import REPOSITORY
from tests.kit.scripts import tool
from tests.kit.slurm import Answer, failed

HELLO = REPOSITORY / "hpcbert/workloads/hello.py"
PROBE = REPOSITORY / "hpcbert/shell/probe.sh"
SITE = f'{drafts.MINIMAL}[slurm]\npartition = "gpu"\n'
SUBMIT = ("submit", "--nodes", "2", "--gpus-per-node", "8")


def format_rows(*rows):
    return "".join("\t".join(row) + "\n" for row in rows)


def test_the_page_and_the_tables_have_every_check_and_finding():
    text = (REPOSITORY / "docs/reference/checks.md").read_text()
    nodes, containers = checks.load_checks("nodes"), checks.load_checks("containers")
    for name, check in nodes.items():
        todo = f"`{check.remedy}`" if check.remedy else check.hint
        assert f"| `{name}` | {check.asks} | {todo} |" in text
    for name, check in containers.items():
        assert f"| `{name}` | {check.hint} | {check.change} |" in text
    look = (REPOSITORY / "hpcbert/shell/look.sh").read_text()
    names = re.findall(r"\b(?:tell|look_at_room) ([\w-]+) ", look)
    assert {*names, *re.findall(r'report\("(\w+)"', HELLO.read_text())} == set(nodes)
    names = re.findall(r"\btell ([\w-]+) ", PROBE.read_text())
    assert {*names, "scratch", "temp", "images"} <= set(containers)
    titles: dict[str, list[str]] = {}
    for fault in FAULTS:
        titles.setdefault(fault.code, []).append(fault.title)
    rows = "".join(f"| `{code}` | {'; '.join(texts)} |\n" for code, texts in titles.items())
    assert f"| check | faults |\n|---|---|\n{rows}" in text
    folder = REPOSITORY / "hpcbert/scheduler/slurm"
    source = "".join((folder / f"{name}.py").read_text() for name in ("admission", "examine"))
    findings = re.findall(r'(?:Finding|_judge_answer)\(\s*"([^"]+)"', source)
    table = tomli.loads((folder / "findings.toml").read_text())
    findings += [row["check"] for row in table.values() if "{" not in row["check"]]
    section = text.split("## About Slurm")[1].split("\n## ")[0]
    assert {*findings, "pyxis"} == set(re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE))
    # The oldest Python of an image reads hello.py: 3.6.
    tree = ast.parse(HELLO.read_text(), feature_version=(3, 6))
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.NamedExpr)]
    assert "from __future__ import annotations" not in HELLO.read_text()


@cases
def test_what_shares_a_cause_is_one_finding_and_who_is_bad_is_not_hidden(rows, findings):
    """`findings`: name, status, detail and nodes."""
    problems = checks.find_problems(format_rows(*rows), {})
    shown = [(entry.name, entry.status, entry.detail, entry.nodes) for entry in problems]
    assert sorted(shown) == sorted(findings)


def test_nodes_and_ranks_that_say_nothing_are_missed():
    text = format_rows(("n1", "ranks", "ok", "x"))
    (missed,) = checks.find_missing_nodes(text, 2, "srun: error: Node failure on n2")
    assert missed.detail == "1 of 2 nodes answered: srun: error: Node failure on n2"
    assert not list(checks.find_missing_nodes(text, 1, ""))
    (rankless,) = checks.find_missing_ranks(text, ("n1", "n2"), "none")
    assert (rankless.name, rankless.nodes) == ("ranks (n2)", ("n2",))
    output = (
        "hpcbert: repeat 1 attempt 0 on n[1-2], log x\n"
        "hpcbert: n2: not in the container: this node has no pyxis in its plugstack.conf\n"
    )
    (outside,) = checks.find_missing_ranks(output, ("n1", "n2"), "pyxis")
    assert (outside.nodes, outside.change) == (("n2",), "plugstack.conf")
    assert checks.find_error_lines(output) == (output.splitlines()[1],)


@cases
def test_a_remedy_has_what_is_there_or_is_left_out(rows, values, code, remedy, *, has_home):
    """A missing home directory, or one of no use, is not where runs should go."""
    findings = checks.find_problems(format_rows(*rows), values, has_home=has_home)
    assert [finding.remedy for finding in findings if finding.code == code] == [remedy]


@cases
def test_the_probe_finds_what_containers_lack(
    tmp_path, *, programs, words, check, status, detail, change
):
    """On PATH are only some ordinary commands and `programs`."""
    # /usr/sbin is always looked through as well.
    if check == "enroot" and shutil.which("enroot", path="/usr/sbin:/sbin"):
        pytest.skip("enroot is in /usr/sbin")
    tools = "bash cat stat df awk id uname getent head unshare true"
    for name in tools.split():
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    for name, text in (programs or {}).items():
        (tmp_path / name).unlink(missing_ok=True)
        tool(tmp_path, name, f"#!/bin/bash\n{text}\n")
    (tmp_path / "a b.sqsh").write_bytes(b"no squashfs")
    arguments = [word.replace("HERE", str(tmp_path)) for word in words.split("|")]
    env = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    outcome = run(["bash", str(PROBE), *arguments], env=env)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    row = {row.name: row for row in checks.read_rows(outcome.stdout)}[check]
    assert row.status == status
    assert (detail or "").replace("HERE", str(tmp_path)) in row.detail
    assert "\x1b" not in row.detail
    finding = checks.make_container_finding("n1", check, status, row.detail)
    assert (change or "") in finding.change


@cases
def test_a_login_node_may_lack_what_only_jobs_need_and_a_registry_is_explained(
    tmp_path, *, scheduler, runtime, recipes, answers, findings
):
    """`answers`: status, output and error of programs; `findings`: name, status, change, words."""
    text = f'[container]\nruntime = "{runtime}"\nimages = "{tmp_path}/images"\n'
    start = f'schema = 1\nname = "x"\nscheduler = "{scheduler}"\nruns = "runs"\n'
    results = checks.check_containers(
        drafts.site(tmp_path, text, start=start),
        [drafts.load(name) for name in recipes],
        run=lambda argv, **_: Outcome(tuple(argv), *answers.get(argv[0], (0, "", ""))),
    )
    for finding, (*expected, words) in zip(results, findings, strict=True):
        assert [finding.name, finding.status, finding.change] == expected
        assert words in f"{finding.detail} {finding.hint}"


@pytest.fixture
def hpcbert(tmp_path, slurm):
    """hpcbert where a cluster of four nodes answers, and refuses every job."""
    sinfo = "gpu*|up|4|1-00:00:00|1-infinite|gpu:8|n[1-4]"
    refusal = failed("sbatch: error: Batch job submission failed: refused")
    # The types of MPI are as srun of 22.05.8 prints them.
    mpi = "MPI plugin types are...\n\tnone\n\tpmi2\n"
    slurm.answers(sinfo=sinfo, sbatch=refusal, srun=mpi)
    (tmp_path / "site.toml").write_text(SITE)
    env = {"PATH": slurm.path, "HOME": str(tmp_path), "HPCBERT_RUNS": "/srv/nobody-has-this/runs"}
    return Cli(tmp_path, env, run=run_here)


@pytest.mark.slow
@cases
def test_what_is_known_to_fail_is_not_submitted(
    hpcbert, slurm, tmp_path, *, words, site, files, env, srun, keywords
):
    """`files` are executable; HERE is the working directory."""
    (tmp_path / "site.toml").write_text(f"{SITE}{site or ''}\n")
    for name, text in (files or {}).items():
        tool(tmp_path, name, text)
    if srun:
        slurm.answers(srun=srun)
    variables = {name: f"{tmp_path}/{file}" for name, file in (env or {}).items()}
    argv = words.replace("HERE", str(tmp_path)).split()
    result = hpcbert(*SUBMIT, *argv, "--json", **variables)
    assert (result.returncode, result.document["status"]) == (2, "error")
    for keyword in (*keywords, "--force"):
        assert keyword.replace("HERE", str(tmp_path)) in str(result.document["errors"])
    assert not slurm.calls("sbatch")
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_force_submits_all_the_same_and_a_dry_run_shows_the_script(hpcbert, slurm, tmp_path):
    result = hpcbert(*SUBMIT, "--nodes", "5", "--dry-run", "--json")
    assert result.data["arrays"]
    assert any("you asked for 5" in warning for warning in result.document["warnings"])
    words = (*SUBMIT, "--runs", tmp_path / "runs", "--force", "--json")
    assert "refused" in hpcbert(*words, "--nodes", "5", status=3).error["message"]
    assert slurm.calls("sbatch")
    # As sbatch of 22.05.8 prints it when MaxJobCount is reached, before its first wait.
    waits = "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying."
    slurm.answers(sbatch=Answer(complaint=f"{waits}\n", acts=True))
    result = hpcbert(*words, status=0)
    assert all(keyword in result.stderr for keyword in ("sleeping and retrying", "MaxJobCount"))
    # For other machines, a module that this one's interpreter lacks is a warning.
    bare = tool(tmp_path, "bare", read_constant(__file__, "BARE"))
    for rehearsal in ((), ("--rehearse",)):
        result = hpcbert(*SUBMIT, "--python", bare, "--dry-run", *rehearsal, "--json")
        warnings = str(result.document["warnings"])
        assert ("has no module torch" in warnings) == (not rehearsal)


@pytest.mark.slow
@cases
def test_a_site_that_names_what_is_not_there_is_refused(
    hpcbert, tmp_path, *, line, status, text, keywords
):
    (tmp_path / "site.toml").write_text(f"{SITE}{text}\n")
    document = hpcbert(*line.split(), "--json", status=status).document
    assert all(keyword in str(document) for keyword in keywords)
    assert document["data"]
