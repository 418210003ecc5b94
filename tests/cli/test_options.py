"""Options: their dataclass is what click gives, and a person's defaults come from variables and files."""

import types
from pathlib import Path
from typing import Literal, Union, get_args, get_origin, get_type_hints

import click
import pytest

from hpcbert.cli.options import read_options
from hpcbert.cli.render import render
from hpcbert.cli.submit import submit
from hpcbert.config.campaignfile import CampaignFile
from hpcbert.config.options import Options, RunOptions, SlurmOptions, declared_options, option_names
from hpcbert.system.decode import document_fields
from tests.kit.cases import cases, read_constant
from tests.kit.cli import Cli, run
from tests.kit.logs import write_file

pytestmark = pytest.mark.usefixtures("empty_directory")

DRY = ("submit", "--dry-run", "--scheduler", "slurm", "--device", "cpu", "--json")


def test_what_click_reads_has_the_defaults_types_and_names_that_the_dataclass_says():
    def fits(value, hint):
        """Say whether a value is of an annotated type."""
        origin, arguments = get_origin(hint), get_args(hint)
        if origin in (Union, types.UnionType):
            return any(fits(value, argument) for argument in arguments)
        if origin is tuple:
            return isinstance(value, tuple) and all(fits(item, arguments[0]) for item in value)
        return value in arguments if origin is Literal else type(value) is hint

    def read(command, words):
        with command.make_context("x", words.split()) as context:
            return read_options(context.params)

    hints, line = get_type_hints(Options), read_constant(__file__, "WORDS")
    for command in (submit, render):
        for options in (read(command, ""), read(command, line)):
            for name in declared_options():
                assert fits(getattr(options, name), hints[name]), name
    assert read(submit, "") == Options(nodes=1, gpus_per_node=1)
    typed = read(submit, line)
    assert not [n for n in declared_options() if getattr(typed, n) == getattr(Options, n)]
    for text in ("0", "-1", "nan", "inf", "1e10", "x"):
        with pytest.raises(click.BadParameter):
            read(submit, f"--max-gpu-hours {text}")
        with pytest.raises(click.BadParameter, match="must be node names as Slurm lists them"):
            read(submit, f"--nodelist=-{text}")
    # One of how to run is a key of a campaign file, and one of Slurm's of its table.
    assert {*option_names(RunOptions)} <= {field.name for field in document_fields(CampaignFile)}
    keys = document_fields(type(CampaignFile().slurm))
    assert option_names(SlurmOptions) == tuple(field.name for field in keys)


def write_config(text, monkeypatch, **variables):
    """Write a config.toml, set variables, and return the file's path."""
    path = write_file(Path.cwd(), "hpcbert/config.toml", text)
    for name, value in {"XDG_CONFIG_HOME": str(Path.cwd()), **variables}.items():
        monkeypatch.setenv(name, value)
    return str(path)


@pytest.mark.slow
def test_the_nearest_default_wins_and_config_shows_its_origin(monkeypatch):
    def read_script(*words):
        return run(*DRY, *words).data["arrays"][0]["script_text"]

    path = write_config('[submit]\npartition = "file"\n[lab.up]\nnodes = 2\n', monkeypatch)
    assert "#SBATCH --partition=file\n" in read_script()
    local = ("submit", "--dry-run", "--scheduler", "local", "--device", "cpu")
    assert run(*local).returncode == 0, "without effect it is ignored"
    assert "--partition" in run(*local, "--partition", "gpu").stderr
    monkeypatch.setenv("HPCBERT_SUBMIT_PARTITION", "variable")
    assert "#SBATCH --partition=variable\n" in read_script()
    assert run("config", "--json").data["defaults"] == {
        "submit --partition": {"value": "variable", "origin": "HPCBERT_SUBMIT_PARTITION"},
        "lab up --nodes": {"value": 2, "origin": path},
    }
    assert "#SBATCH --partition=word\n" in read_script("-p", "word")
    monkeypatch.setenv("HPCBERT_SUBMIT_PARTITION", "")
    assert "#SBATCH --partition=file\n" in read_script()


@pytest.mark.slow
@cases
def test_what_is_wrong_in_config_toml_is_named(text, keyword, monkeypatch):
    write_config(text, monkeypatch)
    assert keyword in Cli(Path.cwd())(*DRY[:-1], status=2).stderr


@pytest.mark.slow
def test_sbatchs_variables_are_named_where_they_count(monkeypatch):
    write_config("", monkeypatch, SBATCH_PARTITION="long", SBATCH_QOS="high")
    result = run(*DRY, "--qos", "typed")
    assert [warning for warning in result.document["warnings"] if "SBATCH_" in warning] == [
        "SBATCH_PARTITION sets slurm.partition: long."
    ]
    script = result.data["arrays"][0]["script_text"]
    assert "#SBATCH --partition=long\n#SBATCH --qos=typed\n" in script
    settings = run("config", "--json").data["settings"]
    assert settings["slurm.qos"] == {"value": "high", "origin": "SBATCH_QOS"}
