"""Changes of a manifest, one line each, in a file next to it.

A submission records twice for each array: what it is about to do, and the result. Writing the whole
manifest each time would make a thousand points a thousand times slower than necessary, so changes
go to the end of `manifest.changes.jsonl`, each on disk before anything is done about it. When the
submission ends, they become part of the manifest and the file is removed. If the process is killed
before that, the next reader uses the file: its first line names the manifest that it continues, by
digest, so that it is never applied to another one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from hpcbert.errors import ConfigError, HpcbertError, UsageError
from hpcbert.model import MANIFEST, Array, Campaign
from hpcbert.system import files
from hpcbert.system.decode import decode

CHANGES = "manifest.changes.jsonl"
# Attempts to read a manifest that is just being rewritten.
_MAX_READS = 20


class Ledger:
    """The arrays of a campaign as they are submitted, and their changes on disk.

    Args:
        directory: The campaign; the caller holds its lock.
        rewrite: Writes the whole manifest, after which there are no changes next to it.
    """

    def __init__(
        self, directory: Path, campaign: Campaign, rewrite: Callable[[Path, Campaign], None]
    ) -> None:
        self.directory, self._base = directory, campaign
        self._arrays = {array.name: array for array in campaign.arrays}
        self._rewrite = partial(rewrite, directory)
        self._descriptor: int | None = None
        self._size = 0

    @property
    def campaign(self) -> Campaign:
        """The campaign with all changes."""
        return replace(self._base, arrays=tuple(self._arrays.values()))

    def put(self, *arrays: Array, flush: bool = True) -> None:
        """Record arrays, replacing those with the same names.

        Args:
            flush: Whether they survive a crash of the machine, not only of this process, when this
                returns. Otherwise they are flushed with the next change.

        Raises:
            HpcbertError: The file system refused; the old contents stay on disk.
        """
        self._append({"arrays": arrays}, flush=flush)
        self._arrays |= {array.name: array for array in arrays}

    def split(self, array: Array, parts: Sequence[Array]) -> None:
        """Record the parts that an array is divided into; the first part has its name."""
        self._append({"after": array.name, "arrays": parts})
        self._arrays = _insert_parts(self._arrays, array.name, parts)

    def close(self) -> None:
        """Make the changes part of the manifest.

        Raises:
            HpcbertError: The file system refused; the changes stay on disk.
        """
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            try:
                self._rewrite(self.campaign)
            except HpcbertError:
                with contextlib.suppress(OSError):
                    os.fsync(descriptor)
                raise
            finally:
                os.close(descriptor)

    def _append(self, change: dict[str, Any], *, flush: bool = True) -> None:
        path = self.directory / CHANGES
        with files.translate_errors("write", path):
            if self._descriptor is None:
                self._descriptor = self._open(path)
            line = _format_line(change).encode() + b"\n"
            try:
                _write_whole(self._descriptor, line)
                if flush:
                    os.fsync(self._descriptor)
            except OSError:
                # An incomplete line would spoil the line after it.
                with contextlib.suppress(OSError):
                    os.ftruncate(self._descriptor, self._size)
                raise
            self._size += len(line)

    def _open(self, path: Path) -> int:
        if path.exists():  # A process was killed; its changes are part of the campaign.
            self._rewrite(self.campaign)
        manifest = files.read(self.directory / MANIFEST)
        head = {"continues": hashlib.sha256(manifest).hexdigest()}
        files.write_bytes(path, json.dumps(head).encode() + b"\n")
        self._size = path.stat().st_size
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)


def format_manifest(schema: int, campaign: Campaign) -> str:
    """Return a manifest: a line for each of its keys, and one for each array.

    json's own indentation is ten times as slow.
    """
    values = {"schema": schema, **_field_values(campaign)}
    arrays = ",\n  ".join(map(_format_line, values.pop("arrays")))
    head = "".join(f' "{name}": {_format_line(value)},\n' for name, value in values.items())
    return f'{{\n{head} "arrays": [\n  {arrays}\n ]\n}}\n'


def _format_line(value: object) -> str:
    """Return a value as JSON in one line."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_field_values)


def _field_values(instance: Any) -> dict[str, Any]:
    """Return a data class's values by name; `asdict` would copy their contents too."""
    return {field.name: getattr(instance, field.name) for field in fields(instance)}


def _write_whole(descriptor: int, line: bytes) -> None:
    remaining = memoryview(line)
    while remaining:
        remaining = remaining[os.write(descriptor, remaining) :]


def remove(directory: Path) -> None:
    """Remove the changes of a manifest that holds them all."""
    with contextlib.suppress(FileNotFoundError):
        (directory / CHANGES).unlink()


def read(directory: Path) -> tuple[bytes, tuple[dict[str, Any], ...]]:
    """Return the manifest's bytes and the changes that continue it, from the same moment.

    Raises:
        OSError: The manifest can't be read.
        UsageError: The changes are damaged.
    """
    path = directory / MANIFEST
    manifest = changes = b""
    for _ in range(_MAX_READS):
        status_before = path.stat()
        manifest, changes = files.read(path), _read_bytes(directory / CHANGES)
        status_after = path.stat()
        # Rewritten meanwhile: changes may be gone that were not yet in what was read.
        if (status_before.st_ino, status_before.st_mtime_ns) == (
            status_after.st_ino,
            status_after.st_mtime_ns,
        ):
            break
    lines = changes.split(b"\n")[:-1]  # A line without an end was never written.
    head, *later_changes = [_parse_change(line, directory / CHANGES) for line in lines] or [{}]
    if head.get("continues") != hashlib.sha256(manifest).hexdigest():
        return manifest, ()
    return manifest, tuple(later_changes)


def _read_bytes(path: Path) -> bytes:
    try:
        return files.read(path)
    except FileNotFoundError:
        return b""


def parse_json(raw: bytes, path: Path) -> Any:
    """Return the contents of a JSON text.

    Raises:
        UsageError: It is not valid JSON.
    """
    try:
        return json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"The file is not valid JSON: {error}.", where=str(path)) from error


def _parse_change(line: bytes, path: Path) -> dict[str, Any]:
    change = parse_json(line, path)
    if isinstance(change, dict) and ("continues" in change or "arrays" in change):
        return change
    raise UsageError("A line of the file is not a change of a manifest.", where=str(path))


def apply_changes(campaign: Campaign, changes: Iterable[dict[str, Any]], *, file: str) -> Campaign:
    """Return a campaign with changes applied.

    Raises:
        ConfigError: A change has another form.
    """
    arrays = {array.name: array for array in campaign.arrays}
    for change in changes:
        parts: tuple[Array, ...] = decode(tuple[Array, ...], change["arrays"], file=file)
        after = change.get("after")
        if after is not None and after not in arrays:
            raise ConfigError(f"the manifest has no array {after!r}", where=file)
        new_arrays = {array.name: array for array in parts}
        arrays = (
            _insert_parts(arrays, str(after), parts) if after is not None else arrays | new_arrays
        )
    return replace(campaign, arrays=tuple(arrays.values()))


def _insert_parts(arrays: dict[str, Array], name: str, parts: Sequence[Array]) -> dict[str, Array]:
    arrays_by_name: dict[str, Array] = {}
    for array in arrays.values():
        arrays_by_name |= (
            {part.name: part for part in parts} if array.name == name else {array.name: array}
        )
    return arrays_by_name
