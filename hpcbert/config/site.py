"""site.toml: one cluster, or this machine."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from hpcbert import timelimit
from hpcbert.config import slurmwords
from hpcbert.config.inventory import FrameworkSettings, Site
from hpcbert.config.places import default_site, find_site
from hpcbert.config.toml import read
from hpcbert.model import PRECISIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcbert.config.strict import Table

SCHEDULERS = ("local", "slurm")
RUNTIMES = ("none", "pyxis", "enroot")
# Seconds between two queries of the scheduler.
_FLOOR = (0.1, 3600.0)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def load(flag: str = "", *, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Site:
    """Find and read the site.toml.

    Args:
        flag: What `--site` says: a file, or a folder with a site.toml; empty if not given.
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
    return read_site(path, base=base, env=env)


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
    table = read(path)
    runs = env.get("HPCBERT_RUNS") or table.get("runs", str, "runs")
    table.get("runs", str, "runs")
    site = Site(
        where=str(path),
        name=table.need("name", str),
        scheduler=cast("Literal['slurm', 'local']", table.choice("scheduler", SCHEDULERS)),
        runs=str((base / Path(runs).expanduser()).absolute()),
        sources=str((base / Path(table.get("sources", str, "sources")).expanduser()).absolute()),
        **_slurm(table.table("slurm")),
        **_nodes(table.table("nodes")),
        **_container(table.table("container"), base),
        env=_env(table),
        frameworks=_frameworks(table.table("frameworks"), base),
    )
    table.close()
    return site


def absolute_image(text: str, base: Path) -> str:
    """Return an image reference with the path of a file made absolute; others as they are.

    Args:
        text: A reference; `~/x.sqsh` is a file in the home directory.
        base: What `./x.sqsh` is relative to.
    """
    if text.startswith("~/"):
        return str(Path(text).expanduser())
    return str((base / text).absolute()) if text.startswith(".") else text


def _slurm(table: Table) -> dict[str, Any]:
    words = ("partition", "account", "qos", "reservation", "constraint", "mpi", "memory")
    values: dict[str, Any] = {word: table.get(word, str, "") for word in words}
    values["gres"] = table.get("gres", str, "gpu")
    values["time_limit"] = table.get("time_limit", str, "01:00:00")
    try:
        timelimit.read(values["time_limit"])
    except ValueError as error:
        message = f"must look like HH:MM:SS: {error}"
        raise table.error("time_limit", message, timelimit.FORMS) from error
    values["exclusive"] = table.get("exclusive", bool, default=True)
    values["requeue"] = table.get("requeue", bool, default=True)
    for program in ("sbatch", "srun"):
        key = f"{program}_args"
        values[key] = table.items(key, str)
        if why := slurmwords.refusal(program, values[key]):
            raise table.error(key, f"can't be handed on: {why}", "Leave it out there.")
    values["poll_floor"] = table.get("poll_floor", float, 10.0)
    if not _FLOOR[0] <= values["poll_floor"] <= _FLOOR[1]:
        low, high = _FLOOR
        raise table.error("poll_floor", f"must be above 0 seconds: {low:g} to {high:g}.")
    table.close()
    return values


def _nodes(table: Table) -> dict[str, Any]:
    values = {
        "gpus_per_node": table.at_least("gpus_per_node", 1, 8, most=1024),
        "cpus_per_gpu": table.at_least("cpus_per_gpu", 0, 0, most=4096),
        "interface": table.get("interface", str, ""),
    }
    table.close()
    return values


def _container(table: Table, base: Path) -> dict[str, Any]:
    images = Path(table.get("images", str, "images")).expanduser()
    values: dict[str, Any] = {
        "runtime": table.choice("runtime", RUNTIMES, "none"),
        "images": str((base / images).absolute()),
        "mounts": table.items("mounts", str),
        "home": table.get("home", bool, default=False),
        "remap_root": table.get("remap_root", bool, default=False),
        "entrypoint": table.get("entrypoint", bool, default=False),
        "container_env": table.items("env", str),
        "scratch": table.get("scratch", str, ""),
    }
    for name in values["container_env"]:
        if not _VARIABLE.fullmatch(name):
            raise table.error("env", f"names {name!r}, which is no environment variable's name.")
    if values["scratch"] and not Path(values["scratch"]).is_absolute():
        raise table.error("scratch", "must be an absolute path: it is looked up on every node.")
    table.close()
    return values


def _env(table: Table) -> tuple[tuple[str, str], ...]:
    values = table.mapping("env", str)
    for name in values:
        if not _VARIABLE.fullmatch(name):
            raise table.error(f"env.{name}", "is no name for an environment variable.")
    return tuple(values.items())


def _frameworks(table: Table, base: Path) -> tuple[tuple[str, FrameworkSettings], ...]:
    return tuple((name, _settings(table.table(name), base)) for name in table.values)


def _settings(table: Table, base: Path) -> FrameworkSettings:
    settings = FrameworkSettings(
        image=absolute_image(table.get("image", str, ""), base),
        data=table.get("data", str, ""),
        source=table.get("source", str, ""),
        repository=table.get("repository", str, ""),
        python=table.get("python", str, ""),
        model=table.get("model", str, ""),
        batch_sizes=_batch_sizes(table.table("batch_sizes")),
        options=_plain(table.table("options")),
    )
    table.close()
    return settings


def _batch_sizes(table: Table) -> tuple[tuple[str, int], ...]:
    sizes = {
        name: table.at_least(name, 1, 1, most=1_000_000) for name in PRECISIONS if table.has(name)
    }
    table.close()
    return tuple(sizes.items())


def _plain(table: Table) -> tuple[tuple[str, Any], ...]:
    """Return options as typed in TOML; the recipe says later which it knows."""
    for name, value in table.values.items():
        if not isinstance(value, str | int | float | bool):
            raise table.error(name, f"must be a text, a number, true or false, not {value!r}.")
        table.get(name, type(value), value)  # which refuses numbers out of range
    return tuple(table.values.items())
