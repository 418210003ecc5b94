"""The evidence behind a campaign's numbers: digests of every file, and what changed since.

It is recorded when a campaign is collected and none of its jobs waits or runs any more. A campaign
may go on after that: a requeue appends to status files and adds logs, a retry adds arrays to the
manifest. A file system may also show late what a node wrote. Both are distinguished from a file
that has lost recorded content.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from hpcbert.campaign import store
from hpcbert.campaign.record import RepeatRecord, Stamp, read_stamp
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.errors import UsageError
from hpcbert.model import MANIFEST, Campaign, format_utc, parse_utc
from hpcbert.slurm.state_sources import VISIBILITY_DELAY
from hpcbert.system import files
from hpcbert.system.workers import map_in_parallel

# An archive's description of itself; it stays in a directory that was unpacked.
INDEX = "archive.json"
MEASUREMENTS = "measurements.json"
TABLE = "table.json"
EVIDENCE, SEAL = "evidence", "seal"
# What numbers come from: these files, and everything in these folders, which a campaign that goes
# on adds to. Other files in the directory belong to the user.
_FILES = (MANIFEST, store.RECIPE, store.SAMPLE, store.LOCKED, TABLE)
_FOLDERS = ("env", "logs", "scripts", "slurm", "status")
# What the numbers of all repeats depend on; of scripts, those that no array names.
_COMMON = (MANIFEST, store.RECIPE, MEASUREMENTS)
# Jobs write to these while they run.
_LOGS, _STATUS = "logs/", "status/"
# The local queue's own files, which each retry writes again.
_UNRECORDED = "slurm/local."


Kind = Literal["missing", "changed", "added", "grew", "late", "masked", "seal"]
_Digest = dict[str, Any]


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


def encode_canonical(data: Any) -> bytes:
    """Return JSON data as bytes, always the same for the same data."""
    return json.dumps(data, sort_keys=True, separators=(",", ":")).encode()


def _hash_data(data: Any) -> str:
    return hashlib.sha256(encode_canonical(data)).hexdigest()


# --- The files of a campaign, and their digests ---------------------------------------------------


def is_evidence(name: str) -> bool:
    """Return whether numbers can come from a file; `name` is relative to the campaign."""
    folders = tuple(f"{folder}/" for folder in _FOLDERS)
    return name in {*_FILES, MEASUREMENTS} or name.startswith(folders)


def concerns_all(path: str) -> bool:
    """Return whether all repeats depend on a file; `path` is relative to the campaign."""
    return path in _COMMON or (path.startswith("scripts/") and not path.endswith(".sbatch"))


def list_paths(directory: Path) -> Iterator[str]:
    """Yield the paths of the files, except hidden ones, which are unfinished."""
    yield from (name for name in _FILES if os.path.lexists(directory / name))
    for start in _FOLDERS:
        for folder, _, names in os.walk(directory / start):
            for name in names:
                path = os.path.relpath(os.path.join(folder, name), directory)  # noqa: PTH118
                if not name.startswith(".") and not path.startswith(_UNRECORDED):
                    yield path


def read_stamps(directory: Path) -> dict[str, Stamp]:
    """Return size and time of every log and status file, by path, which change with each write."""
    names = [name for name in list_paths(directory) if name.startswith((_LOGS, _STATUS))]
    stamps = {name: read_stamp(directory / name) for name in names}
    return {name: stamp for name, stamp in stamps.items() if stamp}


def read_digests(watched: TrackedCampaign) -> dict[str, _Digest]:
    """Return size and SHA-256 of every file that numbers come from, by path, in order.

    Status files count as they were when they were read: the states come from that.
    """
    paths = sorted(list_paths(watched.directory))
    for name in paths:
        if name.startswith(_STATUS):  # Read here, so that other processes hash what is known here.
            watched.records.at(watched.directory / name)
    sizes = [files.size_of(watched.directory / name) for name in paths]
    hashed = map_in_parallel(partial(_hash_file, watched), paths, sizes, "reading files")
    return dict(zip(paths, hashed, strict=True))


def _hash_file(watched: TrackedCampaign, name: str) -> _Digest:
    path = watched.directory / name
    record = watched.records.at(path) if name.startswith(_STATUS) else None
    if record and record.stamp:
        return {"bytes": len(record.raw), "sha256": hashlib.sha256(record.raw).hexdigest()}
    try:
        size, sha256 = files.hash_file(path)
    except OSError as error:
        return {"bytes": None, "sha256": None, "error": error.strerror or str(error)}
    return {"bytes": size, "sha256": sha256}


def _hash_manifest(campaign: Campaign) -> dict[str, Any]:
    data = asdict(campaign)
    arrays = {array["name"]: _hash_data(array) for array in data.pop("arrays")}
    return {"head": _hash_data(data), "arrays": arrays}


# --- The record, and the differences from it ------------------------------------------------------


def read_measurements(directory: Path) -> dict[str, Any] | None:
    """Return the measurements of a campaign if they hold evidence."""
    path = directory / MEASUREMENTS
    data = store.read_json(path) if path.exists() else {}
    has_evidence = isinstance(data, dict) and isinstance(data.get(EVIDENCE), dict)
    return data if has_evidence and isinstance(data[EVIDENCE].get("files"), dict) else None


def read_previous(directory: Path) -> dict[str, Any] | None:
    """Return the result of `read_measurements`; None if the file is damaged."""
    try:
        return read_measurements(directory)
    except UsageError:
        return None


def compute_seal(document: Mapping[str, Any]) -> str:
    """Return the digest of measurements and evidence, without the seal itself."""
    return _hash_data({key: value for key, value in document.items() if key != SEAL})


@dataclass(frozen=True)
class RecordComparison:
    """The differences of a campaign from its evidence, and a sentence for each accepted change."""

    findings: tuple[Deviation, ...] = ()
    accepted: tuple[str, ...] = ()

    @property
    def changed(self) -> tuple[Deviation, ...]:
        """Changes that only a deliberate change explains; the table is made again anyway."""
        return tuple(
            finding for finding in self.findings if not finding.harmless and finding.path != TABLE
        )


def compare_with_record(watched: TrackedCampaign) -> RecordComparison:
    """Compare a campaign with the evidence that an earlier collect recorded, if any."""
    document = read_previous(watched.directory)
    if document is None:
        return RecordComparison()
    accepted = tuple(
        f"changes were accepted at {entry.get('at')}, because: {entry['accepted']} "
        f"({'; '.join(map(str, entry.get('changes') or ()))})"
        for entry in read_history(document)
        if entry.get("accepted")
    )
    deviations = find_deviations(watched, document, read_digests(watched))
    return RecordComparison(deviations, accepted)


def read_history(document: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return the earlier records, and what had changed since each."""
    history = document[EVIDENCE].get("history")
    entries = history if isinstance(history, list) else ()
    return tuple(entry for entry in entries if isinstance(entry, dict))


