"""A campaign directory: where things are, the manifest, atomic writes, the lock.

Everything is plain JSON or text under one directory, so that a copy of it on a laptop is enough
to collect again. Writing goes to a temporary name in the same directory, is flushed to disk and
renamed: a reader sees the old file or the new one, on NFS too.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcbert.errors import HpcbertError, UsageError
from hpcbert.model import Array, Campaign, Point, Protocol, Shape, read_events

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA = 1
MANIFEST = "manifest.json"
RECIPE = "recipe.toml"
SAMPLE = "sample.log"
LOCK = "lock"


def write_text(path: Path, text: str) -> None:
    """Write a text as `write_bytes` does, in UTF-8."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file so that it is there whole or not at all, and survives a crash once there.

    Raises:
        HpcbertError: The file system refused: full, read-only, gone or out of quota. A file
            that was there before is untouched.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise HpcbertError(
            f"Can't write: {error.strerror}.",
            where=str(path),
            hint="Nothing that was there before is lost. Make room or mend permissions, repeat.",
        ) from error


def write_json(path: Path, data: Any) -> None:
    """Write one JSON document as `write_bytes` does."""
    write_text(path, json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read one JSON document.

    Raises:
        UsageError: The file is absent, unreadable or no JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"Can't read: {error.strerror}.", where=str(path)) from error
    except ValueError as error:
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
            (directory / name).mkdir()
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
        return _campaign(data)
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"The manifest is damaged: {error!r}.", where=str(path)) from error


def _campaign(data: dict[str, Any]) -> Campaign:
    arrays = tuple(_array(one) for one in data["arrays"])
    protocol = Protocol(**data["protocol"])
    values = {**data, "arrays": arrays, "protocol": protocol, "command": tuple(data["command"])}
    return Campaign(**values)


def _array(data: dict[str, Any]) -> Array:
    raw = data["point"]
    options = tuple((name, value) for name, value in raw["options"])
    point = Point(**{**raw, "shape": Shape(**raw["shape"]), "options": options})
    return Array(**{**data, "point": point, "repeats": tuple(data["repeats"])})


def update_array(campaign: Campaign, array: Array) -> Campaign:
    """Return the campaign with the array of the same name replaced."""
    arrays = tuple(array if one.name == array.name else one for one in campaign.arrays)
    return replace(campaign, arrays=arrays)


def find_campaigns(runs: Path) -> tuple[Path, ...]:
    """Return the campaign directories under a runs directory, oldest first."""
    return tuple(sorted(path.parent for path in runs.glob(f"*/{MANIFEST}")))


def resolve(name: str, runs: Path) -> Path:
    """Return the campaign that a person means: a path, an id, or the start or end of an id.

    Raises:
        UsageError: None is meant, or several are.
    """
    for path in (Path(name), runs / name):
        if (path / MANIFEST).is_file():
            return path
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


def status_path(directory: Path, array: Array, repeat: int) -> Path:
    """Return where the job writes what happens to one repeat, a JSON object a line."""
    return directory / array.status(repeat)


def read_status(directory: Path, array: Array, repeat: int) -> tuple[dict[str, Any], ...]:
    """Return the events that the job itself recorded for one repeat, oldest first."""
    try:
        return read_events(status_path(directory, array, repeat).read_bytes())
    except OSError:
        return ()


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the campaign for one writer.

    The lock is a file made with O_EXCL, which NFS keeps atomic. It names its holder; a lock whose
    holder ran on this host and is gone is taken over.

    Raises:
        UsageError: Somebody else is working on this campaign.
    """
    path = directory / LOCK
    holder = f"{socket.gethostname()} {os.getpid()}\n"
    try:
        _take(path, holder)
    except FileExistsError:
        _refuse_if_alive(path)
        path.unlink(missing_ok=True)
        _take(path, holder)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _take(path: Path, holder: str) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(holder)


def _refuse_if_alive(path: Path) -> None:
    host, _, pid = path.read_text().strip().partition(" ")
    gone = host == socket.gethostname() and not Path(f"/proc/{pid}").exists()
    if not gone:
        raise UsageError(
            f"Process {pid or '?'} on {host or 'an unknown host'} is working on this campaign.",
            where=str(path),
            hint=f"Wait for it. If it is gone for certain, remove {path}.",
        )
