"""Checking what containers need: on this machine, and from inside a job on the nodes."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpcbert.config.schedulers import traits
from hpcbert.container import cache, probe, symptoms
from hpcbert.errors import HpcbertError
from hpcbert.finding import Finding
from hpcbert.script.inputs import find_image
from hpcbert.script.prepared import data_path, options_for_data
from hpcbert.slurm.commands import submission_environment
from hpcbert.slurm.hostlist import fold

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hpcbert.config.recipe import Recipe
    from hpcbert.config.site import Site
    from hpcbert.container.reference import Image
    from hpcbert.system.runner import Outcome, Runner

# Seconds that a step on the nodes may wait and run.
_PATIENCE = 300.0
_DIGEST_SECONDS = 60.0
_MARKER = "/.hpcbert-doctor"
_OF_LOGIN = ("unauthorized", "wrong-password", "too-many-requests")
# Prints what probe.sh would; $1 is there in a container only.
_ENTERED = """if [ -e "$1" ]; then told='ok entered'; else told='fail it runs on the bare host'; fi
printf '%s\\tplugin\\t%s\\t%s\\n' "${SLURMD_NODENAME:-$(uname -n)}" "${told%% *}" "${told#* }"
"""
# What only jobs need: a login node may be without.
_JOBS_ONLY = (
    *("user-namespaces", "squashfs-tools", "enroot", "directories", "scratch", "temp", "data"),
)


def examine(site: Site, recipes: Sequence[Recipe], *, run: Runner, nodes: int) -> Iterator[Finding]:
    """Yield what containers meet on this machine and on nodes of the cluster.

    Args:
        site: What is to be checked.
        recipes: Frameworks whose images and data are to be checked too.
        run: Starts the probes.
        nodes: Nodes to look at from inside a job step; 0: only this machine.
    """
    if site.container.runtime == "none":
        yield Finding("containers", "ok", "none: ranks run on the host")
        return
    images, problems = _images(site, recipes)
    yield from problems
    words = _words(site, recipes, [one.path for one in images if one.kind == "file"])
    own = run(["bash", str(probe.SCRIPT), *words], timeout=_PATIENCE)
    like = traits(site.scheduler)
    yield from _findings(own, "here", mild=() if like.here else _JOBS_ONLY)
    for image in images:
        if image.kind == "docker":
            yield _registry(image, run)
    if nodes and like.srun:
        yield from _on_nodes(site, words, images, run, nodes)


def _images(site: Site, recipes: Sequence[Recipe]) -> tuple[tuple[Image, ...], tuple[Finding, ...]]:
    """Return the images of the frameworks, prepared files where there are, and what is wrong."""
    found, problems = [], []
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
        prepared = cache.find(folder, image) if image.kind == "docker" else None
        found.append(replace(image, kind="file", path=prepared.path) if prepared else image)
    return tuple(dict.fromkeys(found)), tuple(problems)


def _words(site: Site, recipes: Sequence[Recipe], files: Sequence[str]) -> list[str]:
    words = (
        ["--enroot"] if site.container.runtime == "enroot" or traits(site.scheduler).srun else []
    )
    words += ["--scratch", site.container.scratch] if site.container.scratch else []
    words += ["--images", site.container.images]
    for file in dict.fromkeys(files):
        words += ["--image", file]
    read = (data_path(site, recipe, options_for_data(site, recipe)) for recipe in recipes)
    for folder in dict.fromkeys(read):
        words += ["--data", folder] if folder else []
    return words


def _findings(outcome: Outcome, place: str = "", *, mild: Sequence[str] = ()) -> Iterator[Finding]:
    """Turn what probes printed into findings, one for all nodes that found the same.

    Args:
        outcome: What the probe did.
        place: What to call the place if its nodes are not to be named.
        mild: What is no more than a warning there.
    """
    for (name, status, detail), nodes in probe.by_finding(probe.read(outcome.stdout)).items():
        where = place or fold(nodes)
        advice = probe.remedy(probe.Probed(where, name, status, detail))
        weight = "warn" if status == "fail" and name in mild else status
        yield Finding(f"{name} ({where})", weight, detail, advice.hint, advice.change)


def _registry(image: Image, run: Runner) -> Finding:
    """Ask the registry for the image's digest, as `enroot import` would begin."""
    name = f"registry ({image.registry})"
    asked = run(["enroot", "digest", image.uri], timeout=_DIGEST_SECONDS)
    if asked.ok:
        return Finding(name, "ok", f"{image.name}:{image.tag} is there")
    printed = asked.stdout + asked.stderr
    lines = [line for line in printed.splitlines() if line.strip()] or [""]
    known = symptoms.explain(printed)
    what = known.what if known else lines[-1]
    general = probe.REMEDIES["registry"]
    change = general.change if known and known.name in _OF_LOGIN else ""
    hint = known.hint if known else general.hint
    return Finding(name, "warn", f"{image.uri}: {what}", hint, change)


