"""Reading a file that may turn out to be something else: a pipe, a device, a terabyte.

A campaign directory is shared, copied and mended by hand. Whatever stands where a file should be is
answered at once and in bounded memory.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from pathlib import Path

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
        OSError: It is missing, unreadable, or no regular file; strerror says which.
    """
    # Looked at before it is opened, for to open a device may do something already.
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


def _refuse_irregular(status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    kind = next((name for test, name in _KINDS if test(status.st_mode)), "it is a device or socket")
    raise OSError(errno.EINVAL, f"{kind}, not a file")
