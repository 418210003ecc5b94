"""Campaigns that commands read or list: directories and archives, and how text names them.

An archive is unpacked into a temporary directory until the command ends.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import click

from hpcbert.campaign import archive, store
from hpcbert.campaign.overview import Best
from hpcbert.cli.options import refuse_typed
from hpcbert.config import site
from hpcbert.config.options import Options, PointOptions, RunOptions, option_names
from hpcbert.model import Campaign
from hpcbert.results.grid import format_number
from hpcbert.script.rerun import Lock, load_lock

# Up to this many shapes are named one by one.
_MAX_SHAPES = 3
# Marks numbers that collect found before all repeats had ended.
PROVISIONAL = "*"
COLLECT_AGAIN = (
    f"{PROVISIONAL} Provisional: collected before all repeats had ended; run hpcbert collect again."
)
_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "m"), (1.0, "s"))


def format_age(seconds: float | None) -> str:
    """Return an age in its largest unit, `3d`; a dash if unknown."""
    if seconds is None:
        return "-"
    size, unit = next((entry for entry in _UNITS if seconds >= entry[0]), _UNITS[-1])
    return f"{seconds // size:.0f}{unit}"


def format_shapes(shapes: Sequence[str]) -> str:
    """Return shapes in few characters: each one, or first, last and number."""
    if len(shapes) <= _MAX_SHAPES:
        return ",".join(shapes) or "-"
    return f"{shapes[0]}..{shapes[-1]} ({len(shapes)})"


def format_best(best: Best | None) -> str:
    """Return a campaign's highest number and its point."""
    return "-" if best is None else f"{format_number(best.throughput)} {best.shape}"


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


def open_campaigns(names: Iterable[str], runs: Path) -> tuple[OpenedCampaign, ...]:
    """Return the campaigns that the user names, each once; without names, the user's newest."""
    context = click.get_current_context()
    campaigns: list[OpenedCampaign] = []
    for name in dict.fromkeys(names):
        if packed := store.find_archive(name, runs):
            directory = context.with_resource(archive.open_archive(packed))
            campaigns.append(OpenedCampaign(directory, packed.absolute()))
        else:
            directory = store.resolve(name, runs)
            campaigns.append(OpenedCampaign(directory, directory))
    if not campaigns:
        newest = store.find_newest(runs)
        campaigns.append(OpenedCampaign(newest, newest))
    return tuple(dict.fromkeys(campaigns))


def format_next_step(campaign: Campaign, place: Path) -> str:
    """Return a line with the command to type when a campaign is over.

    Args:
        campaign: The campaign.
        place: The path that the user knows.
    """
    where = shlex.quote(str(place))
    if campaign.rehearse:
        return f"rehearsed; output of the ranks:  hpcbert logs {where}"
    return f"then: hpcbert collect {where}"


# Of what to measure and how, --like leaves only these to the command line.
_OTHER_OPTIONS = {"notify", "max_gpu_hours", "preflight", "stop_on_failure"}
_MEASURED_OPTIONS = (
    "file",
    *option_names(PointOptions),
    *(name for name in option_names(RunOptions) if name not in _OTHER_OPTIONS),
)


def open_past(name: str, options: Options) -> Lock:
    """Return the lock of the campaign, archive or lock file that --like names."""
    refuse_typed(_MEASURED_OPTIONS, "with --like, which says what to measure")
    if name.endswith(".toml"):
        return load_lock(Path(name))
    runs = Path(options.runs or site.load(options.site_file).runs)
    (campaign,) = open_campaigns([name], runs)
    store.read_manifest(campaign.directory)  # refuses another schema
    return load_lock(campaign.directory / store.LOCKED)
