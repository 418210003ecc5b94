"""Permissions whatever the umask is, numbers whatever a person writes, names that tell points apart."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcbert.config import recipe
from hpcbert.config.places import package_templates
from hpcbert.errors import ConfigError, UsageError
from hpcbert.model import Point, Shape
from hpcbert.script.draft import LABEL_LENGTH, label_points
from hpcbert.script.plan import read_options
from tests.kit import drafts

pytestmark = pytest.mark.slow

ALWAYS_WRONG = ("inf", "-inf", "nan", "true", '"5"', "-1", f"1{'0' * 400}", "9223372036854775808")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (key, value)
        for key, wrong_values in {
            "slurm.poll_floor": ("0", "0.0", "1e-300", "0.09", "3601", "1e300"),
            "nodes.gpus_per_node": ("0", "1.5", "1025", "1000000"),
            "nodes.cpus_per_gpu": ("0.5", "1e3", "5000"),
            "frameworks.pytorch.batch_sizes.fp32": ("0", "1.0", "1000001"),
        }.items()
        for value in (*ALWAYS_WRONG, *wrong_values)
    ],
    ids=lambda value: value if len(value) < 40 else "huge",
)
def test_numbers_of_a_site_have_ranges(key: str, value: str, tmp_path: Path) -> None:
    table, _, name = key.rpartition(".")
    with pytest.raises(ConfigError) as refused:
        drafts.site(tmp_path, f"[{table}]\n{name} = {value}\n")
    assert key in str(refused.value)
    assert str(tmp_path / "site.toml") in str(refused.value)


@pytest.mark.parametrize("value", ["inf", "nan", f"1{'0' * 400}", "9223372036854775808"])
def test_a_recipes_options_in_a_site_are_finite(value: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"frameworks\.pytorch\.options\.lr"):
        drafts.site(tmp_path, f"[frameworks.pytorch.options]\nlr = {value}\n")


@pytest.mark.parametrize("value", ["inf", "nan", "-inf", "1e999"])
def test_a_recipes_options_on_the_command_line_are_finite(value: str, tmp_path: Path) -> None:
    pytorch_recipe = recipe.load(package_templates() / "pytorch")
    site = drafts.site(tmp_path)
    name = next(option.name for option in pytorch_recipe.options.values() if option.kind == "float")
    with pytest.raises(UsageError, match="finite"):
        read_options(pytorch_recipe, site, {name: value})


@pytest.mark.parametrize(
    ("extra", "key"),
    [
        *(
            (f'\n[protocols.t]\nhelp = "x"\n{name} = {value}\n', f"protocols.t.{name}")
            for name in ("iters", "skip", "accumulation", "global_batch_size", "samples_per_device")
            for value in (*ALWAYS_WRONG, "1.5", "1000000001")
        ),
        *(
            (f'\n[options.t]\nkind = "float"\nhelp = "x"\ndefault = {value}\n', "options.t.default")
            for value in ("inf", "nan", "true", "9223372036854775808")
        ),
        *(
            (f'\n[options.t]\nkind = "int"\nhelp = "x"\ndefault = {value}\n', "options.t.default")
            for value in ("inf", "1.0", "true", "9223372036854775808")
        ),
    ],
    ids=lambda value: value if len(value) < 40 else "toml",
)
def test_numbers_of_a_recipe_have_ranges(extra: str, key: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text((package_templates() / "pytorch" / "recipe.toml").read_text() + extra)
    with pytest.raises(ConfigError) as refused:
        recipe.read_recipe(path, name="t", digest="")
    assert key in str(refused.value)


@pytest.mark.parametrize("value", ["0", "-1.0", "inf", "nan", "1e-300", "1e300", "true"])
def test_a_samples_throughput_has_a_range(value: str, tmp_path: Path) -> None:
    text = (package_templates() / "pytorch" / "recipe.toml").read_text()
    head, _, tail = text.partition("[sample.throughput]\n")
    assert tail
    path = tmp_path / "recipe.toml"
    path.write_text(f"{head}[sample.throughput]\nother = {value}\n{tail}")
    with pytest.raises(ConfigError, match="throughput"):
        recipe.read_recipe(path, name="t", digest="")


@pytest.mark.parametrize("value", ["nan", "0", "1e9"])
def test_an_interval_has_a_range(
    value: str, finished: Path, run_commands: Callable[..., list[Any]]
) -> None:
    (result,) = run_commands([["monitor", str(finished), f"--interval={value}", "--json"]])
    result.check(as_json=True)
    assert result.returncode == 2


@pytest.mark.parametrize(("umask", "mode_of_folders"), [(0o002, 0o775), (0o077, 0o700)])
def test_what_is_written_has_the_permissions_of_the_umask(
    umask: int,
    mode_of_folders: int,
    run_commands: Callable[..., list[Any]],
    tmp_path: Path,
    logs: Path,
) -> None:
    paths = set(tmp_path.rglob("*"))
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "sbatch").write_text(f"#!/bin/sh\numask >{tmp_path}/its-umask\necho 7\n")
    (tools / "sbatch").chmod(0o755)
    paths |= {tools, *tools.iterdir(), tmp_path / "results", tmp_path / "home"}
    words = ["submit", "--fw", "oneflow", "--rehearse", "--scheduler", "slurm"]
    command_lines = [
        ["init", "--local"],
        [*words, "--data", "/d", "--source", "/s", "--runs", str(tmp_path / "deep" / "runs")],
        ["render", "--output", str(tmp_path / "scripts")],
        ["collect", str(logs), "--output", str(tmp_path / "table.md")],
    ]
    for result in run_commands(command_lines, umask=umask, PATH=f"{tools}:/usr/bin:/bin"):
        assert result.returncode == 0, result
    created = [path for path in tmp_path.rglob("*") if path not in paths and not path.is_symlink()]
    created = [path for path in created if path.parent.name != "results"]
    assert len(created) > 12
    for path in created:
        mode = stat.S_IMODE(path.stat().st_mode)
        if path.name != "its-umask":
            assert mode == (mode_of_folders & ~(0 if path.is_dir() else 0o111)), (path, oct(mode))
    assert int((tmp_path / "its-umask").read_text(), 8) == umask | 0o002


def point(shape: str, precision: str = "fp32", size: int = 32) -> Point:
    return Point("oneflow", "bert-base", Shape.parse(shape), precision, size)


@pytest.mark.parametrize(
    "points",
    [
        [point("1n1g"), point("1n4g"), point("1n8g"), point("2n8g"), point("4n8g")],
        [point("4n8g", precision) for precision in ("fp32", "fp16", "bf16", "tf32")],
        [
            point("4n8g", precision, size)
            for precision in ("fp32", "fp16", "bf16")
            for size in (32, 64)
        ],
        [point("4n8g", "fp32", size) for size in (32, 64, 128, 1024)],
        [
            point(shape, precision)
            for shape in ("128n16g", "16n16g")
            for precision in ("fp32", "fp16")
        ],
    ],
    ids=["curve", "precisions", "both", "batch sizes", "large"],
)
def test_the_first_eight_characters_say_which_point_it_is(points: list[Point]) -> None:
    labels = label_points(points)
    shown = [f"{label}-hpcbert-20261121T100000Z"[:LABEL_LENGTH] for label in labels]
    assert len(set(shown)) == len(points)
    assert all(str(source.shape)[:4] in label for source, label in zip(points, shown, strict=True))
