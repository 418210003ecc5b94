"""The settings that users and paths state for logs that hpcbert did not submit."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from hpcbert.errors import UsageError
from hpcbert.logs.layout import LogFile, printable_path
from hpcbert.logs.setting import END, Setting, Window, model_facts
from hpcbert.model import Shape
from hpcbert.system.decode import did_you_mean

_FLAGS = {
    "nodes": "--nodes",
    "gpus_per_node": "--gpus-per-node",
    "gpus": "--nodes and --gpus-per-node",
    "batch_size_per_device": "--batch-size",
    "precision": "--precision",
}
_SETTABLE = ("accumulation", "global_batch_size", "packing", "sequence_length")
_USUAL_GPUS = 8
_COUNT = re.compile(r"[1-9][0-9]{0,8}")


class UnknownLogError(UsageError):
    """A required fact about one log is unknown; the other logs can still be collected."""


class UserSettings(NamedTuple):
    """The user's settings for logs, if neither path nor log states them; None if not given.

    Attributes:
        settings: The settings from `--set`, by the names that a log's facts use.
    """

    framework: str = ""
    model: str = ""
    nodes: int | None = None
    gpus_per_node: int | None = None
    batch_size: int | None = None
    precision: str | None = None
    settings: tuple[tuple[str, int], ...] = ()


def parse_settings(words: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """Read the values of `--set NAME=VALUE`.

    Raises:
        UsageError: A name is unknown or appears twice, or its value is not a whole number above 0.
    """
    settings: dict[str, int] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in _SETTABLE:
            raise UsageError(
                f"--set of logs does not support {name!r}.", hint=did_you_mean(name, _SETTABLE)
            )
        if name in settings:
            raise UsageError(f"--set has {name} twice.")
        if not _COUNT.fullmatch(value):
            raise UsageError(f"--set {name} must be a whole number above 0, not {value!r}.")
        settings[name] = int(value)
    return tuple(settings.items())


def make_setting(
    log: LogFile, user_settings: UserSettings, window: Window, system: SystemDescription
) -> Setting:
    """Return the settings that a log's path, the user and the system's description state.

    The user's words outweigh a name that has no documented form, and the description.
    """
    defaults = Setting()
    user_settings = _narrow_settings(user_settings, log)
    pairs = {
        "nodes": (log.nodes, user_settings.nodes),
        "gpus_per_node": (log.gpus_per_node, user_settings.gpus_per_node),
        "batch_size_per_device": (log.batch_size, user_settings.batch_size),
        "precision": (log.precision, user_settings.precision),
    }
    values: dict[str, Any] = {"gpus": log.gpus, **dict(user_settings.settings)}
    sources = {name: f"--set {name}" for name, _ in user_settings.settings}
    sources |= {"gpus": "the path"} if log.gpus else {}
    model = model_facts(user_settings.model or log.model or "")
    sources |= dict.fromkeys(model, "--model" if user_settings.model else "the path")
    for name, (path_value, user_value) in pairs.items():
        is_guess = log.name and name.removesuffix("_per_device") in log.name.guesses
        if is_guess and user_value is not None:
            path_value = None  # noqa: PLW2901 - the user knows better
        if path_value is not None and user_value is not None and path_value != user_value:
            raise make_contradiction(name, path_value, _FLAGS[name], user_value, log)
        values[name] = user_value if path_value is None else path_value
        sources[name] = _FLAGS[name] if path_value is None else "the path"
    if not any(values[name] for name in ("nodes", "gpus_per_node", "gpus")) and system.source:
        values |= {"nodes": system.nodes, "gpus_per_node": system.gpus_per_node}
        sources |= dict.fromkeys(("nodes", "gpus_per_node"), system.source)
    nodes, width = values["nodes"], values["gpus_per_node"]
    if log.gpus and nodes and width and nodes * width != log.gpus:
        flags = "--nodes with --gpus-per-node"
        raise make_contradiction("gpus", log.gpus, flags, f"{nodes} x {width}", log)
    return Setting(
        **{**values, **model},
        skip=defaults.skip if window.skip is None else window.skip,
        iters=defaults.iters if window.iters is None else window.iters,
        reach=0 if window.iters in {None, END} else window.iters,
        sources=tuple(sources.items()),
    ).settled({})[0]


def _narrow_settings(user_settings: UserSettings, log: LogFile) -> UserSettings:
    """Return the user's values; GPUs per node are those of the machine.

    If a path names only GPUs, and fewer than a node has, the run used that many of one node.
    """
    is_unstated = log.nodes is None and log.gpus_per_node is None and user_settings.nodes is None
    if not (
        is_unstated
        and log.gpus
        and user_settings.gpus_per_node
        and log.gpus < user_settings.gpus_per_node
    ):
        return user_settings
    return user_settings._replace(nodes=1, gpus_per_node=log.gpus)


def guess_shape(setting: Setting) -> Shape | None:
    """Return the likely shape of a run if only its number of GPUs is known.

    It has as few nodes as possible, with eight GPUs each, as in all published tables; None if that
    is impossible.
    """
    gpus = setting.gpus
    if not gpus or setting.nodes or setting.gpus_per_node:
        return None
    if gpus <= _USUAL_GPUS:
        return Shape(1, gpus)
    return Shape(gpus // _USUAL_GPUS, _USUAL_GPUS) if gpus % _USUAL_GPUS == 0 else None


def make_contradiction(
    name: str, path_value: object, flag: str, user_value: object, log: LogFile
) -> UsageError:
    """Return the error for a path and a flag that contradict each other."""
    return UsageError(
        f"The path says {name} = {path_value}, but {flag} says {user_value}.",
        where=printable_path(log.path),
        hint="Leave the flag out; or, if the names are wrong, give a --pattern "
        "that has * in this place.",
    )


def make_unknown(names: list[str], log: LogFile) -> UnknownLogError:
    """Return the error for a missing fact that a number or its place in a table needs."""
    flags = [_FLAGS[name] for name in names if name in _FLAGS]
    hint = f"Give {' '.join(flags)}, or name it in --pattern." if flags else ""
    if settable := [f"--set {name}=N" for name in names if name in _SETTABLE]:
        hint = f"Give {' '.join([*flags, *settable])}."
    message = f"Neither the path nor the log has {' and '.join(names)}."
    return UnknownLogError(message, where=printable_path(log.path), hint=hint)


# --- A system's description -----------------------------------------------------------------------

_KEYS = {"nodes": "number_of_nodes", "gpus_per_node": "accelerators_per_node"}
_MAX_BYTES = 1 << 20
# Parents of a log whose `systems` folder may describe it: results/SYSTEM/BENCHMARK.
_LEVELS = 3


class SystemDescription(NamedTuple):
    """The shape of a system, and the file that states it; empty without one."""

    nodes: int | None = None
    gpus_per_node: int | None = None
    source: str = ""


@cache
def read_system(folder: Path) -> SystemDescription:
    """Return the description of the system whose logs a folder holds; empty if files differ."""
    for paths in _list_descriptions(folder.absolute()):
        systems = [system for path in paths if (system := _read_file(path))]
        if systems:
            shapes = {system[:2] for system in systems}
            return systems[0] if len(shapes) == 1 else SystemDescription()
    return SystemDescription()


def _read_file(path: Path) -> SystemDescription | None:
    try:
        if path.stat().st_size > _MAX_BYTES:
            return None
        document = json.loads(path.read_bytes())
        counts = {name: int(document[key]) for name, key in _KEYS.items()}
    except (OSError, ValueError, TypeError, KeyError, OverflowError):
        return None
    return (
        SystemDescription(**counts, source=printable_path(path))
        if min(counts.values()) > 0
        else None
    )


def _list_descriptions(folder: Path) -> Iterator[Sequence[Path]]:
    """Yield the files that may describe the system, those of one place together."""
    for parent in (folder, *folder.parents[: _LEVELS - 1]):
        yield [parent.parent.parent / "systems" / f"{parent.name}.json"]
    for parent in (folder, folder.parent):
        yield sorted(parent.glob("*.json"))
