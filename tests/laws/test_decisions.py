"""What a submission decides, it decides once: counted on a dry run of a curve of five points."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from hpcbert.config import recipe
from hpcbert.config.recipe import Recipe
from hpcbert.container import cache, reference
from hpcbert.script import materials, plan, render, resolve, sandbox
from tests.kit.cli import run
from tests.kit.drafts import load

pytestmark = pytest.mark.usefixtures("without_slurm")

ONCE: tuple[Callable[..., Any], ...] = (
    recipe.load,
    resolve.resolve,
    materials.find_inputs,
    materials.find_image,
    materials.list_mounts,
    sandbox.Loader.__init__,
)
# Every point alone, so that all that can't be measured is told at once.
TRIED = (plan.plan, plan.read_options, plan._choose_protocol, Recipe.preset)
READERS = (cache.find_by_stem, materials.read_record)


def list_names(functions: tuple[Callable[..., Any], ...]) -> list[str]:
    return [f"{function.__module__}.{function.__qualname__}" for function in functions]


@contextmanager
def count_calls() -> Iterator[tuple[Counter[str], Counter[str]]]:
    """Count calls of functions by name, and readings of records by path."""
    calls: Counter[str] = Counter()
    paths: Counter[str] = Counter()
    names: dict[CodeType, str] = {
        function.__code__: f"{function.__module__}.{function.__qualname__}"
        for function in (*ONCE, *TRIED, render.render)
    }
    readers = {reader.__code__ for reader in READERS}

    def notice(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code in names:
            calls[names[frame.f_code]] += 1
        elif event == "call" and frame.f_code in readers:
            paths["/".join(map(str, frame.f_locals.values()))] += 1

    sys.setprofile(notice)
    try:
        yield calls, paths
    finally:
        sys.setprofile(None)


def write_pointer(images: Path, stem: str) -> None:
    """Leave a prepared image as image.sh does."""
    images.mkdir(parents=True, exist_ok=True)
    (images / f"{stem}.sqsh").write_bytes(b"hsqs")
    record = {"schema": 1, "reference": stem, "file": f"{stem}.sqsh", "sha256": "ab" * 32}
    record |= {"bytes": 4, "created": "2026-11-21T10:00:00Z"}
    (images / f"{stem}.json").write_text(json.dumps(record))


def write_site(
    folder: Path, framework: str, runtime: str, image: str = "", origin: str = ""
) -> Path:
    """Write a site with a prepared image: the recipe's, what is built of it, or a file."""
    framework_recipe = load(framework)
    named = (
        reference.parse_reference(framework_recipe.image.reference).stem
        if framework_recipe.image.reference
        else ""
    )
    stem = {
        "built": materials.built_image_stem(framework_recipe),
        "file": "own",
        "named": named,
    }.get(origin)
    if stem:
        write_pointer(folder / "images", stem)
    path = folder / "site.toml"
    text = f'[frameworks.{framework}]\nimage = "{image}"\n' if image else ""
    path.write_text(
        f'schema = 1\nname = "x"\nscheduler = "slurm"\n[container]\nruntime = "{runtime}"\n{text}'
    )
    return path


@pytest.mark.slow
@pytest.mark.parametrize("origin", ["nothing", "named", "built", "file"])
@pytest.mark.parametrize("framework", ["pytorch", "ngc-pytorch"])
@pytest.mark.parametrize("runtime", ["none", "pyxis"])
def test_five_points_are_resolved_once(
    empty_directory: None, tmp_path: Path, runtime: str, framework: str, origin: str
) -> None:
    image = "./images/own.sqsh" if origin == "file" else ""
    path = write_site(tmp_path, framework, runtime, image, origin)
    words = ("--nodes", "4", "--gpus-per-node", "8", "--scaling", "--site", path)
    render._make_environment.cache_clear()
    with count_calls() as (calls, paths):
        result = run("submit", "--dry-run", "--json", "--fw", framework, *words)
    assert len(result.document["data"]["arrays"]) == calls.pop("hpcbert.script.render.render") == 5
    assert {calls.pop(name) for name in list_names(TRIED)} == {5}
    assert set(calls.values()) == {1}, calls
    assert len(calls) == len(ONCE)
    assert set(paths.values()) <= {1}, paths
    assert any(image_path.startswith(str(tmp_path / "images")) for image_path in paths) == (
        runtime != "none"
    )


def test_scripts_to_submit_by_hand_are_resolved_once_too(
    empty_directory: None, tmp_path: Path
) -> None:
    path = write_site(tmp_path, "pytorch", "pyxis", origin="named")
    words = ("--nodes", "4", "--gpus-per-node", "8", "--scaling", "--site", path)
    render._make_environment.cache_clear()
    with count_calls() as (calls, paths):
        result = run("render", "--json", "--fw", "pytorch", *words)
    assert len(result.document["data"]) == calls.pop("hpcbert.script.render.render") == 5
    assert {calls.pop(name) for name in list_names(TRIED)} == {5}
    assert set(calls.values()) == {1}, calls
    assert set(paths.values()) == {1}
