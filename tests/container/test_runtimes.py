"""What distinguishes the runtimes: which images and mounts each takes, and what it is called."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbert.container import cache, runtimes
from hpcbert.container.reference import parse_reference
from hpcbert.container.runtimes import Mount, bind_mount, parse_mount
from hpcbert.errors import ConfigError, UsageError
from tests.kit import drafts
from tests.kit.cases import cases
from tests.kit.containers import pointer


@pytest.mark.parametrize("name", ["apptainer", "singularity"])
def test_singularity_is_another_name_for_apptainer(tmp_path: Path, name: str) -> None:
    site = drafts.site(tmp_path, f'[container]\nruntime = "{name}"\n')
    assert site.container.runtime == "apptainer"


def test_a_runtime_that_is_not_known_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"container\.runtime must be one of") as raised:
        drafts.site(tmp_path, '[container]\nruntime = "aptainer"\n')
    assert "apptainer" in raised.value.hint


@cases
def test_apptainer_gets_references_as_it_writes_them(text: str, uri: str) -> None:
    assert runtimes.image_uri(parse_reference(text), "apptainer") == uri


@pytest.mark.parametrize(
    "text", ["oras://thing:1", "oras://reg.io/", "library://", "library://a//b", "shub://a/b"]
)
def test_a_reference_of_a_wrong_form_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_reference(text)


@cases
def test_an_image_for_another_runtime_is_refused_by_its_name(
    runtime: str, text: str, says: str
) -> None:
    with pytest.raises(UsageError) as raised:
        runtimes.check_image(parse_reference(text), runtimes.RUNTIMES[runtime], "site.toml")
    assert says in raised.value.hint


@pytest.mark.parametrize("text", ["/i/x.sif", "/i/a directory", "docker://a.b/c", "oras://r.io/a"])
def test_apptainer_takes_files_directories_and_registries(text: str) -> None:
    image = parse_reference(text)
    assert runtimes.check_image(image, runtimes.RUNTIMES["apptainer"], "") == image


@cases
def test_apptainer_refuses_mounts_that_it_can_not_make(text: str, says: str) -> None:
    mount = runtimes.parse_mount(text)
    with pytest.raises(UsageError, match=says):
        runtimes.check_mount(mount, runtimes.RUNTIMES["apptainer"], "site.toml")
    runtimes.check_mount(mount, runtimes.RUNTIMES["enroot"], "site.toml")


@pytest.mark.parametrize("text", ["/a b:/c d:ro", "/a", "/$x:/y:rw+nosuid+nodev", "./a:/b:nofail"])
def test_apptainer_takes_what_it_can_mount(text: str) -> None:
    runtimes.check_mount(runtimes.parse_mount(text), runtimes.RUNTIMES["apptainer"], "site.toml")


def test_a_tools_prepared_images_are_its_own(tmp_path: Path) -> None:
    image = parse_reference("docker://r.io#bert/tiny:1.0")
    tool_prefix = runtimes.RUNTIMES["apptainer"].tool.prefix
    for prefix, end in (("", ".sqsh"), (tool_prefix, ".sif")):
        file = tmp_path / f"{prefix}{image.stem}+0123456789ab{end}"
        file.write_bytes(b"image")
        document = pointer(file, "docker://r.io/bert/tiny:1.0", "0" * 64, apptainer="1.4.5")
        (tmp_path / f"{prefix}{image.stem}.json").write_text(json.dumps(document))
    (tmp_path / f"{tool_prefix}old+1+0123456789ab.sif").write_bytes(b"x")
    cached_image = cache.find_image(tmp_path, image, tool_prefix)
    assert cached_image is not None
    assert cached_image.path.endswith(".sif")
    assert cached_image.apptainer == "1.4.5"
    assert [Path(entry.path).suffix for entry in cache.list_images(tmp_path)] == [".sqsh", ".sif"]
    (leftover,) = cache.find_leftovers(tmp_path)
    assert leftover.stem == f"{tool_prefix}old+1"


def test_no_two_images_of_any_registry_share_a_name() -> None:
    texts = ("docker://a.b/c:1", "oras://a.b/c:1", "library://a.b/c:1", "library://c:1")
    assert len({parse_reference(text).stem for text in texts}) == len(texts)


def test_a_sif_file_is_known_by_its_header(tmp_path: Path) -> None:
    tool = runtimes.RUNTIMES["apptainer"].tool
    path, other = tmp_path / "a.sif", tmp_path / "b.sif"
    path.write_bytes(b"#!/usr/bin/env run-singularity\n\0SIF_MAGIC\0" + b"0" * 64)
    other.write_bytes(b"hsqs" + b"0" * 64)
    assert tool.reads(str(path))
    assert tool.reads(str(tmp_path))
    assert not tool.reads(str(other))
    assert not tool.reads(str(tmp_path / "gone.sif"))
    assert runtimes.RUNTIMES["enroot"].tool.reads(str(other))


# --- Mounts ---------------------------------------------------------------------------------------


@cases
def test_a_mount_has_source_target_and_flags(text: str, parts: tuple[str, ...]) -> None:
    mount = Mount(parts[0], parts[1], parts[2:])
    assert parse_mount(text) == mount
    assert parse_mount(mount.spec) == mount


@cases
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
