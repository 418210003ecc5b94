"""An empty value, as of an unset shell variable, is refused by every command; nothing matches it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click
import pytest

from hpcbert.cli.main import COMMANDS, EMPTY_MEANS, root
from hpcbert.cli.options import split_list
from hpcbert.config import campaignfile
from hpcbert.config.options import check_node_list
from hpcbert.config.site import read_site
from hpcbert.errors import ConfigError, UsageError
from hpcbert.system.decode import Invalid
from tests.kit.campaigns import Build
from tests.kit.cases import cases
from tests.kit.cli import run

pytestmark = pytest.mark.usefixtures("empty_directory")
NAME = "20261121T100000Z-pytorch-3f9a1c"
SITE = 'schema = 1\nname = "x"\nscheduler = "local"\n'


def list_parameters(
    command: click.Command, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Parameter, list[str]]]:
    """Yield every parameter that takes a value, with the words that come before it."""
    context = click.Context(command)
    for name in command.list_commands(context) if isinstance(command, click.Group) else ():
        inner = command.get_command(context, name)  # type: ignore[attr-defined]
        yield from list_parameters(inner, (*path, name))
    arguments = [param for param in command.params if isinstance(param, click.Argument)]
    for param in command.params:
        if isinstance(param, click.Argument):
            yield path, param, [*path, *["x"] * arguments.index(param)]
        elif isinstance(param, click.Option) and not (param.is_flag or param.count):
            yield path, param, [*path, param.opts[-1] + "="]


PARAMETERS = [row for row in list_parameters(root) if row[0]]


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_every_parameter_refuses_an_empty_value(name: str) -> None:
    for path, param, words in (row for row in PARAMETERS if row[0][0] == name):
        for value in ("", " \u3000"):
            line = [*words, value]
            if isinstance(param, click.Option):
                line = [*words[:-1], words[-1] + value]
            result = run(*line)
            if (path[-1], param.name) in EMPTY_MEANS:
                assert "is empty" not in result.output
                continue
            assert result.returncode == 2, (line, result.output)
            assert "Invalid value for" in result.output, (line, result.output)


def test_what_an_empty_value_means_is_listed_for_parameters_that_exist() -> None:
    names = {(path[-1], param.name) for path, param, _ in PARAMETERS}
    assert len(names) > 100
    assert names >= EMPTY_MEANS.keys()
    assert all(EMPTY_MEANS.values())


@pytest.mark.parametrize("line", ["rm --yes", "cancel --yes", "retry", "submit --resume", "show"])
def test_the_only_campaign_is_not_meant_by_accident(line: str, build: Build) -> None:
    built = build("1n1g", name=NAME, jobs=("7",))
    before = (built.directory / "manifest.json").read_bytes()
    words = [*line.split(), *["--"] * (line != "submit --resume")]
    for name in ("", "  ", "-", "*", "/", ".", "..", "--"):
        result = run(*words, name)
        assert result.returncode == 2, (name, result.output)
        assert (built.directory / "manifest.json").read_bytes() == before


def test_rm_takes_six_characters_of_an_id_and_a_path_may_end_with_a_slash(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = build("1n1g", name=NAME, state="refused", jobs=("",)).directory.parent
    monkeypatch.chdir(runs)
    for name in ("T", "3f9a1", "f9a1c", "3f"):
        result = run("rm", "--yes", name)
        assert result.returncode == 2
        assert "of at least 6 characters" in result.output
    paths = (NAME, f"{NAME}/", f"./{NAME}/", f"../{runs.name}/{NAME}")
    for name in ("3f9a1c", "pytorch-3f", *paths):
        assert run("rm", "--yes", "--runs", runs, name).returncode == 0, name
        assert not Path(NAME).exists()
        build("1n1g", name=NAME, state="refused", jobs=("",))


@pytest.mark.parametrize("text", ["n1,,n2", ",n1", "n1,", ",", "n[1,,2]"])
def test_a_list_has_no_empty_entry(text: str) -> None:
    with pytest.raises(Invalid, match="node names"):
        check_node_list(text)
    with pytest.raises(UsageError, match="empty entry"):
        split_list(text)


@cases
def test_a_file_has_no_empty_value(tmp_path: Path, file: str, text: str) -> None:
    path = tmp_path / file
    path.write_text((SITE if file == "site.toml" else "schema = 1\n") + text)
    is_site = file == "site.toml"
    read = partial(read_site, base=tmp_path, env={}) if is_site else campaignfile.read
    with pytest.raises(ConfigError, match="must"):
        read(path)


def test_an_empty_variable_of_a_point_is_a_value_and_one_of_the_environment_is_not_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "campaign.toml"
    path.write_text('schema = 1\n[env]\nNCCL_DEBUG = ["", "INFO"]\n')
    assert campaignfile.read(path).env[0].values == ("", "INFO")
    (tmp_path / "site.toml").write_text(SITE)
    site = read_site(tmp_path / "site.toml", base=tmp_path, env={"HPCBERT_RUNS": ""})
    assert site.runs == str(tmp_path / "runs")
    monkeypatch.setenv("HPCBERT_SITE", "")
    assert run("config").returncode == 0
