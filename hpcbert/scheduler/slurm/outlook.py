"""When the job of a script would start, from sbatch itself, without submitting anything."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from hpcbert.errors import SchedulerError
from hpcbert.finding import Finding
from hpcbert.scheduler.base import Start
from hpcbert.scheduler.slurm.adopt import complaint
from hpcbert.scheduler.slurm.cluster import HINTS, sentence, silence
from hpcbert.scheduler.slurm.submission import TRANSIENT
from hpcbert.slurm import commands, refusals

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hpcbert.scheduler.base import World
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


def forecast(script: str, world: World) -> Start:
    """Ask sbatch when the job of a script would start; nothing is submitted.

    Raises:
        SchedulerError: Slurm can't be asked.
    """
    own = commands.submission_environment(world.environ)
    environment = {**own, "SLURM_TIME_FORMAT": "%s"}
    outcome = world.run(["sbatch", "--test-only"], stdin=script, env=environment)
    if away(outcome):
        why = silence(outcome)
        raise SchedulerError(f"{sentence(why, outcome)}.", hint=HINTS[why])
    if not outcome.ok:
        return Start(refused=complaint(outcome))
    match = _START.search(outcome.stderr) or _START.search(outcome.stdout)
    return Start(when=float(match[1]), nodes=match[2] or "") if match else Start()


def impossible(scripts: Iterable[str], world: World) -> Iterator[Finding]:
    """Yield the requests that sbatch accepts, although its own test finds that no node meets them.

    A site's wrapper might submit what is only to be tested, so only Slurm's own program is asked.
    """
    if not _is_program(shutil.which("sbatch") or ""):
        return
    for text in scripts:
        try:
            refused = forecast(text, world).refused
        except SchedulerError:
            return
        if any(phrase in refused for phrase in _NEVER):
            yield Finding("sbatch --test-only", "fail", refused, refusals.advice(refused))


def _is_program(path: str) -> bool:
    """Return whether a path leads to a compiled program."""
    try:
        with Path(path).open("rb") as file:
            return file.read(len(_ELF)) == _ELF
    except OSError:
        return False


def away(outcome: Outcome) -> bool:
    """Return whether sbatch could not ask Slurm."""
    busy = not outcome.ok and any(phrase in outcome.stderr for phrase in TRANSIENT)
    return busy or silence(outcome) in {"missing", "unconfigured", "away"}
