"""The dataclass of options is what click gives: by name, by type, whatever is typed."""

from __future__ import annotations

import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import click
import pytest

from hpcbert.cli.options import read_options
from hpcbert.cli.render import render
from hpcbert.cli.submit import submit
from hpcbert.config.campaignfile import CampaignFile
from hpcbert.config.options import Options, RunOptions, SlurmOptions, declared_options, option_names
from hpcbert.system.decode import document_fields

HINTS = {name: hint for name, hint in get_type_hints(Options).items() if name in declared_options()}
WORDS = """--fw oneflow --device cpu --nodes 2 --gpus-per-node 8 --precision fp16 --batch-size 8,16
  --shapes 1n1g --env A=b --reservation v --nodelist n1 --exclude n2
  --model m --protocol p --accumulation 2 --global-batch-size 64 --xla --set a=1 --set b=2 --scaling
  --repeats auto --max-repeats 9 --precision-of-median 2% --iters 9 --skip 1 --window-seconds 3 --site s --templates t --scheduler slurm --runtime enroot --runs r
  --partition p --account a --qos q --notify END --time 1-0 --image i --data d --source s --python y
  --sbatch-arg=-H --srun-arg=-u --concurrent-repeats 2 --concurrent-points --preflight --stop-on-failure --max-gpu-hours 9
  --repeats-in one-job"""


def fits(value: object, hint: Any) -> bool:
    """Say whether a value is of an annotated type."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(fits(value, argument) for argument in get_args(hint))
    if origin is Literal:
        return value in get_args(hint)
    if origin is tuple:
        return isinstance(value, tuple) and all(fits(item, get_args(hint)[0]) for item in value)
    return type(value) is hint


def read(command: click.Command, words: str) -> Options:
    with command.make_context("x", words.split()) as context:
        return read_options(context.params)


@pytest.mark.parametrize("command", [submit, render], ids=["submit", "render"])
@pytest.mark.parametrize("words", ["", WORDS], ids=["nothing typed", "everything typed"])
def test_what_click_reads_has_the_types_that_the_dataclass_says(
    command: click.Command, words: str
) -> None:
    options = read(command, words)
    for name, hint in HINTS.items():
        assert fits(getattr(options, name), hint), name


def test_without_options_each_field_has_its_default_and_with_all_of_them_none_has() -> None:
    assert read(submit, "") == Options(nodes=1, gpus_per_node=1)
    typed = read(submit, WORDS)
    assert not [name for name in HINTS if getattr(typed, name) == getattr(Options, name)]


def test_an_option_of_how_to_run_is_a_key_of_a_campaign_file() -> None:
    assert {*option_names(RunOptions)} <= {field.name for field in document_fields(CampaignFile)}
    assert option_names(SlurmOptions) == tuple(
        field.name for field in document_fields(type(CampaignFile().slurm))
    )


def test_a_node_list_is_checked_as_it_is_typed() -> None:
    with pytest.raises(click.BadParameter, match="must be node names as Slurm lists them"):
        read(submit, "--nodelist=-n1")


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "1e10", "x"])
def test_gpu_hours_are_a_number_above_zero(text: str) -> None:
    with pytest.raises(click.BadParameter):
        read(submit, f"--max-gpu-hours {text}")
