"""Measure the same again: the request behind a campaign's points, and the differences here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcbert.campaign import store
from hpcbert.config.recipe import Recipe
from hpcbert.config.site import Site
from hpcbert.config.toml import read
from hpcbert.errors import UsageError
from hpcbert.model import Campaign, Material, OptionValue, Point
from hpcbert.script import lockfile
from hpcbert.script.draft import Draft
from hpcbert.script.lockfile import Lock
from hpcbert.script.plan import Request, RequestCell, plan
from hpcbert.system.redact import MASK


@dataclass(frozen=True)
class PreviousCampaign:
    """A campaign to measure again.

    Attributes:
        campaign: Its manifest.
        defaults: The defaults of the recipe's measured options, by name; with a lock, the values of
            all its options.
        lock: Its lock file; None if the campaign has none.
    """

    campaign: Campaign
    defaults: Mapping[str, OptionValue]
    lock: Lock | None = None

    @property
    def points(self) -> tuple[Point, ...]:
        """The measured points, each once."""
        return tuple(dict.fromkeys(array.point for array in self.campaign.measured))

    @property
    def largest(self) -> Point:
        """The point with the most GPUs."""
        return max(self.points, key=lambda point: (point.shape.gpus, point.shape.nodes))

    def values(self, point: Point) -> dict[str, OptionValue]:
        """Return the values of a point's measured options, including defaults."""
        return {**self.defaults, **dict(point.options)}


def read_previous(directory: Path) -> PreviousCampaign:
    """Read what a campaign measured.

    Raises:
        UsageError: Its manifest or its recipe is damaged, or it has no points.
    """
    campaign = store.read_manifest(directory)
    if not campaign.arrays:
        raise UsageError("The campaign has no points.", where=str(directory))
    path = directory / store.LOCKED
    lock = lockfile.load_lock(path) if path.exists() else None
    return PreviousCampaign(campaign, lock.options if lock else _read_defaults(directory), lock)


def read_locked(path: Path) -> PreviousCampaign:
    """Read from a lock file what was measured.

    Raises:
        ConfigError: It is missing or wrong.
    """
    lock = lockfile.load_lock(path)
    return PreviousCampaign(lock.as_campaign, lock.options, lock)


def _read_defaults(directory: Path) -> dict[str, OptionValue]:
    options = read(directory / store.RECIPE).get("options")
    tables = options if isinstance(options, dict) else {}
    return {
        name: table["default"]
        for name, table in tables.items()
        if isinstance(table, dict) and table.get("measured", True) and "default" in table
    }


def rerun_request(previous: PreviousCampaign, recipe: Recipe, site: Site) -> Request:
    """Return the request that makes the same points here.

    Raises:
        UsageError: A point is not possible here; the message says which, or why.
    """
    measurement_plan = plan(recipe, site, same_request := _same_request(previous, recipe))
    options_by_point = {
        _without_options(point): measurement_plan.options for point in measurement_plan.points
    }
    missing_points = [
        point for point in previous.points if not _has_point(previous, point, options_by_point)
    ]
    if missing_points:
        names = "; ".join(f"{point.key} {point.variant}".strip() for point in missing_points)
        raise UsageError(
            f"Some points of {previous.campaign.id} are not possible here: {names}.",
            where=recipe.name,
            hint="The recipe or the site differs. Give the points with --fw, --nodes and so on.",
        )
    return same_request


def _without_options(point: Point) -> Point:
    return replace(point, options=())


def _has_point(
    previous: PreviousCampaign,
    point: Point,
    options_by_point: Mapping[Point, Mapping[str, OptionValue]],
) -> bool:
    """Return whether a plan has a point, with the same values of its options."""
    options = options_by_point.get(_without_options(point), {})
    return _without_options(point) in options_by_point and all(
        options[name] == value if name in options else value == previous.defaults.get(name)
        for name, value in previous.values(point).items()
    )


def _same_request(previous: PreviousCampaign, recipe: Recipe) -> Request:
    largest, protocol = previous.largest, previous.campaign.protocol
    return Request(
        shape=largest.shape,
        cells=tuple(
            RequestCell(
                point.shape, point.precision, point.batch_size_per_device, point.accumulation
            )
            for point in previous.points
        ),
        model=largest.model,
        preset=largest.protocol,
        device=largest.device,
        xla=largest.xla,
        settings=_previous_settings(previous, recipe),
        env=largest.env,
        repeats=protocol.repeats,
        precision_of_median=protocol.precision_of_median,
        iters=protocol.iters,
        skip=protocol.skip,
    )


def _previous_settings(previous: PreviousCampaign, recipe: Recipe) -> dict[str, str]:
    """Return all options as they were: those that no point has, as they were typed."""
    values = previous.values(previous.largest)
    settings = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in values.items()
        if name in recipe.options or name in dict(previous.largest.options)
    }
    return {
        **settings,
        **{name: text for name, text in _typed_settings(previous) if name not in values},
    }


def _typed_settings(previous: PreviousCampaign) -> Iterator[tuple[str, str]]:
    words = previous.campaign.command
    for preceding_word, word in zip(("", *words), words, strict=False):
        text = word if preceding_word == "--set" else word.removeprefix("--set=")
        name, equals, value = text.partition("=")
        if (preceding_word == "--set" or text != word) and equals and MASK not in value:
            yield name.strip(), value


def list_differences(previous: PreviousCampaign, draft: Draft) -> tuple[str, ...]:
    """Return the differences from then, one sentence each."""
    if previous.lock:
        return lockfile.compare_locks(previous.lock, draft.lock)
    return _compare_manifests(previous.campaign, draft.campaign)


def _compare_manifests(campaign: Campaign, current: Campaign) -> tuple[str, ...]:
    pairs: dict[str, tuple[Any, Any]] = {
        "hpcbert": (campaign.hpcbert, current.hpcbert),
        "site": (campaign.site, current.site),
        "scheduler": (campaign.scheduler, current.scheduler),
        "container runtime": (campaign.runtime, current.runtime),
        "image": (campaign.image, current.image),
        "recipe": (campaign.recipe_digest[:12], current.recipe_digest[:12]),
        **{
            kind: (
                _format_materials(campaign.materials, kind),
                _format_materials(current.materials, kind),
            )
            for kind in ("image file", "source", "data")
        },
    }
    return tuple(
        f"Differs from {campaign.id}: {subject} was {old_value or 'none'}, and is {new_value or 'none'} here."
        for subject, (old_value, new_value) in pairs.items()
        if old_value != new_value
    )


def _format_materials(materials: tuple[Material, ...], kind: str) -> str:
    matches = (material for material in materials if material.kind == kind.partition(" ")[0])
    return "; ".join(f"{material.name} {material.digest}" for material in matches)