def find_deviations(
    watched: TrackedCampaign, document: Mapping[str, Any], digests: Mapping[str, _Digest]
) -> tuple[Deviation, ...]:
    """Return the differences from the time when the evidence was recorded."""
    deviations = []
    if document.get(SEAL) != compute_seal(document):
        text = "the record itself was changed after it was written"
        deviations.append(Deviation("seal", MEASUREMENTS, text))
    try:
        deviations += _compare_files(watched, document, digests)
    except (UsageError, KeyError, TypeError, AttributeError) as error:
        deviations.append(Deviation("seal", MEASUREMENTS, f"the record is damaged: {error!r}"))
    return tuple(deviations)


def _compare_files(
    watched: TrackedCampaign, document: Mapping[str, Any], digests: Mapping[str, _Digest]
) -> Iterator[Deviation]:
    recorded = document[EVIDENCE]["files"]
    late, growing = _find_late_files(watched.campaign, document)
    masks = read_masks(watched.directory)
    has_grown = False
    for name, digest in recorded.items():
        if name not in digests:
            yield Deviation("missing", name, "it is missing")
        elif masks.get(name) == (digest, digests[name]):
            text = "secrets in it were masked to archive it"
            yield Deviation("masked", name, text, harmless=True)
        elif digests[name] != digest:
            deviation = _classify_change(watched, name, digest, document, growing)
            has_grown = has_grown or deviation.kind == "grew"
            yield deviation
    for name in [name for name in digests if name not in recorded]:
        if name in late or name.startswith("env/"):
            detail = "the file system did not show it before"
            yield Deviation("late", name, detail, harmless=True)
        else:
            yield Deviation("added", name, "it did not exist before", harmless=has_grown)


def _classify_change(
    watched: TrackedCampaign,
    name: str,
    digest: _Digest,
    document: Mapping[str, Any],
    growing: Collection[str],
) -> Deviation:
    changed = Deviation("changed", name, "its content is not what was recorded")
    if name == MANIFEST:
        is_continued = _is_continued(watched.campaign, document)
        grown = Deviation("grew", name, "arrays were added or submitted", harmless=True)
        return grown if is_continued else changed
    added = _read_addition(watched, name, digest)
    if added is None:
        return changed
    is_status = name.startswith(_STATUS)
    if name.startswith("slurm/") or (is_status and _is_continuation(*added)):
        return Deviation("grew", name, "lines were added", harmless=True)
    if name in growing:
        return Deviation("late", name, "the file system shows more of it now", harmless=True)
    return changed


