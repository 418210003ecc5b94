"""Checking what containers need of a machine: of this one, and of nodes by a job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpcbert.commands.node_checks import checks, container_finding, read_rows
from hpcbert.config.schedulers import traits
from hpcbert.config.slurmwords import given
from hpcbert.container import cache, pyxis, runtimes, symptoms
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

_PROBE = Path(__file__).parent.parent / "shell" / "probe.sh"
# srun lists the options of its plugins too.
SRUN_HELP = ("srun", "--help")
_HELP_SECONDS = 30.0
# What changes if srun's pyxis lacks an option.
OLD_PYXIS = "package pyxis"
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
    if site.container.runtime == "pyxis":
        yield examine_pyxis(site, recipes, run=run)
    images, problems = _images(site, recipes)
    yield from problems
    outcome = run(["bash", str(_PROBE), *_words(site, recipes, images)], timeout=_PATIENCE)
    mild = () if traits(site.scheduler).here else _JOBS_ONLY
    for row in read_rows(outcome.stdout):
        status = "warn" if row.status == "fail" and row.name in mild else row.status
        yield container_finding("here", row.name, status, row.detail)
    for image in images:
        if image.kind != "file" and runtimes.of(site.container.runtime).tool.digest:
            yield _registry(image, site, run)


def examine_pyxis(site: Site, recipes: Sequence[Recipe], *, run: Runner) -> Finding:
    """Return whether srun here has every option of pyxis that the job scripts use.

    Args:
        site: Where they run.
        recipes: What runs; the options of a usual recipe if empty.
        run: Starts srun.
    """
    elsewhere = given(site.slurm.sbatch_args, "clusters")
    if elsewhere:
        hint = "Run hpcbert doctor on a login node of that cluster."
        return Finding("pyxis", "warn", f"not checked: jobs run on cluster {elsewhere}", hint)
    usage = run(SRUN_HELP, timeout=_HELP_SECONDS)
    if not usage.ok:
        lines = [line for line in usage.stderr.splitlines() if line.strip()]
        detail = f"srun --help gives no answer: {lines[-1] if lines else 'no output'}"
        hint = "hpcbert can't see whether srun has pyxis: run this on a login node."
        return Finding("pyxis", "warn", detail, hint)
    if not pyxis.is_installed(usage.stdout):
        hint = 'Install pyxis, or set container.runtime = "none".'
        detail = "srun has no --container-image"
        return Finding("pyxis", "fail", detail, hint, "", (), "--runtime none")
    box = site.container
    wanted: dict[str, None] = {}
    for writable in {recipe.image.writable for recipe in recipes} or {True}:
        switches = {"home": box.home, "remap_root": box.remap_root, "entrypoint": box.entrypoint}
        wanted |= dict.fromkeys(pyxis.flags(**switches, writable=writable))
    missing = pyxis.missing(usage.stdout, wanted)
    if missing:
        options = " and ".join(f"--{flag}" for flag in missing)
        detail = f"srun's pyxis is older than {pyxis.SINCE[missing[-1]]}: it has no {options}"
        releases = ", ".join(f"{pyxis.SINCE[flag]} brought --{flag}" for flag in missing)
        hint = f"Ask the administrator for pyxis {pyxis.SINCE[missing[-1]]} or newer ({releases}), "
        hint += 'or enter by the enroot command: container.runtime = "enroot".'
        return Finding("pyxis", "fail", detail, hint, OLD_PYXIS, (), "--runtime enroot")
    return Finding("pyxis", "ok", f"srun has --{', --'.join(wanted)}")


def words(site: Site, recipes: Sequence[Recipe]) -> tuple[str, ...]:
    """Return the words for probe.sh on the nodes; none where ranks run on the host."""
    if site.container.runtime == "none":
        return ()
    return tuple(_words(site, recipes, _images(site, recipes)[0]))


def _images(site: Site, recipes: Sequence[Recipe]) -> tuple[tuple[Image, ...], tuple[Finding, ...]]:
    """Return the images of the frameworks, prepared files where there are, and what is wrong."""
    images, problems = [], []
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
        images.append(replace(image, kind="file", path=prepared.path) if prepared else image)
    return tuple(dict.fromkeys(images)), tuple(problems)


def _words(site: Site, recipes: Sequence[Recipe], images: Sequence[Image]) -> list[str]:
    files = [image.path for image in images if image.kind == "file"]
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
    outcome = run([*tool.digest, image.uri], timeout=_DIGEST_SECONDS)
    if outcome.ok:
        return Finding(name, "ok", f"{image.name}:{image.tag or image.digest} is there")
    printed = outcome.stdout + outcome.stderr
    if printed.startswith("Usage: enroot"):
        hint = "The import will ask it; enroot has a command for that from 4.0 on."
        return Finding(name, "warn", f"not checked: this enroot has no {tool.digest[1]}", hint)
    lines = [line for line in printed.splitlines() if line.strip()] or [""]
    symptom = symptoms.explain(printed)
    what = symptom.what if symptom else lines[-1]
    general = checks("containers")["registry"]
    change = general.change if symptom and symptom.name in _OF_LOGIN else ""
    hint = symptom.hint if symptom else general.hint
    return Finding(name, "warn", f"{image.uri}: {what}", hint, change)
