"""The settings that users and paths state for logs that hpcbert did not submit."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from hpcbert.errors import UsageError
from hpcbert.logs.layout import LogFile, printable_path
from hpcbert.logs.setting import END, Setting, Window, model_facts
from hpcbert.model import Shape
from hpcbert.system.decode import did_you_mean

OPTIONS = {
    "nodes": "--nodes",
    "gpus_per_node": "--gpus-per-node",
    "gpus": "--nodes and --gpus-per-node",
    "batch_size_per_device": "--batch-size",
    "precision": "--precision",
    "model": "--model",
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
            hint = did_you_mean(name, _SETTABLE)
            raise UsageError(f"--set of logs does not support {name!r}.", hint=hint)
        if name in settings:
            raise UsageError(f"--set has {name} twice.")
        if not _COUNT.fullmatch(value):
            raise UsageError(f"--set {name} must be a whole number above 0, not {value!r}.")
        settings[name] = int(value)
    return tuple(settings.items())


def make_setting(log: LogFile, user: UserSettings, window: Window) -> Setting:
    """Return the settings that a log's path, the user and the system's description state.

    The user's words outweigh a name that has no documented form, and the description.
    """
    is_unstated = log.nodes is None and log.gpus_per_node is None and user.nodes is None
    if is_unstated and log.gpus and user.gpus_per_node and log.gpus < user.gpus_per_node:
        # The user's GPUs per node are those of the machine: the run used some of one node.
        user = user._replace(nodes=1, gpus_per_node=log.gpus)
    values: dict[str, Any] = {"gpus": log.gpus, **dict(user.settings)}
    sources = {name: f"--set {name}" for name, _ in user.settings}
    sources |= {"gpus": "the path"} if log.gpus else {}
    model = model_facts(user.model or log.model or "")
    sources |= dict.fromkeys(model, "--model" if user.model else "the path")
    for key in ("nodes", "gpus_per_node", "batch_size", "precision"):
        name = "batch_size_per_device" if key == "batch_size" else key
        stated, typed = getattr(log, key), getattr(user, key)
        if log.name and key in log.name.guesses and typed is not None:
            stated = None
        if stated is not None and typed is not None and stated != typed:
            raise make_contradiction(name, stated, OPTIONS[name], typed, log)
        values[name] = typed if stated is None else stated
        sources[name] = OPTIONS[name] if stated is None else "the path"
    nodes, width = values["nodes"], values["gpus_per_node"]
    if log.name and not (nodes or width or log.gpus):
        values["nodes"], values["gpus_per_node"], source = read_system(log.path.parent)
        sources |= dict.fromkeys(("nodes", "gpus_per_node"), source) if source else {}
    if log.gpus and nodes and width and nodes * width != log.gpus:
        flags = "--nodes with --gpus-per-node"
        raise make_contradiction("gpus", log.gpus, flags, f"{nodes} x {width}", log)
    usual = Setting()
    return Setting(
        **{**values, **model},
        skip=usual.skip if window.skip is None else window.skip,
        iters=usual.iters if window.iters is None else window.iters,
        reach=0 if window.iters in {None, END} else window.iters,
        sources=tuple(sources.items()),
    ).settled({})[0]


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


def make_unknown(names: Sequence[str], log: LogFile) -> UnknownLogError:
    """Return the error for a missing fact that a number or its place in a table needs."""
    flags = [OPTIONS[name] for name in names if name in OPTIONS]
    settings = [f"--set {name}=N" for name in names if name in _SETTABLE]
    hint = f"Give {' '.join([*flags, *settings])}" if flags or settings else ""
    hint += "." if settings else ", or name it in --pattern." if flags else ""
    message = f"Neither the path nor the log has {' and '.join(names)}."
    return UnknownLogError(message, where=printable_path(log.path), hint=hint)


# Bytes of a system's description, and the folders above a log whose `systems` folder may have it:
# results/SYSTEM/BENCHMARK.
_MAX_BYTES = 1 << 20
_LEVELS = 3


@cache
def read_system(folder: Path) -> tuple[int | None, int | None, str]:
    """Return nodes and GPUs per node of the system whose logs a folder holds, and their source.

    The source is empty if no file describes it, or if files differ.
    """
    folder = folder.absolute()
    levels = (folder, *folder.parents)[:_LEVELS]
    groups = [[level.parent.parent / "systems" / f"{level.name}.json"] for level in levels]
    groups += [sorted(level.glob("*.json")) for level in levels[:2]]
    for paths in groups:
        systems = [(*shape, printable_path(path)) for path in paths if (shape := _read_shape(path))]
        if systems:
            shapes = {system[:2] for system in systems}
            return systems[0] if len(shapes) == 1 else (None, None, "")
    return None, None, ""


def _read_shape(path: Path) -> tuple[int, int] | None:
    try:
        if path.stat().st_size > _MAX_BYTES:
            return None
        document = json.loads(path.read_bytes())
        nodes, width = int(document["number_of_nodes"]), int(document["accelerators_per_node"])
    except (OSError, ValueError, TypeError, KeyError, OverflowError):
        return None
    return (nodes, width) if nodes > 0 and width > 0 else None
