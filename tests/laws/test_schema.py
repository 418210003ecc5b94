"""A campaign of another schema: every command that reads campaigns refuses it in one sentence."""

import json

import pytest

from hpcbert import load
from hpcbert.campaign import store
from hpcbert.errors import UsageError
from hpcbert.model import MANIFEST
from tests.campaign.test_archive import forge_manifest
from tests.kit import drafts
from tests.kit.campaigns import collect_campaigns, report_states
from tests.kit.cases import cases, read_constant
from tests.kit.cli import run

pytestmark = pytest.mark.slow


@pytest.fixture
def built(build, monkeypatch):
    """A collected campaign below the working directory, which has a site."""
    built = build("1n1g", "1n2g", repeats=2, name="20261121T100000Z-pytorch-3f9a1c").finish()
    collect_campaigns(built.directory, states=report_states())
    folder = built.directory.parent.parent
    monkeypatch.chdir(folder)
    drafts.site(folder)
    return built


def change_schema(directory, **changed):
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
        refused = run(*words, "--json", status=2)
        refused.check(as_json=True)
        message = f"schema {changed.get('schema')}; this hpcbert reads only schema"
        assert message in refused.error["message"]
        assert "version of hpcbert that wrote it" in refused.error["hint"]
        assert sorted(built.directory.rglob("*")) == before


def test_a_notebook_refuses_it_and_it_is_removed_only_by_force(built):
    change_schema(built.directory, schema=store.SCHEMA - 1)
    with pytest.raises(UsageError, match="reads only schema"):
        load(built.directory)
    refused = run("rm", built.directory, "--yes", "--json", status=2)
    assert "reads only schema" in refused.error["message"]
    assert "--force" in refused.error["hint"]
    assert run("rm", built.directory, "--yes", "--force").returncode == 0
    assert not built.directory.exists()


def test_an_archive_of_it_is_refused(built):
    run("archive", built.directory, "--output", "old.zip", status=0)
    change_schema(built.directory, schema=1)
    forge_manifest("old.zip", (built.directory / MANIFEST).read_text())
    for command in read_constant(__file__, "ARCHIVE_READERS"):
        refused = run(*command.split(), "old.zip", "--json", status=2)
        assert "reads only schema" in refused.error["message"]


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
