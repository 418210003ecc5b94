"""A program that was handed over as one file: unpacked in its folder, or refused."""

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from hpcbert.config.recipe import Recipe, Upstream
from hpcbert.errors import IncompleteError
from hpcbert.prepare.source import is_archive, unpack
from hpcbert.script.materials import read_record, source_record_path
from tests.kit import drafts
from tests.kit.cases import cases
from tests.kit.logs import write_file
from tests.prepare.test_parts import PATCH, git, make_repository, prepare

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def upstream(tmp_path):
    return make_repository(tmp_path / "upstream")


def packed(upstream, name, prefix="x-1.0/"):
    path = upstream.parent / name.lower()
    git(upstream, "archive", f"--output={path}", f"--prefix={prefix}", "HEAD")
    return path.rename(path.with_name(name))


def zipped(path, **members):
    with zipfile.ZipFile(path, "w") as file:
        for name, text in members.items():
            file.writestr(name, text)
    return path


@pytest.mark.parametrize("name", ["x.tar.gz", "x.tgz", "x.tar", "X.ZIP", "x.zip"])
@pytest.mark.parametrize("prefix", ["x-1.0/", ""])
def test_what_git_packs_is_unpacked_with_its_commit(upstream, tmp_path, name, prefix):
    path, target = packed(upstream, name, prefix), tmp_path / "target"
    assert is_archive(str(path))
    assert unpack(path, target) == git(upstream, "rev-parse", "HEAD")
    assert (target / "bert" / "train.py").read_text() == 'print("wrong")\n'
    assert (target / "run.sh").stat().st_mode & 0o111
    assert (target / "link.py").readlink() == Path("bert/train.py")


def test_an_archive_of_the_programs_folder_keeps_its_place_without_a_repository(upstream, tmp_path):
    part = packed(upstream, "part.tar.gz", "")
    assert unpack(part, tmp_path / "whole", "bert").isalnum()
    nested = zipped(tmp_path / "p.zip", **{"official/nlp/train.py": "1\n"})
    unpack(nested, tmp_path / "kept", "official/nlp")
    assert (tmp_path / "kept" / "official" / "nlp" / "train.py").is_file()
    with pytest.raises(IncompleteError, match="has no absent"):
        unpack(part, tmp_path / "other", "absent")
    config = {"top/a.py": "1\n", "top/.git/config": "[core]\nfsmonitor = touch /tmp/run\n"}
    unpack(zipped(tmp_path / "x.zip", **config), tmp_path / "target")
    assert [path.name for path in (tmp_path / "target").iterdir()] == ["a.py"]


@cases
def test_what_would_lie_elsewhere_is_refused(tmp_path, name, kind, link):
    path = tmp_path / "bad.tar.gz"
    with tarfile.open(path, "w:gz") as file:
        for member, entry_type, to in (("top/ok", "REGTYPE", ""), (name, kind, link)):
            entry = tarfile.TarInfo(member)
            entry.type, entry.linkname = getattr(tarfile, entry_type), to
            file.addfile(entry, io.BytesIO(b""))
    with pytest.raises(IncompleteError):
        unpack(path, tmp_path / "a" / "target")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("name", ["x.tar.gz", "x.zip"])
def test_damage_is_told(upstream, tmp_path, name):
    path = packed(upstream, name)
    raw = path.read_bytes()
    for share in (0.0, 0.5, 0.9):
        path.write_bytes(raw[: int(len(raw) * share)])
        with pytest.raises(IncompleteError, match="can't be unpacked"):
            unpack(path, tmp_path / "target")
    with pytest.raises(IncompleteError, match="does not exist"):
        unpack(tmp_path / f"absent-{name}", tmp_path / "target")


def prepared(upstream, url, commit):
    """Return the part that prepare makes of a repository or an archive, and its record."""
    folder = write_file(upstream.parent, "tiny/fix.patch", f"Why.\n{PATCH}").parent
    site = drafts.settled(drafts.site(upstream.parent), "tiny", repository=str(url))
    recipe = Recipe(
        "tiny", str(folder), "", "", "per-gpu", models=("m",), precisions=("fp32",),
        needs=("source",),
        source=Upstream("https://example.org/x", commit, "bert", patches=("fix.patch",)),
    )  # fmt: skip
    part = prepare(recipe, site, "source", env={"PATH": "/usr/bin:/bin"})["source"]
    return part, read_record(source_record_path(site, recipe))


def test_an_archive_stands_in_for_the_repository(upstream):
    commit = git(upstream, "rev-parse", "HEAD")
    part, recorded = prepared(upstream, packed(upstream, "x.tar.gz"), commit)
    assert part.status == "done", part
    assert (Path(part.path) / "bert" / "train.py").read_text() == 'print("right")\n'
    assert recorded["commit"] == commit
    again, _ = prepared(upstream, upstream.parent / "x.tar.gz", commit)
    assert (again.status, again.digest) == ("ready", part.digest)
    (upstream.parent / "sources").rename(upstream.parent / "before")
    checkout, _ = prepared(upstream, upstream, commit)
    assert checkout.digest == part.digest


def test_an_archive_of_another_commit_is_refused_and_one_without_has_its_digest(upstream):
    part, recorded = prepared(upstream, packed(upstream, "x.tar.gz"), COMMIT)
    assert (part.status, recorded) == ("failed", {})
    assert "the recipe needs 0123456789ab" in part.detail
    path = zipped(upstream.parent / "x.zip", **{"x/bert/train.py": 'print("wrong")\n'})
    part, recorded = prepared(upstream, path, COMMIT)
    assert part.status == "done"
    assert recorded["commit"].startswith("sha256:")
