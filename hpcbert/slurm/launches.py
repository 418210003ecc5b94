"""Why a node could not start a job: Slurm's `0:53` in words.

slurmd reports a failure of its own by a number above 4000 (SchedMD/slurm, slurm/slurm_errno.h,
22.05 to 26.05), in place of a status of wait(2). The commands take the lowest seven bits for
a signal: 4021, ESLURMD_IO_ERROR, is 31 x 128 + 53. No program dies of these signals by itself.

Slurm 24.11 and 26.05 make the directories above a job's output where a node has none, and start the
job: its script finds no library there, and ends with a status of its own before it writes anything.
"""

from __future__ import annotations

from hpcbert.slurm.commands import JobRow
from hpcbert.slurm.reasons import ReasonText

# How a script ends whose node lacks the campaign: sysexits.h, EX_NOINPUT.
ABSENT = 66
_SIGNAL = 0x7F
_DOCTOR = "hpcbert doctor --nodes 1 checks them"
_PLACE = ReasonText(
    "could not be started: the node could not open the job's output. On that node, the campaign's "
    "directory is missing, is a different one, or can't be written to",
    f"keep campaigns in a directory that all nodes mount and you may write to; {_DOCTOR}; "
    "then run hpcbert retry",
)
_ABSENT = ReasonText(
    "ran nothing: on its node the directory of the campaign is missing, or differs from the login "
    "node's",
    _PLACE.advice,
)
_USER = ReasonText(
    "could not be started: the node does not know your user or your groups",
    f"report the node to the administrators; {_DOCTOR}",
)
_ENVIRONMENT = ReasonText(
    "could not be started: the node could not set up the job's environment, or its prolog failed",
    "report the node to the administrators, then run hpcbert retry",
)
_SCRIPT = ReasonText(
    "could not be started: the node could not run the job's script",
    "check that the node has /bin/bash and that no file system is full; report the node to the "
    "administrators",
)
_PROLOG = ReasonText(
    "could not be started: the prolog failed on its node",
    "report the node to the administrators, then run hpcbert retry",
)
_OTHER = ReasonText(
    "could not be started on its node",
    f"check that all nodes mount the campaign's directory: {_DOCTOR}; if they do, report the node "
    "to the administrators",
)
_BY_NUMBER = {
    **dict.fromkeys((4005, 4006, 4016, 4017), _USER),
    **dict.fromkeys((4010, 4011, 4012, 4013, 4020), _SCRIPT),
    4014: _ENVIRONMENT,
    4021: _PLACE,
    4022: _PROLOG,
}
_BY_SIGNAL = {number & _SIGNAL: reason_text for number, reason_text in _BY_NUMBER.items()}
LAUNCH_FAILURES = (*dict.fromkeys(_BY_NUMBER.values()), _ABSENT, _OTHER)


def find_launch_failure(row: JobRow, *, silent: bool = False) -> ReasonText | None:
    """Return why a job that ended never started; None if it started.

    Args:
        row: Of sacct or squeue.
        silent: Whether its script recorded nothing, so that its status is not that of a step.
    """
    if reason_text := _BY_SIGNAL.get(row.signal):
        return reason_text
    if silent and row.exit_code == ABSENT:
        return _ABSENT
    return _OTHER if row.reason == "JobLaunchFailure" else None


def find_launch_advice(detail: str) -> str:
    """Return what to do about a state with a detail that begins with one of these; else empty."""
    return next(
        (launch.advice for launch in LAUNCH_FAILURES if detail.startswith(launch.sentence)), ""
    )
