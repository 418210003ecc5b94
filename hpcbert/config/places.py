"""The places of configuration files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hpcbert.errors import ConfigError, UsageError
from hpcbert.system.decode import did_you_mean

SITE = "site.toml"


def package_templates() -> Path:
    """Return hpcbert's own templates: inside the wheel, or next to the package in a checkout."""
    package = Path(__file__).parent.parent
    wheel = package / "_templates"
    return wheel if wheel.is_dir() else package.parent / "templates"


def default_site() -> Path:
    """Return the site.toml that comes with hpcbert: the embedded default."""
    templates = package_templates()
    path = templates / SITE
    return path if path.is_file() else templates.parent / SITE


def config_home(env: Mapping[str, str]) -> Path:
    """Return the directory of the user's configuration (XDG Base Directory Specification)."""
    return Path(env.get("XDG_CONFIG_HOME") or Path(env.get("HOME", "/")) / ".config")


def find_site(flag: str, *, env: Mapping[str, str], cwd: Path) -> tuple[Path, str]:
    """Return the site.toml to use, and what selected it.

    The first one found wins: the flag, HPCBERT_SITE, site.toml upward from the working directory,
    $XDG_CONFIG_HOME/hpcbert, $XDG_CONFIG_DIRS, and at last the one that comes with hpcbert.

    Raises:
        ConfigError: The flag or the variable names a file that does not exist.
    """
    origin, name = ("--site", flag) if flag else ("HPCBERT_SITE", env.get("HPCBERT_SITE", ""))
    if name:
        path = Path(name) / SITE if Path(name).is_dir() else Path(name)
        if not path.is_file():
            hint = "Name a site.toml or its folder; hpcbert init writes one."
            if not flag:
                hint = "If it is of a lab that is gone, run: unset HPCBERT_SITE"
                # A shell that has sourced the lab's env.sh has both.
                hint += "" if Path(env.get("SLURM_CONF", "/")).exists() else " SLURM_CONF"
            raise ConfigError("There is no such file.", where=f"{origin}={name}", hint=hint)
        return path.absolute(), origin
    home = Path(env.get("HOME", "/"))
    for folder in (cwd, *cwd.parents):
        if (folder / SITE).is_file():
            return folder / SITE, "upward from the working directory"
        if folder == home or (folder / ".git").exists():
            break
    for base in (str(config_home(env)), *env.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":")):
        if base and (Path(base) / "hpcbert" / SITE).is_file():
            return Path(base) / "hpcbert" / SITE, "XDG configuration"
    return default_site(), "hpcbert's own"


def recipe_folders(site: Path, extra: tuple[str, ...] = ()) -> tuple[Path, ...]:
    """Return the folders that hold recipes, in order of precedence.

    Those named on the command line, `templates/` next to the site.toml, hpcbert's own.

    Raises:
        UsageError: A named one does not exist.
    """
    for name in extra:
        if not Path(name).is_dir():
            raise UsageError("There is no such folder.", where=f"--templates={name}")
    folders = [*map(Path, extra), site.parent / "templates", package_templates()]
    absolute_folders = dict.fromkeys(folder.absolute() for folder in folders)
    return tuple(folder for folder in absolute_folders if folder.is_dir())


def list_recipes(folders: tuple[Path, ...]) -> dict[str, Path]:
    """Return every recipe's folder by name; the first of a name wins."""
    paths: dict[str, Path] = {}
    for folder in folders:
        for path in sorted(folder.glob("*/recipe.toml")):
            paths.setdefault(path.parent.name, path.parent)
    return paths


def find_recipe(name: str, folders: tuple[Path, ...]) -> Path:
    """Return the folder of one recipe."""
    recipes = list_recipes(folders)
    if name not in recipes:
        raise UsageError(f"There is no framework {name!r}.", hint=did_you_mean(name, recipes))
    return recipes[name]
