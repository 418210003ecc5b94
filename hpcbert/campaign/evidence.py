"""The evidence behind a campaign's numbers: digests of every file, and what changed since.

It is recorded when a campaign is collected and none of its jobs waits or runs any more. A campaign
may go on after that: a requeue appends to status files and adds logs, a retry adds arrays to the
manifest. A file system may also show late what a node wrote. Both are distinguished from a file
that has lost recorded content.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import asdict, dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from hpcbert.campaign import store
from hpcbert.campaign.record import RepeatRecord
from hpcbert.errors import UsageError
from hpcbert.model import MANIFEST, moment, utc
from hpcbert.slurm.ladder import VISIBLE
from hpcbert.system.files import open_file, read, size_of
from hpcbert.system.workers import spread

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from hpcbert.campaign.repeats import TrackedCampaign
    from hpcbert.model import Campaign

# An archive's description of itself; it stays in a directory that was unpacked.
INDEX = "archive.json"
MEASUREMENTS = "measurements.json"
TABLE = "table.json"
EVIDENCE, SEAL = "evidence", "seal"
_BLOCK = 1 << 20
_MOST = 1 << 26
# What numbers come from: these files, and everything in these folders, which a campaign that goes
# on adds to. Other files in the directory belong to the user.
_FILES = (MANIFEST, store.RECIPE, store.SAMPLE, store.LOCKED, TABLE)
_FOLDERS = ("env", "logs", "scripts", "slurm", "status")
# What the numbers of all repeats depend on; of scripts, those that no array names.
_COMMON = (MANIFEST, store.RECIPE, MEASUREMENTS)
# Jobs write to these while they run.
_LOGS, _STATUS = "logs/", "status/"
_WRITTEN = (_LOGS, _STATUS)
# The local queue's own files, which each retry writes again.
_UNRECORDED = "slurm/local."

# Numbers are recorded with the protocol's window, whatever window a table was requested for.
_WHOLE = {"skip": None, "iters": None}

Kind = Literal["missing", "changed", "added", "grew", "late", "masked", "seal"]


@dataclass(frozen=True)
class Deviation:
    """One difference from the record.

    Attributes:
        kind: `missing`, `changed`, `added`, `grew` (it still begins with what was recorded),
            `late` (the file system showed it only later), `masked` (something in it looked like a
            secret when it was archived), or `seal`: the record itself was changed.
        path: Relative to the campaign.
        detail: A sentence.
        harmless: Whether a campaign that goes on, or a slow file system, explains it.
    """

    kind: Kind
    path: str
    detail: str
    harmless: bool = False

    def __str__(self) -> str:
        return f"{self.path}: {self.detail}"


def canonical(data: Any) -> bytes:
    """Return JSON data as bytes, always the same for the same data."""
    return json.dumps(data, sort_keys=True, separators=(",", ":")).encode()


def _digest(data: Any) -> str:
    return hashlib.sha256(canonical(data)).hexdigest()


def digests(
    watched: TrackedCampaign, known: Mapping[str, dict[str, Any]] = MappingProxyType({})
) -> dict[str, dict[str, Any]]:
    """Return size and SHA-256 of every file that numbers come from, by path, in order.

    Status files count as they were when they were read: the states come from that.

    Args:
        watched: The campaign.
        known: Digests of files that have not changed since.
    """
    every = sorted(names(watched.directory))
    new = [name for name in every if name not in known and not name.startswith(_STATUS)]
    sizes = [size_of(watched.directory / name) for name in new]
    found = {**known, **dict(zip(new, spread(partial(_entry, watched), new, sizes), strict=True))}
    return {name: found[name] if name in found else _entry(watched, name) for name in every}


def _entry(watched: TrackedCampaign, name: str) -> dict[str, Any]:
    path = watched.directory / name
    if name.startswith(_STATUS) and (record := watched.records.at(path)).stamp:
        return {"bytes": len(record.raw), "sha256": hashlib.sha256(record.raw).hexdigest()}
    size, found = 0, hashlib.sha256()
    try:
        descriptor, _ = open_file(path)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            while block := file.read(_BLOCK):
                found.update(block)
                size += len(block)
    except OSError as error:
        return {"bytes": None, "sha256": None, "error": error.strerror or str(error)}
    return {"bytes": size, "sha256": found.hexdigest()}


def belongs(name: str) -> bool:
    """Return whether a campaign's numbers can come from a file with this path."""
    return name in {*_FILES, MEASUREMENTS} or name.startswith(
        tuple(f"{folder}/" for folder in _FOLDERS)
    )


