"""campaign.lock.toml: all decisions of a submission, and the request that measures the same again.

It is in the campaign for people to read, and for `submit --like`, which measures the same elsewhere
and reports the differences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from hpcbert.campaign import store
from hpcbert.config import toml
from hpcbert.config.options import FEWEST_REPEATS
from hpcbert.config.recipe import Recipe
from hpcbert.config.site import Site, flatten, to_plain
from hpcbert.config.toml import SCHEMA, read
from hpcbert.errors import ConfigError, UsageError
from hpcbert.model import Campaign, OptionValue, Point, Protocol, Row, SpeedupTable
from hpcbert.script.plan import MeasurementPlan, Request, RequestCell, plan
from hpcbert.script.resolve import Resolved, rank_variables
from hpcbert.system import redact
from hpcbert.system.decode import decode

_HEAD = """\
# All decisions of this submission. To measure the same again, here or elsewhere, and to see the
# differences: hpcbert submit --like campaign.lock.toml
"""
_FILE_HINT = (
    "Say what to measure in a campaign.toml, and name the results with --against; or name the "
    "campaign itself."
)
# A site's keys for where things are, or that are elsewhere in a lock.
_SITE_KEYS_LEFT_OUT = ("name", "scheduler", "runs", "sources", "env", "frameworks")
_AS_IN_MANIFEST = (
    *("created", "hpcbert", "framework", "scheduler", "site", "name", "rehearse", "protocol"),
    *("concurrent_repeats", "concurrent_points"),
)
# Keys of a particular campaign, and the points, which `submit --like` makes again.
_KEYS_OF_CAMPAIGN = (
    *("campaign", "created", "name", "points", "protocol", "options", "chosen", "variables"),
    "files",
)


@dataclass(frozen=True)
class Lock:
    """A campaign.lock.toml.

    Attributes:
        created, hpcbert, framework, scheduler, site, name, rehearse, concurrent_repeats,
            concurrent_points: As in the manifest.
        recipe: Digest of the recipe's folder.
        inputs: Image, source, data and interpreter, with known digests and commits.
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
    """Return the lock of a drafted campaign; secrets are masked."""
    points = tuple(dict.fromkeys(array.point for array in campaign.measured))
    site, options = resolved.site, resolved.options
    settings = {name: v for name, v in to_plain(site).items() if name not in _SITE_KEYS_LEFT_OUT}
    settings["slurm"] |= {"nodelist": site.slurm.nodelist, "exclude": site.slurm.exclude}
    settings["container"].pop("images")
    settings["framework"] = to_plain(site.settings(campaign.framework))
    return Lock(
        **{name: getattr(campaign, name) for name in _AS_IN_MANIFEST},
        campaign=campaign.id,
        recipe=campaign.recipe_digest,
        together=options.together,
        preflight=options.preflight,
        points=points,
        options=dict(resolved.plan.options),
        env=redact.mask_environment(rank_variables(resolved, points[0])),
        inputs=_list_inputs(resolved, campaign),
        files={name: store.hash_file(path) for name, path in sorted(resolved.sources.items())},
        settings=_mask_secrets(settings),
        chosen=_mask_secrets(dict(options.chosen)),
        variables={key: v for key, v in site.variables.items() if key.startswith("slurm.")},
    )


def _list_inputs(resolved: Resolved, campaign: Campaign) -> dict[str, str]:
    """Return the inputs of ranks, as far as known: `prepare` recorded digests of its own."""
    names = ("source", "data", "python")
    inputs = {"image": redact.mask_text(campaign.image)}
    inputs |= {name: redact.mask_text(getattr(resolved.inputs, name)) for name in names}
    inputs |= {f"{material.kind}_digest": material.digest for material in campaign.materials}
    for material in campaign.materials:
        if material.kind == "source":
            repository, _, commit = material.name.rpartition("@")
            inputs |= {"source_repository": repository, "source_commit": commit}
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
    texts = []
    names = sorted(lock.files.keys() | new_lock.files.keys())
    files = [name for name in names if lock.files.get(name) != new_lock.files.get(name)]
    if files:
        texts.append(f"these files of the job: {', '.join(files)}")
    old_values, new_values = _flatten_lock(lock), _flatten_lock(new_lock)
    for key in dict.fromkeys((*old_values, *new_values)):
        old, new = old_values.get(key, "none"), new_values.get(key, "none")
        if old != new and redact.MASK not in old:
            texts.append(f"{key} was {old}, and is {new} here")
    return tuple(f"Differs from {lock.campaign}: {text}." for text in texts)


