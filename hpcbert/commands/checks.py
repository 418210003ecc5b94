"""Checking what containers need of a machine: of this one, and of nodes by a job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from hpcbert.commands.node_checks import load_checks, make_container_finding, read_rows
from hpcbert.config import places, recipe
from hpcbert.config.recipe import Recipe
from hpcbert.config.schedulers import find_traits
from hpcbert.config.site import FrameworkSettings, Site
from hpcbert.config.slurm_arguments import argument_value
from hpcbert.container import cache, runtimes, symptoms
from hpcbert.container.reference import Image
from hpcbert.errors import ConfigError, HpcbertError, UsageError
from hpcbert.finding import Finding
from hpcbert.script.materials import find_data_path, find_image, site_data_options
from hpcbert.script.plan import choose_device, read_options
from hpcbert.system.decode import did_you_mean
from hpcbert.system.runner import Runner

_PROBE = Path(__file__).parent.parent / "shell" / "probe.sh"
# srun lists the options of its plugins too.
SRUN_HELP = ("srun", "--help")
_HELP_SECONDS = 30.0
# What changes if srun's pyxis lacks an option.
OLD_PYXIS = "package pyxis"
# Seconds that a step on the nodes may wait and run.
_PROBE_SECONDS = 300.0
_DIGEST_SECONDS = 60.0
_LOGIN_SYMPTOMS = ("unauthorized", "wrong-password", "too-many-requests")
# What only jobs need: a login node may be without.
_JOBS_ONLY = (
    *("user-namespaces", "squashfs-tools", "enroot", "apptainer", "directories", "scratch", "temp"),
    "data",
)


def check_containers(site: Site, recipes: Sequence[Recipe], *, run: Runner) -> Iterator[Finding]:
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
        yield check_pyxis(site, recipes, run=run)
    images, problems = _find_images(site, recipes)
    yield from problems
    outcome = run(
        ["bash", str(_PROBE), *_probe_arguments(site, recipes, images)], timeout=_PROBE_SECONDS
    )
    optional_checks = () if find_traits(site.scheduler).runs_locally else _JOBS_ONLY
    for row in read_rows(outcome.stdout):
        status = "warn" if row.status == "fail" and row.name in optional_checks else row.status
        yield make_container_finding("here", row.name, status, row.detail)
    for image in images:
        if image.kind != "file" and runtimes.get_runtime(site.container.runtime).tool.digest:
            yield _check_registry(image, site, run)


def check_pyxis(site: Site, recipes: Sequence[Recipe], *, run: Runner) -> Finding:
    """Return whether srun here has every option of pyxis that the job scripts use.

    Args:
        site: Where they run.
        recipes: What runs; the options of a usual recipe if empty.
        run: Starts srun.
    """
    cluster = argument_value(site.slurm.sbatch_args, "clusters")
    if cluster:
        hint = "Run hpcbert doctor on a login node of that cluster."
        return Finding("pyxis", "warn", f"not checked: jobs run on cluster {cluster}", hint)
    usage = run(SRUN_HELP, timeout=_HELP_SECONDS)
    if not usage.ok:
        lines = [line for line in usage.stderr.splitlines() if line.strip()]
        detail = f"srun --help gives no answer: {lines[-1] if lines else 'no output'}"
        hint = "hpcbert can't see whether srun has pyxis: run this on a login node."
        return Finding("pyxis", "warn", detail, hint)
    if not runtimes.has_pyxis(usage.stdout):
        hint = 'Install pyxis, or set container.runtime = "none".'
        detail = "srun has no --container-image"
        return Finding("pyxis", "fail", detail, hint, "", (), "--runtime none")
    container = site.container
    flags: dict[str, None] = {}
    for writable in {framework.image.writable for framework in recipes} or {True}:
        switches = {
            "home": container.home,
            "remap_root": container.remap_root,
            "entrypoint": container.entrypoint,
        }
        flags |= dict.fromkeys(runtimes.pyxis_options(**switches, writable=writable))
    missing_flags = runtimes.missing_pyxis_options(usage.stdout, flags)
    if missing_flags:
        options = " and ".join(f"--{flag}" for flag in missing_flags)
        detail = f"srun's pyxis is older than {runtimes.PYXIS_SINCE[missing_flags[-1]]}: it has no {options}"
        releases = ", ".join(
            f"{runtimes.PYXIS_SINCE[flag]} brought --{flag}" for flag in missing_flags
        )
        hint = f"Ask the administrator for pyxis {runtimes.PYXIS_SINCE[missing_flags[-1]]} or newer ({releases}), "
        hint += 'or enter by the enroot command: container.runtime = "enroot".'
        return Finding("pyxis", "fail", detail, hint, OLD_PYXIS, (), "--runtime enroot")
    return Finding("pyxis", "ok", f"srun has --{', --'.join(flags)}")


def probe_words(site: Site, recipes: Sequence[Recipe]) -> tuple[str, ...]:
    """Return the words for probe.sh on the nodes; none where ranks run on the host."""
    if site.container.runtime == "none":
        return ()
    return tuple(_probe_arguments(site, recipes, _find_images(site, recipes)[0]))


def _find_images(
    site: Site, recipes: Sequence[Recipe]
) -> tuple[tuple[Image, ...], tuple[Finding, ...]]:
    """Return the images of the frameworks, prepared files where there are, and what is wrong."""
    images, problems = [], []
    prefix = runtimes.get_runtime(site.container.runtime).tool.prefix
    for framework in recipes:
        name, change = f"image of {framework.name}", f"site.toml: frameworks.{framework.name}.image"
        try:
            image, _ = find_image(site, framework)
        except HpcbertError as error:
            problems.append(Finding(name, "fail", str(error), error.hint, change))
            continue
        if image is None:
            hint = f"Build it: hpcbert prepare --fw {framework.name}."
            problems.append(Finding(name, "warn", "upstream published none", hint, change))
            continue
        folder = Path(site.container.images)
        cached_image = cache.find_image(folder, image, prefix)
        images.append(
            replace(image, kind="file", path=cached_image.path) if cached_image else image
        )
    return tuple(dict.fromkeys(images)), tuple(problems)


def _probe_arguments(site: Site, recipes: Sequence[Recipe], images: Sequence[Image]) -> list[str]:
    files = [image.path for image in images if image.kind == "file"]
    runtime = runtimes.get_runtime(site.container.runtime)
    uses_runtime = runtime.enters_by_tool or find_traits(site.scheduler).srun
    arguments = [f"--{runtime.tool.name}"] if uses_runtime else []
    arguments += ["--scratch", site.container.scratch] if site.container.scratch else []
    arguments += ["--images", site.container.images]
    for file in dict.fromkeys(files):
        arguments += ["--image", file]
    data_folders = (
        find_data_path(site, framework, site_data_options(site, framework)) for framework in recipes
    )
    for folder in dict.fromkeys(data_folders):
        arguments += ["--data", folder] if folder else []
    return arguments


def _check_registry(image: Image, site: Site, run: Runner) -> Finding:
    """Ask the registry for the image's digest, as the import would begin."""
    tool = runtimes.get_runtime(site.container.runtime).tool
    name = f"registry ({image.registry or image.kind})"
    outcome = run([*tool.digest, image.uri], timeout=_DIGEST_SECONDS)
    if outcome.ok:
        return Finding(name, "ok", f"{image.name}:{image.tag or image.digest} is there")
    output = outcome.stdout + outcome.stderr
    if output.startswith("Usage: enroot"):
        hint = "The import will ask it; enroot has a command for that from 4.0 on."
        return Finding(name, "warn", f"not checked: this enroot has no {tool.digest[1]}", hint)
    lines = [line for line in output.splitlines() if line.strip()] or [""]
    symptom = symptoms.find_symptom(output)
    problem = symptom.problem if symptom else lines[-1]
    check = load_checks("containers")["registry"]
    change = check.change if symptom and symptom.name in _LOGIN_SYMPTOMS else ""
    hint = symptom.hint if symptom else check.hint
    return Finding(name, "warn", f"{image.uri}: {problem}", hint, change)


