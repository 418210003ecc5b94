"""Archives: the same bytes for the same campaign, read as the directory is; hostile ones refused."""

import hashlib
import io
import json
import os
import shutil
import struct
import tempfile
import tracemalloc
import zipfile
from contextlib import nullcontext
from pathlib import Path

import pytest

from hpcbert.campaign import archive
from hpcbert.campaign.evidence import INDEX
from hpcbert.commands.audit import audit
from hpcbert.errors import CheckError, HpcbertError, UsageError
from tests.kit.campaigns import campaign, collect_campaigns, report_states, unreachable
from tests.kit.cases import cases

ID = "20261121-pytorch-abc"
TOKEN = "hf_abcdefghijklmnopqrstuv"


@pytest.fixture(autouse=True)
def unpack_folder(tmp_path_factory, monkeypatch):
    """Where archives are unpacked: empty afterwards, whatever they were."""
    folder = tmp_path_factory.mktemp("unpacked")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    assert not [*folder.iterdir()]


def test_the_same_campaign_gives_the_same_bytes_and_is_read_as_the_directory(build, tmp_path):
    built = build("1n1g", "1n4g").finish()
    collect_campaigns(built.directory, states=report_states("FAILED"))
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
    built = build("1n1g").finish()
    log = built.log_path("1n1g", 2)
    name = str(log.relative_to(built.directory))
    (built.directory / "env").mkdir()
    node = {"schema": 1, "node": "n1", "image": {"environment": {"MY_PASSWORD": "opensesame"}}}
    secrets = {
        name: f"HF_TOKEN={TOKEN}\n{log.read_text()}",
        "scripts/x.sbatch": "#!/bin/bash\nexport WANDB_API_KEY='0123456789abcdef'\nkey=$1\n",
        "slurm/7_1.out": "Authorization: Bearer abcdefghijklmnop\n",
        "env/x.json": json.dumps(node),
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


def test_private_keys_are_masked_and_a_secret_in_what_is_sealed_refused(
    build, tmp_path, monkeypatch
):
    built = build("1n1g").finish()
    record = ':::MLLOG {"time_ms": 1, "event_type": "POINT", "key": "init_start", "value": null}\n'
    built.log("1n1g", 2, record)
    assert not archive.pack(built.directory, tmp_path / "a.zip").masked
    # A key across pieces.
    monkeypatch.setattr(archive, "_PIECE", 4096)
    key = "-----BEGIN RSA PRIVATE KEY-----\n" + "QUJD" * 50 + "\n-----END RSA PRIVATE KEY-----\n"
    for before in (0, 3500, 3900, 4090):
        built.log("1n1g", 2, "line\n" * (before // 5) + key + "line\n" * 2000)
        target = archive.pack(built.directory, tmp_path / f"{before}.zip").path
        with zipfile.ZipFile(target) as packed:
            assert not [name for name in packed.namelist() if b"QUJD" in packed.read(name)]
    # A line without an end takes no more memory.
    file = io.BytesIO(b"x" * 50_000)
    assert max(map(len, archive._read_pieces(file, at_once=False))) <= 2 * 4096
    built.change(command=("hpcbert", f"--x={TOKEN}"))
    with pytest.raises(CheckError, match=r"manifest\.json: .* looks like a secret") as refusal:
        archive.pack(built.directory, tmp_path / "sealed.zip")
    assert TOKEN not in str(refusal.value)
    assert not [*tmp_path.glob("*sealed*")]


def test_nothing_is_overwritten_no_link_followed_and_nothing_else_opened(
    build, tmp_path, monkeypatch
):
    built = build("1n1g").finish()
    existing, link, secret = tmp_path / "a.zip", tmp_path / "link.zip", tmp_path / "secret"
    existing.write_text("mine")
    link.symlink_to(tmp_path / "absent")
    for target in (existing, link):
        with pytest.raises(UsageError, match="is not overwritten"):
            archive.pack(built.directory, target)
    assert existing.read_text() == "mine"
    # It appears while the campaign is packed.
    with monkeypatch.context() as patch:
        patch.setattr(os.path, "lexists", lambda _: False)
        with pytest.raises(HpcbertError, match="Can't write: File exists"):
            archive.pack(built.directory, existing)
    assert (existing.read_text(), len([*tmp_path.glob("a.zip*")])) == ("mine", 1)
    with pytest.raises(HpcbertError, match="Can't write: No such file or directory"):
        archive.pack(built.directory, tmp_path / "absent" / "a.zip")
    secret.write_text("what only I may read")
    log = built.log_path("1n1g", 2)
    for make in (lambda path: path.symlink_to(secret), os.mkfifo):
        log.unlink()
        make(log)
        with pytest.raises(
            HpcbertError, match=r"Can't archive: it is not a regular file|is a link"
        ):
            archive.pack(built.directory, tmp_path / "b.zip")
    assert not [*tmp_path.glob("b.zip*")]
    log.unlink()
    # What is no archive, or of another campaign, is not opened.
    pipe, folder = tmp_path / "p.zip", tmp_path / "d.zip"
    os.mkfifo(pipe)
    folder.mkdir()
    for path in (pipe, folder, Path("/dev/zero"), tmp_path / "absent.zip"):
        with pytest.raises(HpcbertError, match="Can't read"), archive.open_archive(path):
            pass
    # Whoever forges digests too is found by the campaign's own id.
    path = archive.pack(built.directory, tmp_path / "packed.zip").path
    text = (built.directory / "manifest.json").read_text().replace(ID, "other")
    forge_manifest(path, text)
    with pytest.raises(UsageError, match="another campaign"), archive.open_archive(path):
        pass


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """An archive that all hostile ones are made from."""
    folder = tmp_path_factory.mktemp("packed")
    built = campaign(folder / "runs", "1n1g", repeats=1).finish()
    collect_campaigns(built.directory, states=report_states())
    return archive.pack(built.directory, folder / "a.zip").path


def rewrite(path, name, content):
    """Give an entry other content, or take it away."""
    with zipfile.ZipFile(path) as source:
        files = {info.filename: source.read(info) for info in source.infolist()}
    with zipfile.ZipFile(path, "w") as target:
        for entry, old in files.items():
            new = content if entry.endswith(name) else old
            if new is not None:
                target.writestr(entry, new, zipfile.ZIP_DEFLATED)


def forge_manifest(path, text):
    """Give an archive another manifest, whose digest is right."""
    with zipfile.ZipFile(path) as source:
        (name,) = (entry for entry in source.namelist() if entry.endswith(f"/{INDEX}"))
        index = json.loads(source.read(name))
    index["files"]["manifest.json"]["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    rewrite(path, "manifest.json", text.encode())
    rewrite(path, INDEX, json.dumps(index).encode())


@cases
def test_hostile_archives_are_refused(  # noqa: PLR0917
    packed, tmp_path, entry, mode, size, file, content, patch, kind, message
):
    path = Path(shutil.copy(packed, tmp_path / "a.zip"))
    if entry:  # It declares a size, as ZIP's 64-bit extension does if it must.
        info = zipfile.ZipInfo(entry.replace("ID", ID))
        info.external_attr, info.create_system = (mode or 0o100600) << 16, 3
        twice = pytest.warns(UserWarning, match="Duplicate") if kind else nullcontext()
        with zipfile.ZipFile(path, "a") as target, twice:
            target.writestr(info, b"x")
            target.filelist[-1].file_size = size or 1
    if file:
        rewrite(path, file, None if content is None else content.encode())
    data = bytearray(path.read_bytes())
    if patch:  # A field of two bytes after the last mark, or two of them.
        mark, offset, *values = patch
        struct.pack_into(f"<{len(values)}H", data, data.rindex(mark.encode()) + offset, *values)
    match kind:
        case "nesting":
            rewrite(path, INDEX, b"[" * 100_000)
            data = bytearray(path.read_bytes())
        case "cut":
            data = data[:-99]
        case "text":
            data = bytearray(b"hello\n" * 99)
        case "understate":  # A file unpacks to 30 MB although its records say 10 bytes.
            rewrite(path, "recipe.toml", bytes(30_000_000))
            length = struct.pack("<L", 30_000_000)
            assert path.read_bytes().count(length) == 2
            data = bytearray(path.read_bytes()).replace(length, struct.pack("<L", 10))
        case "zip64":  # What points to the end record of ZIP's 64-bit extension.
            at = data.rindex(b"PK\x05\x06")
            data[at:at] = b"PK\x06\x07" + bytes(16)
    path.write_bytes(data)
    tracemalloc.start()
    with pytest.raises(UsageError, match=message) as refusal, archive.open_archive(path):
        pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert refusal.value.where.startswith(str(path))
    assert str(refusal.value).isprintable()
    assert [*tmp_path.rglob("*")] == [path]
    assert peak < 150_000_000
