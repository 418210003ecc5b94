"""Writing a file so that a reader sees the old one or the new one, and a crash leaves one of them.

Writing goes to a temporary name in the same directory, is flushed to disk and renamed, which NFS
keeps atomic too.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from typing import TYPE_CHECKING

from hpcbert import errors
from hpcbert.errors import HpcbertError

if TYPE_CHECKING:
    from pathlib import Path

PRIVATE = 0o600


def remedy(error: OSError) -> str:
    """Return what helps against an error of the file system, for a hint."""
    what = errors.remedy(error) or "Make room or mend permissions"
    if error.errno == errno.ENOENT:
        what = "Its directory has vanished; bring it back"
    return f"Nothing that was there before is lost. {what}, then repeat."


def write_text(path: Path, text: str, *, mode: int = PRIVATE) -> None:
    """Write a text as `write_bytes` does, in UTF-8."""
    write_bytes(path, text.encode("utf-8"), mode=mode)


def write_bytes(path: Path, content: bytes, *, mode: int = PRIVATE) -> None:
    """Write a file so that it is there whole or not at all, and survives a crash once there.

    Args:
        path: The file.
        content: What it shall hold.
        mode: Its permissions, less the umask's.

    Raises:
        HpcbertError: The file system refused: full, read-only, gone or out of quota. A file
            that was there before is untouched.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        write_through(temporary, content, mode)
        temporary.replace(path)
        _flush_directory(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise HpcbertError(
            f"Can't write: {error.strerror}.", where=str(path), hint=remedy(error)
        ) from error


def write_through(path: Path, content: bytes, mode: int) -> None:
    """Write a new file down to the disk, without another name before.

    Raises:
        OSError: It exists, or the file system refused.
    """
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _flush_directory(path: Path) -> None:
    """Make a rename last; file systems that can't, which give EINVAL, need not."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOTSUP, errno.EBADF}:
            raise
    finally:
        os.close(descriptor)
