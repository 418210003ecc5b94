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
from tests.kit.cases import read_constant

WORDS = read_constant(__file__, "WORDS")


def fits(value: object, hint: Any) -> bool:
    """Say whether a value is of an annotated type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(fits(value, argument) for argument in arguments)
    if origin is tuple:
        return isinstance(value, tuple) and all(fits(item, arguments[0]) for item in value)
    return value in arguments if origin is Literal else type(value) is hint


def read(command: click.Command, words: str) -> Options:
    with command.make_context("x", words.split()) as context:
        return read_options(context.params)


def test_what_click_reads_has_the_defaults_and_types_that_the_dataclass_says() -> None:
    hints = get_type_hints(Options)
    for command in (submit, render):
        for options in (read(command, ""), read(command, WORDS)):
            for name in declared_options():
                assert fits(getattr(options, name), hints[name]), name
    assert read(submit, "") == Options(nodes=1, gpus_per_node=1)
    typed = read(submit, WORDS)
    assert not [n for n in declared_options() if getattr(typed, n) == getattr(Options, n)]


def test_an_option_of_how_to_run_is_a_key_of_a_campaign_file() -> None:
    assert {*option_names(RunOptions)} <= {field.name for field in document_fields(CampaignFile)}
    keys = document_fields(type(CampaignFile().slurm))
    assert option_names(SlurmOptions) == tuple(field.name for field in keys)


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "1e10", "x"])
def test_gpu_hours_are_a_number_above_zero_and_a_node_list_is_checked(text: str) -> None:
    with pytest.raises(click.BadParameter):
        read(submit, f"--max-gpu-hours {text}")
    with pytest.raises(click.BadParameter, match="must be node names as Slurm lists them"):
        read(submit, f"--nodelist=-{text}")
