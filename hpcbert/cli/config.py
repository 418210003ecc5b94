"""hpcbert config."""

from __future__ import annotations

import os

import click

from hpcbert.cli.options import SITE
from hpcbert.cli.output import Result, returns_result
from hpcbert.commands.checks import check_settings
from hpcbert.config import site


@click.command()
@click.option("--origin", "with_origin", is_flag=True, help="Show where each value comes from.")
@SITE
@returns_result
def config(*, site_file: str, with_origin: bool) -> Result:
    """Show every setting of the site in use; fail if one of them is invalid."""
    site_config = site.load(site_file)
    settings = site.list_origins(site_config, os.environ)
    data = {
        "file": site_config.where,
        "settings": {
            key: {"value": value, "origin": source} for key, (value, source) in settings.items()
        },
    }
    width = max(len(key) for key in settings)
    lines = [f"# {site_config.where}"]
    for key, (value, source) in settings.items():
        plain_value = list(value) if isinstance(value, tuple) else value
        lines.append(f"{key:<{width}} = {plain_value!r}" + (f"  # {source}" if with_origin else ""))
    return Result(data, "\n".join(lines), tuple(check_settings(site_config)))
