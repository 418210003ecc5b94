"""hpcbert submit campaign.toml, and the same typed: what would be submitted, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.kit.cases import cases, read_constant
from tests.kit.cli import run

FILE = read_constant(__file__, "FILE")
TYPED = (
    *("--name", "two ways", "--fw", "pytorch,oneflow", "--precision", "fp32,amp"),
    *("--shapes", "1n1g,2n2g", "--repeats", "3", "--batch-size", "fp32=8,fp16=16,32"),
    *("--env", "NCCL_ALGO=Ring", "--partition", "gpu", "--nodelist", "n[1-4]"),
    *("--exclude", "n7", "--reservation", "week", "--time", "00:20:00"),
)
DRY = ("--scheduler", "slurm", "--dry-run", "--json")


@pytest.fixture
def file(empty_directory: None, without_slurm: None, tmp_path: Path) -> Path:
    path = tmp_path / "campaign.toml"
    path.write_text(FILE)
    return path


def campaigns(*words: object) -> list[dict[str, Any]]:
    result = run("submit", *words, *DRY)
    assert result.returncode == 0, result
    entries: list[dict[str, Any]] = result.data["campaigns"]
    return entries


def plain(campaign: dict[str, Any]) -> str:
    """Return the scripts of a campaign without its id."""
    texts = "".join(array["script_text"] for array in campaign["arrays"])
    return texts.replace(campaign["campaign"], "ID")


@pytest.mark.slow
def test_a_file_and_the_same_words_make_the_same_campaigns(file: Path) -> None:
    from_file, typed = campaigns(file), campaigns(*TYPED)
    assert [campaign["framework"] for campaign in from_file] == ["pytorch", "oneflow"]
    assert [campaign["name"] for campaign in from_file] == ["two ways"] * 2
    assert [len(campaign["arrays"]) for campaign in from_file] == [6, 6]
    assert list(map(plain, from_file)) == list(map(plain, typed))
    assert file.read_text() == FILE


def test_variables_and_what_slurm_is_asked_for_stand_in_every_script(file: Path) -> None:
    for campaign in campaigns(file):
        for array in campaign["arrays"]:
            text = array["script_text"]
            assert array["env"] == {"NCCL_ALGO": "Ring"}
            assert re.search(r"environment=\(.*\bNCCL_ALGO=Ring\b.*\)", text)
            first = "n1" if array["shape"] == "1n1g" else "n1,n2"
            for option in (f"nodelist={first}", "exclude=n7", "reservation=week", "time=00:20:00"):
                assert f"#SBATCH --{option}\n" in text


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["none", "enroot", "apptainer", "pyxis"])
def test_ranks_have_them_under_every_runtime_and_before_the_sites(
    empty_directory: None, tmp_path: Path, runtime: str
) -> None:
    site = tmp_path / "site.toml"
    site.write_text(
        'schema = 1\nname = "x"\nscheduler = "slurm"\n[env]\nNCCL_ALGO = "Tree"\nKEPT = "1"\n'
        f'[container]\nruntime = "{runtime}"\n'
    )
    words = ("--fw", "oneflow", "--env", "NCCL_ALGO=Ring", "--env", "X=a b'c,d", "--site", site)
    result = run("submit", *words, "--dry-run", "--json")
    text = result.data["arrays"][0]["script_text"]
    (line,) = [line for line in text.splitlines() if "environment=(" in line]
    assert "NCCL_ALGO=Ring " in line
    assert "KEPT=1" in line
    assert """ 'X=a b'"'"'c,d'""" in line
    assert "Tree" not in text


def test_what_is_typed_wins_over_the_file(file: Path) -> None:
    words = (file, "--repeats", "1", "--partition", "test", "--name", "mine", "--exclude", "n1,n2")
    campaign = campaigns(*words)[0]
    assert campaign["name"] == "mine"
    assert campaign["arrays"][0]["repeats"] == [1]
    assert "--partition=test\n" in plain(campaign)
    assert "--exclude=n1,n2\n" in plain(campaign)
    result = run("submit", file, "--fw", "pytorch", "--env", "A=1", "--json")
    assert "--fw and --env" in result.error["message"]


def test_all_faults_are_told_at_once_and_nothing_is_written(file: Path, tmp_path: Path) -> None:
    file.write_text(FILE.replace('"oneflow"]', '"onflow"]').replace('"fp16"]', '"fp17"]'))
    result = run("submit", file, "--runs", tmp_path / "runs", "--json")
    assert result.returncode == 2
    errors = result.document["errors"]
    assert {error["code"] for error in errors} == {"config"}
    for error, word in zip(errors, ("batch_sizes.fp16", "'onflow'", "'fp17'"), strict=True):
        assert word in error["message"]
    assert not (tmp_path / "runs").exists()


def test_what_has_no_effect_with_the_scheduler_is_said(file: Path) -> None:
    file.write_text('schema = 1\nframeworks = "pytorch"\n[slurm]\npartition = "gpu"\n')
    result = run("submit", file, "--scheduler", "local", "--dry-run", "--json")
    (warning,) = [text for text in result.document["warnings"] if "no effect" in text]
    assert "slurm.partition" in warning


@cases
def test_what_is_typed_wrong_is_refused(
    words: tuple[str, ...], message: str, empty_directory: None
) -> None:
    result = run("submit", *words, *DRY)
    assert (result.returncode, message in result.error["message"]) == (2, True), result


def test_the_header_of_a_rendered_script_has_the_variables(
    empty_directory: None, tmp_path: Path
) -> None:
    words = ("--env", "NCCL_ALGO=Ring", "--env", "B=x y", "--output", tmp_path / "out")
    assert run("render", *words).returncode == 0
    (path,) = (tmp_path / "out").glob("*.sbatch")
    assert "--env B=x y' --env NCCL_ALGO=Ring".replace("B=", "'B=") in path.read_text()
    assert run("render", "--check", tmp_path / "out").returncode == 0
