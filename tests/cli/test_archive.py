"""Archives on the command line: packed, read as the directory is, measured again."""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcbert.campaign import store
from hpcbert.cli import submit_run
from hpcbert.commands.submit import write_campaign
from hpcbert.script.draft import Draft
from tests.kit.campaigns import Build, Built, collect_campaigns, report_states
from tests.kit.cli import run

pytestmark = pytest.mark.usefixtures("empty_directory")


@pytest.fixture
def built(build: Build) -> Built:
    built = build("1n1g", "1n4g", repeats=3)
    built.lock()
    built.finish()
    collect_campaigns(built.directory, states=report_states())
    return built


@pytest.fixture
def drafts(monkeypatch: pytest.MonkeyPatch) -> list[Draft]:
    """What `submit --dry-run` thinks out, campaign by campaign."""
    all_drafts: list[Draft] = []
    dry_run = submit_run.dry_run

    def remembered(new_drafts: Sequence[Draft], warnings: tuple[str, ...]) -> Any:
        all_drafts.extend(new_drafts)
        return dry_run(new_drafts, warnings)

    monkeypatch.setattr(submit_run, "dry_run", remembered)
    return all_drafts


@pytest.fixture
def packed(built: Built, tmp_path: Path) -> Path:
    data = run("archive", built.directory, "--json").data
    path = tmp_path / f"{built.campaign.id}.zip"
    assert data["path"] == path.name
    assert (data["campaign"], data["masked"]) == (built.campaign.id, [])
    assert data["bytes"] == path.stat().st_size
    return path


def test_where_it_is_written(built: Built, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    first = run("archive", "pytorch", "--output", folder, "--json")
    assert first.data["path"] == str(folder / f"{built.campaign.id}.zip")
    assert not first.document["warnings"]
    again = run("archive", "pytorch", "--output", folder, "--json")
    assert (again.returncode, again.error["code"]) == (2, "usage")
    assert "not overwritten" in again.error["message"]
    plain = run("archive", "--output", "x.zip")
    assert plain.stdout.startswith("x.zip: ")
    assert (tmp_path / "x.zip").read_bytes() == Path(first.data["path"]).read_bytes()


@pytest.mark.parametrize("name", ["a.tar.gz", "a.tgz", "a.7z", "table4"])
def test_another_form_is_refused(built: Built, name: str) -> None:
    result = run("archive", "pytorch", "--output", name, "--json")
    assert (result.returncode, result.error["code"]) == (2, "usage")
    assert ".zip" in result.error["hint"]
    assert not Path(name).exists()


def test_what_was_never_collected_is_said(build: Build) -> None:
    build("1n1g").finish()
    result = run("archive", "--json")
    assert result.returncode == 0
    assert "None of its results are recorded yet" in result.document["warnings"][0]


def test_readers_take_it_as_the_directory(built: Built, packed: Path) -> None:
    read: Callable[..., Any] = lambda *words: run(*words, "--json").document  # noqa: E731
    for words in (["collect"], ["audit"], ["logs"], ["monitor", "--once"]):
        original, archived = read(*words, built.directory), read(*words, packed)
        for document in (original, archived):
            document["data"].pop("made", None)
            document["data"].pop("directory", None)
            document["data"].pop("campaigns", None)
            document["data"]["path"] = Path(document["data"].get("path", "")).name
        text = json.dumps(archived)
        assert "/hpcbert-" not in text, words
        assert text.replace(packed.name, built.campaign.id) == json.dumps(original).replace(
            str(built.directory), str(packed.with_suffix(""))
        ), words


def test_they_name_the_archive(built: Built, packed: Path) -> None:
    assert run("audit", packed, "--json").data["directory"] == str(packed)
    (watched,) = run("monitor", packed, "--json").data["campaigns"]
    assert watched == {"campaign": built.campaign.id, "directory": str(packed), "preflight": []}
    place = run("logs", packed, "--repeat", "2", "--point", "bert-tiny_1n4g_fp32_b4", "--json")
    assert place.data["path"] == f"{packed}/logs/pytorch/bert/bz4/1n4g/bert_b4_fp32_2.log"
    before = packed.read_bytes()
    assert run("logs", packed, "--path").returncode == 2
    assert run("audit", packed, "--accept", "why").returncode == 2
    assert packed.read_bytes() == before


def test_it_is_found_among_the_campaigns(built: Built, tmp_path: Path) -> None:
    run("archive", "--output", tmp_path / "runs" / "table4.zip")
    for words in (["collect"], ["audit"], ["logs", "--tail", "1"], ["monitor", "--once"]):
        assert run(*words, "table4.zip").returncode == 0, words


@pytest.mark.parametrize(
    "words", [["cancel"], ["retry"], ["submit", "--resume"], ["archive"]], ids=" ".join
)
def test_nothing_of_it_is_run(words: list[str], packed: Path) -> None:
    result = run(*words, packed, "--json")
    assert result.returncode == 2
    assert "An archive can only be read" in result.error["message"]
    assert "submit --like" in result.error["hint"]


def test_a_damaged_one_is_refused_by_every_reader(packed: Path) -> None:
    packed.write_bytes(packed.read_bytes()[:-40])
    for words in (["collect"], ["audit"], ["logs"], ["monitor", "--once"], ["submit", "--like"]):
        result = run(*words, packed, "--json")
        assert result.returncode == 2, words
        assert "ZIP file was cut short" in result.error["message"], words


# --- the same again -------------------------------------------------------------------------

OPTIONS = ["--scheduler", "local", "--dry-run", "--json"]


def points(document: dict[str, Any]) -> list[tuple[Any, ...]]:
    keys = ("shape", "model", "precision", "batch_size_per_device", "global_batch_size", "repeats")
    return [tuple(json.dumps(array[key]) for key in keys) for array in document["data"]["arrays"]]


@pytest.mark.parametrize("form", ["directory", "archive", "id"])
def test_the_same_is_submitted_again(form: str, built: Built, packed: Path) -> None:
    name = {"directory": built.directory, "archive": packed, "id": "pytorch-abc"}[form]
    document = run("submit", "--like", name, *OPTIONS).document
    assert [point[:4] for point in points(document)] == [
        ('"1n1g"', '"bert-tiny"', '"fp32"', "4"),
        ('"1n4g"', '"bert-tiny"', '"fp32"', "4"),
    ]
    assert all(point[5] == "[1, 2, 3]" for point in points(document))
    text = " ".join(document["warnings"])
    assert "scheduler was slurm, and is local here." in text
    assert "recipe was none, and is" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["--nodes", "2", "--gpus-per-node", "8", "--scaling", "--precision", "fp32,fp16"],
        ["--batch-size", "8,16", "--accumulation", "2", "--repeats", "3", "--iters", "60", "--skip", "10"],
        ["--nodes", "4", "--gpus-per-node", "8", "--scaling", "--global-batch-size", "4096"],
        ["--repeats-in", "one-job", "--set", "sequence_length=64"],
        ["--concurrent-repeats", "2", "--concurrent-points", "--scaling", "--gpus-per-node", "4"],
        ["--device", "cpu"],
        ["--env", "NCCL_ALGO=Ring", "--env", "B=x,y z", "--shapes", "1n1g,2n2g"],
        ["--batch-size", "fp32=4,fp16=8,16", "--precision", "fp32,fp16"],
        ["--repeats", "auto", "--max-repeats", "9", "--precision-of-median", "2%"],
        ["--python", sys.executable],
    ],
    ids=[
        *("precisions", "sizes", "global batch", "options", "concurrency", "device"),
        *("variables", "sizes by precision", "until sure", "interpreter"),
    ],
)  # fmt: skip
def test_it_makes_what_the_command_line_made(
    words: list[str], drafts: list[Draft], without_slurm: None
) -> None:
    """Whatever a campaign was asked for with, --like makes the same points and the same scripts."""
    options = ["--scheduler", "slurm", "--dry-run", "--json"]
    first = run("submit", *options, "--model", "bert-tiny", *words)
    assert first.returncode == 0, first
    write_campaign(drafts[0])
    again = run("submit", "--like", drafts[0].directory, *options)
    assert again.returncode == 0, again
    assert points(again.document) == points(first.document)
    assert not [warning for warning in again.document["warnings"] if "Differs from" in warning]
    bodies = [
        [text.replace(draft.campaign.id, "ID") for text in draft.scripts.values()]
        for draft in drafts
    ]
    assert bodies[0] == bodies[1]


