"""site.toml: one cluster, or this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from hpcbert.config.decode import decode
from hpcbert.config.inventory import (
    ContainerSettings,
    FrameworkSettings,
    Runtime,
    Site,
    SlurmSettings,
)
from hpcbert.config.places import default_site, find_site
from hpcbert.config.toml import read
from hpcbert.timelimit import TimeLimit

if TYPE_CHECKING:
    from collections.abc import Mapping

RUNTIMES: tuple[str, ...] = get_args(Runtime)


@dataclass(frozen=True)
class Overrides:
    """What a command line says instead of a site.toml; what is empty is as the site has it.

    Attributes:
        runs: Relative to the working directory.
        sbatch_args, srun_args: Further words, after the site's.
        framework: Whose settings the rest is.
    """

    runs: str = ""
    runtime: str = ""
    partition: str = ""
    account: str = ""
    qos: str = ""
    time_limit: str = ""
    sbatch_args: tuple[str, ...] = ()
    srun_args: tuple[str, ...] = ()
    framework: str = ""
    image: str = ""
    data: str = ""
    source: str = ""
    python: str = ""
    repository: str = ""

    def named(self, kind: type) -> dict[str, Any]:
        """Return what is given of the fields of a table of the site, by name."""
        names = {one.name for one in fields(kind)} & {one.name for one in fields(self)}
        return {name: value for name in names if (value := getattr(self, name))}


def load(
    flag: str = "",
    given: Overrides = Overrides(),
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Site:
    """Find and read the site.toml, and put in what the command line says instead: once for all.

    Args:
        flag: What `--site` says: a file, or a folder with a site.toml; empty if not given.
        given: What the command line says of the site's keys.
        env: Environment to look in; the process's own by default.
        cwd: Where to start looking upward; the working directory by default.

    Raises:
        ConfigError: The file is wrong or, where it was named, missing.
    """
    env = os.environ if env is None else env
    cwd = Path.cwd() if cwd is None else cwd
    path, _ = find_site(flag, env=env, cwd=cwd)
    # The embedded default may lie in site-packages: its runs belong where the person is.
    base = cwd if path == default_site() and path.parent.name == "_templates" else path.parent
    return _overridden(read_site(path, base=base, env=env), given, cwd)


def _overridden(site: Site, given: Overrides, cwd: Path) -> Site:
    slurm = given.named(SlurmSettings)
    for program in ("sbatch_args", "srun_args"):
        slurm[program] = (*getattr(site.slurm, program), *getattr(given, program))
    if given.time_limit:
        slurm["time_limit"] = TimeLimit.parse(given.time_limit)
    own = given.named(FrameworkSettings)
    settings = {given.framework: replace(site.settings(given.framework), **own)} if own else {}
    return replace(
        site,
        runs=str((cwd / given.runs).absolute()) if given.runs else site.runs,
        slurm=replace(site.slurm, **slurm),
        container=replace(site.container, **given.named(ContainerSettings)),
        frameworks={**site.frameworks, **settings},
    )


def runs_directory(flag: str = "") -> Path:
    """Return the directory that holds the campaigns of the site in use."""
    return Path(load(flag).runs)


def read_site(path: Path, *, base: Path, env: Mapping[str, str]) -> Site:
    """Read one site.toml strictly; HPCBERT_RUNS overrides where campaigns go.

    Args:
        path: The file.
        base: What relative paths (`runs`, `container.images`) are relative to.
        env: Environment, for HPCBERT_RUNS.

    Raises:
        ConfigError: The file is wrong; file and key are named.
    """
    found = decode(Site, read(path), file=str(path), where=str(path))

    def absolute(name: str) -> str:
        return str((base / Path(name).expanduser()).absolute())

    return replace(
        found,
        runs=absolute(env.get("HPCBERT_RUNS") or found.runs),
        sources=absolute(found.sources),
        container=replace(found.container, images=absolute(found.container.images)),
        frameworks={
            name: replace(one, image=absolute_image(one.image, base))
            for name, one in found.frameworks.items()
        },
    )


def absolute_image(text: str, base: Path) -> str:
    """Return an image reference with the path of a file made absolute; others as they are.

    Args:
        text: A reference; `~/x.sqsh` is a file in the home directory.
        base: What `./x.sqsh` is relative to.
    """
    if text.startswith("~/"):
        return str(Path(text).expanduser())
    return str((base / text).absolute()) if text.startswith(".") else text
