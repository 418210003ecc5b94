"""A campaign of another schema: every command that reads campaigns refuses it in one sentence."""

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
from tests.kit.campaigns import collect_campaigns, report_states
from tests.kit.cases import cases, read_constant
from tests.kit.cli import run

pytestmark = pytest.mark.slow
OLDER = f'"schema": {store.SCHEMA - 1}'


@pytest.fixture
def built(build, monkeypatch):
    """A campaign at its end, collected, and a site in the working directory."""
    built = build("1n1g", "1n2g", repeats=2, name="20261121T100000Z-pytorch-3f9a1c")
    built.finish()
    collect_campaigns(built.directory, states=report_states())
    monkeypatch.chdir(built.directory.parent.parent)
    Path("site.toml").write_text('schema = 1\nname = "t"\nscheduler = "slurm"\n')
    return built


def rewrite_schema(directory: Path, schema: str = OLDER) -> None:
    path = directory / MANIFEST
    text = path.read_text()
    assert f'"schema": {store.SCHEMA},' in text
    path.write_text(text.replace(f'"schema": {store.SCHEMA},', f"{schema}," if schema else ""))


@pytest.mark.parametrize("command", read_constant(__file__, "READERS"))
def test_a_command_refuses_it(built, command):
    words = [word.format(built.directory) for word in command.split()]
    manifest = (built.directory / MANIFEST).read_text()
    for schema, name in (("", "None"), (f'"schema": {store.SCHEMA + 1}', f"{store.SCHEMA + 1}")):
        (built.directory / MANIFEST).write_text(manifest)
        rewrite_schema(built.directory, schema)
        before = sorted(built.directory.rglob("*"))
        refused = run(*words, "--json")
        refused.check(as_json=True)
        assert refused.returncode == 2, refused
        assert f"schema {name}; this hpcbert reads only schema" in refused.error["message"]
        assert "version of hpcbert that wrote it" in refused.error["hint"]
        assert sorted(built.directory.rglob("*")) == before


def test_a_notebook_refuses_it_and_it_is_removed_only_by_force(built):
    rewrite_schema(built.directory)
    with pytest.raises(UsageError, match="reads only schema"):
        load(built.directory)
    refused = run("rm", built.directory, "--yes", "--json")
    assert refused.returncode == 2
    assert "reads only schema" in refused.error["message"]
    assert "--force" in refused.error["hint"]
    assert run("rm", built.directory, "--yes", "--force").returncode == 0
    assert not built.directory.exists()


def test_an_archive_of_it_is_refused(built):
    assert run("archive", built.directory, "--output", "a.zip").returncode == 0
    with zipfile.ZipFile("a.zip") as packed:
        contents = {name: packed.read(name) for name in packed.namelist()}
    index, manifest = f"{built.directory.name}/{INDEX}", f"{built.directory.name}/{MANIFEST}"
    schema = f'"schema": {store.SCHEMA}'.encode()
    assert schema in contents[manifest]
    contents[manifest] = contents[manifest].replace(schema, b'"schema": 1')
    described = json.loads(contents[index])
    described["files"][MANIFEST]["sha256"] = hashlib.sha256(contents[manifest]).hexdigest()
    contents[index] = json.dumps(described).encode()
    with zipfile.ZipFile("old.zip", "w") as packed:
        for name, content in contents.items():
            packed.writestr(name, content)
    for command in read_constant(__file__, "ARCHIVE_READERS"):
        refused = run(*command.split(), "old.zip", "--json")
        assert refused.returncode == 2, refused
        assert "reads only schema" in refused.error["message"]


def test_a_list_names_it_and_shows_the_others(built, build):
    other = build("1n1g", repeats=2, name="20261122T100000Z-pytorch-7b20de", jobs=("90",))
    rewrite_schema(other.directory)
    first, second = run("list", "--json").data["campaigns"]
    assert (first["state"], second["state"]) == ("damaged", "complete")
    assert f"schema {store.SCHEMA - 1}" in run("list").stdout


@cases
def test_a_command_about_others_says_what_it_left_out(built, build, command, purpose):
    """An older campaign next to it does not disturb it."""
    other = build("1n1g", repeats=2, name="20261120T100000Z-pytorch-7b20de", jobs=("90",))
    rewrite_schema(other.directory)
    result = run(*command.split(), "--json")
    warnings = [text for text in result.document["warnings"] if "Left out" in text]
    if purpose is None:
        assert result.returncode == 0
        return
    (warning,) = warnings
    assert warning.startswith(f"Left out of {purpose}, because this hpcbert reads only schema")
    assert other.directory.name in warning
