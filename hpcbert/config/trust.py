"""Whose files a command runs: the user's, root's, hpcbert's own, and those that the user trusts.

Reading needs no trust. What the user trusts is kept in their configuration: paths with their
owners, as of git's safe.directory. A path covers what the same owner has below it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from hpcbert.config import places
from hpcbert.errors import ConfigError, UsageError, describe_error
from hpcbert.system import files

# In place of a user's number: whoever owns a file.
_ANYBODY = -1


class TrustedPath(NamedTuple):
    """A path that the user trusts.

    Attributes:
        uid: The owner of what is trusted there; -1: anybody.
    """

    path: Path
    uid: int

    def covers(self, other: TrustedPath) -> bool:
        """Return whether another is at or below the path and its owner is trusted there."""
        return self.uid in {_ANYBODY, other.uid} and other.path.is_relative_to(self.path)


def trust_file(env: Mapping[str, str]) -> Path:
    """Return the file that remembers what the user trusts."""
    return places.config_home(env) / "hpcbert" / "trusted.json"


def read(path: Path) -> tuple[TrustedPath, ...]:
    """Read the paths that the user trusts; empty if the file does not exist.

    Raises:
        ConfigError: The file is damaged or unreadable, or belongs to somebody else, as when root
            has another user's HOME: it does not speak for this user.
    """
    try:
        if path.stat().st_uid != os.geteuid():
            message = f"It belongs to {files.user_name(path.stat().st_uid)}, not to you."
            raise ConfigError(message, where=str(path), hint="Set HOME or XDG_CONFIG_HOME.")
        entries = json.loads(files.read(path))
        return tuple(TrustedPath(Path(name), int(uid)) for name, uid in entries.items())
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, TypeError, AttributeError) as error:
        message, hint = f"Can't read it: {describe_error(error)}.", "Remove it, and trust again."
        raise ConfigError(message, where=str(path), hint=hint) from error


def write(path: Path, entries: Iterable[TrustedPath]) -> None:
    """Write what the user trusts."""
    with files.translate_errors("make the directory", path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({str(trusted_path): uid for trusted_path, uid in sorted(entries)}, indent=1)
    files.write_text(path, f"{text}\n")


def entries_at(path: Path) -> tuple[TrustedPath, ...]:
    """Return a path with its owner; if it is a link, its target too."""
    try:
        return tuple(TrustedPath(step, step.lstat().st_uid) for step in follow_links(path))
    except OSError as error:
        raise UsageError(f"Can't examine it: {error.strerror}.", where=str(path)) from error


def follow_links(path: Path) -> tuple[Path, ...]:
    """Return a path as it is and as its links lead, without links above the last component."""
    target = path.resolve()
    return (path.parent.resolve() / path.name, target) if path.is_symlink() else (target,)


def command_line_entries(
    site: Path | None, templates: Sequence[str | Path] = ()
) -> tuple[TrustedPath, ...]:
    """Return entries for the site.toml and folders of recipes that a command line names.

    Args:
        site: The named site.toml, which covers its owner's recipes next to it; None if hpcbert
            searched for it.
    """
    named = [*map(Path, templates), *([site] if site else [])]
    entries = [TrustedPath(place, _ANYBODY) for path in named for place in follow_links(path)]
    if site:
        entries.append(TrustedPath(site.parent.resolve(), site.stat().st_uid))
    return tuple(entries)


def refuse_untrusted(
    paths: Iterable[Path], extra_entries: Sequence[TrustedPath] = (), *, advice: str = ""
) -> None:
    """Refuse to run files of somebody else, and files that everybody can write to.

    Raises:
        UsageError: The user neither trusts nor names one; the hint has the command that does.
    """
    reasons = dict(doubt for path in paths for doubt in _find_doubts(path))
    doubts = _select_uncovered(reasons, extra_entries)
    doubts = _select_uncovered(doubts, read(trust_file(os.environ)) if doubts else ())
    if doubts:
        message = f"{reasons[doubts[0]]}: hpcbert does not run it."
        hint = _format_remedy(doubts, advice)
        raise UsageError(message, where=str(doubts[0].path), hint=hint)


def _select_uncovered(
    doubts: Iterable[TrustedPath], entries: Sequence[TrustedPath]
) -> list[TrustedPath]:
    return [doubt for doubt in doubts if not any(entry.covers(doubt) for entry in entries)]


def _find_doubts(path: Path) -> Iterator[tuple[TrustedPath, str]]:
    """Yield why a file, its folder if that is a link, or the target of either is not the user's."""
    with contextlib.suppress(OSError):  # Whoever reads a missing file reports it.
        target = path.resolve(strict=True)
        links = [step for step in (path.parent, path) if step.is_symlink()]
        if _is_own_file(target):
            return
        for place in (*(link.parent.resolve() / link.name for link in links), target):
            status = place.lstat()
            reason = files.explain_distrust(status)
            if reason:
                yield TrustedPath(place, status.st_uid), reason


def _is_own_file(target: Path) -> bool:
    """Return whether a file is part of hpcbert; who can change it can change this program."""
    return any(map(target.is_relative_to, _resolve_own_paths()))


@cache
def _resolve_own_paths() -> tuple[Path, ...]:
    paths = (Path(__file__).parent.parent, places.package_templates(), places.default_site())
    return tuple(path.resolve() for path in paths)


def _format_remedy(doubts: Sequence[TrustedPath], advice: str) -> str:
    """Return the command that trusts all files at once: folders that have their files' owner."""
    entries = dict.fromkeys(TrustedPath(_choose_path(doubt), doubt.uid) for doubt in doubts)
    paths = [
        str(entry.path)
        for entry in entries
        if not any(entry != other and other.covers(entry) for other in entries)
    ]
    if all(doubt.uid == os.geteuid() for doubt in doubts):
        names = dict.fromkeys(str(doubt.path) for doubt in doubts)
        advice = f"Close it: chmod o-w {shlex.join(names)}"
    remedy = f"you trust it: hpcbert trust {shlex.join(paths)}"
    return f"{advice}; or, if {remedy}" if advice else f"If {remedy}"


def _choose_path(doubt: TrustedPath) -> Path:
    folder = doubt.path.parent
    is_broad = folder in {folder.parent, Path(os.environ.get("HOME", "/"))}
    # Of somebody else's campaigns that one, not all of theirs.
    is_foreign_folder = doubt.path.is_dir() and doubt.uid != os.geteuid()
    if is_broad or is_foreign_folder or folder.stat().st_uid != doubt.uid:
        return doubt.path
    return folder
