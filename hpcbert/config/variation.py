"""What a recipe does otherwise on a device, and the virtual environment that it runs in."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003  annotations are read
from dataclasses import field
from typing import Annotated, Literal

from hpcbert.config.decode import Invalid, Written
from hpcbert.model import Precision  # noqa: TC001  likewise
from hpcbert.system.lazy import dataclass


def _release(text: str) -> str:
    """Return a Python release, `3.9`, or refuse what is none."""
    parts = text.split(".")
    if len(parts) != 2 or not all(part.isdigit() for part in parts):  # noqa: PLR2004
        raise Invalid('must be a release of Python such as "3.9"', value=text)
    return text


@dataclass(frozen=True)
class InstallStep:
    """One call of pip: `[[environment.install]]`.

    Attributes:
        requirements: File of the recipe's folder, with a version for each package.
        options: Further options of `pip install`.
        source: Whether the program's checkout itself is installed.
        env: VirtualEnvironment variables for this call.
    """

    requirements: str = ""
    options: tuple[str, ...] = ()
    source: bool = False
    env: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.requirements and not self.source:
            raise Invalid("must name a file, or set source", key="requirements")


@dataclass(frozen=True)
class VirtualEnvironment:
    """The virtual environment that `prepare` makes for a recipe: `[environment]`.

    Attributes:
        python: Release of Python that it is made with, `3.9`.
        install: What is installed in it, in this order.
        program: Whether the program is among what is installed, so that nothing is checked out.
        patches: Files of the recipe's folder that are applied to the installed packages.
    """

    python: Annotated[str, _release]
    install: tuple[InstallStep, ...] = ()
    program: bool = False
    patches: tuple[str, ...] = ()

    @property
    def builds_source(self) -> bool:
        """Whether the program's checkout is installed in it."""
        return any(one.source for one in self.install)


def _preferred(said: str | tuple[str, ...]) -> tuple[str, ...]:
    named = (said,) if isinstance(said, str) else said
    return tuple(one for one in named if one)


# One name, or several in the order of preference.
Preferred = Annotated[tuple[str, ...], Written(str | tuple[str, ...], _preferred)]


@dataclass(frozen=True)
class Variation:
    """What of a recipe is otherwise on a device: `[on.DEVICE]`; what is empty is as everywhere.

    Attributes:
        launch: How ranks are started.
        mpi: As the recipe's; `none` where they need none.
        alone: Why no more than one rank can run there, one sentence; empty if more can.
        one_node: The same of more than one node.
        models: Those that it can train there.
        precisions: Those that it can run there.
        patches: Applied to the program after those of `[source]`.
        protocols: Those that it can run there; the first is the default.
        rule: The rule that `collect` takes there if none is named.
        problems: Known problems, after the others.
        env: VirtualEnvironment variables that every rank gets, beside the others.
        environment: Instead of the one for all devices.
    """

    launch: Literal["", "per-gpu", "per-node"] = ""
    mpi: Preferred = ()
    alone: str = ""
    one_node: str = ""
    models: tuple[str, ...] = ()
    precisions: tuple[Precision, ...] = ()
    patches: tuple[str, ...] = ()
    protocols: tuple[str, ...] = ()
    rule: str = ""
    problems: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    environment: VirtualEnvironment | None = None
