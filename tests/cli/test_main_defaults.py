"""A person's defaults of options: variables and config.toml."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbert.cli.help import walk_commands
from hpcbert.cli.main import list_options, name_variable, root
from tests.kit.cases import cases
from tests.kit.cli import Cli, run

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("empty_directory")]

DRY = ("submit", "--dry-run", "--scheduler", "slurm", "--device", "cpu", "--json")


def write_config(text: str, monkeypatch: pytest.MonkeyPatch, **variables: str) -> str:
    """Write a config.toml, set variables, and return the file's path."""
    folder = Path("hpcbert").absolute()
    folder.mkdir()
    (folder / "config.toml").write_text(text)
    for name, value in {"XDG_CONFIG_HOME": str(folder.parent), **variables}.items():
        monkeypatch.setenv(name, value)
    return str(folder / "config.toml")


def read_script(*words: str) -> str:
    (array,) = run(*DRY, *words).data["arrays"]
    return str(array["script_text"])


def test_the_nearest_default_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    write_config('[submit]\npartition = "file"\n', monkeypatch)
    assert "#SBATCH --partition=file\n" in read_script()
    local = ("submit", "--dry-run", "--scheduler", "local", "--device", "cpu")
    assert run(*local).returncode == 0, "without effect it is ignored"
    assert "--partition" in run(*local, "--partition", "gpu").stderr
    monkeypatch.setenv("HPCBERT_SUBMIT_PARTITION", "variable")
    assert "#SBATCH --partition=variable\n" in read_script()
    assert "#SBATCH --partition=word\n" in read_script("-p", "word")
    monkeypatch.setenv("HPCBERT_SUBMIT_PARTITION", "")
    assert "#SBATCH --partition=file\n" in read_script()


def test_config_shows_defaults_with_their_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "[submit]\ngpus_per_node = 8\n[lab.up]\nnodes = 2\n"
    path = write_config(text, monkeypatch, HPCBERT_SUBMIT_NODES="4")
    assert run("config", "--json").data["defaults"] == {
        "submit --nodes": {"value": "4", "origin": "HPCBERT_SUBMIT_NODES"},
        "submit --gpus-per-node": {"value": 8, "origin": path},
        "lab up --nodes": {"value": 2, "origin": path},
    }


def test_no_two_options_share_a_variable() -> None:
    variables = [
        name_variable(tuple(name.split()[1:]), flag)
        for name, context in walk_commands()
        if context.command is not root
        for flag in list_options(context.command)
    ]
    assert len(variables) == len(set(variables))


@cases
def test_what_is_wrong_in_config_toml_is_named(
    text: str, keyword: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_config(text, monkeypatch)
    assert keyword in Cli(Path(path).parents[1])(*DRY[:-1], status=2).stderr


def test_sbatchs_variables_are_named_where_they_count(monkeypatch: pytest.MonkeyPatch) -> None:
    write_config("", monkeypatch, SBATCH_PARTITION="long", SBATCH_QOS="high")
    result = run(*DRY, "--qos", "typed")
    assert [warning for warning in result.document["warnings"] if "SBATCH_" in warning] == [
        "SBATCH_PARTITION sets slurm.partition: long."
    ]
    script = result.data["arrays"][0]["script_text"]
    assert "#SBATCH --partition=long\n#SBATCH --qos=typed\n" in script
    settings = run("config", "--json").data["settings"]
    assert settings["slurm.qos"] == {"value": "high", "origin": "SBATCH_QOS"}