def _flatten_lock(lock: Lock) -> dict[str, str]:
    plain = asdict(replace(lock, recipe=lock.recipe[:12]))
    values = flatten({key: value for key, value in plain.items() if key not in _KEYS_OF_CAMPAIGN})
    return {
        key: " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        for key, value in values.items()
        if value
    }


def plan_rerun(lock: Lock, recipe: Recipe, site: Site) -> MeasurementPlan:
    """Plan the same points here.

    Raises:
        UsageError: A point is not possible here; the message says which, or why.
    """
    measurement_plan = plan(recipe, site, _same_request(lock, recipe))
    planned_points = {replace(point, options=()) for point in measurement_plan.points}
    options = measurement_plan.options
    missing = []
    for point in lock.points:
        values = lock.values(point).items()
        has_other_option = any(options.get(name, value) != value for name, value in values)
        if has_other_option or replace(point, options=()) not in planned_points:
            missing.append(f"{point.key} {point.variant}".strip())
    if missing:
        message = f"Some points of {lock.campaign} are not possible here: {'; '.join(missing)}."
        hint = "The recipe or the site differs. Give the points with --fw, --nodes and so on."
        raise UsageError(message, where=recipe.name, hint=hint)
    return measurement_plan


def _same_request(lock: Lock, recipe: Recipe) -> Request:
    largest = lock.largest
    cells = []
    for point in lock.points:
        accumulation = 0 if point.samples_per_step else point.accumulation
        size = point.batch_size_per_device
        cells.append(RequestCell(point.shape, point.precision, size, accumulation))
    # Without unmeasured options that the recipe no longer has.
    names = recipe.options.keys() | dict(largest.options).keys()
    protocol: dict[str, Any] = asdict(lock.protocol)
    return Request(
        shape=largest.shape,
        cells=tuple(cells),
        model=largest.model,
        global_batch_size=max(point.samples_per_step for point in lock.points),
        preset=largest.protocol,
        device=largest.device,
        xla=None if isinstance(recipe.xla, str) else largest.xla,
        settings={name: value for name, value in lock.values(largest).items() if name in names},
        env=largest.env,
        **protocol,
    )


def plan_table(
    table: SpeedupTable, protocols: Mapping[str, Protocol | None], recipe: Recipe, site: Site
) -> MeasurementPlan:
    """Plan the points of a table of results.

    Raises:
        UsageError: Its labels don't say what to measure, or that is not possible here.
    """
    from hpcbert.logs import grammar as grammars  # with all that reads logs and results
    from hpcbert.results.reduce import Curves

    group, rows = table.group, table.rows
    if group.rule:
        grammars.parse(recipe.log, where=recipe.name).rule(group.rule)
    words = [word for word in group.variant.split(",") if word]
    pairs = dict(word.split("=", 1) for word in words if "=" in word)
    size = group.batch_size_per_device
    cells = []
    for row in rows:
        accumulation = _read_accumulation(words, row.shape.gpus * size)
        cells.append(RequestCell(row.shape, group.precision, size, accumulation))
    request = Request(
        shape=max((row.shape for row in rows), key=lambda shape: (shape.gpus, shape.nodes)),
        cells=tuple(cells),
        model=group.model,
        preset=next((word for word in words if word in recipe.protocols), ""),
        device=group.device if group.device in recipe.devices else "",
        xla=None if isinstance(recipe.xla, str) else "xla" in words,
        settings={name: value for name, value in pairs.items() if name in recipe.options},
        env=tuple((name, value) for name, value in pairs.items() if name not in recipe.options),
        **_read_protocol(rows, protocols, recipe),
    )
    measurement_plan = plan(recipe, site, request)
    curves = Curves(measurement_plan.points)
    for point in measurement_plan.points:
        planned = curves.variant(point)
        if group.largest or planned != group.variant:
            labels = f"{group.framework} {group.model} {point.shape} {group.precision}"
            message = (
                f"{labels} b{group.batch} {group.variant or 'without options'} would be measured "
                f"as b{point.batch} {planned or 'without options'}."
            )
            raise UsageError(message, where=recipe.name, hint=_FILE_HINT)
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
    values: dict[str, Any] = {"repeats": max(row.asked for row in rows)}
    if protocol:
        last = None if protocol.window_seconds else protocol.iters
        values = asdict(protocol)
        is_own = windows <= {(protocol.skip, last)}
    else:
        for skip, iters in windows:
            values |= {"skip": skip, "iters": iters}
        is_own = len(windows) <= 1 and values.get("iters", 0) is not None
    if sources or not is_own:
        message = (
            "The protocols of these results differ, or are not those of their numbers, or the file "
            "does not say how long runs were."
        )
        raise UsageError(message, where=recipe.name, hint=_FILE_HINT)
    return {**values, "repeats": max(FEWEST_REPEATS, values["repeats"])}
