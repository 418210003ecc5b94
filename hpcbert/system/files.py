"""Reading files that may not be what they seem, and writing files that a crash can't truncate.

A campaign directory is shared, copied and edited by hand. Instead of a file there may be a pipe, a
device or a terabyte: each is refused at once, in bounded memory.

Writing goes to a temporary name in the same directory, is flushed to disk and renamed, which NFS
keeps atomic too.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import hashlib
import os
import pwd
import stat
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from hpcbert import errors
from hpcbert.errors import HpcbertError

_MOUNTS = Path("/proc/self/mountinfo")
# Permissions of new files, less the umask's.
_MODE = 0o666
_NEW = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
# The size of the largest file that is read whole, bytes.
MAX_BYTES = 1 << 26
_BLOCK = 1 << 20


def open_file(path: Path, *, follow: bool = True) -> tuple[int, int]:
    """Open a regular file for reading; return its descriptor and its size.

    Args:
        follow: Whether it may be a link to a file.

    Raises:
        OSError: It is missing, unreadable, or not a regular file; strerror says which.
    """
    # Checked before it is opened: opening a device can have an effect.
    _refuse_irregular(os.stat(path, follow_symlinks=follow))  # noqa: PTH116 - half the time
    links = 0 if follow else os.O_NOFOLLOW
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | links)
    status = os.fstat(descriptor)
    try:
        _refuse_irregular(status)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor, status.st_size


def read(path: Path, *, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the content of a regular file."""
    descriptor, _ = open_file(path)
    with os.fdopen(descriptor, "rb") as file:
        return read_open(file, path, max_bytes=max_bytes)


def read_open(file: BinaryIO, path: Path, *, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the content of an open regular file."""
    size = os.fstat(file.fileno()).st_size
    content = file.read(max_bytes + 1) if size <= max_bytes else b""
    if size > max_bytes or len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"it has more than {max_bytes >> 20} MiB", str(path))
    return content


def hash_file(path: Path) -> tuple[int, str]:
    """Return the size of a regular file of any length, and its SHA-256, hexadecimal."""
    size, digest = 0, hashlib.sha256()
    descriptor, _ = open_file(path)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            size += len(block)
    return size, digest.hexdigest()


def suggest_remedy(error: OSError) -> str:
    """Return a remedy for an error of the file system, for a hint."""
    advice = errors.find_remedy(error) or "Free some space or fix the permissions"
    if error.errno == errno.ENOENT:
        advice = "Its directory has vanished; restore it"
    return f"Existing files are unchanged. {advice}, then run the command again."


@contextlib.contextmanager
def translate_errors(action: str, path: Path, *, hint: str | None = None) -> Iterator[None]:
    """Turn an error of the file system into one of hpcbert: `Can't …: Permission denied.`."""
    try:
        yield
    except OSError as error:
        message = f"Can't {action}: {error.strerror}."
        hint = suggest_remedy(error) if hint is None else hint
        raise HpcbertError(message, where=str(path), hint=hint) from error


def find_mounts_below(root: Path) -> Iterator[str]:
    """Yield the mount points in a directory, itself included; a removal would follow them."""
    for line in _MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines():
        # Field 5 is the mount point, blanks and backslashes in octal (proc(5)).
        mount_point = Path(line.split()[4].encode().decode("unicode_escape"))
        if mount_point.is_relative_to(root.resolve()):
            yield str(mount_point)


def write_text(path: Path, text: str, *, mode: int = _MODE) -> None:
    """Write a text in UTF-8, as `write_bytes` does; half of a character as JSON's escape."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"), mode=mode)


def temporary_for(path: Path) -> Path:
    """Return a unique name for a file until it is whole."""
    return path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")


def size_of(path: Path) -> int:
    """Return the size of a file in bytes; 0 if it does not exist."""
    try:
        return os.stat(path).st_size  # noqa: PTH116 - half the time
    except OSError:
        return 0


def write_bytes(path: Path, content: bytes, *, mode: int = _MODE) -> None:
    """Write a file whole or not at all, so that afterwards it survives a crash."""
    temporary = temporary_for(path)
    with translate_errors("write", path):
        try:
            write_through(temporary, content, mode)
            temporary.replace(path)
            _flush_directory(path.parent)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise


def write_new(contents: Mapping[Path, bytes]) -> None:
    """Write files before any process looks for them: when this returns, all survive a crash.

    Each is flushed after all are written, so that the file system writes them together.

    Args:
        contents: The whole content of each file. Their directories exist, the files do not.

    Raises:
        HpcbertError: The file system refused; some files may exist, whole or in part.
    """
    for path, content in contents.items():
        with translate_errors("write", path), os.fdopen(os.open(path, _NEW, _MODE), "wb") as file:
            file.write(content)
    for path in contents:
        with translate_errors("write", path):
            _flush(path, os.O_RDONLY)
    for folder in dict.fromkeys(path.parent for path in contents):
        with translate_errors("write", folder):
            _flush_directory(folder)


def write_through(path: Path, content: bytes, mode: int = _MODE) -> None:
    """Write a new file and flush it to the disk, or remove it if that fails."""
    descriptor = os.open(path, _NEW, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        path.unlink(missing_ok=True)
        raise


def _refuse_irregular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")


def _flush_directory(path: Path) -> None:
    """Flush a rename to the disk; ignore file systems that can't and return EINVAL."""
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


_ROOT = 0


def user_name(uid: int) -> str:
    """Return the login name of a user, or their number if it is unknown."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def is_in_any_group(groups: Collection[str]) -> bool:
    """Return whether this process is in one of the groups; root is in all.

    Each group is looked up by its number: name services often list none (sssd.conf(5), enumerate).
    """
    return os.geteuid() == _ROOT or any(map(_is_in_group, groups))


def _is_in_group(group: str) -> bool:
    try:
        return grp.getgrnam(group).gr_gid in {*os.getgroups(), os.getegid()}
    except KeyError:
        return False


def find_foreign_owner(path: Path) -> str:
    """Return the owner of a file or directory; empty if it is the user's own.

    If it is a link, its owner matters too: that user chose the target.
    """
    uids = (path.lstat().st_uid, path.stat().st_uid)
    return next((user_name(uid) for uid in uids if uid != os.geteuid()), "")


def explain_distrust(status: os.stat_result) -> str:
    """Return a reason to look at a file before running it; empty if it can be trusted.

    Files of the user and of root are theirs to run, unless everybody can write to them. A group is
    trusted with what it may write to, and so is a user whom an ACL names (acl(5)). In a directory
    with the sticky bit, others can't change files that are not theirs.
    """
    if status.st_uid not in {os.geteuid(), _ROOT}:
        return f"It belongs to {user_name(status.st_uid)}"
    return "It can be changed by everybody" if is_world_writable(status) else ""


def is_world_writable(status: os.stat_result) -> bool:
    """Return whether everybody can change a file, or replace files in a directory."""
    sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    # All bits of a link are set, and have no meaning.
    return bool(status.st_mode & stat.S_IWOTH) and not sticky and not stat.S_ISLNK(status.st_mode)
