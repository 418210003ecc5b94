"""Data that don't fit are told before a job is submitted, where their data.json says what they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpcbert.commands import prepare as flow
from hpcbert.config.recipe import Recipe
from hpcbert.prepare.parts import Context
from hpcbert.script.materials import find_misfits
from hpcbert.script.plan import read_options
from hpcbert.system import runner
from tests.kit import drafts
from tests.kit.cases import cases
from tests.kit.cli import run
from tests.kit.drafts import load, settled
from tests.kit.logs import write_file

VOCABULARY = {"name": "vocab.txt", "size": 30522, "sha256": ""}
FITTING = {"format": "hdf5", "sequence_length": 128, "predictions": 20, "vocabulary": VOCABULARY}


def describe_misfits(
    folder: Path, name: str = "pytorch", document: Any = None, **changes: Any
) -> str:
    write_file(
        folder,
        "data/data.json",
        json.dumps({**FITTING, **changes} if document is None else document),
    )
    (folder / "data" / "training").mkdir(exist_ok=True)
    recipe: Recipe = load(name)
    options = read_options(recipe, drafts.site(folder), {})
    places = (folder / "data", folder / "data" / "training")
    misfits, misfits_of_part = (find_misfits(recipe, options, str(place)) for place in places)
    assert misfits == misfits_of_part
    return "; ".join(misfits)


def test_what_fits_is_no_finding(tmp_path: Path) -> None:
    assert [describe_misfits(tmp_path, name) for name in ("pytorch", "hf-trainer")] == ["", ""]
    assert describe_misfits(tmp_path, vocabulary={"size": 8192}) == ""
    assert find_misfits(load(), {}, str(tmp_path / "absent")) == ()


@cases
def test_what_does_not_fit_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    assert message in describe_misfits(tmp_path, **changes)


@pytest.mark.parametrize("document", [[], {}, "x", {"vocabulary": 3, "format": "hdf5"}, None])
def test_a_document_of_something_else_says_nothing_wrong_of_it(
    tmp_path: Path, document: Any
) -> None:
    message = describe_misfits(
        tmp_path, document=document if document is not None else {"format": "npz"}
    )
    assert "Traceback" not in message


def test_programs_that_cut_and_mask_themselves_take_any_length(tmp_path: Path) -> None:
    assert describe_misfits(tmp_path, "megatron", format="megatron", sequence_length=512) == ""


def test_submit_and_prepare_refuse_them(empty_directory: None, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    words = ("data", "make", "--format", "hdf5", "--samples", "16", "--files", "2")
    assert run(*words, "--sequence-length", "64", folder).returncode == 0
    data = folder / "training"
    submit = ("submit", "--scheduler", "slurm", "--data", data, "--model", "bert-tiny", "--json")
    refused = run(*submit)
    assert refused.returncode == 2, refused
    messages = [error["message"] for error in refused.document["errors"]]
    assert any(
        "64 tokens in a sample, but the program is set to 128" in message for message in messages
    )
    assert any("they have 30522 words, but the model has 8192" in message for message in messages)
    result = run(*submit, "--dry-run", "--set", "sequence_length=64", "--set", "vocab_size=30522")
    assert not [warning for warning in result.document["warnings"] if "do not fit" in warning]
    context = Context(run=runner.run, follow=runner.follow, say=lambda _: None, env={})
    site = settled(drafts.site(tmp_path), data=str(data))
    (part,) = flow.prepare(load(), site, context, only=["data"])
    assert part.status == "failed"
    assert "64 tokens in a sample" in part.detail
