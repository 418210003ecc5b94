"""hpcbert trust."""

from __future__ import annotations

import os
from pathlib import Path

import click

from hpcbert.cli.output import Result, returns_result
from hpcbert.config import trust as trusted
from hpcbert.errors import UsageError
from hpcbert.system import ownership

_NOTHING = "You trust no files of others. To trust some: hpcbert trust PATH"


@click.command(
    epilog="\b\nExamples:\n"
    "  hpcbert trust /projects/bert/site.toml\n"
    "  hpcbert trust\n"
    "  hpcbert trust --remove /projects/bert/site.toml"
)
@click.argument("paths", nargs=-1)
@click.option("--remove", is_flag=True, help="Stop trusting PATHS.")
@returns_result
def trust(*, paths: tuple[str, ...], remove: bool) -> Result:
    """Allow hpcbert to run files of somebody else, or show which you allowed.

    PATHS are a site.toml, folders of recipes, campaigns, or directories with any of them, in which
    the files of their present owners are trusted. Files of yours and of root's need no trust,
    unless everybody can write to them.
    """
    if remove and not paths:
        raise UsageError("--remove needs a path.", hint="Without options, trust lists the paths.")
    file = trusted.trust_file(os.environ)
    old_entries = {trusted_path.path: trusted_path for trusted_path in trusted.read(file)}
    entries = dict(old_entries)
    for text in paths:
        if remove:
            _remove_entries(entries, Path(text))
        else:
            entries |= {
                trusted_path.path: trusted_path for trusted_path in trusted.entries_at(Path(text))
            }
    if entries != old_entries:
        trusted.write(file, entries.values())
    rows = [
        {"path": str(entry.path), "owner": ownership.user_name(entry.uid), "uid": entry.uid}
        for entry in sorted(entries.values())
    ]
    lines = [f"{row['path']}, of {row['owner']}" for row in rows] or [_NOTHING]
    return Result({"file": str(file), "trusted": rows}, "\n".join(lines))


def _remove_entries(entries: dict[Path, trusted.TrustedPath], path: Path) -> None:
    places = entries.keys() & set(trusted.follow_links(path))
    if not places:
        hint = "hpcbert trust lists what you trust."
        raise UsageError("You do not trust this path.", where=str(path), hint=hint)
    for place in places:
        del entries[place]
