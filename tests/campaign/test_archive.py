"""Archives: the same bytes for the same campaign, read as the directory is; hostile ones refused."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import struct
import tempfile
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
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

ID = "20261121-pytorch-abc"
TOKEN = "hf_abcdefghijklmnopqrstuv"
Change = Callable[[Path], object]


@pytest.fixture
def built(build: Build) -> Built:
    """A campaign that was collected after its end; of one point a repeat failed."""
    built = build("1n1g", "1n4g")
    built.finish()
    collect_campaigns(built.directory, states=report_states("FAILED"))
    return built


@pytest.fixture(autouse=True)
def unpack_folder(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Where archives are unpacked: empty afterwards, whatever they were."""
    folder = tmp_path_factory.mktemp("unpacked")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    assert not [*folder.iterdir()]


def test_the_same_campaign_gives_the_same_bytes_and_is_read_as_the_directory(built, tmp_path):
    packed = archive.pack(built.directory, tmp_path / "a.zip").path
    copy = shutil.copytree(built.directory, tmp_path / "elsewhere" / ID)
    (copy / "notes.txt").write_text("what a person keeps there stays there")
    (copy / "lock").write_text("somebody")
    # A log that was last written to before its step began is another run's.
    log = built.log_path("1n1g", 2)
    os.utime(log, (1_500_000_000, 1_500_000_000))
    os.utime(copy / log.relative_to(built.directory), (1_500_000_000, 1_500_000_000))
    again = archive.pack(copy, tmp_path / "b.zip")
    assert archive.pack(built.directory, tmp_path / "c.zip").sha256 == again.sha256
    with archive.open_archive(again.path) as directory:
        assert archive.pack(directory, tmp_path / "d.zip").sha256 == again.sha256
        modified = (directory / log.relative_to(built.directory)).stat().st_mtime
        assert (modified, directory.name) == (1_500_000_000, ID)
    with archive.open_archive(packed) as directory:
        result = collect_campaigns(directory, states=unreachable)
        assert audit(directory).status == "intact"
    shutil.rmtree(copy)
    shutil.copytree(built.directory, copy, copy_function=shutil.copyfile)
    expected = collect_campaigns(copy, states=unreachable)
    assert result.tables == expected.tables
    assert (result.refused, result.warnings) == (expected.refused, expected.warnings)


def test_secrets_are_masked_once_more_and_later_changes_found(build, tmp_path):
    built = build("1n1g")
    built.finish()
    log = built.log_path("1n1g", 2)
    name = str(log.relative_to(built.directory))
    (built.directory / "env").mkdir()
    environment = {"MY_PASSWORD": "opensesame"}
    secrets = {
        name: f"HF_TOKEN={TOKEN}\n{log.read_text()}",
        "scripts/x.sbatch": "#!/bin/bash\nexport WANDB_API_KEY='0123456789abcdef'\nkey=$1\n",
        "slurm/7_1.out": "Authorization: Bearer abcdefghijklmnop\n",
        "env/x.json": json.dumps(
            {"schema": 1, "node": "n1", "image": {"environment": environment}}
        ),
    }
    for path, text in secrets.items():
        (built.directory / path).write_text(text)
    collect_campaigns(built.directory, states=report_states())
    packing = archive.pack(built.directory, tmp_path / "a.zip")
    assert packing.masked == tuple(sorted(secrets))
    with zipfile.ZipFile(packing.path) as packed:
        content = b"\n".join(packed.read(name) for name in packed.namelist()).decode()
    for secret in (TOKEN, "0123456789abcdef", "abcdefghijklmnop", "opensesame"):
        assert secret not in content + str(packing)
    expected = collect_campaigns(built.directory, states=unreachable)
    with archive.open_archive(packing.path) as directory:
        report = audit(directory)
        assert report.status == "intact"
        assert {finding.kind for finding in report.findings} == {"masked"}
        assert json.loads((directory / "env" / "x.json").read_text())["node"] == "n1"
        assert "key=$1" in (directory / "scripts" / "x.sbatch").read_text()
        assert collect_campaigns(directory, states=unreachable).tables == expected.tables
        with (directory / name).open("a") as file:
            file.write("more\n")
        assert audit(directory).status == "changed"


def test_a_secret_in_what_is_sealed_is_refused(built, tmp_path):
    built.change(command=("hpcbert", f"--x={TOKEN}"))
    message = r"manifest\.json: The file holds what looks like a secret"
    with pytest.raises(CheckError, match=message) as refusal:
        archive.pack(built.directory, tmp_path / "a.zip")
    assert TOKEN not in str(refusal.value)
    assert not [*tmp_path.glob("*.zip*"), *tmp_path.glob(".*")]


