from __future__ import annotations

from pathlib import Path

import pytest

from hpcbert.config.site import resolve_image
from hpcbert.errors import ConfigError
from tests.kit import drafts


def test_a_relative_file_is_relative_to_where_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/one")
    assert resolve_image("./x.sqsh", tmp_path) == str(tmp_path / "x.sqsh")
    assert resolve_image("~/x.sqsh", tmp_path) == "/home/one/x.sqsh"
    for text in ("/a/b.sqsh", "docker://a.b#c:1", "ubuntu", ""):
        assert resolve_image(text, tmp_path) == text


def test_paths_of_a_site_are_relative_to_its_file(tmp_path: Path) -> None:
    site = drafts.site(tmp_path, '[container]\nimages = "i"\n[frameworks.a]\nimage = "./a.sqsh"\n')
    assert site.container.images == str(tmp_path / "i")
    assert site.settings("a").image == str(tmp_path / "a.sqsh")


@pytest.mark.parametrize(
    ("text", "says"),
    [('env = ["A", "b c"]', "container.env names 'b c'"), ('scratch = "x"', "container.scratch")],
)
def test_a_wrong_container_key_is_named(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        drafts.site(tmp_path, f"[container]\n{text}\n")
