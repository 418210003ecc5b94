"""The directory of prepared images, as Python reads it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from hpcbert.container import cache, reference
from hpcbert.errors import UsageError
from tests.kit.cases import cases
from tests.kit.containers import pointer

IMAGE = reference.parse_reference("docker://somebody@r.io#bert/tiny:1.0")


def store_image(directory: Path, stem: str = IMAGE.stem, content: bytes = b"hsqs image") -> Path:
    """Put an image there as image.sh does."""
    image = directory / f"{stem}+0123456789ab.sqsh"
    image.write_bytes(content)
    sha256 = "0123456789ab" + "0" * 52
    document = pointer(
        image, "docker://r.io#bert/tiny:1.0", sha256, enroot="4.1.2", provenance=None
    )
    path = directory / f"{stem}.json"
    path.write_text(json.dumps(document, indent=1))
    return path


def hold_lock(directory: Path, holder: str, *, age: float = 0.0) -> None:
    path = directory / f".{IMAGE.stem}~lock"
    path.mkdir()
    (path / "holder").write_text(holder)
    stamp = time.time() - age
    os.utime(path / "holder", (stamp, stamp))


def test_an_image_is_found_by_its_reference_whoever_logs_in(tmp_path: Path) -> None:
    store_image(tmp_path)
    cached_image = cache.find_image(tmp_path, IMAGE)
    assert cached_image is not None
    assert cached_image.path == str(tmp_path / f"{IMAGE.stem}+0123456789ab.sqsh")
    assert cached_image.sha256.startswith("0123456789ab")
    for text, image in (
        ("docker://r.io#bert/tiny:1.0", cached_image),
        ("docker://r.io#bert/tiny:1.1", None),
        ("/a/file.sqsh", None),
    ):
        assert cache.find_image(tmp_path, reference.parse_reference(text)) == image


@cases
def test_a_pointer_that_names_no_whole_image_is_none(
    tmp_path: Path, change: dict[str, object] | None, text: str | None
) -> None:
    path = store_image(tmp_path)
    path.write_text(
        json.dumps({**json.loads(path.read_text()), **change}) if change else text or ""
    )
    assert cache.find_image(tmp_path, IMAGE) is None
    assert cache.list_images(tmp_path) == ()


def test_a_directory_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert cache.list_images(tmp_path / "none") == ()
    assert cache.find_leftovers(tmp_path / "none") == ()


def test_an_older_image_and_what_died_are_left_over(tmp_path: Path) -> None:
    store_image(tmp_path)
    old = tmp_path / f"{IMAGE.stem}+ba9876543210.sqsh"
    old.write_bytes(b"older")
    dead = tmp_path / f".{IMAGE.stem}~elsewhere-1-2.partial"
    dead.write_bytes(b"half")
    (tmp_path / "own.sqsh").write_bytes(b"put there by hand")
    (tmp_path / "notes.txt").write_text("mine")
    leftovers = cache.find_leftovers(tmp_path)
    assert [(leftover.path, leftover.stem, leftover.busy) for leftover in leftovers] == [
        (str(path), IMAGE.stem, False) for path in (dead, old)
    ]
    assert cache.remove_leftovers(leftovers) == leftovers
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["notes.txt", "own.sqsh", f"{IMAGE.stem}.json", f"{IMAGE.stem}+0123456789ab.sqsh"]
    )


def test_what_is_being_imported_is_neither_removed_nor_swept(tmp_path: Path) -> None:
    store_image(tmp_path)
    hold_lock(tmp_path, "elsewhere-7-1 elsewhere another-boot/pid:[1]/0 7 1234\n")
    (cached_image,) = cache.list_images(tmp_path)
    with pytest.raises(UsageError, match="is being imported"):
        cache.remove_image(tmp_path, cached_image)
    leftovers = cache.find_leftovers(tmp_path)
    assert [leftover.busy for leftover in leftovers] == [True]
    assert cache.remove_leftovers(leftovers) == ()
    assert Path(cached_image.path).is_file()


def test_the_lock_of_a_dead_process_of_this_host_holds_nothing(tmp_path: Path) -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    text = f"{boot}/{Path('/proc/self/ns/pid').readlink()}/{os.geteuid()}"
    store_image(tmp_path)
    # The id lives, of another process.
    hold_lock(tmp_path, f"here-1-1 here {text} {os.getpid()} 1\n")
    (cached_image,) = cache.list_images(tmp_path)
    cache.remove_image(tmp_path, cached_image)
    assert cache.list_images(tmp_path) == ()
    assert not Path(cached_image.path).exists()


def test_a_lock_that_nobody_touched_for_hours_holds_nothing(tmp_path: Path) -> None:
    store_image(tmp_path)
    hold_lock(tmp_path, "elsewhere-7-1 elsewhere another-boot/pid:[1]/0 7 1234\n", age=7200)
    (cached_image,) = cache.list_images(tmp_path)
    cache.remove_image(tmp_path, cached_image)
    assert cache.remove_leftovers(cache.find_leftovers(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_another_base_or_command_is_another_image() -> None:
    bases = [("x", "a", ["b", "c"]), ("x", "a", ["b c"]), ("x", "b", ["b", "c"]), ("y", "a", ["b"])]
    assert len({cache.built_stem(*base) for base in bases}) == 4


def test_files_of_the_user_are_no_leftovers(tmp_path: Path) -> None:
    for name in (".photos~old", ".vimrc~", ".a~b.c", "photos.tar", "photos"):
        (tmp_path / name).mkdir()
    assert cache.find_leftovers(tmp_path) == ()
