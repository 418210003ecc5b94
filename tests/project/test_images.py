"""`make check-images`, against a registry on this machine."""

from __future__ import annotations

from runpy import run_path
from typing import Any

import pytest

from hpcbert.container.reference import parse_reference
from tests.kit.paths import REPOSITORY
from tests.kit.recipes import NAMES, load
from tests.kit.registry import serving_tiny

pytestmark = pytest.mark.slow

PROGRAM = run_path(str(REPOSITORY / ".ci" / "check_images.py"))


@pytest.mark.parametrize(
    ("tag", "answer"), [("1.0", "there"), ("2.0", "refused: 404")], ids=["there", "removed"]
)
@pytest.mark.parametrize(
    "options", [{}, {"auth": "bearer", "anonymous": True}], ids=["open", "token"]
)
def test_a_registry_says_whether_it_has_an_image(
    tag: str, answer: str, options: dict[str, Any]
) -> None:
    with serving_tiny(**options) as registry:
        image = parse_reference(f"docker://{registry.host}#bert/tiny:{tag}")
        assert PROGRAM["ask_registry"](image, "http").startswith(answer)


def test_no_recipe_names_a_removed_image() -> None:
    """NVIDIA removed its images with CUDA 10 (NVIDIA/nvidia-docker#1768)."""
    images = list(PROGRAM["list_images"]())
    named = {name for name, _ in images}
    assert named == {name for name in NAMES if load(name).image.reference or load(name).image.base}
    removed = [
        image.uri for _, image in images if image.uri.split("#")[1].startswith("nvidia/cuda:10")
    ]
    assert not removed
