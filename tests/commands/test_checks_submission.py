"""What can be known before submitting is known before submitting: hpcbert as a process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.kit.cases import cases, read_constant
from tests.kit.cli import Cli, CliResult
from tests.kit.drafts import MINIMAL
from tests.kit.slurm import Answer, Programs, failed
from tests.shell.test_pyxis import format_usage

pytestmark = pytest.mark.slow

# As 22.05.8 prints them.
MPI = "MPI plugin types are...\n\tnone\n\tpmi2\n"
SINFO = "gpu*|up|4|1-00:00:00|1-infinite|gpu:8|n[1-4]"
# An interpreter that has no module, and fails at whatever else it is asked.
BARE = read_constant(__file__, "BARE")
SITE = f'{MINIMAL}[slurm]\npartition = "gpu"\n'


@pytest.fixture
def hpcbert(tmp_path: Path, slurm: Programs) -> Cli:
    """hpcbert where a cluster of four nodes answers, and refuses every job."""
    slurm.answers(sinfo=SINFO, sbatch=failed("refused"))
    (tmp_path / "site.toml").write_text(SITE)
    runs = "/srv/nobody-has-this/runs"
    return Cli(tmp_path, {"PATH": slurm.path, "HOME": str(tmp_path), "HPCBERT_RUNS": runs})


def join_messages(result: CliResult) -> str:
    return "\n".join(f"{error['message']} {error['hint']}" for error in result.document["errors"])


SUBMIT = ("submit", "--nodes", "2", "--gpus-per-node", "8")


@cases
def test_what_is_known_to_fail_is_not_submitted(
    hpcbert: Cli,
    slurm: Programs,
    tmp_path: Path,
    *,
    words: str,
    site: str | None,
    files: Mapping[str, str] | None,
    env: Mapping[str, str] | None,
    messages: tuple[str, ...],
) -> None:
    """`files` are executable; HERE is the working directory."""
    slurm.answers(srun=MPI)
    (tmp_path / "site.toml").write_text(f"{SITE}{site or ''}\n")
    for name, text in (files or {}).items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    argv = [*SUBMIT, *(word.replace("HERE", str(tmp_path)) for word in words.split())]
    variables: dict[str, Any] = {name: f"{tmp_path}/{file}" for name, file in (env or {}).items()}
    result = hpcbert(*argv, "--json", **variables)
    assert (result.returncode, result.document["status"]) == (2, "error")
    for message in (*messages, "--force"):
        assert message.replace("HERE", str(tmp_path)) in join_messages(result)
    assert not slurm.calls("sbatch")
    assert not (tmp_path / "runs").exists()


def test_what_sbatch_waits_for_is_said(hpcbert: Cli, slurm: Programs, tmp_path: Path) -> None:
    """As sbatch of 22.05.8 prints it when MaxJobCount is reached, before its first wait."""
    waits = "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying."
    slurm.answers(sbatch=Answer(complaint=f"{waits}\n", acts=True))
    result = hpcbert(*SUBMIT, "--runs", str(tmp_path / "runs"), "--force", "--json")
    assert "sleeping and retrying" in result.stderr
    assert "MaxJobCount" in result.stderr


@cases
def test_gpus_are_requested_by_the_sites_option(
    hpcbert: Cli, slurm: Programs, tmp_path: Path, settings: str, directive: str
) -> None:
    (tmp_path / "site.toml").write_text(f"{SITE}{settings}\n")
    slurm.answers(sinfo=SINFO.replace("gpu:8", "gpu:a100:8"), sbatch="")
    result = hpcbert(*SUBMIT, "--rehearse", "--dry-run", status=0)
    options = [line.split()[1] for line in result.stdout.splitlines() if line.startswith("#SBATCH")]
    assert [option for option in options if option.startswith("--g")] == [directive]


def test_of_the_kinds_of_mpi_that_the_cluster_has_the_recipes_best_is_taken(
    hpcbert: Cli, slurm: Programs
) -> None:
    slurm.answers(srun=MPI)
    result = hpcbert(*SUBMIT, "--fw", "ngc-tf1", "--rehearse", "--dry-run")
    assert "--mpi=pmi2 " in result.stdout


@pytest.mark.parametrize(("release", "code"), [(14, 2), (24, 5)], ids=["old", "new"])
def test_pyxis_and_the_image_are_checked_before_submission(
    hpcbert: Cli, slurm: Programs, release: int, code: int
) -> None:
    slurm.answers(srun=format_usage(release))
    words = ("--runtime", "pyxis", "--image", "docker://nvcr.io#nvidia/pytorch:20.12-py3")
    more = ("--python", "/usr/bin/python3", "--runs", str(hpcbert.cwd / "runs"), "--json")
    result = hpcbert(*SUBMIT, *words, *more, *(["--dry-run"] if code == 5 else []))
    assert result.returncode == code  # sbatch refuses every job here
    if code == 2:
        assert "no --container-env" in join_messages(result)
        assert "pyxis 0.15 or newer" in join_messages(result)
        assert not slurm.calls("sbatch")
    else:
        warnings = [
            warning for warning in result.document["warnings"] if "is not prepared" in warning
        ]
        assert len(warnings) == 1
        assert "hpcbert prepare --fw pytorch" in warnings[0]


def test_force_submits_all_the_same_and_a_dry_run_shows_the_script(
    hpcbert: Cli, slurm: Programs, tmp_path: Path
) -> None:
    result = hpcbert(*SUBMIT, "--nodes", "5", "--dry-run", "--json")
    assert result.data["arrays"]
    assert any("you asked for 5" in warning for warning in result.document["warnings"])
    result = hpcbert(*SUBMIT, "--nodes", "5", "--runs", str(tmp_path / "runs"), "--force", "--json")
    assert result.returncode == 3
    assert slurm.calls("sbatch")
    assert "refused" in join_messages(result)


@cases
def test_what_a_site_says_of_nothing_is_an_error(
    hpcbert: Cli, tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "site.toml").write_text(SITE + text)
    result = hpcbert("config", "--json")
    assert result.returncode == 2
    assert said in join_messages(result)
    assert result.data["settings"]
    result = hpcbert("doctor", "--json")
    assert result.returncode == 5
    wrong = [finding for finding in result.data if finding["status"] == "fail"]
    assert any(said in f"{finding['detail']} {finding['hint']}" for finding in wrong)


def test_the_doctor_finds_what_submit_would_refuse(hpcbert: Cli, tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(
        SITE
        + 'time_limit = "2-00:00:00"\n[nodes]\ngpus_per_node = 16\n'
        + '[frameworks.oneflow]\ndata = "/no/data"\nsource = "/no/source"\n'
    )
    result = hpcbert("doctor", "--fw", "oneflow", "--json")
    assert result.returncode == 5
    text = json.dumps([finding for finding in result.data if finding["status"] == "fail"])
    for part in ("/no/data", "/no/source", "gpu:16", "at most 1-00:00:00"):
        assert part in text


def test_for_other_machines_a_missing_module_is_a_warning(hpcbert: Cli, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.write_text(BARE)
    bare.chmod(0o755)
    for words in ((), ("--rehearse",)):
        result = hpcbert(*SUBMIT, "--python", bare, "--dry-run", *words, "--json")
        assert ("has no module torch" in str(result.document["warnings"])) == (not words)
