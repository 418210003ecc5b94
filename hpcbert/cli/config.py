"""hpcbert config."""

from __future__ import annotations

import os

import click

from hpcbert.cli.main import list_defaults, root
from hpcbert.cli.options import SITE
from hpcbert.cli.output import Result, returns_result
from hpcbert.commands.checks import check_settings
from hpcbert.config import site


@click.command()
@click.option("--origin", "with_origin", is_flag=True, help="Show where each value comes from.")
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
    data = {
        "file": site_config.where,
        "settings": {
            key: {"value": value, "origin": source} for key, (value, source) in settings.items()
        },
    }
    defaults = {
        option: {"value": value, "origin": origin}
        for option, value, origin in list_defaults(root, os.environ)
    }
    data["defaults"] = defaults
    width = max(len(key) for key in settings)
    lines = [f"# {site_config.where}"]
    for key, (value, source) in settings.items():
        plain_value = list(value) if isinstance(value, tuple) else value
        lines.append(f"{key:<{width}} = {plain_value!r}" + (f"  # {source}" if with_origin else ""))
    if defaults:
        lines += ["", "# your defaults of options"]
    lines += [
        f"{option} = {default['value']!r}  # {default['origin']}"
        for option, default in defaults.items()
    ]
    return Result(data, "\n".join(lines), tuple(check_settings(site_config)))
