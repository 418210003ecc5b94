"""campaign.lock.toml: all decisions of a submission, and the request that measures the same again.

It is in the campaign for people to read, and for `submit --like`, which measures the same elsewhere
and reports the differences.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from hpcbert.config import toml
from hpcbert.config.options import FEWEST_REPEATS
from hpcbert.config.recipe import Recipe
from hpcbert.config.site import Site, flatten, to_plain
from hpcbert.config.toml import SCHEMA, read
from hpcbert.errors import ConfigError, UsageError
from hpcbert.logs import grammar as grammars
from hpcbert.model import Campaign, OptionValue, Point, Protocol, Row, SpeedupTable
from hpcbert.results.reduce import Curves
from hpcbert.script.plan import MeasurementPlan, Request, RequestCell, plan
from hpcbert.script.resolve import Resolved, rank_variables
from hpcbert.system import redact
from hpcbert.system.decode import decode

_HEAD = """\
# All decisions of this submission. To measure the same again, here or elsewhere, and to see the
# differences: hpcbert submit --like campaign.lock.toml
"""
# A site's keys for where things are, or that are elsewhere in a lock.
_SITE_KEYS_LEFT_OUT = ("name", "scheduler", "runs", "sources", "env", "frameworks")
_AS_IN_MANIFEST = (
    *("created", "hpcbert", "framework", "scheduler", "site", "name", "rehearse", "protocol"),
    *("concurrent_repeats", "concurrent_points"),
)
# Keys of a particular campaign, and the points, which `submit --like` makes again.
_KEYS_OF_CAMPAIGN = (
    "campaign",
    "created",
    "name",
    "points",
    "protocol",
    "options",
    "chosen",
    "variables",
)


@dataclass(frozen=True)
class Lock:
    """A campaign.lock.toml.

    Attributes:
        campaign: The campaign's id.
        created, hpcbert, framework, scheduler, site, name, rehearse, concurrent_repeats,
            concurrent_points: As in the manifest.
        recipe: Digest of the recipe's folder.
        together: Whether a point's repeats run in one job.
        preflight: Whether the network of the nodes is measured first.
        protocol: Repeats, iterations and warm-up.
        points: The measured points.
        options: The value of each of the recipe's options.
        env: The variables that every rank exports.
        inputs: Image, source, data and interpreter, with known digests and commits.
        files: SHA-256 of each file that jobs run, by name.
        settings: The site's other keys, with options applied; those of the framework in a table.
        chosen: Those of image, data, source and python that options named.
        variables: The environment variable that set one of `settings`, by its key.
    """

    campaign: str
    created: str
    hpcbert: str
    framework: str
    recipe: str
    scheduler: str
    site: str
    rehearse: bool
    concurrent_repeats: int
    concurrent_points: bool
    together: bool
    preflight: bool
    protocol: Protocol
    points: tuple[Point, ...]
    options: Mapping[str, OptionValue]
    env: Mapping[str, str]
    inputs: Mapping[str, str]
    files: Mapping[str, str]
    settings: Mapping[str, Any]
    name: str = ""
    chosen: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The lock as TOML."""
        return _HEAD + toml.format_toml({"schema": SCHEMA, **asdict(self)})

    @property
    def largest(self) -> Point:
        """The point with the most GPUs."""
        return max(self.points, key=lambda point: (point.shape.gpus, point.shape.nodes))

    def values(self, point: Point) -> dict[str, OptionValue]:
        """Return the values of a point's options, including defaults."""
        return {**self.options, **dict(point.options)}


def make_lock(resolved: Resolved, campaign: Campaign) -> Lock:
    """Return the lock of a drafted campaign; secrets are masked.

    Raises:
        OSError: A file that the jobs run can't be read.
    """
    points = tuple(dict.fromkeys(array.point for array in campaign.measured))
    site_values = to_plain(resolved.site)
    framework = to_plain(resolved.site.settings(campaign.framework))
    settings = {
        name: value for name, value in site_values.items() if name not in _SITE_KEYS_LEFT_OUT
    }
    slurm = resolved.site.slurm
    settings["slurm"] |= {"nodelist": slurm.nodelist, "exclude": slurm.exclude}
    settings["container"].pop("images")
    settings["framework"] = framework
    return Lock(
        **{name: getattr(campaign, name) for name in _AS_IN_MANIFEST},
        campaign=campaign.id,
        recipe=campaign.recipe_digest,
        together=resolved.options.together,
        preflight=resolved.options.preflight,
        points=points,
        options=dict(resolved.plan.options),
        env=redact.mask_environment(rank_variables(resolved, points[0])),
        inputs=_list_inputs(resolved, campaign),
        files={
            name: hashlib.sha256(path.read_bytes()).hexdigest()
            for name, path in sorted(resolved.sources.items())
        },
        settings=_mask_secrets(settings),
        chosen=_mask_secrets(dict(resolved.options.chosen)),
        variables={
            key: variable
            for key, variable in resolved.site.variables.items()
            if key.startswith("slurm.")
        },
    )


