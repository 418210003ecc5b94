"""When the job of a script would start, from sbatch itself, without submitting anything."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from hpcbert.errors import SchedulerError
from hpcbert.finding import Finding
from hpcbert.scheduler.base import Start, World
from hpcbert.scheduler.slurm.adopt import format_complaint
from hpcbert.scheduler.slurm.cluster import HINTS, classify_silence, describe_silence
from hpcbert.scheduler.slurm.submission import TRANSIENT
from hpcbert.slurm import commands, refusals
from hpcbert.system.runner import Outcome

# sbatch: Job 12 to start at 1795331940 using 16 processors on nodes n[1-4] in partition gpu
# (SchedMD/slurm, src/sbatch/sbatch.c and src/plugins/select; the time as SLURM_TIME_FORMAT says).
_START = re.compile(r"to start at (\d{1,12})\b(?:.*? on (?:nodes )?(\S+))?")
# What no change of load or of a node's state helps against (src/common/slurm_errno.c).
_NEVER = (
    "Requested node configuration is not available",
    "Invalid feature specification",
    "Invalid node name specified",
    "Requested nodes not in this partition",
)
_ELF = b"\x7fELF"


def forecast_start(script: str, world: World) -> Start:
    """Ask sbatch when the job of a script would start; nothing is submitted.

    Raises:
        SchedulerError: Slurm can't be asked.
    """
    base_environment = commands.submission_environment(world.environ)
    environment = {**base_environment, "SLURM_TIME_FORMAT": "%s"}
    outcome = world.run(["sbatch", "--test-only"], stdin=script, env=environment)
    if is_unreachable(outcome):
        kind = classify_silence(outcome)
        raise SchedulerError(f"{describe_silence(kind, outcome)}.", hint=HINTS[kind])
    if not outcome.ok:
        return Start(refused=format_complaint(outcome))
    match = _START.search(outcome.stderr) or _START.search(outcome.stdout)
    return Start(when=float(match[1]), nodes=match[2] or "") if match else Start()


def find_impossible(scripts: Iterable[str], world: World) -> Iterator[Finding]:
    """Yield the requests that sbatch accepts, although its own test finds that no node meets them.

    A site's wrapper might submit what is only to be tested, so only Slurm's own program is asked.
    """
    if not _is_program(shutil.which("sbatch") or ""):
        return
    for script in scripts:
        try:
            refusal = forecast_start(script, world).refused
        except SchedulerError:
            return
        if any(phrase in refusal for phrase in _NEVER):
            yield Finding(
                "sbatch --test-only", "fail", refusal, refusals.find_refusal_advice(refusal)
            )


def _is_program(path: str) -> bool:
    """Return whether a path leads to a compiled program."""
    try:
        with Path(path).open("rb") as file:
            return file.read(len(_ELF)) == _ELF
    except OSError:
        return False


def is_unreachable(outcome: Outcome) -> bool:
    """Return whether sbatch could not ask Slurm."""
    busy = not outcome.ok and any(phrase in outcome.stderr for phrase in TRANSIENT)
    return busy or classify_silence(outcome) in {"missing", "unconfigured", "away"}
