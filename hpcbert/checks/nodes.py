"""Looking at nodes from inside a job, whatever the container runtime is."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from hpcbert.checks.containers import shared, step
from hpcbert.container import probe
from hpcbert.finding import Finding
from hpcbert.script import inputs
from hpcbert.script.prepared import options_for_data
from hpcbert.slurm.hostlist import fold

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hpcbert.config.recipe import Recipe
    from hpcbert.config.site import Site
    from hpcbert.system.runner import Runner

# $1: runs; $2: a file that the login node just made there; then the interpreters, after -- the
# directories that ranks read. Prints lines like probe.sh's: NODE, NAME, STATUS, DETAIL.
_LOOK = r"""say() { printf '%s\t%s\t%s\t%s\n' "${SLURMD_NODENAME:-$(uname -n)}" "$@"; }
runs=$1 mark=$2; shift 2
if ! cd -- "$runs" 2>/dev/null; then say runs fail "there is no $runs, or it can't be entered"
elif [ ! -e "$mark" ]; then say runs fail "$runs is another directory than on the login node"
elif ! : >"$mark.$$.${SLURMD_NODENAME:-$(uname -n)}" 2>/dev/null; then
  say runs fail "$runs can't be written to"
else say runs ok "$runs is the login node's"; fi
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  if command -v -- "$1" >/dev/null; then say python ok "$1"
  else say python fail "there is no program $1"; fi
  shift
done
shift
for path in "$@"; do
  if [ -e "$path" ]; then say files ok "$path"; else say files fail "there is no $path"; fi
done
"""
_REMEDIES = {
    "runs": (
        "Name a directory that all nodes share and that you may write to.",
        "site.toml: runs",
    ),
    "python": (
        "Name an interpreter that every node has at the same path.",
        "site.toml: frameworks.NAME.python",
    ),
    "files": (
        "Name directories that every node mounts at the same path.",
        "site.toml: frameworks.NAME.data, frameworks.NAME.source",
    ),
}


def examine(site: Site, recipes: Sequence[Recipe], *, run: Runner, nodes: int) -> Iterator[Finding]:
    """Yield what a job on some nodes finds of what every job needs.

    Args:
        site: What is to be checked.
        recipes: Frameworks whose interpreters and files are to be checked too.
        run: Starts srun.
        nodes: How many nodes to look at.
    """
    used = [inputs.find(site, one, options_for_data(site, one)) for one in recipes]
    on_host = site.container.runtime == "none"
    pythons = [one.python or "python3" for one in used] if on_host else []
    files = [path for one in used for path in (one.data, one.source) if path]
    try:
        folder = tempfile.TemporaryDirectory(dir=shared(site), prefix=".doctor-")
    except OSError as error:
        yield Finding(
            "runs (nodes)", "fail", f"{site.runs}: {error.strerror}", _REMEDIES["runs"][0]
        )
        return
    with folder as name:
        mark = Path(name) / "mark"
        mark.touch()
        words = [site.runs, str(mark), *dict.fromkeys(pythons), "--", *dict.fromkeys(files)]
        outcome = step(site, run, nodes, ["bash", "-c", _LOOK, "look", *words])
    found = probe.read(outcome.stdout)
    seen = tuple(dict.fromkeys(one.node for one in found))
    if len(seen) < nodes:
        lines = [line for line in outcome.stderr.splitlines() if line.strip()] or ["no answer"]
        hint = "Look at `sinfo`; ask for fewer with --nodes."
        yield Finding("nodes", "fail", f"{len(seen)} of {nodes} nodes answered: {lines[-1]}", hint)
    for (kind, status, detail), names in probe.by_finding(found).items():
        hint, change = _REMEDIES[kind] if status == "fail" else ("", "")
        yield Finding(f"{kind} ({fold(names)})", status, detail, hint, change)
