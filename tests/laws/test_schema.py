"""A campaign of another schema: every command that reads campaigns refuses it in one sentence."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path

import pytest

from hpcbert import load
from hpcbert.campaign import store
from hpcbert.campaign.evidence import INDEX
from hpcbert.errors import UsageError
from hpcbert.model import MANIFEST
from tests.kit.campaigns import Build, Built, collect_campaigns, report_states
from tests.kit.cases import read_constant
from tests.kit.cli import run

pytestmark = pytest.mark.slow

OTHERS = [
    pytest.param(store.SCHEMA + 1, id="newer"),
    pytest.param(None, id="none"),
]
# Each command that takes a campaign; {} is its directory.
READERS = read_constant(__file__, "READERS")


@pytest.fixture
def built(build: Build, monkeypatch: pytest.MonkeyPatch) -> Built:
    """A campaign at its end, collected."""
    built = build("1n1g", "1n2g", repeats=2, name="20261121T100000Z-pytorch-3f9a1c")
    built.finish()
    collect_campaigns(built.directory, states=report_states())
    monkeypatch.chdir(built.directory.parent.parent)
    Path("site.toml").write_text('schema = 1\nname = "t"\nscheduler = "slurm"\n')
    return built


def rewrite_schema(directory: Path, schema: int | str | None) -> None:
    path = directory / MANIFEST
    document = json.loads(path.read_text())
    document = {
        "schema": schema,
        **{key: value for key, value in document.items() if key != "schema"},
    }
    if schema is None:
        del document["schema"]
    path.write_text(json.dumps(document))


@pytest.mark.slow
@pytest.mark.parametrize("schema", OTHERS)
@pytest.mark.parametrize("command", READERS)
def test_a_command_refuses_it(built: Built, command: str, schema: int | str | None) -> None:
    rewrite_schema(built.directory, schema)
    before = sorted(built.directory.rglob("*"))
    words = [word.format(built.directory) for word in command.split()]
    refused = run(*words, "--json")
    refused.check(as_json=True)
    assert refused.returncode == 2, refused
    assert f"schema {schema}; this hpcbert reads only schema" in refused.error["message"]
    assert "version of hpcbert that wrote it" in refused.error["hint"]
    assert sorted(built.directory.rglob("*")) == before


def test_it_is_removed_only_by_force(built: Built) -> None:
    rewrite_schema(built.directory, store.SCHEMA - 1)
    refused = run("rm", built.directory, "--yes", "--json")
    assert refused.returncode == 2
    assert "reads only schema" in refused.error["message"]
    assert "--force" in refused.error["hint"]
    assert run("rm", built.directory, "--yes", "--force").returncode == 0
    assert not built.directory.exists()


def test_a_notebook_refuses_it(built: Built) -> None:
    rewrite_schema(built.directory, store.SCHEMA - 1)
    with pytest.raises(UsageError, match="reads only schema"):
        load(built.directory)


ARCHIVE_READERS = read_constant(__file__, "ARCHIVE_READERS")


@pytest.mark.parametrize("command", ARCHIVE_READERS)
def test_an_archive_of_it_is_refused(built: Built, command: str) -> None:
    assert run("archive", built.directory, "--output", "a.zip").returncode == 0
    with zipfile.ZipFile("a.zip") as packed:
        contents = {name: packed.read(name) for name in packed.namelist()}
    index, manifest = f"{built.directory.name}/{INDEX}", f"{built.directory.name}/{MANIFEST}"
    schema = f'"schema": {store.SCHEMA}'.encode()
    assert schema in contents[manifest]
    contents[manifest] = contents[manifest].replace(schema, b'"schema": 1')
    described = json.loads(contents[index])
    digest = hashlib.sha256(contents[manifest]).hexdigest()
    described["files"][MANIFEST]["sha256"] = digest
    contents[index] = json.dumps(described).encode()
    with zipfile.ZipFile("old.zip", "w") as packed:
        for name, content in contents.items():
            packed.writestr(name, content)
    refused = run(*command.split(), "old.zip", "--json")
    assert refused.returncode == 2, refused
    assert "reads only schema" in refused.error["message"]


@pytest.mark.parametrize("schema", OTHERS)
def test_a_list_names_it_and_shows_the_others(
    built: Built, build: Build, schema: int | str | None
) -> None:
    other = build("1n1g", repeats=2, name="20261122T100000Z-pytorch-7b20de", jobs=("90",))
    rewrite_schema(other.directory, schema)
    first, second = run("list", "--json").data["campaigns"]
    assert (first["state"], second["state"]) == ("damaged", "complete")
    assert f"schema {schema}" in run("list").stdout


@pytest.fixture
def other(built: Built, build: Build) -> Built:
    """An older campaign next to it, of another schema."""
    neighbour = build("1n1g", repeats=2, name="20261120T100000Z-pytorch-7b20de", jobs=("90",))
    neighbour.finish()
    rewrite_schema(neighbour.directory, store.SCHEMA - 1)
    return neighbour


@pytest.mark.parametrize("command", ["collect", "show", "audit", "list", "collect 3f9a1c"])
def test_it_does_not_disturb_the_commands_about_others(other: Built, command: str) -> None:
    assert run(*command.split(), "--json").returncode == 0


@pytest.mark.parametrize(
    ("command", "purpose"),
    [
        ("monitor --once", "the campaigns that are not over"),
        ("images list", "the uses of images"),
        ("plan --fw pytorch", "the times of earlier runs"),
    ],
)
def test_a_command_says_what_it_left_out(other: Built, command: str, purpose: str) -> None:
    (warning,) = (
        text for text in run(*command.split(), "--json").document["warnings"] if "Left out" in text
    )
    assert warning.startswith(f"Left out of {purpose}, because this hpcbert reads only schema")
    assert other.directory.name in warning
