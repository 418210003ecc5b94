from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbert.container.runtimes import Mount, bind_mount, parse_mount
from hpcbert.errors import UsageError

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("text", "mount"),
    [
        ("/a", Mount("/a", "/a")),
        ("/a:/b", Mount("/a", "/b")),
        ("/a:/b:", Mount("/a", "/b")),
        ("/a b:/c", Mount("/a b", "/c")),
        ("./a:/b:ro", Mount("./a", "/b", ("ro",))),
        ("/a:/b:ro+rprivate", Mount("/a", "/b", ("ro", "rprivate"))),
        ("tmpfs:/scratch", Mount("tmpfs", "/scratch")),
        ("tmpfs:/s:size=1G", Mount("tmpfs", "/s", ("size=1G",))),
        ("umount:/opt/x", Mount("umount", "/opt/x")),
        ("/$HOME:/b", Mount("/$HOME", "/b")),
    ],
)  # fmt: skip
def test_a_mount_has_source_target_and_flags(text: str, mount: Mount) -> None:
    assert parse_mount(text) == mount
    assert parse_mount(mount.spec) == mount


@pytest.mark.parametrize(
    "text",
    ["", ":", "a:/b", "/a:b", "tmpfs", "umount", "/a:/b:ro:rw", "/a,/b", "/a\n:/b", ":/b", "~/a:/b"],
)  # fmt: skip
def test_what_pyxis_refuses_or_splits_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_mount(text)


@given(st.text(max_size=20))
def test_any_text_is_a_mount_that_reads_back_or_refused(text: str) -> None:
    try:
        mount = parse_mount(text)
    except UsageError:
        return
    assert parse_mount(mount.spec) == mount


def test_a_path_is_bound_to_itself_or_refused() -> None:
    assert bind_mount("/a b").spec == "/a b:/a b"
    for path in ("/a:b", "/a,b", "/a\nb"):
        with pytest.raises(UsageError, match="comma or a colon"):
            bind_mount(path)