def _list_inputs(resolved: Resolved, campaign: Campaign) -> dict[str, str]:
    """Return the inputs of ranks, as far as known: `prepare` recorded digests of its own."""
    materials = {material.kind: material for material in campaign.materials}
    inputs = {
        "image": campaign.image,
        "source": resolved.inputs.source,
        "data": resolved.inputs.data,
        "python": resolved.inputs.python,
    }
    inputs = {name: redact.mask_text(text) for name, text in inputs.items()}
    for kind in ("image", "source", "environment", "data"):
        inputs[f"{kind}_digest"] = materials[kind].digest if kind in materials else ""
    if "source" in materials:
        inputs["source_repository"], _, inputs["source_commit"] = materials[
            "source"
        ].name.rpartition("@")
    return {name: text for name, text in inputs.items() if text}


def _mask_secrets(value: Any) -> Any:
    if isinstance(value, str):
        return redact.mask_text(value)
    if isinstance(value, dict):
        return {name: _mask_secrets(entry) for name, entry in value.items()}
    return [_mask_secrets(entry) for entry in value] if isinstance(value, list | tuple) else value


def load_lock(path: Path) -> Lock:
    """Read a lock file strictly.

    Raises:
        ConfigError: It is missing, wrong, or not a lock file.
    """
    values = read(path)
    if "campaign" not in values or "points" not in values:
        hint = "The lock file of a campaign is its campaign.lock.toml."
        if "frameworks" in values or "include" in values:
            hint = f"To submit a file that says what to measure: hpcbert submit {path}"
        raise ConfigError("This is not a lock file.", where=str(path), hint=hint)
    lock = decode(Lock, values, file=str(path))
    if not lock.points:
        raise ConfigError("points is empty.", where=str(path))
    return lock


def compare_locks(lock: Lock, new_lock: Lock) -> tuple[str, ...]:
    """Return the differences from then, one sentence each."""
    old_values, new_values = _flatten_lock(lock), _flatten_lock(new_lock)
    files = sorted(
        name
        for name in lock.files.keys() | new_lock.files.keys()
        if lock.files.get(name) != new_lock.files.get(name)
    )
    changed_files = f"Differs from {lock.campaign}: these files of the job: {', '.join(files)}."
    return (
        *([changed_files] if files else []),
        *(
            f"Differs from {lock.campaign}: {key} was {_format_value(old_values.get(key))}, "
            f"and is {_format_value(new_values.get(key))} here."
            for key in dict.fromkeys((*old_values, *new_values))
            if old_values.get(key) != new_values.get(key)
            and redact.MASK not in f"{old_values.get(key)}"
        ),
    )


def _flatten_lock(lock: Lock) -> dict[str, Any]:
    short_lock = replace(lock, recipe=lock.recipe[:12], files={})
    values = {
        name: value for name, value in asdict(short_lock).items() if name not in _KEYS_OF_CAMPAIGN
    }
    settings = flatten(values)
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in settings.items()
        if value
    }


