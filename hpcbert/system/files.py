"""Reading a file that may turn out to be something else, and writing one that a crash can't halve.

A campaign directory is shared, copied and edited by hand. Whatever stands where a file should be, a
pipe, a device, a terabyte, is answered at once and in bounded memory.

Writing goes to a temporary name in the same directory, is flushed to disk and renamed, which NFS
keeps atomic too.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING, BinaryIO

from hpcbert import errors
from hpcbert.errors import HpcbertError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

# Permissions of what is its owner's alone.
PRIVATE = 0o600
_NEW = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
# Bytes of the largest file that is read whole.
MOST = 1 << 26
_KINDS = (
    (stat.S_ISDIR, "it is a directory"),
    (stat.S_ISFIFO, "it is a pipe"),
    (stat.S_ISLNK, "it is a link"),
)


def open_file(path: Path, *, follow: bool = True) -> tuple[int, int]:
    """Open a regular file for reading; return its descriptor and its size.

    Args:
        path: The file.
        follow: Whether it may be reached by a link in its place.

    Raises:
        OSError: It is missing, unreadable, or not a regular file; strerror says which.
    """
    # Looked at before it is opened: opening a device may already do something.
    _refuse_irregular(path.stat(follow_symlinks=follow))
    links = 0 if follow else os.O_NOFOLLOW
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | links)
    status = os.fstat(descriptor)
    try:
        _refuse_irregular(status)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor, status.st_size


def read(path: Path, *, most: int = MOST) -> bytes:
    """Return the content of a regular file.

    Args:
        path: The file.
        most: Bytes above which it is not what it is taken for.

    Raises:
        OSError: As `open_file`, or it is larger.
    """
    descriptor, _ = open_file(path)
    with os.fdopen(descriptor, "rb") as file:
        return read_open(file, path, most=most)


def read_open(file: BinaryIO, path: Path, *, most: int = MOST) -> bytes:
    """Return the content of an open regular file.

    Args:
        file: The file.
        path: Its name, for the error.
        most: As of `read`.

    Raises:
        OSError: It is larger.
    """
    size = os.fstat(file.fileno()).st_size
    content = file.read(most + 1) if size <= most else b""
    if size > most or len(content) > most:
        raise OSError(errno.EFBIG, f"it has more than {most >> 20} MiB", str(path))
    return content


def remedy(error: OSError) -> str:
    """Return a remedy for an error of the file system, for a hint."""
    what = errors.remedy(error) or "Free some space or fix the permissions"
    if error.errno == errno.ENOENT:
        what = "Its directory has vanished; restore it"
    return f"Existing files are unchanged. {what}, then run the command again."


@contextlib.contextmanager
def refusal(what: str, where: Path, *, hint: str | None = None) -> Iterator[None]:
    """Turn a refusal of the file system into an error: `Can't …: Permission denied.`.

    Args:
        what: What is tried, for the message.
        where: The file or directory, for the message.
        hint: What to do about it; by default what helps against any such error.

    Raises:
        HpcbertError: It refused.
    """
    try:
        yield
    except OSError as error:
        raise HpcbertError(
            f"Can't {what}: {error.strerror}.",
            where=str(where),
            hint=remedy(error) if hint is None else hint,
        ) from error


def write_text(path: Path, text: str, *, mode: int = PRIVATE) -> None:
    """Write a text as `write_bytes` does, in UTF-8."""
    write_bytes(path, text.encode("utf-8"), mode=mode)


def temporary_for(path: Path) -> Path:
    """Return a file's name until it is whole, which nobody else uses."""
    return path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")


def leftovers(path: Path) -> list[Path]:
    """Return the files that killed processes left incomplete."""
    return list(path.parent.glob(f".{path.name}.*.tmp"))


def size_of(path: Path) -> int:
    """Return the size of a file in bytes; 0 if it does not exist."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def write_bytes(path: Path, content: bytes, *, mode: int = PRIVATE) -> None:
    """Write a file whole or not at all, so that it then survives a crash.

    Args:
        path: The file.
        content: All of it.
        mode: Its permissions, less the umask's.

    Raises:
        HpcbertError: The file system refused: full, read-only, gone or out of quota. A file
            that was there before is untouched.
    """
    temporary = temporary_for(path)
    with refusal("write", path):
        try:
            write_through(temporary, content, mode)
            temporary.replace(path)
            _flush_directory(path.parent)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise


def write_new(contents: Mapping[Path, bytes]) -> None:
    """Write files where no process looks for any yet: when this returns, all survive a crash.

    Each is flushed after all are written, for then the file system writes them down together.

    Args:
        contents: Of each file, all of it. Their directories are there, the files are not.

    Raises:
        HpcbertError: The file system refused; some may be there, whole or in part.
    """
    for path, content in contents.items():
        with refusal("write", path), os.fdopen(os.open(path, _NEW, PRIVATE), "wb") as file:
            file.write(content)
    for path in contents:
        with refusal("write", path):
            _flush(path, os.O_RDONLY)
    for folder in dict.fromkeys(path.parent for path in contents):
        with refusal("write", folder):
            _flush_directory(folder)


def write_through(path: Path, content: bytes, mode: int) -> None:
    """Write a new file down to the disk, without another name before.

    Raises:
        OSError: It exists, or the file system refused.
    """
    descriptor = os.open(path, _NEW, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _refuse_irregular(status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    kind = next((name for test, name in _KINDS if test(status.st_mode)), "it is a device or socket")
    raise OSError(errno.EINVAL, f"{kind}, not a file")


def _flush_directory(path: Path) -> None:
    """Make a rename last; file systems that can't, which give EINVAL, need not."""
    try:
        _flush(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOTSUP, errno.EBADF}:
            raise


def _flush(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
