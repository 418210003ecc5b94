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
from tests.kit import drafts
from tests.kit.campaigns import collect_campaigns, report_states
from tests.kit.cases import cases, read_constant
from tests.kit.cli import run

pytestmark = pytest.mark.slow


@pytest.fixture
def built(build, monkeypatch):
    """A collected campaign below the working directory, which has a site."""
    built = build("1n1g", "1n2g", repeats=2, name="20261121T100000Z-pytorch-3f9a1c")
    built.finish()
    collect_campaigns(built.directory, states=report_states())
    folder = built.directory.parent.parent
    monkeypatch.chdir(folder)
    drafts.site(folder)
    return built


def change_schema(directory: Path, **changed: int) -> None:
    """Write another schema into a manifest, or none."""
    manifest = json.loads((directory / MANIFEST).read_text())
    del manifest["schema"]
    (directory / MANIFEST).write_text(json.dumps({**changed, **manifest}))


@pytest.mark.parametrize("command", read_constant(__file__, "READERS"))
def test_a_command_refuses_it(built, command):
    words = [word.format(built.directory) for word in command.split()]
    for changed in ({"schema": store.SCHEMA + 1}, {}):
        change_schema(built.directory, **changed)
        before = sorted(built.directory.rglob("*"))
        refused = run(*words, "--json")
        refused.check(as_json=True)
        assert refused.returncode == 2, refused
        message = f"schema {changed.get('schema')}; this hpcbert reads only schema"
        assert message in refused.error["message"]
        assert "version of hpcbert that wrote it" in refused.error["hint"]
        assert sorted(built.directory.rglob("*")) == before


def test_a_notebook_refuses_it_and_it_is_removed_only_by_force(built):
    change_schema(built.directory, schema=store.SCHEMA - 1)
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
    change_schema(built.directory, schema=1)
    manifest = (built.directory / MANIFEST).read_bytes()
    with zipfile.ZipFile("a.zip") as packed, zipfile.ZipFile("old.zip", "w") as older:
        for name in packed.namelist():
            content = packed.read(name)
            if name.endswith(f"/{MANIFEST}"):
                content = manifest
            elif name.endswith(f"/{INDEX}"):
                index = json.loads(content)
                index["files"][MANIFEST]["sha256"] = hashlib.sha256(manifest).hexdigest()
                content = json.dumps(index).encode()
            older.writestr(name, content)
    for command in read_constant(__file__, "ARCHIVE_READERS"):
        refused = run(*command.split(), "old.zip", "--json")
        assert refused.returncode == 2, refused
        assert "reads only schema" in refused.error["message"]


def test_a_list_names_it_and_shows_the_others(built, build):
    other = build("1n1g", repeats=2, name="20261122T100000Z-pytorch-7b20de", jobs=("90",))
    change_schema(other.directory, schema=store.SCHEMA - 1)
    first, second = run("list", "--json").data["campaigns"]
    assert (first["state"], second["state"]) == ("damaged", "complete")
    assert f"schema {store.SCHEMA - 1}" in run("list").stdout


@cases
def test_a_command_about_others_says_what_it_left_out(built, build, command, purpose):
    """An older campaign next to it does not disturb it."""
    other = build("1n1g", repeats=2, name="20261120T100000Z-pytorch-7b20de", jobs=("90",))
    change_schema(other.directory, schema=store.SCHEMA - 1)
    result = run(*command.split(), "--json")
    warnings = [text for text in result.document["warnings"] if "Left out" in text]
    if purpose is None:
        assert result.returncode == 0
        return
    (warning,) = warnings
    assert warning.startswith(f"Left out of {purpose}, because this hpcbert reads only schema")
    assert other.directory.name in warning
