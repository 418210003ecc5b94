"""A manifest that came from somebody else leads to no file outside its campaign."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from hpcbert.campaign import archive, store
from hpcbert.errors import UsageError
from tests.kit.campaigns import Build, Built
from tests.kit.cases import cases, read_constant
from tests.kit.cli import run

SECRET = "samples/s of a file that only its reader may read"
# The commands that read a campaign, or an archive of one.
READING = read_constant(__file__, "READING")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret.log"
    path.write_text(SECRET)
    path.chmod(0o600)
    return path


@pytest.fixture
def built(build: Build) -> Built:
    built = build("1n1g", repeats=1, scheduler="local")
    built.complete("1n1g", 1, 10.0)
    return built


def edit(directory: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    path = directory / "manifest.json"
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def set_path(key: str, value: str) -> Callable[[dict[str, Any]], Any]:
    """Return what sets a dotted key of a manifest; of the first array, if it begins with a dot."""

    def change(data: dict[str, Any]) -> None:
        *place, last = key.strip(".").split(".")
        table = data["arrays"][0] if key.startswith(".") else data
        for name in place:
            table = table[name]
        table[last] = value

    return change


@cases
def test_a_path_outside_the_campaign_is_refused(
    built: Built, secret: Path, key: str, value: str
) -> None:
    edit(built.directory, set_path(key, value.replace("{secret}", str(secret))))
    with pytest.raises(UsageError, match="names a file outside the campaign") as caught:
        store.read_manifest(built.directory)
    assert caught.value.hint


@pytest.mark.parametrize("key", [".log", ".script", ".point.model", "id", "after"])
def test_a_path_with_half_of_a_character_is_refused(built: Built, key: str) -> None:
    edit(built.directory, set_path(key, "logs/\ud800.log"))
    with pytest.raises(UsageError, match="half of a character"):
        store.read_manifest(built.directory)


@pytest.mark.parametrize("words", READING)
@pytest.mark.parametrize("key", [".log", ".script"])
def test_no_command_reads_a_file_outside(built: Built, secret: Path, key: str, words: str) -> None:
    edit(built.directory, set_path(key, str(secret)))
    result = run(*words.split(), built.directory)
    assert result.returncode == 2
    assert "outside the campaign" in result.stderr
    assert SECRET not in result.stdout + result.stderr
    assert "bug" not in result.stderr


@pytest.mark.parametrize("value", ["{secret}", "logs/../../../secret.log"])
def test_logs_of_an_archive_are_the_archives(
    built: Built, secret: Path, tmp_path: Path, value: str
) -> None:
    packed = tmp_path / "a.zip"
    archive.pack(built.directory, packed)
    with zipfile.ZipFile(packed) as zipped:
        files = {name: zipped.read(name) for name in zipped.namelist()}
    (manifest,) = (name for name in files if name.endswith("/manifest.json"))
    (index,) = (name for name in files if name.endswith("/archive.json"))
    data, described = json.loads(files[manifest]), json.loads(files[index])
    set_path(".log", value.replace("{secret}", str(secret)))(data)
    files[manifest] = json.dumps(data).encode()
    described["files"]["manifest.json"]["sha256"] = sha256(files[manifest]).hexdigest()
    files[index] = json.dumps(described).encode()
    with zipfile.ZipFile(packed, "w") as zipped:
        for name, content in files.items():
            zipped.writestr(name, content)
    result = run("logs", packed)
    assert result.returncode == 2
    assert "outside the campaign" in result.stderr
    assert SECRET not in result.stdout


@pytest.mark.parametrize("words", READING)
@pytest.mark.parametrize(
    "name", ["log", "folder", "status", "recipe.toml", "env/x.1.0.nodes.jsonl"]
)
def test_a_link_out_of_the_campaign_is_refused(
    built: Built, secret: Path, tmp_path: Path, name: str, words: str
) -> None:
    log = built.log_path("1n1g", 1)
    places = {"log": log, "folder": log.parent, "status": built.status_path("1n1g", 1)}
    link = places.get(name, built.directory / name)
    link.parent.mkdir(exist_ok=True)
    if link.exists():
        link.rename(tmp_path / "aside")
    link.symlink_to(secret.parent if name == "folder" else secret)
    result = run(*words.split(), built.directory)
    assert result.returncode == 2
    assert "link to a place outside" in result.stderr
    assert str(link) in result.stderr
    assert SECRET not in result.stdout + result.stderr


def test_a_link_within_the_campaign_is_followed(built: Built) -> None:
    log = built.log_path("1n1g", 1)
    log.rename(log.with_suffix(".kept"))
    log.symlink_to(log.with_suffix(".kept"))
    assert run("collect", built.directory).returncode == 0
