"""`make check-images`, against a registry on this machine."""

from runpy import run_path

import pytest

from hpcbert.container.reference import parse_reference
from tests.kit.paths import REPOSITORY
from tests.kit.recipes import NAMES, load
from tests.kit.registry import serving_tiny

pytestmark = pytest.mark.slow

PROGRAM = run_path(str(REPOSITORY / ".ci" / "check_images.py"))


def test_a_registry_says_whether_it_has_an_image():
    for auth in ("", "bearer"):
        with serving_tiny(auth=auth) as registry:
            for tag, answer in (("1.0", "there"), ("2.0", "refused: 404")):
                image = parse_reference(f"docker://{registry.host}#bert/tiny:{tag}")
                assert PROGRAM["ask_registry"](image, "http").startswith(answer), auth


def test_every_image_of_a_recipe_is_asked_for_and_none_was_removed():
    """NVIDIA removed its images with CUDA 10 (NVIDIA/nvidia-docker#1768)."""
    images = list(PROGRAM["list_images"]())
    with_image = {name for name in NAMES if load(name).image.reference or load(name).image.base}
    assert {name for name, _ in images} == with_image
    references = [image.uri.split("#")[1] for _, image in images]
    assert not [text for text in references if text.startswith("nvidia/cuda:10")]