def _format_value(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "none" if value is None else str(value)


def plan_rerun(lock: Lock, recipe: Recipe, site: Site) -> MeasurementPlan:
    """Plan the same points here.

    Raises:
        UsageError: A point is not possible here; the message says which, or why.
    """
    measurement_plan = plan(recipe, site, _same_request(lock, recipe))
    planned_points = {replace(point, options=()) for point in measurement_plan.points}
    options = measurement_plan.options
    missing_points = [
        point
        for point in lock.points
        if replace(point, options=()) not in planned_points
        or any(options.get(name, value) != value for name, value in lock.values(point).items())
    ]
    if missing_points:
        names = "; ".join(f"{point.key} {point.variant}".strip() for point in missing_points)
        raise UsageError(
            f"Some points of {lock.campaign} are not possible here: {names}.",
            where=recipe.name,
            hint="The recipe or the site differs. Give the points with --fw, --nodes and so on.",
        )
    return measurement_plan


def _same_request(lock: Lock, recipe: Recipe) -> Request:
    largest = lock.largest
    protocol: dict[str, Any] = asdict(lock.protocol)
    return Request(
        shape=largest.shape,
        cells=tuple(
            RequestCell(
                point.shape,
                point.precision,
                point.batch_size_per_device,
                0 if point.samples_per_step else point.accumulation,
            )
            for point in lock.points
        ),
        model=largest.model,
        global_batch_size=max(point.samples_per_step for point in lock.points),
        preset=largest.protocol,
        device=largest.device,
        xla=None if isinstance(recipe.xla, str) else largest.xla,
        settings=_same_settings(lock, recipe),
        env=largest.env,
        **protocol,
    )


def _same_settings(lock: Lock, recipe: Recipe) -> dict[str, str]:
    """Return the options as they were, without unmeasured ones that the recipe no longer has."""
    point_options = dict(lock.largest.options)
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in lock.values(lock.largest).items()
        if name in recipe.options or name in point_options
    }


def plan_table(
    table: SpeedupTable, protocols: Mapping[str, Protocol | None], recipe: Recipe, site: Site
) -> MeasurementPlan:
    """Plan the points of a table of results.

    Raises:
        UsageError: Its labels don't say what to measure, or that is not possible here.
    """
    group, rows = table.group, table.rows
    if group.rule:
        grammars.parse(recipe.log, where=recipe.name).rule(group.rule)
    words = [word for word in group.variant.split(",") if word]
    pairs = [(name, value) for name, equals, value in (w.partition("=") for w in words) if equals]
    request = Request(
        shape=max((row.shape for row in rows), key=lambda shape: (shape.gpus, shape.nodes)),
        cells=tuple(
            RequestCell(
                row.shape,
                group.precision,
                group.batch_size_per_device,
                _read_accumulation(words, row.shape.gpus * group.batch_size_per_device),
            )
            for row in rows
        ),
        model=group.model,
        preset=next((word for word in words if word in recipe.protocols), ""),
        device=group.device if group.device in recipe.devices else "",
        xla=None if isinstance(recipe.xla, str) else "xla" in words,
        settings={name: value for name, value in pairs if name in recipe.options},
        env=tuple((name, value) for name, value in pairs if name not in recipe.options),
        **_read_protocol(rows, protocols, recipe),
    )
    measurement_plan = plan(recipe, site, request)
    curves = Curves(measurement_plan.points)
    for point in measurement_plan.points:
        planned = curves.variant(point)
        if group.largest or planned != group.variant:
            raise UsageError(
                f"{group.framework} {group.model} {point.shape} {group.precision} b{group.batch} "
                f"{group.variant or 'without options'} would be measured as b{point.batch} "
                f"{planned or 'without options'}.",
                where=recipe.name,
                hint="Say what to measure in a campaign.toml, and name the results with --against.",
            )
    return measurement_plan


def _read_accumulation(words: list[str], samples: int) -> int:
    """Return the micro-batches in a step, from the words of a variant; 1 without such a word."""
    for word in words:
        kind, number = word[:3], word[3:]
        if kind in {"acc", "gbs"} and number.isdigit():
            return int(number) if kind == "acc" else int(number) // max(samples, 1)
    return 1


def _read_protocol(
    rows: tuple[Row, ...], protocols: Mapping[str, Protocol | None], recipe: Recipe
) -> dict[str, Any]:
    """Return a request's protocol: that of the rows' source, or else as far as rows show it."""
    sources = {protocols.get(row.origin.name) if row.origin else None for row in rows}
    windows = {(row.window.skip, row.window.iters) for row in rows if row.window}
    protocol = sources.pop()
    if protocol:
        last = None if protocol.window_seconds else protocol.iters
        is_own = windows <= {(protocol.skip, last)}
    else:
        is_own = len(windows) < 2 and not any(end is None for _, end in windows)  # noqa: PLR2004
    if sources or not is_own:
        raise UsageError(
            "The protocols of these results differ, or are not those of their numbers, or the file "
            "does not say how long runs were.",
            where=recipe.name,
            hint="Name the campaign itself, or say what to measure in a campaign.toml and name the "
            "results with --against.",
        )
    if protocol:
        values: dict[str, Any] = asdict(protocol)
    else:
        values = {"repeats": max(row.asked for row in rows)}
        for skip, iters in windows:
            values |= {"skip": skip, "iters": iters}
    return {**values, "repeats": max(FEWEST_REPEATS, values["repeats"])}
