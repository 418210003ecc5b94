"""Prepare an image: import it once into the site's directory, or build it there if necessary."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from hpcbert.container import cache, reference, runtimes, symptoms
from hpcbert.prepare.parts import Context, Part, make_directory
from hpcbert.script.inputs import built_stem, prepared_image
from hpcbert.script.prepared import beside, record, source_record
from hpcbert.system import ownership, redact

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcbert.config.recipe import Recipe
    from hpcbert.config.site import Site
    from hpcbert.container.cache import Cached
    from hpcbert.container.runtimes import Tool
    from hpcbert.system.runner import Outcome

# A whole image is gigabytes: only the last lines of output before a failure are kept.
_TAIL = 12


def image(recipe: Recipe, site: Site, context: Context) -> Part:
    """Prepare the image that a framework's ranks enter.

    Raises:
        UsageError: Its reference is invalid or does not suit the runtime.
    """
    material = prepared_image(site, recipe)
    own = site.settings(recipe.name).image
    if site.container.runtime == "none":
        return Part(recipe.name, "image", "skipped", "ranks run on the host")
    if material:
        return Part(recipe.name, "image", "ready", material.name, material.path, material.digest)
    if not own and recipe.image.install:
        return _built(recipe, site, context)
    if not own and not recipe.image.reference:
        return Part(
            recipe.name,
            "image",
            "failed",
            "the recipe names no image, and no way to build one",
            hint=f"Name one: frameworks.{recipe.name}.image in {site.where}.",
        )
    return _imported(recipe, site, own or recipe.image.reference, context)


def _imported(recipe: Recipe, site: Site, text: str, context: Context) -> Part:
    runtime = runtimes.of(site.container.runtime)
    wanted = runtimes.check_image(reference.parse(text), runtime, site.where)
    if wanted.kind == "file":
        return _file(recipe, wanted.path, runtime.tool)
    shown = wanted.uri.replace(f"{wanted.user}@", "", 1) if wanted.user else text
    if context.dry:
        images = site.container.images
        detail = f"would import {shown} into {images} ({_room(images)} free)"
        return Part(recipe.name, "image", "planned", detail)
    found = _import(wanted, site, context)
    return _part(recipe, found)


def _import(wanted: reference.Image, site: Site, context: Context) -> Cached | Outcome:
    make_directory(Path(site.container.images))
    env = environment(site, context)
    tool = runtimes.of(site.container.runtime).tool
    named = _digest(wanted, tool, context, env)
    if named:
        context.say(f"{wanted.name}: {named}")
        env = {**env, "HPCBERT_PROVENANCE": json.dumps({"digest": named})}
    stem, uri = tool.prefix + wanted.stem, runtimes.uri(wanted, site.container.runtime)
    words = ["import", uri, site.container.images, stem]
    return _script(words, site, stem, context, env=env)


def _digest(wanted: reference.Image, tool: Tool, context: Context, env: Mapping[str, str]) -> str:
    """Return a registry's digest of an image; empty if its tool can't tell."""
    if wanted.digest or not tool.digest:
        return wanted.digest
    outcome = context.run([*tool.digest, wanted.uri], env=env, timeout=120.0)
    named = outcome.stdout.strip() if outcome.ok else ""
    return named if named.startswith("sha256:") else ""


def _built(recipe: Recipe, site: Site, context: Context) -> Part:
    """Import the base, run the recipe's commands in a container of it, and export the result."""
    base = reference.parse(recipe.image.base or recipe.image.reference)
    tool = runtimes.of(site.container.runtime).tool
    stem = built_stem(recipe, tool.prefix)
    there = cache.find(Path(site.container.images), base, tool.prefix)
    if context.dry:
        count = len(recipe.image.install)
        commands = f"{count} command{'s' * (count != 1)}"
        detail = (
            f"would build {stem}: {commands} on {base.uri} ({_room(site.container.images)} free)"
        )
        return Part(recipe.name, "image", "planned", detail)
    found = there or _import(base, site, context)
    if not isinstance(found, cache.Cached):
        return _part(recipe, found)
    mounts, lines = _commands(recipe, site)
    if recipe.image.copy and not mounts:
        return Part(
            recipe.name,
            "image",
            "failed",
            "the image needs the program's checkout, which does not exist",
            hint=f"hpcbert prepare --fw {recipe.name} --only source",
        )
    provenance = {
        "base": {"reference": found.reference, "sha256": found.sha256},
        "install": list(recipe.image.install),
        "recipe": recipe.digest,
    }
    env = {**environment(site, context), "HPCBERT_PROVENANCE": json.dumps(provenance)}
    words = ["build", f"build:{recipe.name}", site.container.images, stem, found.path, *mounts]
    return _part(recipe, _script(words, site, stem, context, env=env, stdin=lines))


