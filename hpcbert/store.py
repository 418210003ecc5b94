"""A campaign directory: where things are, the manifest, atomic writes, the lock.

Everything is plain JSON or text under one directory, so that a copy of it on a laptop is enough
to collect again. Writing goes to a temporary name in the same directory, is flushed to disk and
renamed: a reader sees the old file or the new one, on NFS too. The directory and what is written
into it are their owner's alone.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import secrets
import socket
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcbert import regular
from hpcbert.errors import HpcbertError, UsageError
from hpcbert.model import Array, Campaign, Material, Point, Protocol, Shape, read_events
from hpcbert.strict import misfit

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA = 1
MANIFEST = "manifest.json"
RECIPE = "recipe.toml"
SAMPLE = "sample.log"
LOCK = "lock"
# Bytes of a status file: thousands of attempts have room in it.
_STATUS_MOST = 1 << 22


_PRIVATE = 0o600
_REMEDIES = {
    errno.ENOSPC: "Make room on the file system",
    errno.EDQUOT: "Make room: your quota is used up",
    errno.EROFS: "The file system has to be writable",
    errno.ENOENT: "Its directory has vanished; bring it back",
    errno.ESTALE: "Its directory has vanished from the file server; bring it back",
}


def _remedy(error: OSError) -> str:
    remedy = _REMEDIES.get(error.errno or 0, "Make room or mend permissions")
    return f"Nothing that was there before is lost. {remedy}, then repeat."


def write_text(path: Path, text: str, *, mode: int = _PRIVATE) -> None:
    """Write a text as `write_bytes` does, in UTF-8."""
    write_bytes(path, text.encode("utf-8"), mode=mode)


def write_bytes(path: Path, content: bytes, *, mode: int = _PRIVATE) -> None:
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
        _write_through(temporary, content, mode)
        temporary.replace(path)
        _flush_directory(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise HpcbertError(
            f"Can't write: {error.strerror}.", where=str(path), hint=_remedy(error)
        ) from error


def _write_through(path: Path, content: bytes, mode: int) -> None:
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


def write_json(path: Path, data: Any) -> None:
    """Write one JSON document as `write_bytes` does."""
    write_text(path, json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read one JSON document.

    Raises:
        UsageError: The file is absent, unreadable or no JSON.
    """
    try:
        return json.loads(regular.read(path).decode("utf-8"))
    except OSError as error:
        raise UsageError(f"Can't read: {error.strerror}.", where=str(path)) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"No valid JSON: {error}.", where=str(path)) from error


def create(directory: Path) -> None:
    """Make a new campaign directory with its folders, readable by its owner only.

    Raises:
        HpcbertError: It exists already or can't be made.
    """
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(mode=0o700)
        for name in ("scripts", "slurm", "logs", "status"):
            (directory / name).mkdir(mode=0o700)
    except OSError as error:
        raise HpcbertError(
            f"Can't make the campaign directory: {error.strerror}.",
            where=str(directory),
            hint="Choose another place with --runs, or mend permissions.",
        ) from error


def write_manifest(directory: Path, campaign: Campaign) -> None:
    """Write manifest.json."""
    write_json(directory / MANIFEST, {"schema": SCHEMA, **asdict(campaign)})


def read_manifest(directory: Path) -> Campaign:
    """Read manifest.json.

    Raises:
        UsageError: There is none, it is damaged, or a newer hpcbert wrote it.
    """
    path = directory / MANIFEST
    data = read_json(path)
    schema = data.pop("schema", None) if isinstance(data, dict) else None
    if schema != SCHEMA:
        raise UsageError(
            f"The manifest has schema {schema}, this hpcbert reads {SCHEMA}.",
            where=str(path),
            hint="Use the version of hpcbert that wrote it, or a newer one.",
        )
    try:
        campaign = _campaign(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"The manifest is damaged: {error!r}.", where=str(path)) from error
    wrong = misfit(campaign, Campaign)
    if wrong:
        raise UsageError(f"The manifest is damaged: {wrong} is not what it was.", where=str(path))
    return campaign


def _campaign(data: dict[str, Any]) -> Campaign:
    arrays = tuple(_array(one) for one in data["arrays"])
    protocol = Protocol(**data["protocol"])
    values = {**data, "arrays": arrays, "protocol": protocol, "command": tuple(data["command"])}
    values["materials"] = tuple(Material(**one) for one in data.get("materials", ()))
    return Campaign(**values)


def _array(data: dict[str, Any]) -> Array:
    raw = data["point"]
    options = tuple((name, value) for name, value in raw["options"])
    point = Point(**{**raw, "shape": Shape(**raw["shape"]), "options": options})
    pairs = {name: tuple(map(tuple, data.get(name, ()))) for name in ("excluded", "why")}
    return Array(**{**data, **pairs, "point": point, "repeats": tuple(data["repeats"])})


def update_array(campaign: Campaign, array: Array) -> Campaign:
    """Return the campaign with the array of the same name replaced."""
    arrays = tuple(array if one.name == array.name else one for one in campaign.arrays)
    return replace(campaign, arrays=arrays)


