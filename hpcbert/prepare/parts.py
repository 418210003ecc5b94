"""What the parts of preparing share: what they are given, what they say, what they write down."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from hpcbert.campaign import store
from hpcbert.script.prepared import SCHEMA
from hpcbert.system.files import refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from hpcbert.system.runner import Follower, Runner

Kind = Literal["source", "environment", "image", "data"]
Status = Literal["ready", "done", "planned", "skipped", "failed"]
_USER = re.compile(r"(?<=://)[^/@\s]*@")


@dataclass(frozen=True)
class Part:
    """What became of one part of preparing a framework.

    Attributes:
        status: `ready` it was there, `done` it is now, `planned` it would be made, `skipped` the
            framework needs none here, `failed`.
        detail: A sentence or a name.
        path: Where it lies, once it does.
        digest: As `hpcbert.model.Material` has it.
        hint: What to do about a failure.
    """

    framework: str
    kind: Kind
    status: Status
    detail: str
    path: str = ""
    digest: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Context:
    """What preparing works with.

    Attributes:
        run: For commands that answer at once.
        follow: For those that take long.
        say: Takes a line of progress.
        env: The environment for both.
        dry: Whether nothing may be made.
        python: Interpreter that virtual environments are made with; empty to look for one.
        settings: `--set NAME=VALUE`, unread: options that data are made or looked at for.
    """

    run: Runner
    follow: Follower
    say: Callable[[str], None]
    env: Mapping[str, str] = field(repr=False)
    dry: bool = False
    python: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)


def without_user(url: str) -> str:
    """Return a URL without the user, and the password, that it may hold."""
    return _USER.sub("", url)


def write_down(path: Path, content: Mapping[str, Any]) -> None:
    """Write a record so that it is there whole or not at all, readable by the site's users."""
    text = json.dumps({"schema": SCHEMA, **content}, indent=1, ensure_ascii=False) + "\n"
    store.write_text(path, text, mode=0o644)


def make_directory(path: Path) -> None:
    """Make a directory that is shared.

    Raises:
        HpcbertError: The file system refused.
    """
    hint = "Fix the permissions, or name another one in the site.toml."
    with refusal("make the directory", path, hint=hint):
        path.mkdir(parents=True, exist_ok=True)
