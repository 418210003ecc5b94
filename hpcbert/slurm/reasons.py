"""Why Slurm lets a job wait: its reasons as sentences, each with what to do.

The words: SchedMD/slurm@284c3b9 (26.05), src/common/job_state_reason.c, and the free texts of
src/slurmctld/job_mgr.c for jobs that are held. The limits of associations and QOS are many words of
one form, and are put together here from their parts.
"""

from __future__ import annotations

import re
from typing import NamedTuple

WAIT = "wait: nothing has to be done"
_IMPOSSIBLE = "it will never start as it is: cancel it, mend the request and submit again"
_RELEASE = "let it go: scontrol release JOBID"
_ADMIN = "ask the administrators"
_LATER = "it starts when other jobs have ended"


class Why(NamedTuple):
    """A reason for waiting.

    Attributes:
        sentence: What it means, for a person.
        advice: What to do about it.
    """

    sentence: str
    advice: str = WAIT


REASONS: dict[str, Why] = {
    "Priority": Why("jobs of higher priority come first"),
    "Resources": Why("waits until enough nodes are free"),
    "JobArrayTaskLimit": Why("repeats of a point run one after another"),
    "Dependency": Why("waits for the job that comes before it"),
    "DependencyNeverSatisfied": Why(
        "depends on a job that failed: it will never start",
        "cancel it, and submit again when the job before it is mended",
    ),
    "BeginTime": Why("may not begin yet (after a requeue Slurm waits two minutes)"),
    "Prolog": Why("the prolog runs on its nodes"),
    "Cleaning": Why("its last run is being cleaned up"),
    "SchedDefer": Why("the scheduler puts new jobs off"),
    "Licenses": Why("waits for a licence"),
    "Reservation": Why("waits for its reservation to begin"),
    "ReservationDeleted": Why(
        "its reservation was deleted", "cancel it, and submit again without the reservation"
    ),
    "ReservationInvalid": Why(
        "its reservation cannot be used", "cancel it, and submit again without the reservation"
    ),
    "JobHeldUser": Why("is held: scontrol release JOBID lets it go", _RELEASE),
    "JobHeldAdmin": Why("is held by an administrator", _ADMIN),
    "JobHoldMaxRequeue": Why(
        "was requeued too often and is held", f"find out why it was requeued, then {_RELEASE}"
    ),
    "job requeued in held state": Why("was requeued and is held", _RELEASE),
    "launch failed requeued held": Why(
        "failed to launch and is held", f"see which node failed, then {_RELEASE}"
    ),
    "launch failure limit exceeded requeued held": Why(
        "failed to launch too often and is held", f"see which nodes failed, then {_RELEASE}"
    ),
    "user env retrieval failed requeued held": Why(
        "could not get its user's environment and is held",
        f"see that your login scripts end quickly, then {_RELEASE}",
    ),
    "ReqNodeNotAvail": Why(
        "a node it needs is down, drained or reserved",
        "wait, or submit again without naming nodes; sinfo -R says why nodes are away",
    ),
    "NodeDown": Why("a node it needs is down", "wait, or submit again without naming nodes"),
    "PartitionDown": Why("its partition is down", _ADMIN),
    "PartitionInactive": Why("its partition is inactive", _ADMIN),
    "PartitionNodeLimit": Why("asks for more nodes than its partition gives", _IMPOSSIBLE),
    "PartitionTimeLimit": Why("asks for more time than its partition gives", _IMPOSSIBLE),
    "PartitionConfig": Why("asks for what its partition does not give", _IMPOSSIBLE),
    "BadConstraints": Why("asks for what no node has", _IMPOSSIBLE),
    "Constraints": Why("asks for what no node has at present", "wait, or ask for less"),
    "DeadLine": Why("can't end before its deadline", _IMPOSSIBLE),
    "InvalidAccount": Why("its account is not valid", _IMPOSSIBLE),
    "InvalidQOS": Why("its QOS is not valid", _IMPOSSIBLE),
    "AccountNotAllowed": Why("its account may not use this partition", _IMPOSSIBLE),
    "QOSNotAllowed": Why("its QOS may not use this partition", _IMPOSSIBLE),
    "AccountingPolicy": Why("a limit of the accounting is reached", _LATER),
    "MaxMemPerLimit": Why("asks for more memory than its partition allows", _IMPOSSIBLE),
    "AssociationJobLimit": Why("your account has as many jobs as it may", _LATER),
    "AssociationResourceLimit": Why("your account is at a limit of its resources", _LATER),
    "AssociationTimeLimit": Why("your account has used up its time", _ADMIN),
    "AssocMaxJobsLimit": Why("you have as many jobs running as your account allows", _LATER),
    "QOSJobLimit": Why("the QOS has as many jobs as it may", _LATER),
    "QOSResourceLimit": Why("the QOS is at a limit of its resources", _LATER),
    "QOSTimeLimit": Why("the QOS has used up its time", _ADMIN),
    "QOSUsageThreshold": Why("the QOS has used more than its threshold", _LATER),
    "BurstBufferResources": Why("waits for room in the burst buffer"),
    "BurstBufferStageIn": Why("its data are being staged in"),
    "BurstBufferOperation": Why("an operation of the burst buffer failed", _ADMIN),
    "MaxPoweredUpNodes": Why("as many nodes as allowed are powered up", _LATER),
    "MpiPortsBusy": Why("no ports are free for its MPI", _LATER),
    "NvidiaImexChannels": Why("waits for a free IMEX channel", _LATER),
    "FedJobLock": Why("waits for the clusters of the federation to agree"),
    "SystemFailure": Why("Slurm had a failure of its own", _ADMIN),
    # How an earlier run of the same job ended: shown while it waits for the next one.
    "JobLaunchFailure": Why("could not be launched the last time", "see slurm/*.out; wait"),
    "NonZeroExitCode": Why("failed the last time, and was put back", "read its log"),
    "RaisedSignal": Why("was ended by a signal the last time, and was put back", "read its log"),
    "TimeLimit": Why("reached its time limit the last time", "submit with a longer --time"),
    "InactiveLimit": Why("was idle for too long the last time", _ADMIN),
    "OutOfMemory": Why("ran out of memory the last time", "ask for more memory"),
}