def test_a_private_key_across_pieces_is_masked_and_mlperfs_keys_are_not(
    built, tmp_path, monkeypatch
):
    record = ':::MLLOG {"time_ms": 1, "event_type": "POINT", "key": "init_start", "value": null}\n'
    built.log("1n1g", 2, record)
    assert not archive.pack(built.directory, tmp_path / "a.zip").masked
    monkeypatch.setattr(archive, "_PIECE", 4096)
    key = "-----BEGIN RSA PRIVATE KEY-----\n" + "QUJD" * 50 + "\n-----END RSA PRIVATE KEY-----\n"
    for before in (0, 3500, 3900, 4090):
        built.log("1n1g", 2, "line\n" * (before // 5) + key + "line\n" * 2000)
        target = archive.pack(built.directory, tmp_path / f"{before}.zip").path
        with zipfile.ZipFile(target) as packed:
            assert not [name for name in packed.namelist() if b"QUJD" in packed.read(name)]


def test_nothing_is_overwritten_and_no_link_followed(built, tmp_path):
    existing, link, secret = tmp_path / "a.zip", tmp_path / "link.zip", tmp_path / "secret"
    existing.write_text("mine")
    link.symlink_to(tmp_path / "absent")
    for target in (existing, link):
        with pytest.raises(UsageError, match="is not overwritten"):
            archive.pack(built.directory, target)
    assert existing.read_text() == "mine"
    with pytest.raises(HpcbertError, match="Can't write: No such file or directory"):
        archive.pack(built.directory, tmp_path / "absent" / "a.zip")
    secret.write_text("what only I may read")
    for make in (lambda path: path.symlink_to(secret), os.mkfifo):
        log = built.log_path("1n1g", 2)
        log.unlink()
        make(log)
        with pytest.raises(HpcbertError, match=r"Can't archive: it is a pipe|is a link"):
            archive.pack(built.directory, tmp_path / "b.zip")
    assert not [*tmp_path.glob("b.zip*")]


# --- Hostile archives -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive that all hostile ones are made from."""
    folder = tmp_path_factory.mktemp("packed")
    built = campaign(folder / "runs", "1n1g", repeats=1)
    built.finish()
    collect_campaigns(built.directory, states=report_states())
    return archive.pack(built.directory, folder / "a.zip").path


def add(name: str, mode: int = stat.S_IFREG | 0o600, size: int = 1) -> Change:
    """Return how to add an entry, which declares a size; a name from `./` on is the campaign's."""

    def change(path: Path) -> None:
        info = zipfile.ZipInfo(f"{ID}/{name[2:]}" if name.startswith("./") else name)
        info.external_attr, info.create_system = mode << 16, 3
        with zipfile.ZipFile(path, "a") as target:
            target.writestr(info, b"x")
            # As ZIP's 64-bit extension does.
            target.filelist[-1].file_size = size

    return change


def patch(mark: bytes, offset: int, form: str, *values: int) -> Change:
    """Return how to change fields after the last mark."""

    def change(path: Path) -> None:
        content = bytearray(path.read_bytes())
        struct.pack_into(form, content, content.rindex(mark) + offset, *values)
        path.write_bytes(content)

    return change


def rewrite(name: str, content: bytes | None) -> Change:
    """Return how to give an entry other content, or to take it away."""

    def change(path: Path) -> None:
        with zipfile.ZipFile(path) as source:
            files = {info.filename: source.read(info) for info in source.infolist()}
        place = next(file for file in files if file.endswith(name))
        files.pop(place)
        with zipfile.ZipFile(path, "w") as target:
            for entry, old in files.items():
                target.writestr(entry, old)
            if content is not None:
                target.writestr(place, content, zipfile.ZIP_DEFLATED)

    return change


def repeat_manifest(path: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate"):
        add("./manifest.json")(path)


def understate_size(path: Path) -> None:
    """Let a file unpack to 30 MB although its records say 10 bytes."""
    rewrite("recipe.toml", bytes(30_000_000))(path)
    size = struct.pack("<L", 30_000_000)
    assert path.read_bytes().count(size) == 2
    path.write_bytes(path.read_bytes().replace(size, struct.pack("<L", 10)))


def add_zip64_locator(path: Path) -> None:
    """Put what points to the end record of ZIP's 64-bit extension before the other."""
    content = path.read_bytes()
    at = content.rindex(b"PK\x05\x06")
    path.write_bytes(content[:at] + b"PK\x06\x07" + bytes(16) + content[at:])


def cut(share: float) -> Change:
    return lambda path: os.truncate(path, int(path.stat().st_size * share))


FOREIGN = "not an archive of a campaign"
DIFFERS = "recipe.toml: The file differs from what was packed"
HOSTILE: dict[str, tuple[Change, str]] = {
    "above": (add("../evil"), "'../evil' leads outside"),
    "above, deeper": (add("./logs/../../../evil"), "leads outside"),
    "absolute": (add("/tmp/evil"), "leads outside"),
    "backslash": (add("./..\\evil"), "leads outside"),
    "dot": (add("././x"), "leads outside"),
    "link": (add("./logs/l", stat.S_IFLNK | 0o777), "is a link"),
    "device": (add("./logs/d", stat.S_IFCHR | 0o666), "is a device, a pipe or a socket"),
    "folder as a file": (add("./logs/f", stat.S_IFDIR | 0o700), "is a device, a pipe"),
    "control characters": (add("./logs/\x1b[2J"), "has a name that is not printable"),
    "endless name": (add("./logs/" + "x" * 2000), "has a name that is not printable, or too long"),
    "same name twice": (repeat_manifest, "manifest.json' appears twice"),
    "file and folder": (add("./manifest.json/x"), "is a file and a folder"),
    "zeros, declared": (add("./logs/z", size=10_000_000_000), r"has 10,000,\d{3},\d{3} bytes"),
    "zeros, undeclared": (understate_size, "damaged or cut short"),
    "too many": (patch(b"PK\x05\x06", 8, "<2H", 65_000, 65_000), "has too many files"),
    "more than ZIP counts": (add_zip64_locator, "has too many files"),
    "encrypted": (patch(b"PK\x01\x02", 8, "<H", 1), "is encrypted"),
    "lzma": (patch(b"PK\x01\x02", 10, "<H", 14), "by another method than deflate"),
    "cut": (cut(0.98), "ZIP file was cut short"),
    "empty": (cut(0), "is not a ZIP file"),
    "text": (lambda path: path.write_text("hello\n" * 99), "is not a ZIP file"),
    "another's folder": (add("other/manifest.json"), FOREIGN),
    "something else": (rewrite(INDEX, None), FOREIGN),
    "not JSON": (rewrite(INDEX, b"{"), FOREIGN),
    "nesting": (rewrite(INDEX, b"[" * 100_000), FOREIGN),
    "foreign JSON": (rewrite(INDEX, b'{"schema": 1}'), FOREIGN),
    "future": (rewrite(INDEX, b'{"schema": 2}'), "has schema 2; this hpcbert reads 1"),
    "a file too much": (add("./logs/x.log"), "that does not belong there: 'logs/x.log'"),
    "changed": (rewrite("recipe.toml", b"x"), DIFFERS),
    "missing": (rewrite("recipe.toml", None), DIFFERS),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archives_are_refused(name, packed, tmp_path):
    change, message = HOSTILE[name]
    path = Path(shutil.copy(packed, tmp_path / "a.zip"))
    change(path)
    tracemalloc.start()
    with pytest.raises(UsageError, match=message) as refusal, archive.open_archive(path):
        pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert refusal.value.where.startswith(str(path))
    assert str(refusal.value).isprintable()
    assert [*tmp_path.rglob("*")] == [path]
    assert peak < 150_000_000


def test_what_is_no_file_is_refused_at_once(tmp_path):
    pipe, folder = tmp_path / "p.zip", tmp_path / "d.zip"
    os.mkfifo(pipe)
    folder.mkdir()
    for path in (pipe, folder, Path("/dev/zero"), tmp_path / "absent.zip"):
        message = "Can't read the archive"
        with pytest.raises(HpcbertError, match=message), archive.open_archive(path):
            pass


def test_a_manifest_of_another_campaign_is_found_by_its_id(built, tmp_path):
    """Whoever forges digests too is found by the campaign's own id."""
    path = archive.pack(built.directory, tmp_path / "a.zip").path
    text = (built.directory / "manifest.json").read_text().replace(ID, "other")
    with zipfile.ZipFile(path) as source:
        index = json.loads(source.read(f"{ID}/{INDEX}"))
    index["files"]["manifest.json"]["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    rewrite("manifest.json", text.encode())(path)
    rewrite(INDEX, json.dumps(index).encode())(path)
    message = "belongs to another campaign"
    with pytest.raises(UsageError, match=message), archive.open_archive(path):
        pass
