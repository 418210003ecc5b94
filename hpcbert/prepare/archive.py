"""Unpack a program that comes as one file, so that no file lands outside its folder."""

from __future__ import annotations

import hashlib
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from hpcbert.errors import IncompleteError

_TAR_SUFFIXES = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar")
_ARCHIVE_SUFFIXES = (*_TAR_SUFFIXES, ".zip")
_COMMIT_HASH = re.compile(r"[0-9a-f]{40}")
_DAMAGE_ERRORS = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    ValueError,
    RuntimeError,
)


class _Member(NamedTuple):
    """A file or link of an archive.

    Attributes:
        link: The target of a link; empty for a file.
    """

    name: PurePosixPath
    content: bytes
    executable: bool = False
    link: str = ""


def is_archive(url: str) -> bool:
    """Return whether a program's location is the path of an archive."""
    return "://" not in url and url.lower().endswith(_ARCHIVE_SUFFIXES)


def unpack(archive: Path, target: Path, program: str = "") -> str:
    """Unpack an archive into an empty folder, without its single top folder.

    Args:
        archive: The file.
        target: The folder.
        program: The program's folder in the repository; an archive of only that part is whole too.

    Returns:
        The commit that it names, as git and its servers write it; otherwise its digest, `sha256:…`.

    Raises:
        IncompleteError: It is missing or damaged, lacks the program, or has a path that leads
            elsewhere.
        OSError: The folder can't be written to.
    """
    if not archive.is_file():
        raise IncompleteError(f"archive {archive} does not exist", hint="Name an existing one.")
    try:
        entries = (
            _read_zip(archive) if archive.name.lower().endswith(".zip") else _read_tar(archive)
        )
        # A repository's own folder could make git run programs that it names.
        members = [entry for entry in entries if ".git" not in entry.name.parts]
        comment = _read_commit_comment(archive)
    except _DAMAGE_ERRORS as error:
        raise IncompleteError(
            f"{archive.name} can't be unpacked: {str(error) or type(error).__name__}",
            hint="The file is damaged, or not an archive: fetch it again.",
        ) from error
    is_nested = _is_nested(members, program)
    # Links come last, so that nothing is written through one.
    for member in sorted(members, key=lambda entry: bool(entry.link)):
        relative_path = PurePosixPath(*member.name.parts[1:]) if is_nested else member.name
        _refuse_outside(archive, relative_path, member.link)
        _write_member(target / relative_path, member)
    if not (target / program).is_dir():
        raise IncompleteError(
            f"{archive.name} has no {program}", hint="Name an archive of the whole repository."
        )
    if _COMMIT_HASH.fullmatch(comment):
        return comment
    return f"sha256:{hashlib.sha256(archive.read_bytes()).hexdigest()}"


def _is_nested(members: Sequence[_Member], program: str) -> bool:
    """Return whether everything is in one folder that is not one of the repository's own."""
    top_folders = {member.name.parts[0] for member in members if member.name.parts}
    program_folder = PurePosixPath(program)
    if program and any(entry.name.is_relative_to(program_folder) for entry in members):
        return False
    return len(top_folders) == 1 and all(len(member.name.parts) > 1 for member in members)


def _read_commit_comment(archive: Path) -> str:
    """Return the comment in which `git archive` names the commit (git-archive(1))."""
    if archive.name.lower().endswith(".zip"):
        with zipfile.ZipFile(archive) as file:
            return file.comment.decode("ascii", "replace")
    with tarfile.open(archive) as file:
        return file.pax_headers.get("comment", "")


def _read_tar(archive: Path) -> Iterator[_Member]:
    with tarfile.open(archive) as file:
        for tar_info in file:
            name = PurePosixPath(tar_info.name)
            if tar_info.issym():
                yield _Member(name, b"", link=tar_info.linkname)
            elif tar_info.isreg() or tar_info.islnk():
                content = file.extractfile(tar_info)
                yield _Member(name, content.read() if content else b"", bool(tar_info.mode & 0o100))
            elif not tar_info.isdir():
                raise ValueError(f"{tar_info.name} is neither a file nor a folder")


def _read_zip(archive: Path) -> Iterator[_Member]:
    with zipfile.ZipFile(archive) as file:
        for zip_info in file.infolist():
            name, mode = PurePosixPath(zip_info.filename), zip_info.external_attr >> 16
            if zip_info.is_dir():
                continue
            content = file.read(zip_info)
            if stat.S_ISLNK(mode):
                yield _Member(name, b"", link=content.decode())
            else:
                yield _Member(name, content, bool(mode & 0o100))


def _refuse_outside(archive: Path, name: PurePosixPath, link: str) -> None:
    depth = 0
    for part in (*name.parent.parts, *PurePosixPath(link).parts) if link else name.parts:
        depth += -1 if part == ".." else 1
        if depth < 0 or part == "/":
            raise IncompleteError(
                f"{archive.name} has {name}, which leads out of its folder",
                hint="hpcbert does not unpack such an archive: check where it comes from.",
            )


def _write_member(path: Path, member: _Member) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if member.link:
        path.symlink_to(member.link)
        return
    path.write_bytes(member.content)
    path.chmod(0o755 if member.executable else 0o644)
