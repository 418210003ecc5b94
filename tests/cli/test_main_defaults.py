"""A person's defaults of options: variables and config.toml."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcbert.cli.help import walk_commands
from hpcbert.cli.main import list_options, name_variable, root
from tests.kit.cases import cases
from tests.kit.cli import Cli, run_here, start_process

pytestmark = pytest.mark.slow

DRY = ("submit", "--dry-run", "--scheduler", "slurm", "--device", "cpu", "--json")


@pytest.fixture
def hpcbert(tmp_path: Path) -> Cli:
    (tmp_path / "hpcbert").mkdir()
    variables = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    return Cli(tmp_path, {**os.environ, **variables}, run=run_here)


def write_config(hpcbert: Cli, text: str) -> str:
    path = hpcbert.cwd / "hpcbert" / "config.toml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("variable", "words", "partition"),
    [(None, (), "file"), ("v", (), "v"), ("v", ("-p", "word"), "word"), ("", (), "file")],
    ids=["config.toml", "variable", "command line", "empty variable"],
)
def test_the_nearest_default_wins(
    hpcbert: Cli, variable: str | None, words: tuple[str, ...], partition: str
) -> None:
    write_config(hpcbert, '[submit]\npartition = "file"\n')
    environ: dict[str, Any] = {} if variable is None else {"HPCBERT_SUBMIT_PARTITION": variable}
    (array,) = hpcbert(*DRY, *words, status=0, **environ).data["arrays"]
    assert f"#SBATCH --partition={partition}\n" in array["script_text"]


def test_a_default_without_effect_is_ignored(hpcbert: Cli) -> None:
    write_config(hpcbert, '[submit]\npartition = "gpu"\n')
    words = ("submit", "--dry-run", "--scheduler", "local", "--device", "cpu")
    hpcbert(*words, status=0)
    assert "--partition" in hpcbert(*words, "--partition", "gpu", status=2).stderr


def test_config_shows_defaults_with_their_origin(hpcbert: Cli) -> None:
    path = write_config(hpcbert, "[submit]\ngpus_per_node = 8\n[lab.up]\nnodes = 2\n")
    result = hpcbert("config", "--json", status=0, HPCBERT_SUBMIT_NODES="4")
    assert result.data["defaults"] == {
        "submit --nodes": {"value": "4", "origin": "HPCBERT_SUBMIT_NODES"},
        "submit --gpus-per-node": {"value": 8, "origin": path},
        "lab up --nodes": {"value": 2, "origin": path},
    }


@cases
def test_what_is_wrong_in_config_toml_is_named(hpcbert: Cli, text: str, keyword: str) -> None:
    write_config(hpcbert, text)
    process = replace(hpcbert, run=start_process)
    assert keyword in process(*DRY[:-1], status=2).stderr


def test_no_two_options_share_a_variable() -> None:
    variables = [
        name_variable(tuple(name.split()[1:]), flag)
        for name, context in walk_commands()
        if context.command is not root
        for flag in list_options(context.command)
    ]
    assert len(variables) == len(set(variables))


def test_sbatchs_variables_are_named_where_they_count(hpcbert: Cli) -> None:
    shell: Any = {"SBATCH_PARTITION": "long", "SBATCH_QOS": "high"}
    result = hpcbert(*DRY, "--qos", "typed", status=0, **shell)
    assert [warning for warning in result.document["warnings"] if "SBATCH_" in warning] == [
        "SBATCH_PARTITION sets slurm.partition: long."
    ]
    (array,) = result.data["arrays"]
    assert "#SBATCH --partition=long\n#SBATCH --qos=typed\n" in array["script_text"]
    settings = hpcbert("config", "--json", status=0, **shell).data["settings"]
    assert settings["slurm.qos"] == {"value": "high", "origin": "SBATCH_QOS"}