def _read_addition(
    watched: TrackedCampaign, name: str, digest: _Digest
) -> tuple[bytes, bytes] | None:
    """Return a file's recorded beginning and what follows; None if it begins differently."""
    path, size = watched.directory / name, digest["bytes"] or 0
    try:
        record = watched.records.at(path) if name.startswith(_STATUS) else None
        raw = record.raw if record else files.read(path)
    except OSError:
        return None
    is_same = hashlib.sha256(raw[:size]).hexdigest() == digest["sha256"]
    return (raw[:size], raw[size:]) if is_same and len(raw) >= size else None


def _is_continuation(recorded: bytes, added: bytes) -> bool:
    """Return whether a job can have added lines to a status file.

    It can if they belong to later attempts, or to one that had no end in the record.
    """
    before = RepeatRecord(recorded).newest()
    return not before.ended or all(
        isinstance(event.get("attempt"), int) and event["attempt"] > before.attempt
        for event in RepeatRecord(added).events
    )


def _is_continued(campaign: Campaign, document: Mapping[str, Any]) -> bool:
    """Return whether a manifest still has its recorded head and arrays.

    An array without a job at that time may have been submitted since. Runs may belong to an array
    that was added later: a table that is made while a retry runs keeps the existing evidence.
    """
    manifest, present = document[EVIDENCE]["manifest"], _hash_manifest(campaign)
    run_arrays = {run["array"] for run in document["runs"] if run["state_source"] != "none"}
    return manifest["head"] == present["head"] and all(
        name in present["arrays"] and (name not in run_arrays or present["arrays"][name] == array)
        for name, array in manifest["arrays"].items()
    )


def _find_late_files(campaign: Campaign, document: Mapping[str, Any]) -> tuple[set[str], set[str]]:
    """Return the files that a record lacks by its own account.

    These are status files and logs of invalid repeats, whether they existed or not; and logs that
    were recorded so soon after their job's end that more may have followed.
    """
    arrays = {array.name: array for array in campaign.arrays}
    recorded = parse_utc(document[EVIDENCE]["recorded"])
    missing: set[str] = set()
    growing: set[str] = set()
    for run in document["runs"]:
        if run["valid"]:
            continue
        missing |= {run["log"], arrays[run["array"]].status(run["repeat"])}
        end = run["scheduler"]["end"]
        if recorded is not None and end is not None and abs(recorded - end) < VISIBILITY_DELAY:
            growing.add(run["log"])
    return missing, growing


def read_masks(directory: Path) -> dict[str, tuple[_Digest, _Digest]]:
    """Return the files of a campaign that were masked when it was archived, by path.

    With size and SHA-256 of each before that, and after.
    """
    if not (directory / INDEX).exists():
        return {}
    index = store.read_json(directory / INDEX)
    try:
        return {
            name: (_select_digest(entry), _select_digest(index["files"][name]))
            for name, entry in index["masked"].items()
        }
    except (KeyError, TypeError, AttributeError) as error:
        text = f"The archive's index is damaged: {error!r}."
        raise UsageError(text, where=str(directory / INDEX)) from error


def _select_digest(entry: Mapping[str, Any]) -> _Digest:
    return {"bytes": entry["bytes"], "sha256": entry["sha256"]}


# --- The next record ----------------------------------------------------------------------------


def renew_evidence(
    watched: TrackedCampaign, document: Mapping[str, Any], *, now: float, accepted: str
) -> dict[str, Any]:
    """Return the evidence for a campaign as it is on disk now.

    If there was a record already and something differs from it, the history says what. The table
    on disk is the new one, the measurements are the old ones.
    """
    digests = read_digests(watched)
    evidence: dict[str, Any] = {
        "recorded": format_utc(now),
        "manifest": _hash_manifest(watched.campaign),
        "files": digests,
        "history": [],
    }
    previous = read_previous(watched.directory)
    if previous is None:
        return evidence
    deviations = find_deviations(watched, previous, digests)
    changes = [str(deviation) for deviation in deviations if deviation.path != TABLE]
    if previous.get("rule") != document["rule"]:
        changes.append(f"{MEASUREMENTS}: another rule")
    recorded = previous[EVIDENCE].get("recorded")
    evidence["history"] = list(read_history(previous))
    if changes:
        entry = {"recorded": recorded, "seal": previous.get(SEAL), "changes": changes}
        evidence["history"].append(entry)
    else:
        evidence["recorded"] = recorded
    if accepted:
        evidence["history"][-1] |= {"accepted": accepted, "at": format_utc(now)}
    return evidence


def keep_evidence(watched: TrackedCampaign) -> dict[str, Any] | None:
    """Return the evidence on record for a campaign that goes on, with its new table.json."""
    previous = read_previous(watched.directory)
    if previous is None:
        return None
    record: dict[str, Any] = previous[EVIDENCE]
    return {**record, "files": {**record["files"], TABLE: _hash_file(watched, TABLE)}}
