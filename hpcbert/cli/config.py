"""hpcbert config."""

from __future__ import annotations

import os

import click

from hpcbert.cli.output import Result, returns_result
from hpcbert.commands.setting_checks import complaints
from hpcbert.config import origin, site


@click.command()
@click.option("--origin", "with_origin", is_flag=True, help="Show where each value comes from.")
@click.option("--site", "site_file", default="", help="A site.toml, or its folder.")
@returns_result
def config(*, site_file: str, with_origin: bool) -> Result:
    """Show every setting of the site in use; fail if one of them is invalid."""
    here = site.load(site_file)
    settings = origin.settings(here, os.environ)
    data = {
        "file": here.where,
        "settings": {key: {"value": value, "origin": by} for key, (value, by) in settings.items()},
    }
    width = max(len(key) for key in settings)
    lines = [f"# {here.where}"]
    for key, (value, by) in settings.items():
        shown = list(value) if isinstance(value, tuple) else value
        lines.append(f"{key:<{width}} = {shown!r}" + (f"  # {by}" if with_origin else ""))
    return Result(data, "\n".join(lines), tuple(complaints(here)))
