"""What distinguishes the runtimes: images, mounts, names, and what each prints when it fails."""

from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbert.container import runtimes
from hpcbert.container.reference import parse_reference
from hpcbert.container.runtimes import RUNTIMES, SYMPTOMS, Mount, parse_mount
from hpcbert.errors import UsageError
from tests.kit import drafts
from tests.kit.cases import cases, read_constant


def test_a_runtime_has_two_names_and_binds_a_path_to_itself(tmp_path):
    for name in ("apptainer", "singularity"):
        site = drafts.site(tmp_path, f'[container]\nruntime = "{name}"\n')
        assert site.container.runtime == "apptainer"
    assert runtimes.bind_mount("/a b").spec == "/a b:/a b"
    for path in ("/a:b", "/a,b", "/a\nb"):
        with pytest.raises(UsageError, match="comma or a colon"):
            runtimes.bind_mount(path)


@cases
def test_apptainer_gets_references_as_it_writes_them(text, uri):
    assert runtimes.image_uri(parse_reference(text), "apptainer") == uri


@cases
def test_an_image_for_another_runtime_is_refused_by_its_name(runtime, text, says):
    with pytest.raises(UsageError) as raised:
        runtimes.check_image(parse_reference(text), RUNTIMES[runtime], "site.toml")
    assert says in raised.value.hint


@cases
def test_apptainer_refuses_mounts_that_it_can_not_make(text, says):
    with pytest.raises(UsageError, match=says):
        runtimes.check_mount(parse_mount(text), RUNTIMES["apptainer"], "site.toml")
    runtimes.check_mount(parse_mount(text), RUNTIMES["enroot"], "site.toml")


def test_apptainer_takes_what_it_can_read_and_mount(tmp_path):
    apptainer = RUNTIMES["apptainer"]
    for text in ("/i/x.sif", "/i/a directory", "docker://a.b/c", "oras://r.io/a"):
        image = parse_reference(text)
        assert runtimes.check_image(image, apptainer, "") == image
    for text in ("/a b:/c d:ro", "/a", "/$x:/y:rw+nosuid+nodev", "./a:/b:nofail"):
        runtimes.check_mount(parse_mount(text), apptainer, "site.toml")
    sif, squashfs = tmp_path / "a.sif", tmp_path / "b.sif"
    sif.write_bytes(b"#!/usr/bin/env run-singularity\n\0SIF_MAGIC\0" + b"0" * 64)
    squashfs.write_bytes(b"hsqs" + b"0" * 64)
    paths = (sif, tmp_path, squashfs, tmp_path / "gone.sif")
    assert [apptainer.reads(str(path)) for path in paths] == [True, True, False, False]
    assert RUNTIMES["enroot"].reads(str(squashfs))


@cases
def test_a_mount_has_source_target_and_flags_and_what_pyxis_splits_is_refused(text, parts):
    with nullcontext() if parts else pytest.raises(UsageError):
        mount = parse_mount(text)
        assert mount == Mount(parts[0], parts[1], parts[2:])
        assert parse_mount(mount.spec) == mount


@given(st.text(max_size=20))
def test_any_text_is_a_mount_that_reads_back_or_refused(text):
    try:
        mount = parse_mount(text)
    except UsageError:
        return
    assert parse_mount(mount.spec) == mount


def test_a_symptom_is_known_by_what_is_printed():
    outputs = read_constant(__file__, "PRINTED")
    assert [symptom.name for symptom in SYMPTOMS] == list(outputs)
    assert [runtimes.find_symptom(text) for text in outputs.values()] == list(SYMPTOMS)
    assert all(symptom.problem.endswith(".") and symptom.hint for symptom in SYMPTOMS)
    hints = {symptom.name: symptom.hint for symptom in SYMPTOMS}
    assert "http1.1" in hints["basic-over-http2"]
    assert "~/.curlrc" in hints["basic-over-http2"]
    assert "cacert" in hints["unknown-authority"]


@cases
def test_other_spellings_and_near_misses_of_a_symptom(printed, name):
    symptom = runtimes.find_symptom(printed)
    assert (symptom.name if symptom else None) == name
