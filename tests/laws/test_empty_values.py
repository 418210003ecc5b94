"""An empty value, as of an unset shell variable, is refused by every command; nothing matches it."""

from __future__ import annotations

from collections.abc import Iterator
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


def parameters(
    command: click.Command, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], click.Command, click.Parameter]]:
    """Yield every parameter of a command and of those below it that takes a value."""
    for name, below in getattr(command, "commands", {}).items():
        yield from parameters(below, (*path, name))
    for param in command.params:
        if not (isinstance(param, click.Option) and (param.is_flag or param.count)):
            yield path, command, param


EVERY = [
    case
    for name in COMMANDS
    for case in parameters(root.get_command(click.Context(root), name) or root, (name,))
]


def line(path: tuple[str, ...], command: click.Command, param: click.Parameter, word: str) -> str:
    """Return the arguments in front of the tested one, and this as the user types it."""
    if not isinstance(param, click.Argument):
        return "\n".join((*path, f"{param.opts[-1]}={word}"))
    arguments = [parameter for parameter in command.params if isinstance(parameter, click.Argument)]
    front = ["x"] * arguments.index(param)
    return "\n".join((*path, *front, word))


@pytest.mark.slow
@pytest.mark.parametrize("word", ["", " \u3000"], ids=["empty", "blanks"])
@pytest.mark.parametrize(
    ("path", "command", "param"),
    EVERY,
    ids=[f"{' '.join(path)} {parameter.name}" for path, _, parameter in EVERY],
)
def test_every_parameter_refuses_an_empty_value(
    path: tuple[str, ...], command: click.Command, param: click.Parameter, word: str
) -> None:
    words = line(path, command, param, word).split("\n")
    if (path[-1], param.name) in EMPTY_MEANS:
        assert "is empty" not in run(*words).output
        return
    result = run(*words)
    assert result.returncode == 2, result.output
    assert "Invalid value for" in result.output, result.output


def test_what_an_empty_value_means_is_listed_for_parameters_that_exist() -> None:
    names = {(path[-1], param.name) for path, _, param in EVERY}
    assert names >= EMPTY_MEANS.keys()
    assert all(EMPTY_MEANS.values())


@pytest.mark.parametrize(
    "words",
    [
        ["rm", "--yes"],
        ["cancel", "--yes"],
        ["retry"],
        ["submit", "--resume"],
        ["show"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("name", ["", "  ", "-", "*", "/", ".", "..", "--"])
def test_the_only_campaign_is_not_meant_by_accident(
    words: list[str], name: str, build: Build
) -> None:
    built = build("1n1g", name="20261121T100000Z-pytorch-3f9a1c", jobs=("7",))
    before = (built.directory / "manifest.json").read_bytes()
    result = run(*words, *(["--"] if words[-1] != "--resume" else []), name)
    assert result.returncode == 2, result.output
    assert (built.directory / "manifest.json").read_bytes() == before


@pytest.mark.parametrize(
    ("name", "code"),
    [("T", 2), ("3f9a1", 2), ("f9a1c", 2), ("3f9a1c", 0), ("pytorch-3f", 0), ("3f", 2)],
)
def test_rm_takes_six_characters_of_an_id(build: Build, name: str, code: int) -> None:
    built = build("1n1g", name="20261121T100000Z-pytorch-3f9a1c", state="refused", jobs=("",))
    result = run("rm", "--yes", name)
    assert result.returncode == code, result.output
    assert built.directory.exists() == bool(code)
    assert not code or "of at least 6 characters" in result.output


@pytest.mark.parametrize("name", ["{}", "{}/", "./{}/", "../{here}/{}"])
def test_a_path_may_end_with_a_slash(
    build: Build, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = build("1n1g", name="20261121T100000Z-pytorch-3f9a1c", state="refused", jobs=("",))
    folder = built.directory
    text = name.format(folder.name, here=folder.parent.name)
    monkeypatch.chdir(folder.parent)
    result = run("rm", "--yes", "--runs", folder.parent, text)
    assert (result.returncode, folder.exists()) == (0, False), result.output


@pytest.mark.parametrize("text", ["n1,,n2", ",n1", "n1,", ",", "n[1,,2]"])
def test_a_list_has_no_empty_entry(text: str) -> None:
    with pytest.raises(Invalid, match="node names"):
        check_node_list(text)
    with pytest.raises(UsageError, match="empty entry"):
        split_list(text)


@cases
def test_a_campaign_file_has_no_empty_value(tmp_path: Path, text: str) -> None:
    path = tmp_path / "campaign.toml"
    path.write_text(f"schema = 1\n{text}\n")
    with pytest.raises(ConfigError, match="must"):
        campaignfile.read(path)


def test_an_empty_variable_of_a_point_is_a_value(tmp_path: Path) -> None:
    path = tmp_path / "campaign.toml"
    path.write_text('schema = 1\n[env]\nNCCL_DEBUG = ["", "INFO"]\n')
    assert campaignfile.read(path).env[0].values == ("", "INFO")


@pytest.mark.parametrize("text", ['runs = ""', 'sources = " "', '[container]\nimages = ""'])
def test_a_place_in_a_site_is_not_empty(tmp_path: Path, text: str) -> None:
    path = tmp_path / "site.toml"
    path.write_text(f'schema = 1\nname = "x"\nscheduler = "local"\n{text}\n')
    with pytest.raises(ConfigError, match="must not be empty"):
        read_site(path, base=tmp_path, env={})


def test_an_empty_variable_of_the_environment_counts_as_not_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "site.toml"
    path.write_text('schema = 1\nname = "x"\nscheduler = "local"\n')
    site = read_site(path, base=tmp_path, env={"HPCBERT_RUNS": ""})
    assert site.runs == str(tmp_path / "runs")
    monkeypatch.setenv("HPCBERT_SITE", "")
    assert run("config").returncode == 0
