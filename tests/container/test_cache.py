"""The directory of prepared images, as Python reads it."""

import json
import os
import time
from pathlib import Path

import pytest

from hpcbert.container import cache
from hpcbert.container.reference import parse_reference
from hpcbert.container.runtimes import RUNTIMES
from hpcbert.errors import UsageError
from tests.kit.cases import cases
from tests.kit.containers import pointer

IMAGE = parse_reference("docker://somebody@r.io#bert/tiny:1.0")


def store_image(directory, prefix="", end=".sqsh", **versions):
    """Put an image there as image.sh does; return its pointer."""
    image = directory / f"{prefix}{IMAGE.stem}+0123456789ab{end}"
    image.write_bytes(b"hsqs image")
    digest = "0123456789ab" + "0" * 52
    text = pointer(image, "docker://r.io#bert/tiny:1.0", digest, enroot="4.1.2", **versions)
    path = directory / f"{prefix}{IMAGE.stem}.json"
    path.write_text(json.dumps(text, indent=1))
    return path


def test_an_image_is_found_by_its_reference_whoever_logs_in(tmp_path):
    assert cache.list_images(tmp_path / "none") == ()
    assert cache.find_leftovers(tmp_path / "none") == ()
    store_image(tmp_path)
    cached = cache.find_image(tmp_path, IMAGE)
    assert cached is not None
    assert cached.path == str(tmp_path / f"{IMAGE.stem}+0123456789ab.sqsh")
    assert cached.sha256.startswith("0123456789ab")
    other_user = parse_reference("docker://r.io#bert/tiny:1.0")
    assert cache.find_image(tmp_path, other_user) == cached
    for text in ("docker://r.io#bert/tiny:1.1", "/a/file.sqsh"):
        assert cache.find_image(tmp_path, parse_reference(text)) is None
    # Another base or command is another image.
    bases = [("x", "a", ["b", "c"]), ("x", "a", ["b c"]), ("x", "b", ["b", "c"]), ("y", "a", ["b"])]
    assert len({cache.built_stem(*base) for base in bases}) == 4


def test_apptainers_images_are_its_own_and_no_two_share_a_name(tmp_path):
    prefix = RUNTIMES["apptainer"].prefix
    store_image(tmp_path)
    store_image(tmp_path, prefix, ".sif", apptainer="1.4.5")
    (tmp_path / f"{prefix}old+1+0123456789ab.sif").write_bytes(b"x")
    cached = cache.find_image(tmp_path, IMAGE, prefix)
    assert cached is not None
    assert (cached.path[-4:], cached.apptainer) == (".sif", "1.4.5")
    assert [Path(image.path).suffix for image in cache.list_images(tmp_path)] == [".sqsh", ".sif"]
    (leftover,) = cache.find_leftovers(tmp_path)
    assert leftover.stem == f"{prefix}old+1"
    texts = ("docker://a.b/c:1", "oras://a.b/c:1", "library://a.b/c:1", "library://c:1")
    assert len({parse_reference(text).stem for text in texts}) == len(texts)


@cases
def test_a_pointer_that_names_no_whole_image_is_none(tmp_path, change, text):
    path = store_image(tmp_path)
    document = {**json.loads(path.read_text()), **(change or {})}
    path.write_text(json.dumps(document) if change else text or "")
    assert cache.find_image(tmp_path, IMAGE) is None
    assert cache.list_images(tmp_path) == ()


def test_an_older_image_and_what_died_are_left_over_and_files_of_the_user_are_not(tmp_path):
    store_image(tmp_path)
    for name in (".photos~old", ".vimrc~", ".a~b.c", "photos.tar", "photos"):
        (tmp_path / name).mkdir()
    for name in ("own.sqsh", "notes.txt"):
        (tmp_path / name).write_text("put there by hand")
    before = sorted(tmp_path.iterdir())
    dead = tmp_path / f".{IMAGE.stem}~elsewhere-1-2.partial"
    old = tmp_path / f"{IMAGE.stem}+ba9876543210.sqsh"
    for path in (dead, old):
        path.write_bytes(b"old or half")
    leftovers = cache.find_leftovers(tmp_path)
    assert [(leftover.path, leftover.stem, leftover.busy) for leftover in leftovers] == [
        (str(path), IMAGE.stem, False) for path in (dead, old)
    ]
    assert cache.remove_leftovers(leftovers) == leftovers
    assert sorted(tmp_path.iterdir()) == before


def test_what_is_being_imported_is_kept_while_somebody_holds_its_lock(tmp_path):
    def hold_lock(directory, holder, *, age=0.0):
        directory.mkdir()
        store_image(directory)
        path = directory / f".{IMAGE.stem}~lock"
        path.mkdir()
        (path / "holder").write_text(holder)
        stamp = time.time() - age
        os.utime(path / "holder", (stamp, stamp))
        (image,) = cache.list_images(directory)
        return image

    elsewhere = "elsewhere-7-1 elsewhere another-boot/pid:[1]/0 7 1234\n"
    directory = tmp_path / "held"
    image = hold_lock(directory, elsewhere)
    with pytest.raises(UsageError, match="is being imported"):
        cache.remove_image(directory, image)
    leftovers = cache.find_leftovers(directory)
    assert [leftover.busy for leftover in leftovers] == [True]
    assert cache.remove_leftovers(leftovers) == ()
    assert Path(image.path).is_file()
    # Nobody has touched it for hours, or its holder was a process whose id lives, of another.
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    place = f"{boot}/{Path('/proc/self/ns/pid').readlink()}/{os.geteuid()}"
    dead = f"here-1-1 here {place} {os.getpid()} 1\n"
    for name, holder, age in (("dead", dead, 0.0), ("left", elsewhere, 7200)):
        directory = tmp_path / name
        cache.remove_image(directory, hold_lock(directory, holder, age=age))
        assert cache.remove_leftovers(cache.find_leftovers(directory)), name
        assert list(directory.iterdir()) == []
