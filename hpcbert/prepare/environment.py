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
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcbert.errors import IncompleteError
from hpcbert.prepare.parts import Context, Part, Status, make_directory, write_down
from hpcbert.script.prepared import (
    beside,
    environment_record,
    interpreter,
    packages,
    record,
    runs_in_environment,
    source_record,
)
from hpcbert.system import redact
from hpcbert.system.files import refusal
from hpcbert.system.lock import locked

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hpcbert.config.recipe import Recipe
    from hpcbert.config.site import Site
    from hpcbert.config.variation import InstallStep, VirtualEnvironment

# Time limit of one call of pip, seconds: some packages are compiled.
_PATIENCE = 7200.0
# Variables that would make pip install elsewhere, or Python read elsewhere.
_FOREIGN = re.compile(r"PYTHON(PATH|HOME|USERBASE)|PIP_(TARGET|PREFIX|USER|ROOT)|VIRTUAL_ENV")
_USUAL = {"PIP_RETRIES": "2", "PIP_TIMEOUT": "20"}
# Packages to name, and lines of a failed command to show.
_SHOWN = 3
_LINES = 10
_QUESTION = "import sys; print('%d.%d %d.%d.%d' % (sys.version_info[:2] + sys.version_info[:3]))"
# Directories below the home directory where tools install several Pythons.
_COLLECTIONS = (".pyenv/versions/{}.*", ".local/share/uv/python/cpython-{}.*")


def environment(recipe: Recipe, site: Site, context: Context) -> Part:
    """Make the virtual environment of a framework.

    Raises:
        UsageError: A file of the recipe is missing, or another process is making it.
        HpcbertError: The file system refused.
    """
    virtual_environment = recipe.environment
    if virtual_environment is None or not runs_in_environment(site, recipe):
        return Part(recipe.name, "environment", "skipped", _unwanted(recipe, site))
    path = environment_record(site, recipe)
    installation = _Installation(recipe, virtual_environment, site, beside(path), context)
    made = record(path)
    if made and interpreter(installation.directory).exists():
        return installation.there(made)
    try:
        python = find_python(virtual_environment.python, context, installation.env)
        if context.dry:
            return installation.part(
                "planned", f"would install {installation.names} with {python.path}"
            )
        make_directory(installation.directory.parent)
        guard = installation.directory.with_name(f".{installation.directory.name}.lock")
        make_directory(guard)
        with locked(guard, "virtual environment"):
            made = installation.make(python)
            write_down(path, made)
    except IncompleteError as error:
        return Part(recipe.name, "environment", "failed", error.message, hint=error.hint)
    return installation.ready("done", made)


def _unwanted(recipe: Recipe, site: Site) -> str:
    if recipe.environment is None:
        return "the recipe needs none"
    if site.container.runtime != "none":
        return "ranks run in an image"
    return f"the site names an interpreter: frameworks.{recipe.name}.python"


class Interpreter(NamedTuple):
    """An interpreter and its full version, `3.9.18`."""

    path: str
    version: str


def find_python(release: str, context: Context, env: Mapping[str, str]) -> Interpreter:
    """Return an interpreter of a release of Python: the named one, or one found here.

    Args:
        release: Such as `3.9`.
        context: The context.
        env: The environment to ask interpreters in.

    Raises:
        IncompleteError: There is none; the hint says how to name one.
    """
    seen = []
    for path in (context.python,) if context.python else _candidates(release, context):
        outcome = context.run([path, "-c", _QUESTION], env=env, timeout=30.0)
        found, _, version = outcome.stdout.strip().partition(" ")
        if outcome.ok and found == release:
            return Interpreter(path, version)
        seen.append(f"{path} is {version}" if outcome.ok else f"{path} does not run")
    where = "--python" if context.python else f"python{release} on PATH, pyenv's and uv's"
    looked = f"looked at {where}: {'; '.join(seen)}" if seen else f"looked for {where}"
    raise IncompleteError(
        f"there is no Python {release} here: {looked}",
        hint=f"Put python{release} on PATH, or name it: hpcbert prepare --python "
        f"/path/to/python{release}. For an environment that you made yourself, set "
        "frameworks.NAME.python in the site.toml.",
    )


def _candidates(release: str, context: Context) -> Iterator[str]:
    names = (f"python{release}", "python3", "python")
    programs = [shutil.which(name, path=context.env.get("PATH")) for name in names]
    home = Path(context.env.get("HOME") or "/")
    for pattern in _COLLECTIONS:
        paths = sorted(home.glob(f"{pattern.format(release)}/bin/python{release}"))
        programs += map(str, reversed(paths))
    yield from dict.fromkeys(path for path in (*programs, sys.executable) if path)


