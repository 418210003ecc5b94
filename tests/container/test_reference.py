from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbert.container.reference import HUB, Image, parse_reference
from hpcbert.errors import UsageError
from tests.kit.cases import cases

DIGEST = "sha256:" + "0123456789abcdef" * 4

IMAGES = st.builds(
    Image,
    kind=st.just("docker"),
    user=st.sampled_from(["", "$oauthtoken", "me"]),
    registry=st.sampled_from(["nvcr.io", "localhost:5000", "registry.example.org", HUB]),
    name=st.from_regex(r"[a-z0-9]([a-z0-9._-]{0,6}[a-z0-9])?(/[a-z0-9]{1,5}){1,3}", fullmatch=True),
    tag=st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,12}", fullmatch=True),
    digest=st.sampled_from(["", DIGEST]),
)


@cases
def test_a_reference_becomes_the_form_that_all_versions_read(
    text: str, uri: str, stem: str | None
) -> None:
    image = parse_reference(text)
    assert image.uri == uri
    if stem is not None:
        assert image.stem == stem


@cases
def test_what_is_no_reference_is_refused_with_the_part_that_is_wrong(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        parse_reference(text)


@given(IMAGES)
def test_a_uri_reads_back_as_the_same_image(image: Image) -> None:
    again = parse_reference(image.uri)
    assert again.uri == image.uri
    assert again.stem == image.stem
    assert parse_reference(image.uri.removeprefix("docker://")).uri == image.uri


@given(IMAGES)
def test_a_stem_is_safe_as_a_file_name_and_unquoted(image: Image) -> None:
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+@-]*", image.stem)


@given(IMAGES, IMAGES)
def test_images_share_a_stem_only_if_they_are_the_same_but_for_the_user(
    first: Image, second: Image
) -> None:
    def without_user(image: Image) -> str:
        return image.uri.replace(f"//{image.user}@", "//") if image.user else image.uri

    assert (first.stem == second.stem) == (without_user(first) == without_user(second))


@given(st.text(max_size=30))
def test_any_text_is_an_image_or_refused(text: str) -> None:
    try:
        image = parse_reference(text)
    except UsageError:
        return
    assert image.uri.startswith((".", "/", "docker://"))
    assert parse_reference(image.uri) == parse_reference(parse_reference(image.uri).uri)
