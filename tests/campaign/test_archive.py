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
from tests.kit.campaigns import Build, Built
from tests.kit.collecting import gathered, says, unreachable

TOKEN = "hf_abcdefghijklmnopqrstuv"
Change = Callable[[Path], None]


@pytest.fixture
def done(build: Build) -> Built:
    """A campaign that was collected after its end; of one point a repeat failed."""
    built = build("1n1g", "1n4g")
    built.finish()
    gathered(built.directory, states=says("FAILED"))
    return built


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where archives are unpacked: empty afterwards, whatever they were."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert not [*folder.iterdir()]


@pytest.fixture
def packed(done: Built, tmp_path: Path) -> Path:
    return archive.pack(done.directory, tmp_path / "a.zip").path


def test_the_same_campaign_gives_the_same_bytes(done: Built, packed: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere" / done.campaign.id
    shutil.copytree(done.directory, copy)
    (copy / "notes.txt").write_text("what a person keeps there stays there")
    (copy / "lock").write_text("somebody")
    again = archive.pack(copy, tmp_path / "b.zip")
    assert again.path.read_bytes() == packed.read_bytes()
    with archive.open_archive(packed) as directory:
        third = archive.pack(directory, tmp_path / "c.zip")
        assert third.sha256 == again.sha256
        assert directory.name == done.campaign.id


def test_an_archive_is_read_as_the_directory_is(done: Built, packed: Path) -> None:
    there = gathered(done.directory, states=unreachable)
    shutil.rmtree(done.directory)
    with archive.open_archive(packed) as directory:
        here = gathered(directory, states=unreachable)
        assert (here.tables, here.refused, here.warnings) == (
            there.tables,
            there.refused,
            there.warnings,
        )
        assert audit(directory).status == "intact"


def test_times_that_count_are_kept(done: Built, tmp_path: Path) -> None:
    """A log that was written to last before its step began is another run's."""
    log = done.log_path("1n1g", 2)
    os.utime(log, (1_500_000_000, 1_500_000_000))
    packed = archive.pack(done.directory, tmp_path / "a.zip").path
    with archive.open_archive(packed) as directory:
        assert (directory / log.relative_to(done.directory)).stat().st_mtime == 1_500_000_000


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
    told = {"schema": 1, "node": "n1", "image": {"environment": {"MY_PASSWORD": "opensesame"}}}
    (env / "x.json").write_text(json.dumps(told))
    gathered(built.directory, states=says())
    made = archive.pack(built.directory, tmp_path / "a.zip")
    assert made.masked == (
        "env/x.json",
        str(log.relative_to(built.directory)),
        "scripts/x.sbatch",
        "slurm/7_1.out",
    )
    with zipfile.ZipFile(made.path) as packed:
        content = b"\n".join(packed.read(name) for name in packed.namelist())
    for secret in (TOKEN, "0123456789abcdef", "abcdefghijklmnop", "opensesame"):
        assert secret.encode() not in content
        assert secret not in str(made)
    there = gathered(built.directory, states=unreachable)
    with archive.open_archive(made.path) as directory:
        found = audit(directory)
        assert found.status == "intact"
        assert {finding.kind for finding in found.findings} == {"masked"}
        assert json.loads((directory / "env" / "x.json").read_text())["node"] == "n1"
        assert "key=$1" in (directory / "scripts" / "x.sbatch").read_text()
        assert gathered(directory, states=unreachable).tables == there.tables


def test_a_masked_file_that_was_changed_since_is_found(build: Build, tmp_path: Path) -> None:
    built = build("1n1g")
    built.finish()
    log = built.log_path("1n1g", 2)
    log.write_text(f"HF_TOKEN={TOKEN}\n{log.read_text()}")
    gathered(built.directory, states=says())
    with archive.open_archive(archive.pack(built.directory, tmp_path / "a.zip").path) as directory:
        path = directory / log.relative_to(built.directory)
        path.write_text(path.read_text() + "more\n")
        assert audit(directory).status == "changed"


def test_a_secret_in_what_is_sealed_is_refused(done: Built, tmp_path: Path) -> None:
    done.change(command=("hpcbert", f"--x={TOKEN}"))
    with pytest.raises(
        CheckError, match=r"manifest\.json: The file holds what looks like a secret"
    ) as exception_info:
        archive.pack(done.directory, tmp_path / "a.zip")
    assert TOKEN not in str(exception_info.value)
    assert not [*tmp_path.glob("*.zip*")]
    assert not [*tmp_path.glob(".*")]


def test_mlperfs_keys_are_not_secrets(done: Built, tmp_path: Path) -> None:
    record = ':::MLLOG {"time_ms": 1, "event_type": "POINT", "key": "init_start", "value": null}\n'
    done.log("1n1g", 2, record)
    assert not archive.pack(done.directory, tmp_path / "a.zip").masked


def test_a_private_key_across_pieces(
    done: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "_PIECE", 4096)
    key = "-----BEGIN RSA PRIVATE KEY-----\n" + "QUJD" * 50 + "\n-----END RSA PRIVATE KEY-----\n"
    for before in (0, 3500, 3900, 4090, 5000):
        text = "line\n" * (before // 5) + key + "line\n" * 2000
        done.log("1n1g", 2, text)
        target = tmp_path / f"{before}.zip"
        archive.pack(done.directory, target)
        with zipfile.ZipFile(target) as packed:
            assert not [name for name in packed.namelist() if b"QUJD" in packed.read(name)]


def test_nothing_is_overwritten(done: Built, packed: Path, tmp_path: Path) -> None:
    before = packed.read_bytes()
    link = tmp_path / "link.zip"
    link.symlink_to(tmp_path / "absent")
    for target in (packed, link):
        with pytest.raises(UsageError, match="is not overwritten"):
            archive.pack(done.directory, target)
    assert packed.read_bytes() == before
    with pytest.raises(HpcbertError, match="Can't write: No such file or directory"):
        archive.pack(done.directory, tmp_path / "absent" / "a.zip")


def test_links_and_pipes_of_a_campaign_are_not_followed(done: Built, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("what only I may read")
    for make in (lambda path: path.symlink_to(secret), os.mkfifo):
        log = done.log_path("1n1g", 2)
        log.unlink()
        make(log)
        with pytest.raises(HpcbertError, match=r"Can't archive: it is a pipe|is a link"):
            archive.pack(done.directory, tmp_path / "a.zip")
        assert not [*tmp_path.glob("*.zip*")]


# --- hostile archives -----------------------------------------------------------------------


def added(name: str, content: bytes = b"x", mode: int = stat.S_IFREG | 0o600) -> Change:
    def change(path: Path) -> None:
        info = zipfile.ZipInfo(name)
        info.external_attr = mode << 16
        info.create_system = 3
        with zipfile.ZipFile(path, "a") as target:
            target.writestr(info, content)

    return change


def inside(name: str, **options: int) -> Change:
    return added(f"20261121-pytorch-abc/{name}", **options)  # type: ignore[arg-type]


def patched(offset: int, form: str, value: int) -> Change:
    """Change a field of the first record of the directory."""

    def change(path: Path) -> None:
        raw = bytearray(path.read_bytes())
        struct.pack_into(form, raw, raw.index(b"PK\x01\x02") + offset, value)
        path.write_bytes(raw)

    return change


def twice(path: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate"):
        inside("manifest.json")(path)


def zeros(path: Path) -> None:
    """Let a file unpack to 30 MB although its records say 10 bytes."""
    rewritten("recipe.toml", bytes(30_000_000))(path)
    raw = path.read_bytes()
    old = struct.pack("<L", 30_000_000)
    assert raw.count(old) == 2
    path.write_bytes(raw.replace(old, struct.pack("<L", 10)))


def giant(path: Path) -> None:
    """Declare 10 GB, as ZIP's 64-bit extension does."""
    with zipfile.ZipFile(path, "a") as target:
        target.writestr("20261121-pytorch-abc/logs/z", b"x")
        target.filelist[-1].file_size = 10_000_000_000


def crowd(path: Path) -> None:
    """Let the end record count more files than are read."""
    raw = bytearray(path.read_bytes())
    struct.pack_into("<2H", raw, raw.rindex(b"PK\x05\x06") + 8, 65_000, 65_000)
    path.write_bytes(raw)


def wide(path: Path) -> None:
    """Put what points to the end record of ZIP's 64-bit extension before the other."""
    raw = path.read_bytes()
    at = raw.rindex(b"PK\x05\x06")
    path.write_bytes(raw[:at] + b"PK\x06\x07" + bytes(16) + raw[at:])


def text(path: Path) -> None:
    path.write_text("hello\n" * 99)


def cut(keep: float) -> Change:
    def change(path: Path) -> None:
        raw = path.read_bytes()
        path.write_bytes(raw[: int(len(raw) * keep)])

    return change


def rewritten(name: str, content: bytes | None) -> Change:
    """Give an entry other content, or take it away."""

    def change(path: Path) -> None:
        with zipfile.ZipFile(path) as source:
            files = {zip_info.filename: source.read(zip_info) for zip_info in source.infolist()}
        place = next(file for file in files if file.endswith(name))
        files.pop(place)
        with zipfile.ZipFile(path, "w") as target:
            for one, old in files.items():
                target.writestr(one, old)
            if content is not None:
                target.writestr(place, content, zipfile.ZIP_DEFLATED)

    return change


HOSTILE: dict[str, tuple[Change, str]] = {
    "above": (added("../evil"), "'../evil' leads outside"),
    "above, deeper": (inside("logs/../../../evil"), "leads outside"),
    "absolute": (added("/tmp/evil"), "leads outside"),
    "backslash": (inside("..\\evil"), "leads outside"),
    "dot": (inside("./x"), "leads outside"),
    "link": (inside("logs/l", mode=stat.S_IFLNK | 0o777), "is a link"),
    "device": (inside("logs/d", mode=stat.S_IFCHR | 0o666), "is a device, a pipe or a socket"),
    "pipe": (inside("logs/p", mode=stat.S_IFIFO | 0o666), "is a device, a pipe or a socket"),
    "folder as a file": (inside("logs/f", mode=stat.S_IFDIR | 0o700), "is a device, a pipe"),
    "control characters": (inside("logs/\x1b[2J"), "has a name that is not printable"),
    "endless name": (inside("logs/" + "x" * 2000), "has a name that is not printable, or too long"),
    "same name twice": (twice, "manifest.json' appears twice"),
    "file and folder": (inside("manifest.json/x"), "is a file and a folder"),
    "zeros, declared": (giant, r"has 10,000,\d{3},\d{3} bytes"),
    "zeros, undeclared": (zeros, "damaged or cut short"),
    "too many": (crowd, "has too many files"),
    "more than ZIP counts": (wide, "has too many files"),
    "encrypted": (patched(8, "<H", 1), "is encrypted"),
    "lzma": (patched(10, "<H", 14), "by another method than deflate"),
    "cut at the end": (cut(0.98), "ZIP file was cut short"),
    "cut in the middle": (cut(0.5), "ZIP file was cut short"),
    "empty": (cut(0), "is not a ZIP file"),
    "text": (text, "is not a ZIP file"),
    "another's folder": (added("other/manifest.json"), "not an archive of a campaign"),
    "something else": (rewritten(INDEX, None), "not an archive of a campaign"),
    "not JSON": (rewritten(INDEX, b"{"), "not an archive of a campaign"),
    "nesting": (rewritten(INDEX, b"[" * 100_000), "not an archive of a campaign"),
    "future": (rewritten(INDEX, b'{"schema": 2}'), "has schema 2; this hpcbert reads 1"),
    "foreign JSON": (rewritten(INDEX, b'{"schema": 1}'), "not an archive of a campaign"),
    "a file too much": (inside("logs/more.log"), "that does not belong there: 'logs/more.log'"),
    "changed": (rewritten("recipe.toml", b"x"), "recipe.toml: The file differs from what was packed"),
    "missing": (rewritten("recipe.toml", None), "recipe.toml: The file differs from what was packed"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archives_are_refused(
    name: str, packed: Path, temporary: Path, tmp_path: Path
) -> None:
    change, message = HOSTILE[name]
    change(packed)
    before = {path for path in tmp_path.rglob("*") if temporary not in path.parents}
    tracemalloc.start()
    started = time.process_time()
    with pytest.raises(UsageError, match=message) as exception_info, ExitStack() as stack:
        stack.enter_context(archive.open_archive(packed))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert exception_info.value.where.startswith(str(packed))
    assert str(exception_info.value).isprintable()
    assert {path for path in tmp_path.rglob("*") if temporary not in path.parents} == before
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


def test_a_manifest_of_another_campaign(done: Built, packed: Path) -> None:
    """Whoever forges digests too is found by the campaign's own id."""
    text = (done.directory / "manifest.json").read_text().replace(done.campaign.id, "other")
    with zipfile.ZipFile(packed) as source:
        index = json.loads(source.read(f"{done.campaign.id}/{INDEX}"))
    index["files"]["manifest.json"]["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    rewritten("manifest.json", text.encode())(packed)
    rewritten(INDEX, json.dumps(index).encode())(packed)
    with (
        pytest.raises(UsageError, match="belongs to another campaign"),
        archive.open_archive(packed),
    ):
        raise AssertionError
