"""The directory of prepared images, as Python reads it."""

import json
import os
import time
from pathlib import Path

import pytest

from hpcbert.container import cache
from hpcbert.container.reference import parse_reference
from hpcbert.errors import UsageError
from tests.kit.cases import cases
from tests.kit.containers import pointer

IMAGE = parse_reference("docker://somebody@r.io#bert/tiny:1.0")
ELSEWHERE = "elsewhere-7-1 elsewhere another-boot/pid:[1]/0 7 1234\n"


def store_image(directory: Path) -> Path:
    """Put an image there as image.sh does; return its pointer."""
    image = directory / f"{IMAGE.stem}+0123456789ab.sqsh"
    image.write_bytes(b"hsqs image")
    text = pointer(image, "docker://r.io#bert/tiny:1.0", "0123456789ab" + "0" * 52, enroot="4.1.2")
    path = directory / f"{IMAGE.stem}.json"
    path.write_text(json.dumps(text, indent=1))
    return path


def hold_lock(directory: Path, holder: str, *, age: float = 0.0) -> None:
    path = directory / f".{IMAGE.stem}~lock"
    path.mkdir()
    (path / "holder").write_text(holder)
    stamp = time.time() - age
    os.utime(path / "holder", (stamp, stamp))


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


def test_what_is_being_imported_is_neither_removed_nor_swept(tmp_path):
    store_image(tmp_path)
    hold_lock(tmp_path, ELSEWHERE)
    (image,) = cache.list_images(tmp_path)
    with pytest.raises(UsageError, match="is being imported"):
        cache.remove_image(tmp_path, image)
    leftovers = cache.find_leftovers(tmp_path)
    assert [leftover.busy for leftover in leftovers] == [True]
    assert cache.remove_leftovers(leftovers) == ()
    assert Path(image.path).is_file()


@pytest.mark.parametrize("of", ["a dead process of this host", "nobody who touched it for hours"])
def test_a_lock_that_nobody_holds_keeps_nothing(tmp_path, of):
    store_image(tmp_path)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    place = f"{boot}/{Path('/proc/self/ns/pid').readlink()}/{os.geteuid()}"
    if of.startswith("a dead process"):  # its id lives, of another process
        hold_lock(tmp_path, f"here-1-1 here {place} {os.getpid()} 1\n")
    else:
        hold_lock(tmp_path, ELSEWHERE, age=7200)
    (image,) = cache.list_images(tmp_path)
    cache.remove_image(tmp_path, image)
    assert cache.remove_leftovers(cache.find_leftovers(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_another_base_or_command_is_another_image():
    bases = [("x", "a", ["b", "c"]), ("x", "a", ["b c"]), ("x", "b", ["b", "c"]), ("y", "a", ["b"])]
    assert len({cache.built_stem(*base) for base in bases}) == 4
