"""Permissions whatever the umask is, numbers whatever a person writes, names that tell points apart."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcbert.config import recipe
from hpcbert.errors import ConfigError, UsageError
from hpcbert.model import Point, Shape
from hpcbert.script.draft import LABEL_LENGTH, label_points
from hpcbert.script.plan import read_options
from tests.kit import drafts
from tests.kit.cases import cases, read_constant
from tests.kit.paths import TEMPLATES

pytestmark = pytest.mark.slow
PYTORCH = (TEMPLATES / "pytorch" / "recipe.toml").read_text()


@cases
def test_numbers_of_a_site_have_ranges(key: str, values: tuple[str, ...], tmp_path: Path) -> None:
    always = () if key.endswith(".lr") else read_constant(__file__, "ALWAYS_WRONG")
    table, _, name = key.rpartition(".")
    for value in (*always, *values, f"1{'0' * 400}"):
        with pytest.raises(ConfigError) as refused:
            drafts.site(tmp_path, f"[{table}]\n{name} = {value}\n")
        assert key in str(refused.value), value
        assert str(tmp_path / "site.toml") in str(refused.value)


def test_a_recipes_options_on_the_command_line_are_finite(tmp_path: Path) -> None:
    pytorch, site = drafts.load("pytorch"), drafts.site(tmp_path)
    name = next(option.name for option in pytorch.options.values() if option.kind == "float")
    for value in ("inf", "nan", "-inf", "1e999"):
        with pytest.raises(UsageError, match="finite"):
            read_options(pytorch, site, {name: value})


@cases
def test_numbers_of_a_recipe_have_ranges(
    table: str, names: tuple[str, ...], values: tuple[str, ...], tmp_path: Path
) -> None:
    """Of another protocol, of another option, and of the sample's throughput by another rule."""
    head, sample, tail = PYTORCH.partition("[sample.throughput]\n")
    assert tail
    for line in (f"{name} = {value}\n" for name in names for value in values):
        text = f"{PYTORCH}\n{table}\n{line}"
        if sample.strip() == table:
            text = f"{head}{sample}{line}{tail}"
        (tmp_path / "recipe.toml").write_text(text)
        with pytest.raises(ConfigError) as refused:
            recipe.read_recipe(tmp_path / "recipe.toml", name="t", digest="")
        key = f"{table.splitlines()[0].strip('[]')}.{line.partition(' ')[0]}"
        assert key in str(refused.value), line


def test_an_interval_has_a_range(finished: Path, run_commands: Callable[..., list[Any]]) -> None:
    words = ["monitor", str(finished), "--json"]
    for result in run_commands([[*words, f"--interval={value}"] for value in ("nan", "0", "1e9")]):
        result.check(as_json=True)
        assert result.returncode == 2


@pytest.mark.parametrize(("umask", "mode_of_folders"), [(0o002, 0o775), (0o077, 0o700)])
def test_what_is_written_has_the_permissions_of_the_umask(
    umask: int, mode_of_folders: int, run_commands: Callable[..., list[Any]],
    tmp_path: Path, logs: Path,
) -> None:  # fmt: skip
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "sbatch").write_text(f"#!/bin/sh\numask >{tmp_path}/its-umask\necho 7\n")
    (tools / "sbatch").chmod(0o755)
    earlier = {*tmp_path.rglob("*"), tmp_path / "results", tmp_path / "home"}
    words = ["submit", "--fw", "oneflow", "--rehearse", "--scheduler", "slurm"]
    command_lines = [
        ["init", "--local"],
        [*words, "--data", "/d", "--source", "/s", "--runs", str(tmp_path / "deep" / "runs")],
        ["render", "--output", str(tmp_path / "scripts")],
        ["collect", str(logs), "--output", str(tmp_path / "table.md")],
    ]
    for result in run_commands(command_lines, umask=umask, PATH=f"{tools}:/usr/bin:/bin"):
        assert result.returncode == 0, result
    created = [path for path in tmp_path.rglob("*") if path not in earlier]
    created = [path for path in created if not path.is_symlink() and path.parent.name != "results"]
    created.remove(tmp_path / "its-umask")
    assert len(created) > 11
    for path in created:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (mode_of_folders & ~(0 if path.is_dir() else 0o111)), (path, oct(mode))
    assert int((tmp_path / "its-umask").read_text(), 8) == umask | 0o002


@cases
def test_the_first_eight_characters_say_which_point_it_is(
    shapes: tuple[str, ...], precisions: tuple[str, ...], sizes: tuple[int, ...]
) -> None:
    points = [
        Point("oneflow", "bert-base", Shape.parse(shape), precision, size)
        for shape in shapes for precision in precisions for size in sizes
    ]  # fmt: skip
    labels = label_points(points)
    shown = [f"{label}-hpcbert-20261121T100000Z"[:LABEL_LENGTH] for label in labels]
    assert len(set(shown)) == len(points)
    assert all(str(source.shape)[:4] in label for source, label in zip(points, shown, strict=True))
