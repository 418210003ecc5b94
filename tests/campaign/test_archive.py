"""Archives: the same bytes for the same campaign, read as the directory is; hostile ones refused."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import struct
import tempfile
import time
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from hpcbert.campaign import archive
from hpcbert.campaign.evidence import INDEX
from hpcbert.commands.audit import audit
from hpcbert.errors import CheckError, HpcbertError, UsageError
from tests.kit.campaigns import (
    Build,
    Built,
    campaign,
    collect_campaigns,
    report_states,
    unreachable,
)

TOKEN = "hf_abcdefghijklmnopqrstuv"
Change = Callable[[Path], None]


@pytest.fixture
def built(build: Build) -> Built:
    """A campaign that was collected after its end; of one point a repeat failed."""
    built = build("1n1g", "1n4g")
    built.finish()
    collect_campaigns(built.directory, states=report_states("FAILED"))
    return built


@pytest.fixture(autouse=True)
def unpack_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where archives are unpacked: empty afterwards, whatever they were."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert not [*folder.iterdir()]


@pytest.fixture
def archive_path(built: Built, tmp_path: Path) -> Path:
    return archive.pack(built.directory, tmp_path / "a.zip").path


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive that all hostile ones are made from."""
    folder = tmp_path_factory.mktemp("packed")
    built = campaign(folder / "runs", "1n1g", repeats=1)
    built.finish()
    collect_campaigns(built.directory, states=report_states())
    return archive.pack(built.directory, folder / "a.zip").path


