"""Differences of a recipe on a device, and the virtual environment that it runs in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from hpcbert.model import Precision
from hpcbert.system.decode import EncodedAs, Invalid


def _check_release(text: str) -> str:
    """Return a Python release, `3.9`, or refuse other text."""
    parts = text.split(".")
    if len(parts) != 2 or not all(part.isdigit() for part in parts):  # noqa: PLR2004
        raise Invalid('must be a release of Python, such as "3.9"', value=text)
    return text


@dataclass(frozen=True)
class InstallStep:
    """One call of pip: `[[environment.install]]`.

    Attributes:
        requirements: File of the recipe's folder, with a version for each package.
        options: Further options of `pip install`.
        source: Whether to install the program's own checkout.
        env: Environment variables for this call.
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
        python: Release of Python to make it with, `3.9`.
        install: What to install in it, in order.
        program: Whether the installation includes the program, so that nothing is checked out.
        patches: Files of the recipe's folder to apply to the installed packages.
    """

    python: Annotated[str, _check_release]
    install: tuple[InstallStep, ...] = ()
    program: bool = False
    patches: tuple[str, ...] = ()

    @property
    def builds_source(self) -> bool:
        """Whether the program's checkout is installed in it."""
        return any(install_step.source for install_step in self.install)


def _read_preferences(preference: str | tuple[str, ...]) -> tuple[str, ...]:
    names = (preference,) if isinstance(preference, str) else preference
    return tuple(name for name in names if name)


# One name, or several in order of preference.
Preferred = Annotated[tuple[str, ...], EncodedAs(str | tuple[str, ...], _read_preferences)]


@dataclass(frozen=True)
class Variation:
    """Differences of a recipe on a device: `[on.DEVICE]`; empty fields mean no difference.

    Attributes:
        launch: How ranks are started.
        mpi: As the recipe's; `none` if they need none.
        alone: Why only one rank can run there, one sentence; empty if more can.
        one_node: Why only one node can run there, one sentence; empty if more can.
        models: The models that it can train there.
        precisions: The precisions that it can run there.
        patches: Applied to the program after those of `[source]`.
        protocols: The protocols that it can run there; the first is the default.
        rule: The default rule of `collect` there.
        problems: Known problems, after the others.
        env: Further environment variables for every rank.
        environment: Replaces the one for all devices.
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
