"""Campaigns that commands read or list: directories and archives, and how text names them.

An archive is unpacked into a temporary directory until the command ends.
"""

from __future__ import annotations

import contextlib
import functools
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from hpcbert.campaign import store
from hpcbert.cli.options import RUNS, SITE, is_typed
from hpcbert.cli.output import Result, print_text
from hpcbert.config import site
from hpcbert.config.places import default_site
from hpcbert.config.site import Site
from hpcbert.errors import UsageError
from hpcbert.model import Campaign
from hpcbert.system.runner import run

_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "m"), (1.0, "s"))


def format_age(seconds: float | None) -> str:
    """Return an age in its largest unit, `3d`; a dash if unknown."""
    if seconds is None:
        return "-"
    size, unit = next((entry for entry in _UNITS if seconds >= entry[0]), _UNITS[-1])
    return f"{seconds // size:.0f}{unit}"


class OpenedCampaign(NamedTuple):
    """A campaign to read.

    Attributes:
        directory: Where it is; for an archive, a temporary directory.
        shown: The path that the user knows: the directory or the archive.
    """

    directory: Path
    shown: Path

    @property
    def packed(self) -> bool:
        """Whether it is an archive."""
        return self.directory != self.shown


def find_runs(runs: str, site_file: str) -> Path:
    """Return the directory of the campaigns: that of the command line, or else the site's."""
    return Path(runs or site.load(site_file).runs)


def takes_runs(body: Callable[..., Result]) -> Callable[..., Result]:
    """Add --runs and --site to a command, which gets the directory of the campaigns."""

    @RUNS
    @SITE
    @functools.wraps(body)
    def command(*, runs: str, site_file: str, **values: Any) -> Result:
        return body(runs=find_runs(runs, site_file), **values)

    return command


def announce_site(site_config: Site, *targets: str) -> None:
    """Print on stderr which site a command uses, its file, and where things go; not with --json.

    Args:
        targets: What goes where, `campaigns in /home/me/runs`.
    """
    if click.get_current_context().params.get("as_json"):
        return
    path = Path(site_config.where)
    note = ", hpcbert's own (hpcbert init writes yours)" if path == default_site() else ""
    print_text(f"site {site_config.name}: {path}{note}; {', '.join(targets)}", err=True)


def announce_runs(runs: str, site_file: str) -> Path:
    """Announce the site, and return the directory of the campaigns, as `find_runs` does."""
    site_config = site.load(site_file)
    path = Path(runs or site_config.runs)
    announce_site(site_config, f"campaigns in {path}")
    return path


def open_campaigns(names: Iterable[str], runs: Path) -> tuple[OpenedCampaign, ...]:
    """Return the campaigns that the user names, each once; without names, the newest submission."""
    campaigns = [campaign for name in dict.fromkeys(names) for campaign in _open_named(name, runs)]
    if not campaigns:
        paths = store.list_submission(_find_newest(runs))
        campaigns = [OpenedCampaign(path, path) for path in paths]
    return tuple(dict.fromkeys(campaigns))


def open_named(names: Sequence[str], runs: Path) -> tuple[OpenedCampaign, ...]:
    """Return the campaigns that the user names, or else the one newest."""
    if names:
        return open_campaigns(names, runs)
    newest = _find_newest(runs)
    return (OpenedCampaign(newest, newest),)


def _open_named(name: str, runs: Path) -> list[OpenedCampaign]:
    if packed := store.find_archive(name, runs):
        from hpcbert.campaign import archive  # rarely needed

        context = click.get_current_context()
        directory = context.with_resource(archive.open_archive(packed))
        return [OpenedCampaign(directory, packed.absolute())]
    return [OpenedCampaign(path, path) for path in store.resolve_submission(name, runs)]


def _find_newest(runs: Path) -> Path:
    newest = store.find_newest(runs)
    if refusal := store.describe_refusal(newest):
        print_text(refusal, err=True)
    return newest


def format_places(campaigns: Sequence[tuple[Path, Campaign]]) -> str:
    """Return how later commands name campaigns: by the name of a file's, else by their paths."""
    paths = tuple(directory for directory, _ in campaigns)
    if len(paths) > 1 and not is_typed("runs") and not is_typed("site_file"):
        with contextlib.suppress(UsageError):  # Other campaigns have the name too.
            if store.resolve_submission(campaigns[0][1].name, paths[0].parent) == paths:
                return shlex.quote(campaigns[0][1].name)
    return " ".join(shlex.quote(str(path)) for path in paths)


def _report_wait(line: str) -> None:
    """Report what sbatch waits for, in its own words (SchedMD/slurm, src/sbatch/sbatch.c)."""
    if "retrying" in line:
        text = "(MaxJobCount, or the controller is busy). sbatch tries for minutes; Ctrl-C stops it"
        print_text(f"{line.strip()} {text}.", err=True)


# Runs a command that submits.
run_aloud = functools.partial(run, show=_report_wait)


def format_rehearsed(place: Path) -> str:
    """Return a line with the command to type when a rehearsal is over."""
    return f"rehearsed; output of the ranks:  hpcbert logs {shlex.quote(str(place))}"
