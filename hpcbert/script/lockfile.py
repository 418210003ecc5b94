"""campaign.lock.toml: all decisions of a submission.

It is in the campaign for people to read, and for `submit --like`, which measures the same elsewhere
and reports the differences.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping  # noqa: TC003  annotations are read
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from hpcbert.config import origin, tomltext
from hpcbert.config.toml import SCHEMA, read
from hpcbert.errors import ConfigError
from hpcbert.model import Array, Campaign, OptionValue, Point, Protocol
from hpcbert.script.render import exported
from hpcbert.system import redact
from hpcbert.system.decode import decode

if TYPE_CHECKING:
    from pathlib import Path

    from hpcbert.script.resolve import Resolved

_HEAD = """\
# All decisions of this submission. To measure the same again, here or elsewhere, and to see the
# differences: hpcbert submit --like campaign.lock.toml
"""
# A site's keys for where things are, or that are elsewhere in a lock.
_ELSEWHERE = ("name", "scheduler", "runs", "sources", "env", "frameworks")
# Keys of a particular campaign, and the points, which `submit --like` makes again.
_OWN = ("campaign", "created", "name", "points", "protocol", "options")


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

    @property
    def text(self) -> str:
        """The lock as TOML."""
        return _HEAD + tomltext.written({"schema": SCHEMA, **asdict(self)})

    @property
    def as_campaign(self) -> Campaign:
        """A campaign with its points, of which nothing was submitted."""
        repeats = tuple(range(1, self.protocol.repeats + 1))
        return Campaign(
            id=self.campaign,
            created=self.created,
            hpcbert=self.hpcbert,
            user="",
            command=(),
            scheduler=self.scheduler,
            site=self.site,
            runtime="",
            image=self.inputs.get("image", ""),
            framework=self.framework,
            recipe_digest=self.recipe,
            protocol=self.protocol,
            concurrent_repeats=self.concurrent_repeats,
            concurrent_points=self.concurrent_points,
            rehearse=self.rehearse,
            arrays=tuple(
                Array(point, point.key, repeats, "", "", "", together=self.together)
                for point in self.points
            ),
            name=self.name,
        )


def lock_of(resolved: Resolved, campaign: Campaign) -> Lock:
    """Return the lock of a drafted campaign; secrets are masked.

    Raises:
        OSError: A file that the jobs run can't be read.
    """
    points = tuple(dict.fromkeys(array.point for array in campaign.measured))
    site = origin.plain(resolved.site)
    framework = origin.plain(resolved.site.settings(campaign.framework))
    settings = {name: one for name, one in site.items() if name not in _ELSEWHERE}
    slurm = resolved.site.slurm
    settings["slurm"] |= {"nodelist": slurm.nodelist, "exclude": slurm.exclude}
    settings["container"].pop("images")
    settings["framework"] = framework
    return Lock(
        campaign=campaign.id,
        created=campaign.created,
        hpcbert=campaign.hpcbert,
        framework=campaign.framework,
        recipe=campaign.recipe_digest,
        scheduler=campaign.scheduler,
        site=campaign.site,
        rehearse=campaign.rehearse,
        concurrent_repeats=campaign.concurrent_repeats,
        concurrent_points=campaign.concurrent_points,
        together=resolved.options.together,
        preflight=resolved.options.preflight,
        protocol=campaign.protocol,
        points=points,
        options=dict(resolved.plan.options),
        env=redact.environment(exported(resolved, points[0])),
        inputs=_inputs(resolved, campaign),
        files={
            name: hashlib.sha256(path.read_bytes()).hexdigest()
            for name, path in sorted(resolved.sources.items())
        },
        settings=_masked(settings),
        name=campaign.name,
    )


def _inputs(resolved: Resolved, campaign: Campaign) -> dict[str, str]:
    """Return the inputs of ranks, as far as known: `prepare` recorded digests of its own."""
    materials = {material.kind: material for material in campaign.materials}
    found = {
        "image": campaign.image,
        "source": resolved.inputs.source,
        "data": resolved.inputs.data,
        "python": resolved.inputs.python,
    }
    found = {name: redact.text(text) for name, text in found.items()}
    for kind in ("image", "source", "environment", "data"):
        found[f"{kind}_digest"] = materials[kind].digest if kind in materials else ""
    if "source" in materials:
        found["source_repository"], _, found["source_commit"] = materials["source"].name.rpartition(
            "@"
        )
    return {name: text for name, text in found.items() if text}


def _masked(value: Any) -> Any:
    if isinstance(value, str):
        return redact.text(value)
    if isinstance(value, dict):
        return {name: _masked(one) for name, one in value.items()}
    return [_masked(one) for one in value] if isinstance(value, list | tuple) else value


def load(path: Path) -> Lock:
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


def differences(lock: Lock, now: Lock) -> tuple[str, ...]:
    """Return the differences from then, one sentence each."""
    before, here = _flat(lock), _flat(now)
    return tuple(
        f"Differs from {lock.campaign}: {key} was {_shown(before.get(key))}, "
        f"and is {_shown(here.get(key))} here."
        for key in dict.fromkeys((*before, *here))
        if before.get(key) != here.get(key) and redact.MASK not in f"{before.get(key)}"
    )


def _flat(lock: Lock) -> dict[str, Any]:
    short = replace(lock, recipe=lock.recipe[:12])
    values = {name: one for name, one in asdict(short).items() if name not in _OWN}
    values["files"] = {name: file[:12] for name, file in lock.files.items()}
    found = origin.flat(values)
    return {key: list(one) if isinstance(one, tuple) else one for key, one in found.items() if one}


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "none" if value is None else str(value)