def names(directory: Path) -> Iterator[str]:
    """Yield the paths of the files, except hidden ones, which are unfinished."""
    yield from (name for name in _FILES if os.path.lexists(directory / name))
    for start in _FOLDERS:
        for folder, _, files in os.walk(directory / start):
            for name in files:
                path = os.path.relpath(os.path.join(folder, name), directory)  # noqa: PTH118
                if not name.startswith(".") and not path.startswith(_UNRECORDED):
                    yield path


def stamps(directory: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of every log and status file, by path, which change with each write."""
    found = {}
    for name in names(directory):
        if name.startswith(_WRITTEN):
            with contextlib.suppress(OSError):
                status = (directory / name).stat()
                found[name] = status.st_size, status.st_mtime_ns
    return found


def recorded(directory: Path) -> dict[str, Any] | None:
    """Return the measurements of a campaign if they hold evidence.

    Raises:
        UsageError: The file is damaged.
    """
    path = directory / MEASUREMENTS
    data = store.read_json(path) if path.exists() else {}
    whole = isinstance(data, dict) and isinstance(data.get(EVIDENCE), dict)
    return data if whole and isinstance(data[EVIDENCE].get("files"), dict) else None


def seal(document: Mapping[str, Any]) -> str:
    """Return the digest of measurements, evidence and all, without the seal itself."""
    return _digest({key: value for key, value in document.items() if key != SEAL})


@dataclass(frozen=True)
class Held:
    """The comparison of a campaign with its evidence.

    Attributes:
        findings: The differences from the record.
        accepted: Earlier changes that the user accepted, one sentence each.
        digests: Digests of its files as found; empty without evidence.
    """

    findings: tuple[Deviation, ...] = ()
    accepted: tuple[str, ...] = ()
    digests: Mapping[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def changed(self) -> tuple[Deviation, ...]:
        """Changes that only a deliberate change explains; the table is made again anyway."""
        return tuple(
            finding for finding in self.findings if not finding.harmless and finding.path != TABLE
        )


def hold(watched: TrackedCampaign) -> Held:
    """Compare a campaign with the evidence that an earlier collect recorded, if any."""
    document = previous(watched.directory)
    if document is None:
        return Held()
    entries = document[EVIDENCE].get("history")
    accepted = tuple(
        f"changes were accepted at {entry.get('at')}, because: {entry['accepted']} "
        f"({'; '.join(map(str, entry.get('changes') or ()))})"
        for entry in (entries if isinstance(entries, list) else ())
        if isinstance(entry, dict) and entry.get("accepted")
    )
    now = digests(watched)
    return Held(changes(watched, document, now), accepted, now)


def concerns_all(path: str) -> bool:
    """Return whether the numbers of all repeats depend on a file."""
    return path in _COMMON or (path.startswith("scripts/") and not path.endswith(".sbatch"))


def changes(
    watched: TrackedCampaign, document: Mapping[str, Any], now: Mapping[str, dict[str, Any]]
) -> tuple[Deviation, ...]:
    """Return the differences from the time when the evidence was recorded.

    Args:
        watched: The campaign.
        document: Its measurements, with evidence.
        now: The digests of its files.
    """
    before = document[EVIDENCE]["files"]
    broken = "the record itself was changed after it was written"
    own = () if document.get(SEAL) == seal(document) else (Deviation("seal", MEASUREMENTS, broken),)
    lacking, masked = lacks(watched.campaign, document), masks(watched.directory)
    deviations = [
        _masked(name)
        if masked.get(name) == Masking(then, now.get(name, {}))
        else _changed(watched, name, then, document, lacking)
        if name in now
        else Deviation("missing", name, "it is missing")
        for name, then in before.items()
        if now.get(name) != then
    ]
    goes_on = any(deviation.harmless and deviation.kind == "grew" for deviation in deviations)
    new = (_added(name, lacking, goes_on=goes_on) for name in now if name not in before)
    return (*own, *deviations, *new)


def _masked(name: str) -> Deviation:
    return Deviation("masked", name, "secrets in it were masked to archive it", harmless=True)


def _changed(
    watched: TrackedCampaign, name: str, then: Any, document: Mapping[str, Any], lacking: Lacking
) -> Deviation:
    if name == MANIFEST and _continues(watched.campaign, document):
        return Deviation("grew", name, "arrays were added or submitted", harmless=True)
    rest = _added_to(watched, name, then)
    logs = name.startswith("slurm/")
    if rest is not None and (logs or (name.startswith(_STATUS) and is_continuation(*rest))):
        return Deviation("grew", name, "lines were added", harmless=True)
    if rest is not None and name in lacking.growing:
        return Deviation("late", name, "the file system shows more of it now", harmless=True)
    return Deviation("changed", name, "its content is not what was recorded")


def _added_to(watched: TrackedCampaign, name: str, then: Any) -> tuple[bytes, bytes] | None:
    """Return a file's recorded beginning and what follows it; None: it begins differently."""
    size = then.get("bytes") if isinstance(then, dict) else None
    if not isinstance(size, int) or size < 0:
        return None
    path = watched.directory / name
    try:
        record = watched.records.at(path) if name.startswith(_STATUS) else None
        raw = record.raw if record else read(path, most=_MOST)
    except OSError:
        return None
    same = hashlib.sha256(raw[:size]).hexdigest() == then.get("sha256")
    return (raw[:size], raw[size:]) if same and len(raw) >= size else None


def _added(name: str, lacking: Lacking, *, goes_on: bool) -> Deviation:
    if name in lacking.missing or name.startswith("env/"):
        return Deviation("late", name, "the file system did not show it before", harmless=True)
    return Deviation("added", name, "it did not exist before", harmless=goes_on)


def _continues(campaign: Campaign, document: Mapping[str, Any]) -> bool:
    """Return whether a manifest still holds its head and every array that was recorded.

    An array without a job at that time may have been submitted since. Runs may belong to an array
    that was added later: a table that is made while a retry runs keeps the existing evidence.
    """
    manifest = document[EVIDENCE].get("manifest")
    try:
        now = manifest_digests(campaign)
        ran = {run["array"] for run in document["runs"] if run["state_source"] != "none"}
        known = ran & manifest["arrays"].keys()
        kept = all(now["arrays"].get(name) == manifest["arrays"][name] for name in known)
        grown = manifest["arrays"].keys() <= now["arrays"].keys()
        return bool(kept and grown and manifest["head"] == now["head"])
    except (KeyError, TypeError, AttributeError):
        return False


def manifest_digests(campaign: Campaign) -> dict[str, Any]:
    """Return the digests of a manifest's arrays, by name, and of everything else in it."""
    data = asdict(campaign)
    arrays = data.pop("arrays")
    return {"head": _digest(data), "arrays": {array["name"]: _digest(array) for array in arrays}}


# --- Differences that a slow file system, a later attempt or an archive explains -----------------


@dataclass(frozen=True)
class Lacking:
    """Files that may have been missing or cut short when a campaign was collected.

    Attributes:
        missing: Status files and logs of invalid repeats, whether they existed or not.
        growing: Logs that were recorded so soon after their job's end that more may have followed.
    """

    missing: frozenset[str] = frozenset()
    growing: frozenset[str] = frozenset()


def lacks(campaign: Campaign, document: Mapping[str, Any]) -> Lacking:
    """Return the files that a record says it lacked; none if that can't be read.

    Args:
        campaign: Its manifest.
        document: Its measurements, with evidence.
    """
    try:
        arrays = {array.name: array for array in campaign.arrays}
        recorded = moment(document["evidence"].get("recorded"))
        missing: set[str] = set()
        growing: set[str] = set()
        for run in document["runs"]:
            if run["valid"]:
                continue
            missing |= {run["log"], arrays[run["array"]].status(run["repeat"])}
            end = run["scheduler"].get("end")
            if recorded is not None and end is not None and abs(recorded - end) < VISIBLE:
                growing.add(run["log"])
    except (KeyError, TypeError, AttributeError):
        return Lacking()
    return Lacking(frozenset(missing), frozenset(growing))


def is_continuation(recorded: bytes, added: bytes) -> bool:
    """Return whether lines that were added to a status file are lines that a job adds.

    They are if they belong to later attempts, or to one that had no end in the record.
    """
    before = RepeatRecord(recorded).newest()
    return not before.ended or all(
        isinstance(event.get("attempt"), int) and event["attempt"] > before.attempt
        for event in RepeatRecord(added).events
    )


@dataclass(frozen=True)
class Masking:
    """Size and SHA-256 of a file before its secrets were masked, and after."""

    then: Mapping[str, Any]
    now: Mapping[str, Any]


def masks(directory: Path) -> dict[str, Masking]:
    """Return the files of a campaign that were masked when it was archived, by path."""
    try:
        index = store.read_json(directory / INDEX)
        return {
            name: Masking(
                {key: then[key] for key in ("bytes", "sha256")},
                {key: index["files"][name][key] for key in ("bytes", "sha256")},
            )
            for name, then in index["masked"].items()
        }
    except (UsageError, KeyError, TypeError, AttributeError):
        return {}


# --- The next record ----------------------------------------------------------------------------


def renewed(
    watched: TrackedCampaign,
    document: Mapping[str, Any],
    *,
    now: float,
    accepted: str,
    known: Mapping[str, dict[str, Any]],
) -> dict[str, Any]:
    """Return the evidence for a campaign as it is on disk now.

    If there was a record already and something differs from it, the history says what.

    Args:
        watched: The campaign; its table.json is written, its measurements.json is the old one.
        document: The measurements that the evidence belongs to.
        now: Seconds since the epoch.
        accepted: The user's reason to accept changes; empty if there are none.
        known: The digests used for the comparison. They still hold for logs, or the process that
            records them sees from size and time that they don't.
    """
    logs = {name: one for name, one in known.items() if name.startswith(_LOGS)}
    files = digests(watched, logs)
    evidence: dict[str, Any] = {
        "recorded": utc(now),
        "window": _WHOLE,
        "manifest": manifest_digests(watched.campaign),
        "files": files,
        "history": [],
    }
    old = previous(watched.directory)
    if old is None:
        return evidence
    deviations = [change for change in changes(watched, old, files) if change.path != TABLE]
    if (old.get("rule"), old[EVIDENCE].get("window")) != (document["rule"], _WHOLE):
        deviations.append(
            Deviation("changed", MEASUREMENTS, "other iterations or another rule", True)
        )
    if not deviations:
        evidence["recorded"] = old[EVIDENCE].get("recorded")
    before = old[EVIDENCE].get("history")
    evidence["history"] = list(before) if isinstance(before, list) else []
    if deviations:
        entry = {"recorded": old[EVIDENCE].get("recorded"), "seal": old.get(SEAL)}
        evidence["history"].append(
            {**entry, "changes": [str(deviation) for deviation in deviations]}
        )
    if accepted:
        evidence["history"][-1] |= {"accepted": accepted, "at": utc(now)}
    return evidence


def kept(watched: TrackedCampaign) -> dict[str, Any] | None:
    """Return the evidence on record for a campaign that goes on, with its new table.json."""
    old = previous(watched.directory)
    if old is None:
        return None
    record: dict[str, Any] = old[EVIDENCE]
    return {**record, "files": {**record["files"], TABLE: _entry(watched, TABLE)}}


def previous(directory: Path) -> dict[str, Any] | None:
    """Return the result of `recorded`, or nothing if the file is damaged."""
    try:
        return recorded(directory)
    except UsageError:
        return None
