"""Measure the same again: the request behind a campaign's points, and the differences here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hpcbert.campaign import store
from hpcbert.config.toml import read
from hpcbert.errors import UsageError
from hpcbert.script import lockfile
from hpcbert.script.plan import Request, RequestCell, plan
from hpcbert.system.redact import MASK

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from hpcbert.config.recipe import Recipe
    from hpcbert.config.site import Site
    from hpcbert.model import Campaign, Material, OptionValue, Point
    from hpcbert.script.draft import Draft
    from hpcbert.script.lockfile import Lock


@dataclass(frozen=True)
class Past:
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


def past(directory: Path) -> Past:
    """Read what a campaign measured.

    Raises:
        UsageError: Its manifest or its recipe is damaged, or it has no points.
    """
    campaign = store.read_manifest(directory)
    if not campaign.arrays:
        raise UsageError("The campaign has no points.", where=str(directory))
    path = directory / store.LOCKED
    lock = lockfile.load(path) if path.exists() else None
    return Past(campaign, lock.options if lock else _defaults(directory), lock)


def locked(path: Path) -> Past:
    """Read from a lock file what was measured.

    Raises:
        ConfigError: It is missing or wrong.
    """
    lock = lockfile.load(path)
    return Past(lock.as_campaign, lock.options, lock)


def _defaults(directory: Path) -> dict[str, OptionValue]:
    options = read(directory / store.RECIPE).get("options")
    tables = options if isinstance(options, dict) else {}
    return {
        name: table["default"]
        for name, table in tables.items()
        if isinstance(table, dict) and table.get("measured", True) and "default" in table
    }


def request(then: Past, recipe: Recipe, site: Site) -> Request:
    """Return the request that makes the same points here.

    Raises:
        UsageError: A point is not possible here; the message says which, or why.
    """
    measurement_plan = plan(recipe, site, one := _same(then, recipe))
    had = {_bare(point): measurement_plan.options for point in measurement_plan.points}
    missing = [point for point in then.points if not _is_had(then, point, had)]
    if missing:
        names = "; ".join(f"{point.key} {point.variant}".strip() for point in missing)
        raise UsageError(
            f"Some points of {then.campaign.id} are not possible here: {names}.",
            where=recipe.name,
            hint="The recipe or the site differs. Give the points with --fw, --nodes and so on.",
        )
    return one


def _bare(point: Point) -> Point:
    return replace(point, options=())


def _is_had(then: Past, point: Point, had: Mapping[Point, Mapping[str, OptionValue]]) -> bool:
    """Return whether a plan has a point, with the same values of its options."""
    here = had.get(_bare(point), {})
    return _bare(point) in had and all(
        here[name] == value if name in here else value == then.defaults.get(name)
        for name, value in then.values(point).items()
    )


def _same(then: Past, recipe: Recipe) -> Request:
    largest, protocol = then.largest, then.campaign.protocol
    return Request(
        shape=largest.shape,
        cells=tuple(
            RequestCell(
                point.shape, point.precision, point.batch_size_per_device, point.accumulation
            )
            for point in then.points
        ),
        model=largest.model,
        preset=largest.protocol,
        device=largest.device,
        xla=largest.xla,
        settings=_settings(then, recipe),
        env=largest.env,
        repeats=protocol.repeats,
        precision_of_median=protocol.precision_of_median,
        iters=protocol.iters,
        skip=protocol.skip,
    )


def _settings(then: Past, recipe: Recipe) -> dict[str, str]:
    """Return all options as they were: those that no point has, as they were typed."""
    values = then.values(then.largest)
    settings = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in values.items()
        if name in recipe.options or name in dict(then.largest.options)
    }
    return {**settings, **{name: text for name, text in _typed(then) if name not in values}}


def _typed(then: Past) -> Iterator[tuple[str, str]]:
    words = then.campaign.command
    for before, word in zip(("", *words), words, strict=False):
        text = word if before == "--set" else word.removeprefix("--set=")
        name, equals, value = text.partition("=")
        if (before == "--set" or text != word) and equals and MASK not in value:
            yield name.strip(), value


def differences(then: Past, now: Draft) -> tuple[str, ...]:
    """Return the differences from then, one sentence each."""
    if then.lock:
        return lockfile.differences(then.lock, now.lock)
    return _of_manifests(then.campaign, now.campaign)


def _of_manifests(campaign: Campaign, now: Campaign) -> tuple[str, ...]:
    pairs: dict[str, tuple[Any, Any]] = {
        "hpcbert": (campaign.hpcbert, now.hpcbert),
        "site": (campaign.site, now.site),
        "scheduler": (campaign.scheduler, now.scheduler),
        "container runtime": (campaign.runtime, now.runtime),
        "image": (campaign.image, now.image),
        "recipe": (campaign.recipe_digest[:12], now.recipe_digest[:12]),
        **{
            kind: (_material(campaign.materials, kind), _material(now.materials, kind))
            for kind in ("image file", "source", "data")
        },
    }
    return tuple(
        f"Differs from {campaign.id}: {what} was {before or 'none'}, and is {here or 'none'} here."
        for what, (before, here) in pairs.items()
        if before != here
    )


def _material(materials: tuple[Material, ...], kind: str) -> str:
    found = (material for material in materials if material.kind == kind.partition(" ")[0])
    return "; ".join(f"{material.name} {material.digest}" for material in found)
