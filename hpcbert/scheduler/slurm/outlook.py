"""When the job of a script would start, from sbatch itself, without submitting anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcbert.errors import SchedulerError
from hpcbert.scheduler.base import Start
from hpcbert.scheduler.slurm.adopt import complaint
from hpcbert.scheduler.slurm.cluster import HINTS, sentence, silence
from hpcbert.scheduler.slurm.submission import TRANSIENT
from hpcbert.slurm import commands
from hpcbert.system.lazy import regex

if TYPE_CHECKING:
    from hpcbert.scheduler.base import World
    from hpcbert.system.runner import Outcome

# sbatch: Job 12 to start at 1795331940 using 16 processors on nodes n[1-4] in partition gpu
# (SchedMD/slurm, src/sbatch/sbatch.c and src/plugins/select; the time as SLURM_TIME_FORMAT says).
_START = regex(r"to start at (\d{1,12})\b(?:.*? on (?:nodes )?(\S+))?")


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


def away(outcome: Outcome) -> bool:
    """Return whether sbatch could not ask Slurm."""
    busy = not outcome.ok and any(phrase in outcome.stderr for phrase in TRANSIENT)
    return busy or silence(outcome) in {"missing", "unconfigured", "away"}