# `AssocGrpCpuLimit`, `QOSMaxGRESMinutesPerJob`, `MaxNodePerAccount`, `QOSMinMemory`: whose limit,
# of what kind, on what, and over what it is counted.
_LIMIT = re.compile(
    r"(?P<whose>Assoc|QOS|)(?P<kind>Grp|Max|Min)"
    r"(?P<what>CPU|Cpu|Mem(?:ory)?|Node|Jobs?|SubmitJobs?|Wall(?:Duration)?|GRES|Energy|License|BB"
    r"|Billing|Unknown)s?"
    r"(?P<minutes>RunMinutes|Minutes|)(?:Limit)?(?:Per(?P<per>Job|Node|User|Account))?"
    r"(?:Limit|NotSatisfied)?"
)
_WHOSE = {"Assoc": "your account", "QOS": "the QOS", "": "the QOS"}
_WHAT = {
    "CPU": "CPUs",
    "Cpu": "CPUs",
    "Mem": "memory",
    "Memory": "memory",
    "Node": "nodes",
    "Job": "jobs",
    "Jobs": "jobs",
    "SubmitJob": "submitted jobs",
    "SubmitJobs": "submitted jobs",
    "Wall": "time",
    "WallDuration": "time",
    "GRES": "GPUs",
    "Energy": "energy",
    "License": "licences",
    "BB": "burst buffer",
    "Billing": "billed units",
    "Unknown": "some resource",
}


def find(reason: str) -> Why | None:
    """Return what is known of a reason; None for a word that is in no table.

    Args:
        reason: As Slurm prints it: `ReqNodeNotAvail, UnavailableNodes:n1`.
    """
    word = re.split(r"[,(]", reason, maxsplit=1)[0].strip()
    if word in REASONS:
        return REASONS[word]
    limit = _LIMIT.fullmatch(word)
    if limit:
        return _limit(limit)
    for start, whose in (("Assoc", "your account"), ("QOS", "the QOS"), ("Max", "the QOS")):
        if word.startswith(start):
            return Why(f"{whose} is at its limit ({word})", _LATER)
    return None


def _limit(match: re.Match[str]) -> Why:
    whose, what, word = _WHOSE[match["whose"]], _WHAT[match["what"]], match[0]
    if match["minutes"]:
        what += " x minutes"
    if match["kind"] == "Min":
        return Why(f"asks for less of {what} than {whose} demands ({word})", _IMPOSSIBLE)
    if match["per"] in {"Job", "Node"}:
        each = "job" if match["per"] == "Job" else "node"
        return Why(f"asks for more of {what} a {each} than {whose} allows ({word})", _IMPOSSIBLE)
    if match["per"] == "User":
        return Why(f"you have as much of {what} as {whose} allows one user ({word})", _LATER)
    if match["minutes"] == "Minutes":
        return Why(f"{whose} is at its limit of {what} and has used them up ({word})", _ADMIN)
    return Why(f"{whose} is at its limit of {what} over all its jobs ({word})", _LATER)


def reason_sentence(reason: str) -> str:
    """Return why a job waits, as a sentence; empty where Slurm gives no reason."""
    if not _given(reason):
        return ""
    known = find(reason)
    return known.sentence if known else f"Slurm's reason is {reason.strip()}"


def reason_advice(reason: str) -> str:
    """Return what to do about a job that waits; empty where nobody knows, or nothing helps."""
    known = find(reason) if _given(reason) else None
    return known.advice if known else ""


def _given(reason: str) -> bool:
    return reason.strip() not in {"", "None"}
