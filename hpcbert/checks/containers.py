"""Checking what containers need of a machine: of this one, and of nodes by a job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpcbert.config.schedulers import traits
from hpcbert.container import cache, probe, runtimes, symptoms
from hpcbert.errors import HpcbertError
from hpcbert.finding import Finding
from hpcbert.script.inputs import find_image
from hpcbert.script.prepared import data_path, options_for_data

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hpcbert.config.recipe import Recipe
    from hpcbert.config.site import Site
    from hpcbert.container.reference import Image
    from hpcbert.system.runner import Runner

# Seconds that a step on the nodes may wait and run.
_PATIENCE = 300.0
_DIGEST_SECONDS = 60.0
_OF_LOGIN = ("unauthorized", "wrong-password", "too-many-requests")
# What only jobs need: a login node may be without.
_JOBS_ONLY = (
    *("user-namespaces", "squashfs-tools", "enroot", "apptainer", "directories", "scratch", "temp"),
    "data",
)


def examine(site: Site, recipes: Sequence[Recipe], *, run: Runner) -> Iterator[Finding]:
    """Yield what containers meet on this machine.

    Args:
        site: What is to be checked.
        recipes: Frameworks to check images and data of.
        run: Starts the probes.
    """
    if site.container.runtime == "none":
        yield Finding("containers", "ok", "none: ranks run on the host")
        return
    images, problems = _images(site, recipes)
    yield from problems
    own = run(["bash", str(probe.SCRIPT), *_words(site, recipes, images)], timeout=_PATIENCE)
    mild = () if traits(site.scheduler).here else _JOBS_ONLY
    for one in probe.read(own.stdout):
        weight = "warn" if one.status == "fail" and one.name in mild else one.status
        yield advised("here", one.name, weight, one.detail)
    for image in images:
        if image.kind != "file" and runtimes.of(site.container.runtime).tool.digest:
            yield _registry(image, site, run)


def words(site: Site, recipes: Sequence[Recipe]) -> tuple[str, ...]:
    """Return the words for probe.sh on the nodes; none where ranks run on the host."""
    if site.container.runtime == "none":
        return ()
    return tuple(_words(site, recipes, _images(site, recipes)[0]))


def advised(
    where: str, name: str, status: str, detail: str, nodes: tuple[str, ...] = ()
) -> Finding:
    """Return what probe.sh found, with what to do about it.

    Args:
        where: What to call the place.
        name: The check, as probe.sh printed it.
        status: The status from probe.sh, or a milder one.
        detail: The detail from probe.sh.
        nodes: The nodes that it was found on.
    """
    advice = probe.remedy(probe.Probed(where, name, status, detail))
    return Finding(f"{name} ({where})", status, detail, advice.hint, advice.change, nodes)


def _images(site: Site, recipes: Sequence[Recipe]) -> tuple[tuple[Image, ...], tuple[Finding, ...]]:
    """Return the images of the frameworks, prepared files where there are, and what is wrong."""
    found, problems = [], []
    prefix = runtimes.of(site.container.runtime).tool.prefix
    for recipe in recipes:
        name, change = f"image of {recipe.name}", f"site.toml: frameworks.{recipe.name}.image"
        try:
            image, _ = find_image(site, recipe)
        except HpcbertError as error:
            problems.append(Finding(name, "fail", str(error), error.hint, change))
            continue
        if image is None:
            hint = f"Build it: hpcbert prepare --fw {recipe.name}."
            problems.append(Finding(name, "warn", "upstream published none", hint, change))
            continue
        folder = Path(site.container.images)
        prepared = cache.find(folder, image, prefix)
        found.append(replace(image, kind="file", path=prepared.path) if prepared else image)
    return tuple(dict.fromkeys(found)), tuple(problems)


def _words(site: Site, recipes: Sequence[Recipe], images: Sequence[Image]) -> list[str]:
    files = [one.path for one in images if one.kind == "file"]
    runtime = runtimes.of(site.container.runtime)
    runs = runtime.enters or traits(site.scheduler).srun
    words = [f"--{runtime.tool.name}"] if runs else []
    words += ["--scratch", site.container.scratch] if site.container.scratch else []
    words += ["--images", site.container.images]
    for file in dict.fromkeys(files):
        words += ["--image", file]
    read = (data_path(site, recipe, options_for_data(site, recipe)) for recipe in recipes)
    for folder in dict.fromkeys(read):
        words += ["--data", folder] if folder else []
    return words


def _registry(image: Image, site: Site, run: Runner) -> Finding:
    """Ask the registry for the image's digest, as the import would begin."""
    tool = runtimes.of(site.container.runtime).tool
    name = f"registry ({image.registry or image.kind})"
    asked = run([*tool.digest, image.uri], timeout=_DIGEST_SECONDS)
    if asked.ok:
        return Finding(name, "ok", f"{image.name}:{image.tag or image.digest} is there")
    printed = asked.stdout + asked.stderr
    lines = [line for line in printed.splitlines() if line.strip()] or [""]
    known = symptoms.explain(printed)
    what = known.what if known else lines[-1]
    general = probe.REMEDIES["registry"]
    change = general.change if known and known.name in _OF_LOGIN else ""
    hint = known.hint if known else general.hint
    return Finding(name, "warn", f"{image.uri}: {what}", hint, change)
