"""hpcbert config, hpcbert trust."""

from __future__ import annotations

import os
from pathlib import Path

import click

from hpcbert.cli.main import list_defaults, root
from hpcbert.cli.options import SITE, flag_option
from hpcbert.cli.output import Result, returns_result
from hpcbert.commands.checks import check_settings
from hpcbert.config import site
from hpcbert.config import trust as trusted
from hpcbert.errors import UsageError
from hpcbert.system import files

_NOTHING = "You trust no files of others. To trust some: hpcbert trust PATH"


@click.command()
@flag_option("--origin", "Show where each value comes from.", "with_origin")
@SITE
@returns_result
def config(*, site_file: str, with_origin: bool) -> Result:
    """Show every setting of the site in use, and your defaults of options.

    The command fails if a setting is invalid. HPCBERT_SUBMIT_PARTITION and other variables of this
    form set the default of an option; so does ~/.config/hpcbert/config.toml, with a table per
    command.
    """
    site_config = site.load(site_file)
    settings = site.list_origins(site_config)
    width = max(map(len, settings))
    lines = [f"# {site_config.where}"]
    for key, (value, source) in settings.items():
        plain_value = list(value) if isinstance(value, tuple) else value
        lines.append(f"{key:<{width}} = {plain_value!r}" + (f"  # {source}" if with_origin else ""))
    defaults = list(list_defaults(root, os.environ))
    lines += ["", "# your defaults of options"] if defaults else []
    lines += [f"{option} = {value!r}  # {origin}" for option, value, origin in defaults]
    data = {
        "file": site_config.where,
        "settings": {
            key: {"value": value, "origin": origin} for key, (value, origin) in settings.items()
        },
        "defaults": {
            option: {"value": value, "origin": origin} for option, value, origin in defaults
        },
    }
    return Result(data, "\n".join(lines), tuple(check_settings(site_config)))


@click.command()
@click.argument("paths", nargs=-1)
@flag_option("--remove", "Stop trusting PATHS.")
@returns_result
def trust(*, paths: tuple[str, ...], remove: bool) -> Result:
    """Allow hpcbert to run files of somebody else, or show which you allowed.

    PATHS are a site.toml, folders of recipes, campaigns, or directories with any of them, in which
    the files of their present owners are trusted. Files of yours and of root's need no trust,
    unless everybody can write to them.

    \b
    Examples:
      hpcbert trust /projects/bert/site.toml
      hpcbert trust
      hpcbert trust --remove /projects/bert/site.toml
    """
    if remove and not paths:
        raise UsageError("--remove needs a path.", hint="Without options, trust lists the paths.")
    file = trusted.trust_file(os.environ)
    old_entries = {entry.path: entry for entry in trusted.read(file)}
    entries = dict(old_entries)
    for path in map(Path, paths):
        if not remove:
            entries |= {entry.path: entry for entry in trusted.entries_at(path)}
            continue
        places = entries.keys() & set(trusted.follow_links(path))
        if not places:
            hint = "hpcbert trust lists what you trust."
            raise UsageError("You do not trust this path.", where=str(path), hint=hint)
        for place in places:
            del entries[place]
    if entries != old_entries:
        trusted.write(file, entries.values())
    rows = [
        {"path": str(entry.path), "owner": files.user_name(entry.uid), "uid": entry.uid}
        for entry in sorted(entries.values())
    ]
    lines = [f"{row['path']}, of {row['owner']}" for row in rows] or [_NOTHING]
    return Result({"file": str(file), "trusted": rows}, "\n".join(lines))
