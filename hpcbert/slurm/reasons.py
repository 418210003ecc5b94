"""Why Slurm lets a job wait: its reasons as sentences, each with what to do.

The words: SchedMD/slurm@284c3b9 (26.05), src/common/job_state_reason.c, and those that releases
from 22.05 on also had, src/common/slurm_protocol_defs.c. The limits of associations and QOS are
many words of one form, and are put together here from their parts. The free texts, which stand in
place of a word: what src/slurmctld, and burst buffers, write into `state_desc`.

squeue prints the texts as they are, in parentheses as `%R`, and joins those of an array's waiting
tasks with commas (src/squeue/print.c, _merge_job_reason); scontrol prints underscores for spaces
(src/scontrol/info_job.c); sacct prints words.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

WAIT = "wait; no action is needed"
_NEVER = "it can never start: cancel it"
IMPOSSIBLE = f"{_NEVER}, correct the request and submit again"
REFUSED_START = "a retry would end the same way: correct the request and submit again"
_RELEASE = "release it: scontrol release JOBID"
_ADMIN = "ask the administrators"
_LATER = "wait until other jobs have ended"
_ANOTHER = "another --account or --qos"


def _submit_with(remedy: str) -> str:
    """Return the advice about a job that never starts as it is."""
    return f"{_NEVER}, and submit again with {remedy}"


class ReasonText(NamedTuple):
    """A reason for waiting.

    Attributes:
        sentence: What it means, for a person.
        advice: What to do about it.
    """

    sentence: str
    advice: str = WAIT


def _busy(remedy: str) -> str:
    """Return the advice about a limit over several jobs, which one job may exceed by itself."""
    alone = f"{remedy}, or with {_ANOTHER}" if remedy else _ANOTHER
    return f"{_LATER}; if none of them runs, cancel it, and submit again with {alone}"


_USED_UP = f"{_ADMIN}, or cancel it, and submit again with {_ANOTHER}"
REASONS: dict[str, ReasonText] = {
    "Priority": ReasonText("jobs with a higher priority come first"),
    "Resources": ReasonText("waits until enough nodes are free"),
    "JobArrayTaskLimit": ReasonText("repeats of a point run one after another"),
    "Dependency": ReasonText("waits for the job that comes before it"),
    "DependencyNeverSatisfied": ReasonText(
        "depends on a job that failed: it will never start",
        "cancel it, and submit again when the job before it succeeds",
    ),
    "BeginTime": ReasonText("may not start yet (Slurm waits two minutes after a requeue)"),
    "Prolog": ReasonText("the prolog is running on its nodes"),
    "Cleaning": ReasonText("its last run is being cleaned up"),
    "SchedDefer": ReasonText("the scheduler is deferring new jobs"),
    "Licenses": ReasonText("waits for a licence"),
    "Reservation": ReasonText("waits for its reservation to begin"),
    "ReservationDeleted": ReasonText(
        "its reservation was deleted", "cancel it, and submit again without the reservation"
    ),
    "ReservationInvalid": ReasonText(
        "its reservation cannot be used", "cancel it, and submit again without the reservation"
    ),
    "JobHeldUser": ReasonText("is held by its user", _RELEASE),
    "JobHeldAdmin": ReasonText("is held by an administrator", _ADMIN),
    "JobHoldMaxRequeue": ReasonText(
        "was requeued too often and is held", f"find out why it was requeued, then {_RELEASE}"
    ),
    "ReqNodeNotAvail": ReasonText(
        "a node it needs is down, drained or reserved",
        "wait, or submit again without naming nodes; sinfo -R says why nodes are away",
    ),
    "FrontEndDown": ReasonText("all front end nodes are down", _ADMIN),
    "BlockMaxError": ReasonText("its block of nodes failed too often", _ADMIN),
    "BlockFreeAction": ReasonText("waits until its block of nodes is free"),
    "PowerNotAvail": ReasonText("waits for power that other jobs use", _LATER),
    "PowerReserved": ReasonText("waits for power that is reserved for other jobs", _LATER),
    "NodeDown": ReasonText("a node it needs is down", "wait, or submit again without naming nodes"),
    "PartitionDown": ReasonText("its partition is down", _ADMIN),
    "PartitionInactive": ReasonText("its partition is inactive", _ADMIN),
    "PartitionNodeLimit": ReasonText(
        "requests more or fewer nodes than its partition allows",
        _submit_with("other --nodes, or in another --partition"),
    ),
    "PartitionTimeLimit": ReasonText(
        "requests more time than its partition allows",
        _submit_with("a shorter --time, or in another --partition"),
    ),
    "PartitionConfig": ReasonText(
        "requests something that its partition does not allow",
        _submit_with(
            "fewer --nodes, less slurm.memory or a shorter --time, or in another --partition"
        ),
    ),
    "BadConstraints": ReasonText(
        "requests something that no node has",
        _submit_with("fewer --gpus-per-node, another slurm.gres, slurm.constraint or slurm.memory"),
    ),
    "Constraints": ReasonText(
        "requests something that no node has at present", "wait, or request less"
    ),
    "DeadLine": ReasonText("can't finish before its deadline", IMPOSSIBLE),
    "InvalidAccount": ReasonText(
        "its account is invalid",
        _submit_with("another --account"),
    ),
    "InvalidQOS": ReasonText(
        "its QOS is invalid",
        _submit_with("another --qos"),
    ),
    "AccountNotAllowed": ReasonText(
        "its account may not use this partition",
        _submit_with("another --account or --partition"),
    ),
    "QOSNotAllowed": ReasonText(
        "its QOS may not use this partition",
        _submit_with("another --qos or --partition"),
    ),
    "AccountingPolicy": ReasonText(
        "has reached a limit set in accounting", _busy("fewer --nodes or a shorter --time")
    ),
    "MaxMemPerLimit": ReasonText(
        "requests more memory than its partition allows",
        _submit_with("less slurm.memory, or in another --partition"),
    ),
    "AssociationJobLimit": ReasonText("your account has as many jobs as it is allowed", _busy("")),
    "AssociationResourceLimit": ReasonText(
        "your account has reached a limit on its resources",
        _busy("fewer --nodes or a shorter --time"),
    ),
    "AssociationTimeLimit": ReasonText("your account has used up its time", _USED_UP),
    "AssocMaxJobsLimit": ReasonText(
        "you have as many jobs running as your account allows", _busy("")
    ),
    "QOSJobLimit": ReasonText("the QOS has as many jobs as it is allowed", _busy("")),
    "QOSResourceLimit": ReasonText(
        "the QOS has reached a limit on its resources", _busy("fewer --nodes or a shorter --time")
    ),
    "QOSTimeLimit": ReasonText("the QOS has used up its time", _USED_UP),
    "QOSUsageThreshold": ReasonText("the QOS has exceeded its usage threshold", _LATER),
    "BurstBufferResources": ReasonText("waits for room in the burst buffer"),
    "BurstBufferStageIn": ReasonText("its data are being staged in"),
    "BurstBufferOperation": ReasonText("an operation of the burst buffer failed", _ADMIN),
    "MaxPoweredUpNodes": ReasonText("the allowed number of nodes is already powered up", _LATER),
    "MpiPortsBusy": ReasonText("all ports for its MPI are in use", _LATER),
    "NvidiaImexChannels": ReasonText("waits for a free IMEX channel", _LATER),
    "FedJobLock": ReasonText("waits for the clusters of the federation to agree"),
    "SystemFailure": ReasonText("Slurm itself failed", _ADMIN),
    # How an earlier run of the same job ended: shown while it waits for the next one.
    "JobLaunchFailure": ReasonText(
        "could not be launched in its last run", "see slurm/*.out; wait"
    ),
    "NonZeroExitCode": ReasonText("failed in its last run and was requeued", "read its log"),
    "RaisedSignal": ReasonText(
        "was ended by a signal in its last run and was requeued", "read its log"
    ),
    "TimeLimit": ReasonText(
        "reached its time limit in its last run", "submit with a longer --time"
    ),
    "InactiveLimit": ReasonText("was idle for too long in its last run", _ADMIN),
    "OutOfMemory": ReasonText("ran out of memory in its last run", "request more memory"),
}

_PERMISSION = "ask the administrators, or submit to another partition or account"
# Free texts by how they begin; what follows (names, numbers, nodes) is theirs too.
TEXTS: dict[str, ReasonText] = {
    "Nodes required for job are DOWN": ReasonText(
        "the nodes it may run on are down, drained or reserved for partitions of higher priority",
        "wait, or choose another partition; sinfo -R says why nodes are away",
    ),
    "UnavailableNodes:": REASONS["ReqNodeNotAvail"],
    # Of a node that is drained, too (seen with 24.11.5).
    "May be reserved for other job": ReasonText(
        "a node it needs is drained, or may be reserved for another job",
        f"{_LATER}; sinfo -R says why nodes are away",
    ),
    "Reserved for maintenance": ReasonText(
        "a node it needs is reserved for maintenance before this job could end",
        "wait until then (scontrol show reservation), or submit again with a shorter --time",
    ),
    "job requeued in held state": ReasonText("was requeued and is held", _RELEASE),
    "job requeued in special exit state": ReasonText(
        "was requeued in a special state and is held", f"find out why, then {_RELEASE}"
    ),
    "launch failed requeued held": ReasonText(
        "failed to launch and is held", f"find out which node failed, then {_RELEASE}"
    ),
    "launch failure limit exceeded requeued held": ReasonText(
        "failed to launch too often and is held", f"find out which nodes failed, then {_RELEASE}"
    ),
    "user env retrieval failed requeued held": ReasonText(
        "could not get its user's environment and is held",
        f"make sure that your login scripts end quickly, then {_RELEASE}",
    ),
    "Job's account not permitted to use this partition": ReasonText(
        "its account may not use this partition", _PERMISSION
    ),
    "Job's QOS not permitted to use this partition": ReasonText(
        "its QOS may not use this partition", _PERMISSION
    ),
    "Job's QOS not known": ReasonText(
        "its QOS is unknown, and this partition requires a QOS of its own", _PERMISSION
    ),
    "User's group not permitted to use this partition": ReasonText(
        "your group may not use this partition", _PERMISSION
    ),
    "uid ": ReasonText("none of your groups may use this partition", _PERMISSION),
    "License request ": ReasonText(
        "requests a licence that no longer exists, and is held", IMPOSSIBLE
    ),
    "Reservation ": ReasonText(
        "its reservation has ended, was deleted, or cannot be used",
        "cancel it, and submit again without the reservation",
    ),
    "Job is at or exceeds QOS": ReasonText("the QOS has used up its time", _USED_UP),
    "Job is at or exceeds association": ReasonText("your account has used up its time", _USED_UP),
    "Memory resize to ": ReasonText("Slurm could not change its memory", _ADMIN),
    "Unable to load job ": ReasonText(
        "Slurm has lost the job's script or environment", "cancel it, and submit again"
    ),
    "Burst buffer ": ReasonText("an operation of the burst buffer failed", _ADMIN),
    "burst_buffer/": ReasonText("the burst buffer is working for it, or has failed", _ADMIN),
    "Error managing persistent burst buffers": ReasonText("the burst buffer failed", _ADMIN),
    **dict.fromkeys(
        (
            "Required nodes do not fit topology",
            "No suitable topology unit found",
            "Insufficient resources in topology unit",
            "Weight-based selection could not satisfy request",
            "Exceeded maximum node limit during topology allocation",
            "No available nodes in topology",
            "Requested topology configuration is not available",
        ),
        ReasonText("waits until free nodes fit the network's topology"),
    ),
}
# Whom a partition takes: `(gpu allows a,b not c)`, `groups allowed: a,b`.
_WHO = re.compile(r"\(([^()]* (?:allows|denies) [^()]*)\)|(groups allowed: .+)")
# The shortest beginning of a text that was cut off which is still taken for it.
_CUT = 6

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

# What to type for less of it, of a job and of each node; nothing makes one job fewer.
_REMEDIES = {
    "CPUs": "fewer --nodes or a smaller nodes.cpus_per_gpu",
    "memory": "fewer --nodes or less slurm.memory",
    "jobs": "",
    "submitted jobs": "",
    "time": "a shorter --time",
    "GPUs": "fewer --nodes or --gpus-per-node",
}
_REMEDIES_PER_NODE = {
    "CPUs": "a smaller nodes.cpus_per_gpu",
    "memory": "less slurm.memory",
    "GPUs": "fewer --gpus-per-node",
}


def find(reason: str) -> tuple[tuple[str, ReasonText | None], ...]:
    """Return the reasons that a text of Slurm's holds, each with what is known of it.

    Args:
        reason: As Slurm prints it: `ReqNodeNotAvail, UnavailableNodes:n[1-2],JobArrayTaskLimit`.
    """
    found: list[tuple[str, ReasonText | None]] = []
    for part in _parts(reason):
        reason_text = _known(part.strip())
        before = found[-1][0] if found else ""
        if found and _goes_on(before, part.strip(), reason_text):
            found[-1] = f"{before},{part}", reason_text or found[-1][1]
        else:
            found.append((part.strip(), reason_text))
    return tuple(found)


def _parts(reason: str) -> Iterator[str]:
    text = reason.strip()
    if text.startswith("("):
        text = text[1:].removesuffix(")")
    if " " not in text and not text.startswith("burst_buffer/"):
        text = text.replace("_", " ")
    text = re.sub(r"(\+|\.\.\.|\u2026)$", "", text)
    return (part for part in text.split(",") if part.strip())


def _goes_on(before: str, part: str, reason_text: ReasonText | None) -> bool:
    """Say whether a part belongs to the text before it, in which commas stand too.

    They do in texts of several clauses, and in lists of nodes or groups.
    """
    if before.startswith("ReqNodeNotAvail"):
        return reason_text is None or _word(part) is None
    return reason_text is None and _word(before) is None and _known(before) is not None


def _known(text: str) -> ReasonText | None:
    """Return what is known of one reason; None for one that is in no table."""
    word = re.split(r"[(:]", text, maxsplit=1)[0].strip()
    begun = (reason_text for start, reason_text in TEXTS.items() if text.startswith(start))
    if known := _word(word) or next(begun, None):
        return known
    # What was cut off may stand for several that mean the same.
    reason_texts = {
        reason_text for start, reason_text in {**REASONS, **TEXTS}.items() if start.startswith(text)
    }
    return reason_texts.pop() if len(text) >= _CUT and len(reason_texts) == 1 else None


def _word(word: str) -> ReasonText | None:
    if word in REASONS:
        return REASONS[word]
    limit = _LIMIT.fullmatch(word)
    if limit:
        return _limit(limit)
    for start, whose in (("Assoc", "your account"), ("QOS", "the QOS"), ("Max", "the QOS")):
        if re.fullmatch(rf"{start}[A-Z]\w+", word):
            return ReasonText(f"{whose} has reached its limit ({word})", _LATER)
    return None


def _limit(match: re.Match[str]) -> ReasonText:
    whose, what, word = _WHOSE[match["whose"]], _WHAT[match["what"]], match[0]
    remedy = _REMEDIES.get(what, "fewer --nodes")
    if match["minutes"]:
        what, remedy = f"{what} x minutes", "a shorter --time or fewer --nodes"
    if match["kind"] == "Min":
        sentence = f"requests less than the {what} that {whose} demands ({word})"
        return ReasonText(sentence, _submit_with(f"more, or with {_ANOTHER}"))
    if match["per"] in {"Job", "Node"}:
        each = "job" if match["per"] == "Job" else "node"
        sentence = f"requests more {what} per {each} than {whose} allows ({word})"
        remedy = _REMEDIES_PER_NODE.get(what, remedy) if each == "node" else remedy
        return ReasonText(sentence, _submit_with(f"{remedy}, or with {_ANOTHER}"))
    if match["per"] == "User":
        sentence = f"you have reached the limit on {what} per user that {whose} sets ({word})"
        return ReasonText(sentence, _busy(remedy))
    total = match["kind"] == "Grp" and what == "time"  # GrpWall counts jobs that ended, too
    if total or match["minutes"] == "Minutes":
        return ReasonText(f"{whose} has used up its limit of {what} ({word})", _USED_UP)
    sentence = f"{whose} has reached its limit on {what} over all its jobs ({word})"
    return ReasonText(sentence, _busy(remedy))


def reason_sentence(reason: str) -> str:
    """Return why a job waits, as a sentence; empty where Slurm gives no reason."""
    if not _given(reason):
        return ""
    found = find(reason)
    if not any(reason_text for _, reason_text in found):
        return f"Slurm's reason is {reason.strip()}"
    said = (_sentence(text, reason_text) for text, reason_text in found)
    return "; ".join(dict.fromkeys(said))


def _sentence(text: str, reason_text: ReasonText | None) -> str:
    if reason_text is None:
        return f"Slurm's reason is {text}"
    _, known, nodes = text.partition("UnavailableNodes:")
    who = _WHO.search(text)
    if who:
        return f"{reason_text.sentence} ({who[1] or who[2]})"
    return f"{reason_text.sentence}: {nodes}" if known and nodes else reason_text.sentence


def reason_advice(reason: str) -> str:
    """Return what to do about a job that waits; empty where nobody knows, or nothing helps.

    Of several reasons, one for each of an array's tasks, those that need somebody speak.
    """
    found = find(reason) if _given(reason) else ()
    advice = dict.fromkeys(reason_text.advice for _, reason_text in found if reason_text)
    acts = [text for text in advice if not text.startswith((WAIT, _LATER))]
    later = [text for text in advice if text.startswith(_LATER)]
    return "; ".join(acts) or next(iter([*later, *advice]), "")


def never_starts(reason: str) -> bool:
    """Return whether Slurm never starts a job with this reason."""
    return _given(reason) and any(
        reason_text
        and (reason_text.advice.startswith(_NEVER) or "it will never start" in reason_text.sentence)
        for _, reason_text in find(reason)
    )


def _given(reason: str) -> bool:
    return reason.strip("() \t") not in {"", "None", "null"}
