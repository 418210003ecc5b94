"""The schedulers that a site can name, and their differences for scripts and checks.

A scheduler is a package that names its `Traits`: hpcbert's own in hpcbert/scheduler/, others by an
entry point of the group GROUP.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hpcbert.errors import ConfigError
from hpcbert.system.decode import check_choice
from hpcbert.system.machine import list_entry_points, load_entry_point

GROUP = "hpcbert.schedulers"
SLURM = "slurm"
LOCAL = "local"
OWN = (SLURM, LOCAL)
# Chosen by `submit --here` alone.
ALLOCATION = "allocation"
# The library of job scripts.
SHELL = Path(__file__).parents[1] / "shell"


@dataclass(frozen=True)
class Traits:
    """The properties of a scheduler.

    Attributes:
        class_path: `MODULE:CLASS` of its `hpcbert.scheduler.base.Scheduler`.
        launch: The file of its scripts' library that prepares nodes and starts ranks.
        launcher: The command in a script, as shell, that starts all ranks of a step; empty if the
            library starts each.
        prefix: The first word of the lines by which a script requests its job; empty for none.
        format_options: Turns sbatch's options, a word each, into the rest of these lines. Of two
            lines for one option the last counts: a retry adds its own.
        runs_locally: Whether its jobs run only on this machine.
        srun: Whether srun starts the ranks, with pyxis if requested; otherwise the script does.
        accepts_more: Whether more of a campaign may be submitted while some of it waits or runs.
        records_end: Whether it adds the end of a repeat to the repeat's status file.
        in_allocation: Whether jobs are steps of an allocation that the user has already.
    """

    name: str
    class_path: str
    launch: Path = SHELL / "local.bash"
    launcher: str = ""
    prefix: str = ""
    format_options: Callable[[Sequence[str]], Iterable[str]] = tuple
    runs_locally: bool = False
    srun: bool = False
    accepts_more: bool = True
    records_end: bool = False
    in_allocation: bool = False

    def format_directives(self, options: Sequence[str]) -> tuple[str, ...]:
        """Return the lines by which a script requests its job; `options` as sbatch reads them."""
        texts = self.format_options(options) if self.prefix else ()
        return tuple(f"{self.prefix} {text}" for text in texts)

    @property
    def sbatch(self) -> bool:
        """Whether sbatch gets the scripts."""
        return self.srun and not self.in_allocation

    @property
    def label(self) -> str:
        """Its name in a sentence about options."""
        return "--here" if self.in_allocation else f"the {self.name} scheduler"


def check_scheduler(name: str) -> str:
    """Return the name of a scheduler.

    Raises:
        Invalid: No scheduler has that name.
    """
    if name in OWN:
        return name
    names = {*OWN, *list_entry_points(GROUP)} - {ALLOCATION}
    return str(check_choice(tuple(sorted(names)), name))


def has_scheduler(name: str) -> bool:
    """Return whether hpcbert or an installed package has a scheduler of that name."""
    return name in (*OWN, ALLOCATION) or name in list_entry_points(GROUP)


@cache
def find_traits(name: str) -> Traits:
    """Return the properties of a scheduler that a site, a manifest or a command line names.

    Raises:
        ConfigError: Its package is broken.
    """
    try:
        if name in (*OWN, ALLOCATION):
            traits = importlib.import_module(f"hpcbert.scheduler.{name}").TRAITS
        else:
            traits = load_entry_point(list_entry_points(GROUP)[name])
        problem = f"its entry point offers no Traits of the name {name}"
    except ImportError as error:
        traits, problem = None, str(error)
    if isinstance(traits, Traits) and traits.name == name:
        return traits
    raise _make_error(name, problem)


def load_class(traits: Traits) -> Any:
    """Return the `hpcbert.scheduler.base.Scheduler` of a scheduler.

    Raises:
        ConfigError: Its package is broken.
    """
    module, _, class_name = traits.class_path.partition(":")
    if traits.name in (*OWN, ALLOCATION):
        return getattr(importlib.import_module(module), class_name)
    from importlib.metadata import EntryPoint

    try:
        return load_entry_point(EntryPoint(traits.name, traits.class_path, GROUP))
    except ImportError as error:
        raise _make_error(traits.name, str(error)) from error


def _make_error(name: str, problem: str) -> ConfigError:
    return ConfigError(
        f"The scheduler {name!r} can't be used: {problem}.",
        where=f"entry point {name} of {GROUP}",
        hint="Install its package in hpcbert's environment again.",
    )