def _on_nodes(
    site: Site, words: Sequence[str], images: Sequence[Image], run: Runner, nodes: int
) -> Iterator[Finding]:
    """Yield what a step on the nodes finds, and whether each has the plugin."""
    with tempfile.TemporaryDirectory(dir=shared(site), prefix=".doctor-") as folder:
        copy = Path(folder) / probe.SCRIPT.name
        copy.write_bytes(probe.SCRIPT.read_bytes())
        outcome = step(site, run, nodes, ["bash", str(copy), *words])
        found = probe.read(outcome.stdout)
        seen = tuple(dict.fromkeys(one.node for one in found))
        if len(seen) < nodes:
            lines = [line for line in outcome.stderr.splitlines() if line.strip()] or ["no answer"]
            hint = "Look at `sinfo`; ask for fewer with --nodes."
            yield Finding(
                "nodes", "fail", f"{len(seen)} of {nodes} nodes answered: {lines[-1]}", hint
            )
        yield from _findings(outcome)
        if site.container.runtime == "pyxis" and seen:
            yield from _plugin(site, images, run, seen, folder)


def _plugin(
    site: Site, images: Sequence[Image], run: Runner, nodes: Sequence[str], folder: str
) -> Iterator[Finding]:
    """Enter a container on each node: what is seen inside can't be seen on the bare host."""
    if not images:
        detail = "not tried: no image is known"
        yield Finding("plugin", "warn", detail, "Name a framework: hpcbert doctor --fw NAME.")
        return
    options = [
        f"--nodelist={','.join(nodes)}",
        f"--container-image={images[0].uri}",
        f"--container-mounts={folder}:{_MARKER}",
        *("--no-container-mount-home", "--no-container-remap-root", "--no-container-entrypoint"),
    ]
    marked = ["bash", "-c", _ENTERED, "probe", f"{_MARKER}/{probe.SCRIPT.name}"]
    outcome = step(site, run, len(nodes), marked, options)
    yield from _findings(outcome)
    silent = [
        node for node in nodes if node not in {one.node for one in probe.read(outcome.stdout)}
    ]
    if silent:
        known = symptoms.explain(outcome.stderr)
        lines = [line for line in outcome.stderr.splitlines() if line.strip()] or ["no answer"]
        general = probe.REMEDIES["plugin"]
        hint = known.hint if known else general.hint
        yield Finding(f"plugin ({fold(silent)})", "fail", lines[-1], hint, general.change)


def step(
    site: Site, run: Runner, nodes: int, command: Sequence[str], options: Sequence[str] = ()
) -> Outcome:
    """Run a command once on each of some nodes, in a job of its own."""
    return run(
        [
            *("srun", "--quiet", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"),
            *("--job-name=hpcbert-doctor", "--time=5", "--kill-on-bad-exit=0", "--mpi=none"),
            *site.slurm.selection,
            *options,
            *command,
        ],
        env=submission_environment(os.environ),
        timeout=_PATIENCE,
    )


def shared(site: Site) -> Path:
    """Return the directory that all nodes share."""
    runs = Path(site.runs)
    runs.mkdir(parents=True, exist_ok=True)
    return runs
