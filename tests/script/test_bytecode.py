"""Compiled templates are kept for the user alone, and are never other than what would be compiled."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from hpcbert.script import bytecode, render, sandbox
from hpcbert.script.sandbox import Environment

TEXT = "{% for one in names %}{{ one }};{% endfor %}\n"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache" / "hpcbert" / "templates"


def rendered(folder: Path, text: str = TEXT) -> str:
    """Render a template as a new process would."""
    folder.mkdir(exist_ok=True)
    (folder / "a.j2").write_text(text)
    environment = Environment([folder], finalize=str, maker=Path(render.__file__))
    return environment.get_template("a.j2").render(names=["x", "y"])


def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    real = Environment.compile

    def note(self: Environment, source: str, *words: object) -> object:
        found.append(source)
        return real(self, source, *words)  # type: ignore[call-overload]

    monkeypatch.setattr(Environment, "compile", note)
    return found


def test_a_template_is_compiled_once(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = compiled(monkeypatch)
    assert rendered(tmp_path / "a") == rendered(tmp_path / "a") == "x;y;"
    assert len(done) == 1
    (kept,) = cache.iterdir()
    assert (kept.stat().st_mode & 0o777, cache.stat().st_mode & 0o777) == (0o600, 0o700)


def test_what_was_kept_of_another_template_is_not_its_own(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = compiled(monkeypatch)
    assert rendered(tmp_path / "a") == "x;y;"
    assert rendered(tmp_path / "a", "other\n") == "other\n"
    # The same text in another place: errors name the file.
    assert rendered(tmp_path / "b", "other\n") == "other\n"
    assert len(done) == 3
    assert len(list(cache.iterdir())) == 1


DAMAGES = {
    "empty": lambda raw: b"",
    "cut short": lambda raw: raw[:-7],
    "a byte turned": lambda raw: raw[:50] + bytes([raw[50] ^ 1]) + raw[51:],
    "somebody's words": lambda raw: b"cos\nsystem\n(S'true'\ntR.",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_what_is_damaged_is_compiled_again(tmp_path: Path, cache: Path, damage: object) -> None:
    rendered(tmp_path / "a")
    (kept,) = cache.iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(damage(whole))  # type: ignore[operator]
    assert rendered(tmp_path / "a") == "x;y;"
    assert kept.read_bytes() == whole


@pytest.mark.parametrize("changed", ["release", "maker"])
def test_an_upgrade_compiles_again(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    done = compiled(monkeypatch)
    rendered(tmp_path / "a")
    if changed == "release":
        monkeypatch.setattr(bytecode, "__version__", "9.9")
    else:
        (tmp_path / "sandbox.py").write_text("other rules")
        monkeypatch.setattr(sandbox, "__file__", str(tmp_path / "sandbox.py"))
    rendered(tmp_path / "a")
    assert len(done) == 2


@pytest.mark.parametrize("who", ["folder", "file"])
def test_what_others_can_write_to_is_not_loaded(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    done = compiled(monkeypatch)
    rendered(tmp_path / "a")
    (kept,) = cache.iterdir()
    (cache if who == "folder" else kept).chmod(0o777)
    rendered(tmp_path / "a")
    assert len(done) == 2


def test_a_link_in_its_place_is_not_followed(tmp_path: Path, cache: Path) -> None:
    rendered(tmp_path / "a")
    (kept,) = cache.iterdir()
    elsewhere = kept.rename(tmp_path / "elsewhere")
    kept.symlink_to(elsewhere)
    assert rendered(tmp_path / "a") == "x;y;"
    assert not kept.is_symlink()


def test_where_nothing_can_be_kept_it_renders_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("a file in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert rendered(tmp_path / "a") == "x;y;"


def test_it_is_kept_in_the_users_own_cache_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = {"HOME": str(tmp_path)}
    for name in (".cache", "c"):
        (tmp_path / name).mkdir()
    places: list[tuple[Mapping[str, str], Path | None]] = [
        (home, tmp_path / ".cache/hpcbert/templates"),
        ({**home, "XDG_CACHE_HOME": str(tmp_path / "c")}, tmp_path / "c/hpcbert/templates"),
        ({**home, "XDG_CACHE_HOME": "relative"}, None),
        ({**home, "XDG_CACHE_HOME": str(tmp_path / "none")}, None),
        ({"HOME": ""}, None),
        ({}, None),
    ]
    for environ, place in places:
        assert bytecode.folder(environ) == place
    # Another user with this one's variables.
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    assert bytecode.folder(home) is None
