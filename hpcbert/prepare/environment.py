"""Prepare a virtual environment: the recipe's packages, installed once.

It is made in its final place, because an environment can't be moved, and under a lock; its record
is written last. If it lacks a record, a killed run left it: it is removed and made again.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hpcbert.config.recipe import InstallStep, Recipe, VirtualEnvironment
from hpcbert.config.site import Site
from hpcbert.errors import IncompleteError
from hpcbert.prepare.parts import Context, Part, Status, make_alone, remove_directory, write_record
from hpcbert.script import materials
from hpcbert.system import redact
from hpcbert.system.files import translate_errors

# Time limit of one call of pip, seconds: some packages are compiled.
_PIP_TIMEOUT = 7200.0
# Variables that would make pip install elsewhere, or Python read elsewhere.
_REMOVED_VARIABLES = re.compile(
    r"PYTHON(PATH|HOME|USERBASE)|PIP_(TARGET|PREFIX|USER|ROOT)|VIRTUAL_ENV"
)
_PIP_DEFAULTS = {"PIP_RETRIES": "2", "PIP_TIMEOUT": "20"}
_PIP_SETTINGS = {
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_INPUT": "1",
    "PYTHONNOUSERSITE": "1",
    "LC_ALL": "C.UTF-8",
}
# Packages to name, and lines of a failed command to show.
_SHOWN = 3
_LINES = 10
_VERSION_PROGRAM = (
    "import sys; print('%d.%d %d.%d.%d' % (sys.version_info[:2] + sys.version_info[:3]))"
)
# Directories below the home directory where tools install several Pythons.
_PYTHON_FOLDERS = (".pyenv/versions/{}.*", ".local/share/uv/python/cpython-{}.*")


def prepare_environment(recipe: Recipe, site: Site, context: Context) -> Part:
    """Make the virtual environment of a framework.

    Raises:
        UsageError: A file of the recipe is missing, or another process is making it.
        IncompleteError: There is no such Python, packages can't be installed, or were changed.
    """
    virtual_environment = recipe.environment
    if virtual_environment is None:
        return Part("skipped", "the recipe needs none")
    if not materials.runs_in_environment(site, recipe):
        detail = "ranks run in an image"
        if site.container.runtime == "none":
            detail = f"the site names an interpreter: frameworks.{recipe.name}.python"
        return Part("skipped", detail)
    path = materials.environment_record_path(site, recipe)
    installation = _Installation(recipe, virtual_environment, site, context)
    description = materials.read_record(path)
    if description and materials.interpreter_path(installation.directory).exists():
        return installation.check_installed(description)
    python = find_python(virtual_environment.python, context, installation.env)
    if context.dry:
        steps = virtual_environment.install
        files = dict.fromkeys(step.requirements or "the program" for step in steps)
        detail = f"would install {', '.join(files) or 'nothing'} with {python[0]}"
        return Part("planned", detail, str(installation.directory))
    with make_alone(installation.directory, "virtual environment", path):
        description = installation.make(*python)
        write_record(path, description)
    return installation.describe("done", description)


def find_python(release: str, context: Context, env: Mapping[str, str]) -> tuple[str, str]:
    """Return the path and the version of an interpreter: the named one, or one found here.

    Raises:
        IncompleteError: There is none; the hint says how to name one.
    """
    answers = []
    for path in (context.python,) if context.python else _find_interpreters(release, context):
        outcome = context.run([path, "-c", _VERSION_PROGRAM], env=env, timeout=30.0)
        short_version, _, version = outcome.stdout.strip().partition(" ")
        if outcome.ok and short_version == release:
            return path, version
        answers.append(f"{path} is {version}" if outcome.ok else f"{path} does not run")
    where = "--python" if context.python else f"python{release} on PATH, pyenv's and uv's"
    search = f"looked at {where}: {'; '.join(answers)}" if answers else f"looked for {where}"
    hint = f"Put python{release} on PATH, or name it: hpcbert prepare --python "
    hint += f"/path/to/python{release}. For an environment that you made yourself, set "
    hint += "frameworks.NAME.python in the site.toml."
    raise IncompleteError(f"there is no Python {release} here: {search}", hint=hint)


def _find_interpreters(release: str, context: Context) -> Iterator[str]:
    names = (f"python{release}", "python3", "python")
    programs = [shutil.which(name, path=context.env.get("PATH")) for name in names]
    home = Path(context.env.get("HOME") or "/")
    for pattern in _PYTHON_FOLDERS:
        paths = sorted(home.glob(f"{pattern.format(release)}/bin/python{release}"))
        programs += map(str, reversed(paths))
    yield from dict.fromkeys(path for path in (*programs, sys.executable) if path)


class _Installation:
    """The making and checking of one virtual environment."""

    def __init__(
        self, recipe: Recipe, virtual_environment: VirtualEnvironment, site: Site, context: Context
    ) -> None:
        self.recipe = recipe
        self.virtual_environment = virtual_environment
        self.site = site
        self.context = context
        self.directory = materials.record_directory(materials.environment_record_path(site, recipe))
        inherited_env = {
            name: value for name, value in context.env.items() if not _REMOVED_VARIABLES.match(name)
        }
        self.env = {**_PIP_DEFAULTS, **inherited_env, **_PIP_SETTINGS}

    def describe(self, status: Status, description: Mapping[str, Any]) -> Part:
        detail = f"Python {description['python']}, {len(description['packages'])} packages"
        return Part(status, detail, str(self.directory), str(description["digest"]))

    def check_installed(self, description: Mapping[str, Any]) -> Part:
        """Compare the packages with the recorded ones.

        Raises:
            IncompleteError: They differ, or can't be listed.
        """
        try:
            changed = sorted(set(self._list_packages()) ^ set(description["packages"]))
        except IncompleteError as error:
            problem = f"hpcbert cannot read it: {error.message}"
        else:
            if not changed:
                return self.describe("ready", description)
            problem = f"packages were changed since: {', '.join(changed[:_SHOWN])}"
        hint = f"Remove {self.directory} and its .json, and prepare again; or name an interpreter "
        hint += f"of your own: frameworks.{self.recipe.name}.python."
        raise IncompleteError(problem, where=str(self.directory), hint=hint)

    def make(self, interpreter: str, version: str) -> dict[str, Any]:
        """Make the environment.

        Raises:
            IncompleteError: Something can't be installed.
        """
        patches = self.virtual_environment.patches
        self.context.say(f"making {self.directory.name} with {interpreter}")
        self._run(interpreter, "-m", "venv", str(self.directory))
        for step in self.virtual_environment.install:
            self._install(step)
        folder = materials.packages_path(self.directory, self.virtual_environment.python)
        # The program's own repository, not one around the checkout.
        env = {"GIT_CEILING_DIRECTORIES": str(folder.parent)}
        for patch in patches:
            path = str(Path(self.recipe.folder) / patch)
            self._run("git", "apply", "--whitespace=nowarn", path, cwd=folder, env=env)
        installed_packages = self._list_packages()
        listing = "\n".join([version, *installed_packages, *patches])
        return {
            "framework": self.recipe.name,
            "python": version,
            "base": interpreter,
            "packages": installed_packages,
            "patches": list(patches),
            "digest": f"packages:{hashlib.sha256(listing.encode()).hexdigest()}",
        }

    def _install(self, step: InstallStep) -> None:
        arguments = ["-m", "pip", "install", *step.options]
        if step.requirements:
            arguments += ["-r", str(Path(self.recipe.folder) / step.requirements)]
        self.context.say(f"installing {step.requirements or 'the program'}")
        python = str(materials.interpreter_path(self.directory))
        if not step.source:
            self._run(python, *arguments, env=step.env)
            return
        # Builds write into their own folder.
        copy = self.directory / "src"
        with translate_errors("copy the program", copy):
            shutil.copytree(self._checkout(), copy, symlinks=True)
        self._run(python, *arguments, str(copy), env=step.env)
        remove_directory(copy)

    def _checkout(self) -> Path:
        source = self.site.settings(self.recipe.name).source
        path = materials.source_record_path(self.site, self.recipe)
        root = Path(source) if source else materials.record_directory(path)
        inner = Path(self.recipe.source.path).parts
        if source and inner and root.parts[-len(inner) :] == inner:
            root = root.parents[len(inner) - 1]
        if not (root.is_dir() and (source or materials.read_record(path))):
            message = "it needs the program's checkout, which does not exist"
            hint = f"hpcbert prepare --fw {self.recipe.name} --only source"
            raise IncompleteError(message, hint=hint)
        return root

    def _list_packages(self) -> list[str]:
        python = str(materials.interpreter_path(self.directory))
        packages = json.loads(self._run(python, "-m", "pip", "list", "--format=json"))
        return sorted(f"{package['name']}=={package['version']}" for package in packages)

    def _run(
        self, *argv: str, cwd: Path | None = None, env: Mapping[str, str] = MappingProxyType({})
    ) -> str:
        outcome = self.context.run(argv, env={**self.env, **env}, cwd=cwd, timeout=_PIP_TIMEOUT)
        if outcome.ok:
            return outcome.stdout
        output = redact.mask_text(f"{outcome.stdout}\n{outcome.stderr}")
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        for line in lines[-_LINES:]:
            self.context.say(line)
        errors = [line for line in lines if line.lower().startswith(("error: ", "fatal: "))]
        reason = (errors or lines or [f"status {outcome.returncode}"])[-1]
        hint = "See the output above; hpcbert keeps nothing half made. Name another package index "
        hint += "with PIP_INDEX_URL or PIP_FIND_LINKS, another Python with --python."
        # `pip install`, `git apply`, `venv`.
        words = argv[2:] if argv[1] == "-m" else argv
        name = " ".join(word for word in words[:2] if "/" not in word)
        raise IncompleteError(f"{name} failed: {reason}", hint=hint)
