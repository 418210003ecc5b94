"""Prepare an image: import it once into the site's directory, or build it there if necessary."""

from __future__ import annotations

import contextlib
import json
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpcbert.config.recipe import Recipe
from hpcbert.config.site import Site
from hpcbert.container import cache, reference, runtimes
from hpcbert.container.cache import Cached
from hpcbert.errors import IncompleteError
from hpcbert.prepare.parts import Context, Part, make_directory
from hpcbert.script import materials
from hpcbert.system import files, redact

# A whole image is gigabytes: only the last lines of output before a failure are kept.
_TAIL = 12
_HINT = "See the output above; run the command again to continue."


def prepare_image(recipe: Recipe, site: Site, context: Context) -> Part:
    """Prepare the image that a framework's ranks enter.

    Raises:
        UsageError: Its reference is invalid or does not suit the runtime.
        IncompleteError: It can't be imported or built.
    """
    material = materials.find_prepared_image(site, recipe)
    site_image = site.settings(recipe.name).image
    if site.container.runtime == "none":
        return Part("skipped", "ranks run on the host")
    if material:
        return Part("ready", material.name, material.path, material.digest)
    if not site_image and recipe.image.install:
        return _prepare_build(recipe, site, context)
    if not site_image and not recipe.image.reference:
        hint = f"Name one: frameworks.{recipe.name}.image in {site.where}."
        message = "the recipe names no image, and no way to build one"
        raise IncompleteError(message, hint=hint)
    return _prepare_import(recipe, site, site_image or recipe.image.reference, context)


def _prepare_import(recipe: Recipe, site: Site, text: str, context: Context) -> Part:
    runtime = runtimes.RUNTIMES[site.container.runtime]
    source_image = runtimes.check_image(reference.parse_reference(text), runtime, site.where)
    if source_image.kind == "file":
        if runtime.reads(source_image.path):
            return Part("ready", "an image file of the site's", source_image.path)
        message = f"{source_image.path} is not a {runtime.form} that can be read here"
        hint = f"Correct frameworks.{recipe.name}.image in the site.toml."
        raise IncompleteError(message, hint=hint)
    if context.dry:
        user = source_image.user
        display_name = source_image.uri.replace(f"{user}@", "", 1) if user else text
        return Part("planned", f"would import {display_name} into {site.container.images}")
    return _describe_image(_import_image(source_image, site, context))


def _describe_image(cached: Cached) -> Part:
    return Part("done", cached.reference, cached.path, f"sha256:{cached.sha256}")


def _import_image(source_image: reference.Image, site: Site, context: Context) -> Cached:
    make_directory(Path(site.container.images))
    env = tool_environment(site, context)
    runtime = runtimes.RUNTIMES[site.container.runtime]
    digest = source_image.digest
    if not digest and runtime.digest:  # the registry's, empty if unknown
        outcome = context.run([*runtime.digest, source_image.uri], env=env, timeout=120.0)
        answer = outcome.stdout.strip() if outcome.ok else ""
        digest = answer if answer.startswith("sha256:") else ""
    if digest:
        context.say(f"{source_image.name}: {digest}")
        env = {**env, "HPCBERT_PROVENANCE": json.dumps({"digest": digest})}
    stem = runtime.prefix + source_image.stem
    uri = runtimes.image_uri(source_image, site.container.runtime)
    arguments = ["import", uri, site.container.images, stem]
    return _run_script(arguments, site, stem, context, env=env)


def _prepare_build(recipe: Recipe, site: Site, context: Context) -> Part:
    """Import the base, run the recipe's commands in a container of it, and export the result."""
    base = reference.parse_reference(recipe.image.base or recipe.image.reference)
    runtime = runtimes.RUNTIMES[site.container.runtime]
    stem = materials.built_image_stem(recipe, runtime.prefix)
    cached_base = cache.find_image(Path(site.container.images), base, runtime.prefix)
    if context.dry:
        count = len(recipe.image.install)
        commands = f"{count} command{'s' * (count != 1)}"
        return Part("planned", f"would build {stem}: {commands} on {base.uri}")
    base_image = cached_base or _import_image(base, site, context)
    mounts, lines = _build_commands(recipe, site)
    if recipe.image.copy and not mounts:
        message = "the image needs the program's checkout, which does not exist"
        hint = f"hpcbert prepare --fw {recipe.name} --only source"
        raise IncompleteError(message, hint=hint)
    provenance = {
        "base": {"reference": base_image.reference, "sha256": base_image.sha256},
        "install": list(recipe.image.install),
        "recipe": recipe.digest,
    }
    env = {**tool_environment(site, context), "HPCBERT_PROVENANCE": json.dumps(provenance)}
    arguments = ["build", f"build:{recipe.name}", site.container.images, stem, base_image.path]
    arguments += mounts
    return _describe_image(_run_script(arguments, site, stem, context, env=env, stdin=lines))


def _build_commands(recipe: Recipe, site: Site) -> tuple[list[str], str]:
    """Return the mounts of a build, and its commands; no commands without the checkout."""
    lines = list(recipe.image.install)
    if not recipe.image.copy:
        return [], "\n".join(lines) + "\n"
    path = materials.source_record_path(site, recipe)
    folder = materials.record_directory(path) / recipe.source.path
    if not materials.read_record(path) or not folder.is_dir():
        return [], ""
    target = shlex.quote(recipe.image.copy)
    lines.insert(0, f"mkdir -p {target}; cp -R /tmp/source/. {target}; cd {target}")
    return [f"{folder}:/tmp/source"], "\n".join(lines) + "\n"


def _run_script(
    arguments: Sequence[str],
    site: Site,
    stem: str,
    context: Context,
    *,
    env: Mapping[str, str],
    stdin: str = "",
) -> Cached:
    """Run image.sh and return the image that it made."""
    runtime = runtimes.RUNTIMES[site.container.runtime]
    argv = ["bash", str(cache.SCRIPT), "--with", runtime.tool, *arguments]
    outcome = context.follow(
        argv, show=lambda line: context.say(redact.mask_text(line)), stdin=stdin, env=env
    )
    cached = cache.find_by_stem(Path(site.container.images), stem)
    if outcome.ok and cached:
        return cached
    output = redact.mask_text(outcome.stderr)
    detail, hint = f"the import ended with status {outcome.returncode}", _HINT
    lines = [line for line in output.splitlines() if line.strip()]
    for line in lines[-_TAIL:]:
        if line.startswith("hpcbert: "):
            detail = line.removeprefix("hpcbert: ")
    if symptom := runtimes.find_symptom(output):
        detail, hint = f"{detail}. {symptom.problem}", symptom.hint
    raise IncompleteError(detail, hint=hint)


def tool_environment(site: Site, context: Context) -> dict[str, str]:
    """Return the environment for a tool: its directories below the site's scratch, if possible."""
    env = dict(context.env)
    if not site.container.scratch:
        return env
    runtime = runtimes.RUNTIMES[site.container.runtime]
    user = env.get("USER") or env.get("LOGNAME") or "user"
    root = Path(site.container.scratch) / f"{runtime.tool}-{user}"
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        root = _make_private(root)
        folders = {name: root / folder for name, folder in runtime.folders.items()}
        for folder in folders.values():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        context.say(
            f"cannot make {site.container.scratch} here: {runtime.tool} uses its own settings"
        )
        return env
    return env | {name: str(folder) for name, folder in folders.items()}


def _make_private(path: Path) -> Path:
    """Make the user's directory, under another name if the first belongs to another user."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    if files.find_foreign_owner(path):
        return Path(tempfile.mkdtemp(prefix=f"{path.name}.", dir=path.parent))
    return path
