"""Image references: every spelling becomes one form, and a name for a file."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbert.container.reference import HUB, Image, parse_reference
from hpcbert.errors import UsageError
from tests.kit.cases import cases


@cases
def test_a_reference_becomes_the_form_that_all_versions_read(text, uri, stem):
    image = parse_reference(text)
    assert image.uri == uri
    assert stem in (None, image.stem)


@cases
def test_what_is_no_reference_is_refused_with_the_part_that_is_wrong(text, says):
    with pytest.raises(UsageError, match=re.escape(says)):
        parse_reference(text)


@given(st.data())
def test_a_uri_reads_back_and_its_stem_is_a_safe_name_of_that_image_alone(data):
    name = r"[a-z0-9]([a-z0-9._-]{0,6}[a-z0-9])?(/[a-z0-9]{1,5}){1,3}"
    images = st.builds(
        Image,
        kind=st.just("docker"),
        user=st.sampled_from(["", "$oauthtoken", "me"]),
        registry=st.sampled_from(["nvcr.io", "localhost:5000", "registry.example.org", HUB]),
        name=st.from_regex(name, fullmatch=True),
        tag=st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,12}", fullmatch=True),
        digest=st.sampled_from(["", "sha256:" + "0123456789abcdef" * 4]),
    )
    image, other = data.draw(images), data.draw(images)
    for text in (image.uri, image.uri.removeprefix("docker://")):
        again = parse_reference(text)
        assert (again.uri, again.stem) == (image.uri, image.stem)
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+@-]*", image.stem)
    uris = {it.uri.replace(f"//{it.user}@", "//") if it.user else it.uri for it in (image, other)}
    assert (image.stem == other.stem) == (len(uris) == 1)


@given(st.text(max_size=30))
def test_any_text_is_an_image_or_refused(text):
    try:
        image = parse_reference(text)
    except UsageError:
        return
    assert image.uri.startswith((".", "/", "docker://"))
    again = parse_reference(image.uri)
    assert parse_reference(again.uri) == again