class _Installation:
    """One virtual environment, and the work on it."""

    def __init__(
        self, recipe: Recipe, wanted: VirtualEnvironment, site: Site, directory: Path,
        context: Context,
    ) -> None:  # fmt: skip
        self.recipe, self.wanted, self.site = recipe, wanted, site
        self.directory, self.context = directory, context
        own = {name: text for name, text in context.env.items() if not _FOREIGN.match(name)}
        self.env = {**_USUAL, **own, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
        self.env |= {"PYTHONNOUSERSITE": "1", "LC_ALL": "C.UTF-8"}

    @property
    def names(self) -> str:
        """The files that list the packages."""
        files = [install_step.requirements or "the program" for install_step in self.wanted.install]
        return ", ".join(dict.fromkeys(files)) or "nothing"

    def part(self, status: Status, detail: str, digest: str = "", hint: str = "") -> Part:
        """Return the result."""
        path = str(self.directory)
        return Part(self.recipe.name, "environment", status, detail, path, digest, hint)

    def ready(self, status: Status, made: Mapping[str, Any]) -> Part:
        """Return the result for one that exists."""
        detail = f"Python {made['python']}, {len(made['packages'])} packages"
        return self.part(status, detail, str(made["digest"]))

    def there(self, made: Mapping[str, Any]) -> Part:
        """Check whether it still has the installed packages."""
        try:
            changed = sorted(set(self._held()) ^ set(made["packages"]))
            text = f"packages were changed since: {', '.join(changed[:_SHOWN])}" if changed else ""
        except IncompleteError as error:
            text = f"hpcbert cannot read it: {error.message}"
        if not text:
            return self.ready("ready", made)
        hint = f"Remove {self.directory} and its .json, and prepare again; or name an interpreter "
        hint += f"of your own: frameworks.{self.recipe.name}.python."
        return self.part("failed", text, hint=hint)

    def make(self, python: Interpreter) -> dict[str, Any]:
        """Make it; a failure leaves nothing behind.

        Raises:
            IncompleteError: Something can't be installed.
            HpcbertError: The file system refused.
        """
        self._remove()
        try:
            self.context.say(f"making {self.directory.name} with {python.path}")
            self._run(python.path, "-m", "venv", str(self.directory))
            for step in self.wanted.install:
                self._install(step)
            for patch in self.wanted.patches:
                self._patch(patch)
            held = self._held()
        except BaseException:
            self._remove()
            raise
        text = "\n".join([python.version, *held, *self.wanted.patches])
        return {
            "framework": self.recipe.name,
            "python": python.version,
            "base": python.path,
            "packages": held,
            "patches": list(self.wanted.patches),
            "digest": f"packages:{hashlib.sha256(text.encode()).hexdigest()}",
        }

    def _remove(self) -> None:
        if self.directory.exists():
            with refusal("remove", self.directory):
                shutil.rmtree(self.directory)

    def _install(self, step: InstallStep) -> None:
        words = ["-m", "pip", "install", *step.options]
        if step.requirements:
            words += ["-r", str(Path(self.recipe.folder) / step.requirements)]
        self.context.say(f"installing {step.requirements or 'the program'}")
        python = str(interpreter(self.directory))
        if not step.source:
            self._run(python, *words, env=step.env)
            return
        # Builds write into the folder that they build.
        copy = self.directory / "src"
        with refusal("copy the program", copy):
            shutil.copytree(self._checkout(), copy, symlinks=True)
        self._run(python, *words, str(copy), env=step.env)
        with refusal("remove", copy):
            shutil.rmtree(copy)

    def _checkout(self) -> Path:
        """Return the root of the program's checkout.

        Raises:
            IncompleteError: It does not exist.
        """
        source = self.site.settings(self.recipe.name).source
        path = source_record(self.site, self.recipe)
        root = Path(source) if source else beside(path)
        inner = Path(self.recipe.source.path).parts
        if source and inner and root.parts[-len(inner) :] == inner:
            root = root.parents[len(inner) - 1]
        if not (root.is_dir() and (source or record(path))):
            raise IncompleteError(
                "it needs the program's checkout, which does not exist",
                hint=f"hpcbert prepare --fw {self.recipe.name} --only source",
            )
        return root

    def _patch(self, name: str) -> None:
        folder = packages(self.directory, self.wanted.python)
        patch = str(Path(self.recipe.folder) / name)
        # A repository around it does not belong to it.
        own = {"GIT_CEILING_DIRECTORIES": str(folder.parent)}
        self._run("git", "apply", "--whitespace=nowarn", patch, cwd=folder, env=own)

    def _held(self) -> list[str]:
        """Return the packages in it, `NAME==VERSION` each.

        Raises:
            IncompleteError: Its pip does not answer.
        """
        said = self._run(str(interpreter(self.directory)), "-m", "pip", "list", "--format=json")
        try:
            return sorted(f"{load['name']}=={load['version']}" for load in json.loads(said))
        except (ValueError, KeyError, TypeError) as error:
            raise IncompleteError("its pip does not list the installed packages") from error

    def _run(
        self, *argv: str, cwd: Path | None = None, env: Mapping[str, str] = MappingProxyType({})
    ) -> str:
        """Run a command and return its output.

        Raises:
            IncompleteError: It failed; the message has the reason, as far as known.
        """
        outcome = self.context.run(argv, env={**self.env, **env}, cwd=cwd, timeout=_PATIENCE)
        if outcome.ok:
            return outcome.stdout
        printed = redact.text(f"{outcome.stdout}\n{outcome.stderr}")
        lines = [line.strip() for line in printed.splitlines() if line.strip()]
        for line in lines[-_LINES:]:
            self.context.say(line)
        errors = [line for line in lines if line.lower().startswith(("error: ", "fatal: "))]
        last = (errors or lines or [f"status {outcome.returncode}"])[-1]
        hint = "See the output above; hpcbert keeps nothing half made. Name another package index "
        hint += "with PIP_INDEX_URL or PIP_FIND_LINKS, another Python with --python."
        raise IncompleteError(f"{_called(argv)} failed: {last}", hint=hint)


def _called(argv: Sequence[str]) -> str:
    """Return a command's name for a message: `pip install`, `git apply`, `venv`."""
    words = argv[2:] if argv[1] == "-m" else argv
    return " ".join(word for word in words[:2] if "/" not in word)