def find_campaigns(runs: Path) -> tuple[Path, ...]:
    """Return the campaign directories under a runs directory, oldest first, as absolute paths."""
    return tuple(sorted(path.parent for path in runs.absolute().glob(f"*/{MANIFEST}")))


def resolve(name: str, runs: Path) -> Path:
    """Return the campaign that a person means: a path, an id, or the start or end of an id.

    The path is absolute: sbatch is run in the campaign, where a relative one leads nowhere.

    Raises:
        UsageError: None is meant, or several are.
    """
    for path in (Path(name), runs / name):
        if (path / MANIFEST).is_file():
            return path.absolute()
    found = [path for path in find_campaigns(runs) if name in path.name]
    if len(found) == 1:
        return found[0]
    meant = ", ".join(path.name for path in found[-3:])
    raise UsageError(
        f"{name!r} could be {meant}." if found else f"There is no campaign {name!r}.",
        where=str(runs),
        hint="Name a campaign's directory or its id; `hpcbert monitor --once` lists them.",
    )


def log_path(directory: Path, array: Array, repeat: int, attempt: int = 0) -> Path:
    """Return where the log of one attempt of one repeat is, or would be."""
    path = directory / array.log.replace("{repeat}", str(repeat))
    return path.with_name(f"{path.stem}.r{attempt}.log") if attempt else path


def read_script(directory: Path, array: Array) -> bytes:
    """Return an array's script as it was rendered.

    Raises:
        UsageError: It is no longer what the manifest says was rendered.
    """
    path = directory / array.script
    raw = path.read_bytes() if path.is_file() else b""
    if hashlib.sha256(raw).hexdigest() != array.script_sha256:
        raise UsageError(
            "The script is not the one that was rendered for this campaign.",
            where=str(path),
            hint="Submit anew, so that manifest and script agree.",
        )
    return raw


def status_path(directory: Path, array: Array, repeat: int) -> Path:
    """Return where the job writes what happens to one repeat, a JSON object a line."""
    return directory / array.status(repeat)


def read_status(directory: Path, array: Array, repeat: int) -> tuple[dict[str, Any], ...]:
    """Return the events that the job itself recorded for one repeat, oldest first."""
    try:
        return read_events(regular.read(status_path(directory, array, repeat), most=_STATUS_MOST))
    except OSError:
        return ()


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the campaign for one writer.

    The lock is a file that comes into being whole, by `link`, which NFS keeps atomic. It names its
    holder; a lock whose holder ran on this host and is gone is taken over.

    Raises:
        UsageError: Somebody else is working on this campaign.
        HpcbertError: The directory can't be written to.
    """
    path = directory / LOCK
    holder = f"{socket.gethostname()} {os.getpid()} {_born(str(os.getpid()))}\n"
    if not _take(path, holder):
        _refuse_if_alive(path)
        _take_over(path, holder)
    try:
        yield
    finally:
        # Where that fails now, the lock of a process that is gone is taken over later.
        with contextlib.suppress(OSError):
            path.unlink()


def _take(path: Path, holder: str) -> bool:
    """Make the lock, holder and all; say whether it was free."""
    own = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        _write_through(own, holder.encode(), _PRIVATE)
        _link(own, path)
    except FileExistsError:
        return False
    except OSError as error:
        raise HpcbertError(
            f"Can't lock the campaign: {error.strerror}.", where=str(path), hint=_remedy(error)
        ) from error
    finally:
        with contextlib.suppress(OSError):
            own.unlink()
    return True


def _link(own: Path, path: Path) -> None:
    try:
        os.link(own, path)
    except OSError as error:
        if error.errno not in {errno.EPERM, errno.ENOTSUP, errno.ENOSYS}:
            raise
        # No hard links here: make it in place. Who is killed between the two leaves it empty.
        _write_through(path, own.read_bytes(), _PRIVATE)


def _take_over(path: Path, holder: str) -> None:
    """Replace the lock of a holder that is gone; of several who try, one gets it."""
    with (path.with_name(f".{path.name}.takeover")).open("w") as file:
        # The kernel lets go of this one when its holder dies, however that happens.
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        while True:
            _refuse_if_alive(path)
            path.unlink(missing_ok=True)
            if _take(path, holder):
                return


def _refuse_if_alive(path: Path) -> None:
    try:
        host, pid, born = (*path.read_text().split(), "", "", "")[:3]
    except FileNotFoundError:
        return
    now = _born(pid)
    gone = host == socket.gethostname() and (not now or bool(born and now != born))
    if not gone:
        raise UsageError(
            f"Process {pid or '?'} on {host or 'an unknown host'} is working on this campaign.",
            where=str(path),
            hint=f"Wait for it. If it is gone for certain, remove {path}.",
        )


def _born(pid: str) -> str:
    """Return when a living process was started, in clock ticks since boot: ids are used again."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()
    return "" if fields[0] in {"Z", "X"} else fields[19]
