"""What the parts of preparing share: what they are given, what they say, what they write down."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hpcbert import store
from hpcbert.errors import HpcbertError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hpcbert.inventory import Recipe, Site
    from hpcbert.slurm.runner import Follower, Runner

Kind = Literal["image", "source", "data"]
Status = Literal["ready", "done", "planned", "skipped", "failed"]
SCHEMA = 1
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
class Means:
    """What preparing works with.

    Attributes:
        run: For commands that answer at once.
        follow: For those that take long.
        say: Takes a line of progress.
        env: The environment for both.
        dry: Whether nothing may be made.
    """

    run: Runner
    follow: Follower
    say: Callable[[str], None]
    env: Mapping[str, str] = field(repr=False)
    dry: bool = False


def without_user(url: str) -> str:
    """Return a URL without the user, and the password, that it may hold."""
    return _USER.sub("", url)


def record(path: Path) -> dict[str, Any]:
    """Return what was written down; nothing where it is missing, damaged or of another schema."""
    try:
        data = store.read_json(path)
    except UsageError:
        return {}
    return data if isinstance(data, dict) and data.get("schema") == SCHEMA else {}


def write_down(path: Path, content: Mapping[str, Any]) -> None:
    """Write a record so that it is there whole or not at all, readable by the site's users."""
    text = json.dumps({"schema": SCHEMA, **content}, indent=1, ensure_ascii=False) + "\n"
    store.write_text(path, text, mode=0o644)


def make_directory(path: Path) -> None:
    """Make a directory that is shared.

    Raises:
        HpcbertError: The file system refused.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HpcbertError(
            f"Can't make the directory: {error.strerror}.",
            where=str(path),
            hint="Mend permissions, or name another one in the site.toml.",
        ) from error


def source_record(site: Site, recipe: Recipe) -> Path:
    """Return where a checkout's record lies: beside the checkout, which has its name."""
    name = recipe.repository.rstrip("/").rpartition("/")[2].removesuffix(".git")
    name = re.sub(r"[^A-Za-z0-9._-]", "_", name) + f"-{recipe.commit[:12]}"
    if recipe.patches:
        total = hashlib.sha256()
        for patch in recipe.patches:
            total.update((Path(recipe.folder) / patch).read_bytes())
        name += f"+{total.hexdigest()[:8]}"
    return Path(site.sources) / f"{name}.json"


def data_record(site: Site, recipe: Recipe) -> Path:
    """Return where it is written down what the data of a framework were found to be."""
    return Path(site.sources) / f"{recipe.name}+data.json"