def test_a_file_its_lock_and_its_variables_come_out_of_an_archive(
    tmp_path: Path, drafts: list[Draft], without_slurm: None
) -> None:
    file = tmp_path / "campaign.toml"
    file.write_text(
        '# Ours.\nschema = 1\nname = "rings"\nframeworks = "pytorch"\nmodels = "bert-tiny"\n'
        'repeats = "auto"\nmax_repeats = 9\n[env]\nNCCL_ALGO = "Ring"\n'
    )
    options = ["--scheduler", "slurm", "--dry-run", "--json"]
    assert run("submit", file, *options).returncode == 0
    write_campaign(drafts[0])
    directory = drafts[0].directory
    packed = run("archive", directory, "--output", tmp_path / "x.zip", "--json").data
    with zipfile.ZipFile(packed["path"]) as archive:
        for name in ("campaign.toml", store.LOCKED):
            inside_it = archive.read(f"{directory.name}/{name}")
            assert inside_it == (directory / name).read_bytes()
        # hpcbert's own scripts hold nothing that looks like a secret.
        assert packed["masked"] == []
        assert archive.read(f"{directory.name}/campaign.toml") == file.read_bytes()
    again = run("submit", "--like", packed["path"], *options)
    assert again.returncode == 0, again
    assert drafts[1].campaign.protocol == drafts[0].campaign.protocol
    assert drafts[1].campaign.protocol.precision_of_median == 0.01
    assert [array.point for array in drafts[1].campaign.arrays] == [
        array.point for array in drafts[0].campaign.arrays
    ]
    assert drafts[1].campaign.arrays[0].point.env == (("NCCL_ALGO", "Ring"),)


def test_what_cannot_be_had_is_named(built: Built) -> None:
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"model": "bert-vast"}, "bert-vast"),
        ({"precision": "tf32", "protocol": "absent"}, "absent"),
        ({"options": (("gone", 3),)}, "gone"),
    )
    for changes, message in wrong:
        points_ = (replace(array.point, **changes) for array in built.campaign.arrays)
        arrays = zip(built.campaign.arrays, points_, strict=True)
        built.change(arrays=tuple(replace(array, point=point) for array, point in arrays)).lock()
        result = run("submit", "--like", built.directory, *OPTIONS)
        assert result.returncode == 2
        assert message in result.error["message"], result


def test_a_campaign_without_its_lock_file(built: Built) -> None:
    (built.directory / store.LOCKED).unlink()
    result = run("submit", "--like", built.directory, *OPTIONS)
    assert result.returncode == 2
    assert store.LOCKED in result.error["message"]