def test_the_same_campaign_gives_the_same_bytes(
    built: Built, archive_path: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "elsewhere" / built.campaign.id
    shutil.copytree(built.directory, copy)
    (copy / "notes.txt").write_text("what a person keeps there stays there")
    (copy / "lock").write_text("somebody")
    again = archive.pack(copy, tmp_path / "b.zip")
    assert again.path.read_bytes() == archive_path.read_bytes()
    with archive.open_archive(archive_path) as directory:
        third = archive.pack(directory, tmp_path / "c.zip")
        assert third.sha256 == again.sha256
        assert directory.name == built.campaign.id


def test_an_archive_is_read_as_the_directory_is(built: Built, archive_path: Path) -> None:
    from_directory = collect_campaigns(built.directory, states=unreachable)
    shutil.rmtree(built.directory)
    with archive.open_archive(archive_path) as directory:
        from_archive = collect_campaigns(directory, states=unreachable)
        assert (from_archive.tables, from_archive.refused, from_archive.warnings) == (
            from_directory.tables,
            from_directory.refused,
            from_directory.warnings,
        )
        assert audit(directory).status == "intact"


def test_times_that_count_are_kept(built: Built, tmp_path: Path) -> None:
    """A log that was written to last before its step began is another run's."""
    log = built.log_path("1n1g", 2)
    os.utime(log, (1_500_000_000, 1_500_000_000))
    packed = archive.pack(built.directory, tmp_path / "a.zip").path
    with archive.open_archive(packed) as directory:
        assert (directory / log.relative_to(built.directory)).stat().st_mtime == 1_500_000_000


def test_secrets_are_masked_once_more(build: Build, tmp_path: Path) -> None:
    built = build("1n1g")
    built.finish()
    log = built.log_path("1n1g", 2)
    log.write_text(f"HF_TOKEN={TOKEN}\n{log.read_text()}")
    script = built.directory / "scripts" / "x.sbatch"
    script.write_text("#!/bin/bash\nexport WANDB_API_KEY='0123456789abcdef'\nkey=$1\n")
    (built.directory / "slurm" / "7_1.out").write_text("Authorization: Bearer abcdefghijklmnop\n")
    env = built.directory / "env"
    env.mkdir()
    fingerprint = {
        "schema": 1,
        "node": "n1",
        "image": {"environment": {"MY_PASSWORD": "opensesame"}},
    }
    (env / "x.json").write_text(json.dumps(fingerprint))
    collect_campaigns(built.directory, states=report_states())
    packing = archive.pack(built.directory, tmp_path / "a.zip")
    assert packing.masked == (
        "env/x.json",
        str(log.relative_to(built.directory)),
        "scripts/x.sbatch",
        "slurm/7_1.out",
    )
    with zipfile.ZipFile(packing.path) as packed:
        content = b"\n".join(packed.read(name) for name in packed.namelist())
    for secret in (TOKEN, "0123456789abcdef", "abcdefghijklmnop", "opensesame"):
        assert secret.encode() not in content
        assert secret not in str(packing)
    expected = collect_campaigns(built.directory, states=unreachable)
    with archive.open_archive(packing.path) as directory:
        report = audit(directory)
        assert report.status == "intact"
        assert {finding.kind for finding in report.findings} == {"masked"}
        assert json.loads((directory / "env" / "x.json").read_text())["node"] == "n1"
        assert "key=$1" in (directory / "scripts" / "x.sbatch").read_text()
        assert collect_campaigns(directory, states=unreachable).tables == expected.tables


def test_a_masked_file_that_was_changed_since_is_found(build: Build, tmp_path: Path) -> None:
    built = build("1n1g")
    built.finish()
    log = built.log_path("1n1g", 2)
    log.write_text(f"HF_TOKEN={TOKEN}\n{log.read_text()}")
    collect_campaigns(built.directory, states=report_states())
    with archive.open_archive(archive.pack(built.directory, tmp_path / "a.zip").path) as directory:
        path = directory / log.relative_to(built.directory)
        path.write_text(path.read_text() + "more\n")
        assert audit(directory).status == "changed"


def test_a_secret_in_what_is_sealed_is_refused(built: Built, tmp_path: Path) -> None:
    built.change(command=("hpcbert", f"--x={TOKEN}"))
    with pytest.raises(
        CheckError, match=r"manifest\.json: The file holds what looks like a secret"
    ) as exception_info:
        archive.pack(built.directory, tmp_path / "a.zip")
    assert TOKEN not in str(exception_info.value)
    assert not [*tmp_path.glob("*.zip*")]
    assert not [*tmp_path.glob(".*")]


def test_mlperfs_keys_are_not_secrets(built: Built, tmp_path: Path) -> None:
    record = ':::MLLOG {"time_ms": 1, "event_type": "POINT", "key": "init_start", "value": null}\n'
    built.log("1n1g", 2, record)
    assert not archive.pack(built.directory, tmp_path / "a.zip").masked


def test_a_private_key_across_pieces(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "_PIECE", 4096)
    key = "-----BEGIN RSA PRIVATE KEY-----\n" + "QUJD" * 50 + "\n-----END RSA PRIVATE KEY-----\n"
    for before in (0, 3500, 3900, 4090, 5000):
        text = "line\n" * (before // 5) + key + "line\n" * 2000
        built.log("1n1g", 2, text)
        target = tmp_path / f"{before}.zip"
        archive.pack(built.directory, target)
        with zipfile.ZipFile(target) as packed:
            assert not [name for name in packed.namelist() if b"QUJD" in packed.read(name)]


def test_nothing_is_overwritten(built: Built, archive_path: Path, tmp_path: Path) -> None:
    before = archive_path.read_bytes()
    link = tmp_path / "link.zip"
    link.symlink_to(tmp_path / "absent")
    for target in (archive_path, link):
        with pytest.raises(UsageError, match="is not overwritten"):
            archive.pack(built.directory, target)
    assert archive_path.read_bytes() == before
    with pytest.raises(HpcbertError, match="Can't write: No such file or directory"):
        archive.pack(built.directory, tmp_path / "absent" / "a.zip")


def test_links_and_pipes_of_a_campaign_are_not_followed(built: Built, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("what only I may read")
    for make in (lambda path: path.symlink_to(secret), os.mkfifo):
        log = built.log_path("1n1g", 2)
        log.unlink()
        make(log)
        with pytest.raises(HpcbertError, match=r"Can't archive: it is a pipe|is a link"):
            archive.pack(built.directory, tmp_path / "a.zip")
        assert not [*tmp_path.glob("*.zip*")]


# --- hostile archives -----------------------------------------------------------------------


def add_entry(name: str, content: bytes = b"x", mode: int = stat.S_IFREG | 0o600) -> Change:
    def change(path: Path) -> None:
        info = zipfile.ZipInfo(name)
        info.external_attr = mode << 16
        info.create_system = 3
        with zipfile.ZipFile(path, "a") as target:
            target.writestr(info, content)

    return change


def add_inside(name: str, **options: int) -> Change:
    return add_entry(f"20261121-pytorch-abc/{name}", **options)  # type: ignore[arg-type]


def patch_field(offset: int, form: str, value: int) -> Change:
    """Change a field of the first record of the directory."""

    def change(path: Path) -> None:
        raw = bytearray(path.read_bytes())
        struct.pack_into(form, raw, raw.index(b"PK\x01\x02") + offset, value)
        path.write_bytes(raw)

    return change


def repeat_manifest(path: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate"):
        add_inside("manifest.json")(path)


def understate_size(path: Path) -> None:
    """Let a file unpack to 30 MB although its records say 10 bytes."""
    rewrite_entry("recipe.toml", bytes(30_000_000))(path)
    raw = path.read_bytes()
    old = struct.pack("<L", 30_000_000)
    assert raw.count(old) == 2
    path.write_bytes(raw.replace(old, struct.pack("<L", 10)))


def overstate_size(path: Path) -> None:
    """Declare 10 GB, as ZIP's 64-bit extension does."""
    with zipfile.ZipFile(path, "a") as target:
        target.writestr("20261121-pytorch-abc/logs/z", b"x")
        target.filelist[-1].file_size = 10_000_000_000


def overstate_count(path: Path) -> None:
    """Let the end record count more files than are read."""
    raw = bytearray(path.read_bytes())
    struct.pack_into("<2H", raw, raw.rindex(b"PK\x05\x06") + 8, 65_000, 65_000)
    path.write_bytes(raw)


def add_zip64_locator(path: Path) -> None:
    """Put what points to the end record of ZIP's 64-bit extension before the other."""
    raw = path.read_bytes()
    at = raw.rindex(b"PK\x05\x06")
    path.write_bytes(raw[:at] + b"PK\x06\x07" + bytes(16) + raw[at:])


def write_text(path: Path) -> None:
    path.write_text("hello\n" * 99)


def cut_file(keep: float) -> Change:
    def change(path: Path) -> None:
        raw = path.read_bytes()
        path.write_bytes(raw[: int(len(raw) * keep)])

    return change


def rewrite_entry(name: str, content: bytes | None) -> Change:
    """Give an entry other content, or take it away."""

    def change(path: Path) -> None:
        with zipfile.ZipFile(path) as source:
            files = {zip_info.filename: source.read(zip_info) for zip_info in source.infolist()}
        place = next(file for file in files if file.endswith(name))
        files.pop(place)
        with zipfile.ZipFile(path, "w") as target:
            for entry, old in files.items():
                target.writestr(entry, old)
            if content is not None:
                target.writestr(place, content, zipfile.ZIP_DEFLATED)

    return change


HOSTILE: dict[str, tuple[Change, str]] = {
    "above": (add_entry("../evil"), "'../evil' leads outside"),
    "above, deeper": (add_inside("logs/../../../evil"), "leads outside"),
    "absolute": (add_entry("/tmp/evil"), "leads outside"),
    "backslash": (add_inside("..\\evil"), "leads outside"),
    "dot": (add_inside("./x"), "leads outside"),
    "link": (add_inside("logs/l", mode=stat.S_IFLNK | 0o777), "is a link"),
    "device": (add_inside("logs/d", mode=stat.S_IFCHR | 0o666), "is a device, a pipe or a socket"),
    "pipe": (add_inside("logs/p", mode=stat.S_IFIFO | 0o666), "is a device, a pipe or a socket"),
    "folder as a file": (add_inside("logs/f", mode=stat.S_IFDIR | 0o700), "is a device, a pipe"),
    "control characters": (add_inside("logs/\x1b[2J"), "has a name that is not printable"),
    "endless name": (add_inside("logs/" + "x" * 2000), "has a name that is not printable, or too long"),
    "same name twice": (repeat_manifest, "manifest.json' appears twice"),
    "file and folder": (add_inside("manifest.json/x"), "is a file and a folder"),
    "zeros, declared": (overstate_size, r"has 10,000,\d{3},\d{3} bytes"),
    "zeros, undeclared": (understate_size, "damaged or cut short"),
    "too many": (overstate_count, "has too many files"),
    "more than ZIP counts": (add_zip64_locator, "has too many files"),
    "encrypted": (patch_field(8, "<H", 1), "is encrypted"),
    "lzma": (patch_field(10, "<H", 14), "by another method than deflate"),
    "cut at the end": (cut_file(0.98), "ZIP file was cut short"),
    "cut in the middle": (cut_file(0.5), "ZIP file was cut short"),
    "empty": (cut_file(0), "is not a ZIP file"),
    "text": (write_text, "is not a ZIP file"),
    "another's folder": (add_entry("other/manifest.json"), "not an archive of a campaign"),
    "something else": (rewrite_entry(INDEX, None), "not an archive of a campaign"),
    "not JSON": (rewrite_entry(INDEX, b"{"), "not an archive of a campaign"),
    "nesting": (rewrite_entry(INDEX, b"[" * 100_000), "not an archive of a campaign"),
    "future": (rewrite_entry(INDEX, b'{"schema": 2}'), "has schema 2; this hpcbert reads 1"),
    "foreign JSON": (rewrite_entry(INDEX, b'{"schema": 1}'), "not an archive of a campaign"),
    "a file too much": (add_inside("logs/more.log"), "that does not belong there: 'logs/more.log'"),
    "changed": (rewrite_entry("recipe.toml", b"x"), "recipe.toml: The file differs from what was packed"),
    "missing": (rewrite_entry("recipe.toml", None), "recipe.toml: The file differs from what was packed"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archives_are_refused(
    name: str, packed: Path, unpack_folder: Path, tmp_path: Path
) -> None:
    change, message = HOSTILE[name]
    archive_path = Path(shutil.copy(packed, tmp_path / "a.zip"))
    change(archive_path)
    before = {path for path in tmp_path.rglob("*") if unpack_folder not in path.parents}
    tracemalloc.start()
    started = time.process_time()
    with pytest.raises(UsageError, match=message) as exception_info, ExitStack() as stack:
        stack.enter_context(archive.open_archive(archive_path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert exception_info.value.where.startswith(str(archive_path))
    assert str(exception_info.value).isprintable()
    assert {path for path in tmp_path.rglob("*") if unpack_folder not in path.parents} == before
    assert peak < 150_000_000
    assert time.process_time() - started < 60


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    pipe, folder = tmp_path / "p.zip", tmp_path / "d.zip"
    os.mkfifo(pipe)
    folder.mkdir()
    for path in (pipe, folder, Path("/dev/zero"), tmp_path / "absent.zip"):
        with (
            pytest.raises(HpcbertError, match="Can't read the archive"),
            archive.open_archive(path),
        ):
            raise AssertionError


def test_a_manifest_of_another_campaign(built: Built, archive_path: Path) -> None:
    """Whoever forges digests too is found by the campaign's own id."""
    text = (built.directory / "manifest.json").read_text().replace(built.campaign.id, "other")
    with zipfile.ZipFile(archive_path) as source:
        index = json.loads(source.read(f"{built.campaign.id}/{INDEX}"))
    index["files"]["manifest.json"]["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    rewrite_entry("manifest.json", text.encode())(archive_path)
    rewrite_entry(INDEX, json.dumps(index).encode())(archive_path)
    with (
        pytest.raises(UsageError, match="belongs to another campaign"),
        archive.open_archive(archive_path),
    ):
        raise AssertionError