def _commands(recipe: Recipe, site: Site) -> tuple[list[str], str]:
    """Return the mounts and the commands of a build."""
    lines = list(recipe.image.install)
    if not recipe.image.copy:
        return [], "\n".join(lines) + "\n"
    path = source_record(site, recipe)
    folder = beside(path) / recipe.source.path
    if not record(path) or not folder.is_dir():
        return [], ""
    target = shlex.quote(recipe.image.copy)
    lines.insert(0, f"mkdir -p {target}; cp -R /tmp/source/. {target}; cd {target}")
    return [f"{folder}:/tmp/source"], "\n".join(lines) + "\n"


def _file(recipe: Recipe, path: str, tool: Tool) -> Part:
    if tool.reads(path):
        return Part(recipe.name, "image", "ready", "an image file of the site's", path)
    return Part(
        recipe.name,
        "image",
        "failed",
        f"{path} is not a {tool.form} that can be read here",
        hint=f"Correct frameworks.{recipe.name}.image in the site.toml.",
    )


def _script(
    words: Sequence[str],
    site: Site,
    stem: str,
    context: Context,
    *,
    env: Mapping[str, str],
    stdin: str = "",
) -> Cached | Outcome:
    """Run image.sh, and find the image that it made."""
    tool = runtimes.of(site.container.runtime).tool
    argv = ["bash", str(cache.SCRIPT), "--with", tool.name, *words]
    outcome = context.follow(
        argv, show=lambda line: context.say(redact.text(line)), stdin=stdin, env=env
    )
    found = cache.find_stem(Path(site.container.images), stem) if outcome.ok else None
    return found or outcome


def _part(recipe: Recipe, found: Cached | Outcome) -> Part:
    if isinstance(found, cache.Cached):
        detail, digest = found.reference, f"sha256:{found.sha256}"
        return Part(recipe.name, "image", "done", detail, found.path, digest)
    printed = redact.text(found.stderr)
    symptom = symptoms.explain(printed)
    lines = [line for line in printed.splitlines() if line.strip()][-_TAIL:]
    said = next((line for line in reversed(lines) if line.startswith("hpcbert: ")), "")
    detail = said.removeprefix("hpcbert: ") or f"the import ended with status {found.returncode}"
    if symptom:
        return Part(recipe.name, "image", "failed", f"{detail}. {symptom.what}", hint=symptom.hint)
    hint = "See the output above; run the command again to continue."
    return Part(recipe.name, "image", "failed", detail, hint=hint)


def environment(site: Site, context: Context) -> dict[str, str]:
    """Return the environment for a tool: its directories below the site's scratch, if possible."""
    env = dict(context.env)
    if not site.container.scratch:
        return env
    tool = runtimes.of(site.container.runtime).tool
    user = env.get("USER") or env.get("LOGNAME") or "user"
    root = Path(site.container.scratch) / f"{tool.name}-{user}"
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        root = _private(root)
        folders = {name: root / folder for name, folder in tool.folders}
        for folder in folders.values():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        context.say(f"cannot make {site.container.scratch} here: {tool.name} uses its own settings")
        return env
    return env | {name: str(folder) for name, folder in folders.items()}


def _private(path: Path) -> Path:
    """Make the user's directory, under another name if somebody else has taken the first.

    Raises:
        OSError: It can't be made.
    """
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    if ownership.stranger(path):
        return Path(tempfile.mkdtemp(prefix=f"{path.name}.", dir=path.parent))
    return path


def _room(directory: str) -> str:
    path = Path(directory)
    while not path.exists():
        path = path.parent
    return f"{shutil.disk_usage(path).free / 2**30:.0f} GiB"
