from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbert.container.mounts import Mount, bind, parse
from hpcbert.errors import UsageError


@pytest.mark.parametrize(
    ("text", "mount", "options"),
    [
        ("/a", Mount("/a", "/a"), "x-create=auto,rbind"),
        ("/a:/b", Mount("/a", "/b"), "x-create=auto,rbind"),
        ("/a:/b:", Mount("/a", "/b"), "x-create=auto,rbind"),
        ("/a b:/c", Mount("/a b", "/c"), "x-create=auto,rbind"),
        ("./a:/b:ro", Mount("./a", "/b", ("ro",)), "x-create=auto,rbind,ro"),
        ("/a:/b:ro+rprivate", Mount("/a", "/b", ("ro", "rprivate")), "x-create=auto,rbind,ro,rprivate"),
        ("tmpfs:/scratch", Mount("tmpfs", "/scratch"), "x-create=dir"),
        ("tmpfs:/s:size=1G", Mount("tmpfs", "/s", ("size=1G",)), "x-create=dir,size=1G"),
        ("umount:/opt/x", Mount("umount", "/opt/x"), "x-detach"),
        ("/$HOME:/b", Mount("/$HOME", "/b"), "x-create=auto,rbind"),
    ],
)  # fmt: skip
def test_a_mount_has_the_defaults_of_pyxis_and_its_flags(
    text: str, mount: Mount, options: str
) -> None:
    assert parse(text) == mount
    assert mount.options == options
    assert parse(mount.spec) == mount


@pytest.mark.parametrize(
    "text",
    ["", ":", "a:/b", "/a:b", "tmpfs", "umount", "/a:/b:ro:rw", "/a,/b", "/a\n:/b", ":/b", "~/a:/b"],
)  # fmt: skip
def test_what_pyxis_refuses_or_splits_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse(text)


@given(st.text(max_size=20))
def test_any_text_is_a_mount_that_reads_back_or_refused(text: str) -> None:
    try:
        mount = parse(text)
    except UsageError:
        return
    assert parse(mount.spec) == mount


def test_a_path_is_bound_to_itself_or_refused() -> None:
    assert bind("/a b").spec == "/a b:/a b"
    for path in ("/a:b", "/a,b", "/a\nb"):
        with pytest.raises(UsageError, match="comma or a colon"):
            bind(path)