def check_settings(site: Site) -> Iterator[ConfigError]:
    """Yield invalid settings of a site: each would stop a submission, or be ignored.

    What only one command has need of (an image's form, a path) is that command's to say.
    """
    recipes = places.list_recipes(places.recipe_folders(Path(site.where)))
    for name, settings in site.frameworks.items():
        key = f"{site.where}: frameworks.{name}"
        if name not in recipes:
            yield ConfigError(
                f"There is no framework {name!r}.", where=key, hint=did_you_mean(name, recipes)
            )
            continue
        try:
            framework_recipe = recipe.load(recipes[name])
        except ConfigError as error:
            yield error
            continue
        yield from _check_framework(site, framework_recipe, settings, key)
    for text in site.container.mounts:
        yield from _check_mount(text, f"{site.where}: container.mounts")


def _check_mount(text: str, key: str) -> Iterator[ConfigError]:
    try:
        runtimes.parse_mount(text)
    except UsageError as error:
        yield ConfigError(error.message, where=key, hint=error.hint)


def _check_framework(
    site: Site, framework_recipe: Recipe, settings: FrameworkSettings, key: str
) -> Iterator[ConfigError]:
    if settings.model and settings.model not in framework_recipe.models:
        yield ConfigError(
            f"{framework_recipe.name} has no model {settings.model!r}.",
            where=f"{key}.model",
            hint=did_you_mean(settings.model, framework_recipe.models),
        )
    try:
        choose_device(framework_recipe, site, "")
    except UsageError as error:
        yield ConfigError(error.message, where=f"{key}.device", hint=error.hint)
    for precision in settings.batch_sizes:
        if precision not in framework_recipe.precisions:
            yield ConfigError(
                f"{framework_recipe.name} does not run in {precision}.",
                where=f"{key}.batch_sizes",
                hint=did_you_mean(precision, framework_recipe.precisions),
            )
    try:
        read_options(framework_recipe, site, {})
    except UsageError as error:
        yield ConfigError(error.message, where=f"{key}.options", hint=error.hint)
