"""The common base of all parts of preparation: context, results, records."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hpcbert.campaign import store
from hpcbert.script.materials import SCHEMA
from hpcbert.system.files import translate_errors
from hpcbert.system.lock import hold_lock
from hpcbert.system.runner import Outcome, Runner

Kind = Literal["source", "environment", "image", "data"]
Status = Literal["ready", "done", "planned", "skipped", "failed"]
_URL_USER = re.compile(r"(?<=://)[^/@\s]*@")


@dataclass(frozen=True)
class Part:
    """The result of one part of preparing a framework.

    Attributes:
        framework, kind: What was prepared; `prepare` sets them.
        status: `ready` it existed before, `done` it exists now, `planned` it would be made,
            `skipped` the framework does not need it here, `failed`.
        digest: The same as in `hpcbert.model.Material`.
    """

    framework: str = field(default="", kw_only=True)
    kind: Kind = field(default="source", kw_only=True)
    status: Status
    detail: str
    path: str = ""
    digest: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Context:
    """The means and settings of preparation.

    Attributes:
        follow: Runs commands that take long.
        python: Interpreter to make virtual environments with; empty to search for one.
        settings: `--set NAME=VALUE`, unread: options to make or check data for.
    """

    run: Runner
    follow: Callable[..., Outcome]
    say: Callable[[str], None]
    env: Mapping[str, str] = field(repr=False)
    dry: bool = False
    python: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)


def without_user(url: str) -> str:
    """Return a URL without its user and password."""
    return _URL_USER.sub("", url)


def write_record(path: Path, content: Mapping[str, Any]) -> None:
    """Write a record whole or not at all, readable by the site's users."""
    text = json.dumps({"schema": SCHEMA, **content}, indent=1, ensure_ascii=False) + "\n"
    store.write_text(path, text, mode=0o644)


def make_directory(path: Path) -> None:
    """Make a directory that is shared."""
    hint = "Fix the permissions, or name another directory."
    with translate_errors("make the directory", path, hint=hint):
        path.mkdir(parents=True, exist_ok=True)


@contextmanager
def make_alone(directory: Path, subject: str, record: Path | None = None) -> Iterator[None]:
    """Lock a directory that is to be made, removed before and if it fails: nothing half stays.

    Args:
        subject: What it holds, for whoever makes the same at this moment.
        record: What says that it is complete: of an earlier one, it would say so of a half.

    Raises:
        UsageError: Another process is making it.
    """
    make_directory(directory.parent)
    with hold_lock(directory.parent, subject, f".{directory.name}.lock"):
        if record:
            with translate_errors("remove", record):
                record.unlink(missing_ok=True)
        remove_directory(directory)
        try:
            yield
        except BaseException:
            remove_directory(directory)
            raise


def remove_directory(directory: Path) -> None:
    """Remove a directory, if it exists."""
    if directory.exists():
        with translate_errors("remove", directory):
            shutil.rmtree(directory)
