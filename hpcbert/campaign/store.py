"""A campaign directory: its files, its manifest, its owner.

Everything is plain JSON or text under one directory, so that a copy of it on a laptop is enough
to collect again. The umask decides who can read it. Other people's campaigns may be next to the
user's: they are read if named, but nothing in them is run.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

from hpcbert.config import trust
from hpcbert.config.schedulers import has_scheduler
from hpcbert.errors import ConfigError, HpcbertError, UsageError
from hpcbert.model import ARCHIVE, MANIFEST, Array, Campaign
from hpcbert.system import files, lock
from hpcbert.system.decode import decode, did_you_mean

SCHEMA = 2
RECIPE = "recipe.toml"
SAMPLE = "sample.log"
# Everything that was decided for a submission.
LOCKED = "campaign.lock.toml"
LOCK = lock.LOCK

# The first holds what the job script runs or sources, the others what its jobs write.
_FOLDERS = ("scripts", "slurm", "status", "logs")
# Bytes of a file name (NAME_MAX in limits.h).
_LONGEST_NAME = 255
# Repeats of one campaign, all points and retries together.
MOST_REPEATS = 50_000
# Number of campaigns that an error names.
_MAX_NAMED = 6
SCRIPTS_FOLDER = "scripts"
NOTE = "note.txt"
# Characters.
_LONGEST_NOTE = 1000
# A larger file is something else.
_MAX_NOTE_BYTES = 1 << 16

write_text, write_bytes, locked = files.write_text, files.write_bytes, lock.hold_lock


def write_json(path: Path, data: Any, *, indent: int | None = 1) -> None:
    """Write one JSON document as `write_bytes` does; without an indent, ten times as fast."""
    write_text(path, json.dumps(data, indent=indent, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read one JSON document.

    Raises:
        UsageError: The file is missing, unreadable or not JSON.
    """
    try:
        raw = files.read(path)
    except OSError as error:
        raise UsageError(f"Can't read the file: {error.strerror}.", where=str(path)) from error
    return parse_json(raw, path)


def parse_json(raw: bytes, path: Path) -> Any:
    """Return the contents of a JSON text.

    Raises:
        UsageError: It is not valid JSON.
    """
    try:
        return json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"The file is not valid JSON: {error}.", where=str(path)) from error


def create(directory: Path) -> None:
    """Make a new campaign directory with its folders, with the permissions of the umask.

    Raises:
        HpcbertError: It exists already, or can't be made.
    """
    hint = "Choose another place with --runs, or fix the permissions."
    with files.translate_errors("make the campaign directory", directory, hint=hint):
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir()
        for name in _FOLDERS:
            (directory / name).mkdir()


def has_folders(directory: Path) -> bool:
    """Return whether a directory has the folders of a submitted campaign."""
    return all((directory / name).is_dir() for name in _FOLDERS)


# --- The manifest, and its changes ----------------------------------------------------------------

# A submission records twice for each array: what it is about to do, and the result. Writing the
# whole manifest each time would make a thousand points a thousand times slower than necessary, so
# changes go to the end of a file next to it, one line each, on disk before anything is done about
# it. When the submission ends, they become part of the manifest and the file is removed. If the
# process is killed before that, the next reader uses the file: its first line names the manifest
# that it continues, by digest, so that it is never applied to another one.
CHANGES = "manifest.changes.jsonl"


class Ledger:
    """The arrays of a campaign as they are submitted, and their changes, each on disk at once.

    When it is closed, the changes become part of the manifest. If that can't be rewritten then,
    they stay next to it: nothing is lost. The caller holds the campaign's lock.
    """

    def __init__(self, directory: Path, campaign: Campaign) -> None:
        self.directory, self._base = directory, campaign
        self._arrays = {array.name: array for array in campaign.arrays}
        self._file: BinaryIO | None = None

    @property
    def campaign(self) -> Campaign:
        """The campaign with all changes."""
        return replace(self._base, arrays=tuple(self._arrays.values()))

    def put(self, *arrays: Array, after: str = "", flush: bool = True) -> None:
        """Record arrays, replacing those with the same names.

        Args:
            after: Name of the array that they are the parts of; the first part has its name.
            flush: Whether they survive a crash of the machine, not only of this process, when this
                returns. Otherwise they are flushed with the next change.

        Raises:
            HpcbertError: The file system refused.
        """
        path = self.directory / CHANGES
        line = _format_json({"arrays": arrays, "after": after}).encode() + b"\n"
        with files.translate_errors("write", path):
            file = self._file or self._open(path)
            # Until the line is whole: after an incomplete one, the next change begins a new file.
            self._file = None
            try:
                file.write(line)
                file.flush()
                if flush:
                    os.fsync(file.fileno())
            except OSError:
                with contextlib.suppress(OSError):  # it tries to write the line once more
                    file.close()
                raise
        self._file = file
        self._arrays = _merge_arrays(self._arrays, arrays, after)

    def _open(self, path: Path) -> BinaryIO:
        if path.exists():  # Of a process that was killed, or after a failure.
            write_manifest(self.directory, self.campaign)
        manifest = files.read(self.directory / MANIFEST)
        head = json.dumps({"continues": hashlib.sha256(manifest).hexdigest()}).encode() + b"\n"
        files.write_bytes(path, head)
        return path.open("ab")

    def close(self) -> None:
        """Make the changes part of the manifest."""
        if self._file is not None:
            self._file.close()
        if (self.directory / CHANGES).exists():
            with contextlib.suppress(HpcbertError):
                write_manifest(self.directory, self.campaign)


def _merge_arrays(
    arrays: dict[str, Array], new_arrays: Iterable[Array], after: str
) -> dict[str, Array]:
    added = {array.name: array for array in new_arrays}
    if after not in arrays:
        return arrays | added
    merged: dict[str, Array] = {}
    for name, array in arrays.items():
        merged |= added if name == after else {name: array}
    return merged


def write_manifest(directory: Path, campaign: Campaign) -> None:
    """Write manifest.json, one line for each key and array, with the changes that were next to it.

    json's own indentation is ten times as slow.
    """
    values = {"schema": SCHEMA, **_field_values(campaign)}
    arrays = ",\n  ".join(map(_format_json, values.pop("arrays")))
    head = "".join(f' "{name}": {_format_json(value)},\n' for name, value in values.items())
    write_text(directory / MANIFEST, f'{{\n{head} "arrays": [\n  {arrays}\n ]\n}}\n')
    path = directory / CHANGES
    with files.translate_errors("remove", path):
        path.unlink(missing_ok=True)


def _format_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_field_values)


def _field_values(instance: Any) -> dict[str, Any]:
    """Return a data class's values by name; `asdict` would copy their contents too."""
    return {field.name: getattr(instance, field.name) for field in fields(instance)}


class OtherSchemaError(UsageError):
    """A campaign's schema is not the one that this hpcbert reads."""


def read_manifests(directories: Iterable[Path]) -> tuple[dict[Path, Campaign], tuple[Path, ...]]:
    """Return the campaigns that can be read, and the directories of those with another schema.

    Damaged ones are left out.
    """
    campaigns: dict[Path, Campaign] = {}
    paths = []
    for directory in directories:
        try:
            campaigns[directory] = read_manifest(directory)
        except OtherSchemaError:  # noqa: PERF203 - each may have it
            paths.append(directory)
        except HpcbertError:
            continue
    return campaigns, tuple(paths)


def describe_left_out(purpose: str, directories: Sequence[Path]) -> tuple[str, ...]:
    """Return a warning about campaigns of another schema; empty if there are none."""
    if not directories:
        return ()
    reason = f"this hpcbert reads only schema {SCHEMA}"
    return (f"Left out of {purpose}, because {reason}: {_join_names(sorted(directories))}.",)


def read_manifest(directory: Path) -> Campaign:
    """Read manifest.json, and the changes next to it that are not yet part of it.

    Raises:
        UsageError: There is none, it is damaged, or it has another schema.
    """
    path = directory / MANIFEST
    try:
        # In this order: changes that have become part of a newer manifest do not continue it.
        changes = b""
        with contextlib.suppress(FileNotFoundError):
            changes = files.read(directory / CHANGES)
        raw = files.read(path)
    except OSError as error:
        raise UsageError(f"Can't read the file: {error.strerror}.", where=str(path)) from error
    data = parse_json(raw, path)
    schema = data.pop("schema", None) if isinstance(data, dict) else None
    if schema != SCHEMA:
        raise OtherSchemaError(
            f"The campaign has schema {schema}; this hpcbert reads only schema {SCHEMA}.",
            where=str(path),
            hint="Read it with the version of hpcbert that wrote it, or submit its points again.",
        )
    try:
        campaign: Campaign = decode(Campaign, data, file=str(path))
        campaign = _apply_changes(campaign, raw, changes, directory / CHANGES)
    except ConfigError as error:
        raise UsageError(f"The manifest is damaged: {error.message}", where=str(path)) from error
    if not has_scheduler(campaign.scheduler):
        raise UsageError(
            f"The campaign's scheduler {campaign.scheduler!r} is not installed.",
            where=str(path),
            hint="Install its package in hpcbert's environment.",
        )
    count = sum(len(array.repeats) for array in campaign.arrays)
    if count > MOST_REPEATS:
        text = f"The manifest has {count:,} repeats; hpcbert reads at most {MOST_REPEATS:,}."
        raise UsageError(text, where=str(path))
    _refuse_outside(directory, campaign)
    return campaign


def _apply_changes(campaign: Campaign, manifest: bytes, changes: bytes, path: Path) -> Campaign:
    """Return a campaign with the changes that continue its manifest.

    Raises:
        UsageError: A change is damaged.
    """
    # A line without an end was never written.
    lines = [parse_json(line, path) for line in changes.split(b"\n")[:-1]]
    arrays = {array.name: array for array in campaign.arrays}
    try:
        if not lines or lines[0]["continues"] != hashlib.sha256(manifest).hexdigest():
            return campaign
        for line in lines[1:]:
            parts: tuple[Array, ...] = decode(tuple[Array, ...], line["arrays"], file=str(path))
            after = str(line["after"])
            # Parts of an array that the manifest lacks are damage too: a KeyError.
            arrays = _merge_arrays(arrays, parts, after and arrays[after].name)
    except (KeyError, TypeError) as error:
        text = "A line of the file is not a change of a manifest."
        raise UsageError(text, where=str(path)) from error
    return replace(campaign, arrays=tuple(arrays.values()))


def _refuse_outside(directory: Path, campaign: Campaign) -> None:
    """Refuse a manifest that leads to files outside its campaign: it may be somebody else's."""
    # Every path that it names, and the folders that it may be in.
    paths: dict[str, tuple[str, ...]] = {campaign.id: ()}
    if campaign.after:
        paths[campaign.after] = ()
    for array in campaign.arrays:
        paths |= {array.script: ("scripts",), array.log: ("logs", "slurm")}
        paths[array.status(0)] = ("status",)
    for path, folders in paths.items():
        names = path.split("/")
        is_inside = len(names) > 1 and names[0] in folders if folders else len(names) == 1
        if not is_inside or not all(map(_is_name, names)):
            raise UsageError(
                f"The manifest names a file outside the campaign: {path!r}.",
                where=str(directory / MANIFEST),
                hint="hpcbert did not write it. Ask its owner for an archive of the campaign.",
            )
    places = {path.rpartition("/")[0] for path in paths} | {*_FOLDERS, "env"}
    parents = {place[:at] for place in places for at, sign in enumerate(place) if sign == "/"}
    root = os.path.realpath(directory)
    for folder in sorted({"", *places, *parents}):
        links: list[str] = []
        # Not there, or not readable: whoever needs it reports that.
        with contextlib.suppress(OSError), os.scandir(directory / folder) as entries:
            links = [entry.path for entry in entries if entry.is_symlink()]
        for link in links:
            if not os.path.realpath(link).startswith(f"{root}{os.sep}"):
                raise UsageError(
                    "This is a link to a place outside the campaign: hpcbert does not follow it.",
                    where=link,
                    hint="Replace it by what it leads to.",
                )


def _is_name(name: str) -> bool:
    try:
        length = len(name.encode())
    except UnicodeEncodeError:  # A lone surrogate.
        return False
    return name not in {"", ".", ".."} and length <= _LONGEST_NAME


# --- Which campaigns there are, and which one a name means ----------------------------------------


def find_campaigns(runs: Path) -> tuple[Path, ...]:
    """Return the user's own campaigns under a runs directory, oldest first, absolute."""
    return tuple(path for path in find_all_campaigns(runs) if not find_foreign_owner(path))


def find_all_campaigns(runs: Path) -> tuple[Path, ...]:
    """Return all campaigns under a runs directory, whoever owns them, oldest first, absolute.

    An unreadable folder is not the same as an empty one. A hidden folder is being removed. Names
    have no fractions of a second: within one, the times of the manifests decide.
    """
    try:
        folders = list(runs.absolute().iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return ()
    times: dict[Path, int] = {}
    for folder in folders:
        # Absent or closed.
        with contextlib.suppress(OSError):
            if not folder.name.startswith("."):
                times[folder] = (folder / MANIFEST).stat().st_mtime_ns
    return tuple(sorted(times, key=lambda path: (path.name[:16], times[path], path.name)))


def find_foreign_owner(directory: Path) -> str:
    """Return the owner of a campaign; empty if it is the user's own."""
    try:
        return files.find_foreign_owner(directory)
    except OSError:
        return ""


def find_newest(runs: Path, *, measured: bool = False) -> Path:
    """Return the user's newest campaign.

    A campaign without an accepted job is skipped: none of its jobs waits, runs or ended.

    Raises:
        UsageError: There is none yet, or the manifest of the last one is damaged.
    """
    campaigns = find_campaigns(runs)
    for directory in reversed(campaigns):
        manifest = read_manifest(directory)
        if manifest.accepted and not (measured and manifest.rehearse):
            return directory
    message, hint = "There is no campaign yet.", "Start one with hpcbert submit."
    if campaigns:
        job = "job that trains" if measured else "job"
        message = f"None of your campaigns has a {job} yet: {_join_names(campaigns)}."
        hint = f"Resume the newest: hpcbert submit --resume {campaigns[-1]}"
        if read_manifest(campaigns[-1]).accepted:
            hint = "Submit without --rehearse."
    elif foreign_campaigns := find_all_campaigns(runs):
        message = f"You have no campaign yet; {len(foreign_campaigns)} belong to others."
        hint = f"Name one to look at it: {_join_names(foreign_campaigns)}"
    raise UsageError(message, where=str(runs), hint=hint)


def record_submit(runs: Path) -> None:
    """Record the time of a submission of the user, before it makes a campaign."""
    if runs.is_dir():
        with contextlib.suppress(OSError):
            _last_submit(runs).touch()


def describe_refusal(newest: Path) -> str:
    """Return why the newest campaign is not that of the last submission; empty if it is."""
    last_campaign = find_campaigns(newest.parent)[-1]
    try:
        manifest_time = (last_campaign / MANIFEST).stat().st_mtime
        is_later = _last_submit(newest.parent).stat().st_mtime > manifest_time
    except OSError:
        return ""
    if is_later:
        return f"The last submit made no campaign: this is {newest.name}."
    if last_campaign == newest:
        return ""
    lack = "is a rehearsal" if read_manifest(last_campaign).rehearse else "has no job yet"
    return f"{last_campaign.name}, the newest, {lack}: this is {newest.name}."


def _last_submit(runs: Path) -> Path:
    return runs / f".submit-{os.getuid()}"


def _join_names(directories: Sequence[Path]) -> str:
    names = [path.name for path in reversed(directories[-_MAX_NAMED:])]
    more = len(directories) - len(names)
    return ", ".join(names) + (f" and {more} older" if more else "")


def find_archive(name: str, runs: Path) -> Path | None:
    """Return the archive that the user names, by path or file name; None if there is none."""
    if not name.lower().endswith(ARCHIVE):
        return None
    places = (Path(name), runs / name)
    return next((path for path in places if path.exists() and not path.is_dir()), None)


def resolve_submission(name: str, runs: Path, *, shortest: int = 1) -> tuple[Path, ...]:
    """Return the campaign that the user names: by path, id, part of the id, or its name.

    The campaigns of a campaign.toml have one name, which names all of them, in the file's order.

    An archive is refused: its jobs can't be run, submitted or cancelled. Another user's campaign
    matches only by its path or its whole id; if a word without a slash could mean that or one of
    the user's own, it means the latter.

    The path is absolute: sbatch runs in the campaign, where a relative one would be wrong.

    Raises:
        UsageError: No campaign matches, or several do, or an archive does, or the name is empty.
    """
    if not name.strip():
        raise UsageError("The name of a campaign is empty.", hint="Is a shell variable unset?")
    if archive := find_archive(name, runs):
        raise UsageError(
            "An archive can only be read: nothing of it is run, submitted or cancelled.",
            where=str(archive),
            hint=f"To measure the same again: hpcbert submit --like {archive}",
        )
    exact_paths = [path for path in (Path(name), runs / name) if (path / MANIFEST).is_file()]
    paths = [path for path in exact_paths if os.sep in name or not find_foreign_owner(path)]
    if paths:
        return (paths[0].absolute(),)
    campaigns = find_campaigns(runs)
    # A part without a letter or digit is in every id.
    is_part = len(name) >= shortest and any(map(str.isalnum, name))
    matches = [path for path in campaigns if is_part and name in path.name]
    if not matches:
        matches = [path for path in campaigns if _read_name(path) == name]
        if matches and set(matches) == {*list_submission(matches[0])}:
            return list_submission(matches[0])
    if len(matches) == 1:
        return (matches[0],)
    if matches:
        text = f"{name!r} could be {_join_names(matches)}."
        hint = "Give more of its id, or its path; hpcbert list shows in what they differ."
        raise UsageError(text, where=str(runs), hint=hint)
    if exact_paths:
        return (exact_paths[0].absolute(),)
    names = {path.name for path in campaigns} | {_read_name(path) or "" for path in campaigns}
    least = f" of at least {shortest} characters" if shortest > 1 else ""
    existing = did_you_mean(name, names) or "You have none."
    raise UsageError(
        f"There is no campaign {name!r}.",
        where=str(runs),
        hint=f"{existing} Name one by its id, a part of the id{least}, or its path.",
    )


def list_submission(directory: Path) -> tuple[Path, ...]:
    """Return the campaigns that were submitted together with one, itself too, in their order."""
    campaign = read_manifest(directory)
    if not campaign.submission:
        return (directory,)
    # Their ids begin with the same time.
    stamp = directory.name.partition("-")[0]
    members = []
    for manifest in directory.parent.glob(f"{stamp}-*/{MANIFEST}"):
        member = read_manifest(manifest.parent)
        if member.submission == campaign.submission:
            members.append((member.position, manifest.parent))
    return tuple(path for _, path in sorted(members))


def _read_name(directory: Path) -> str | None:
    try:
        return read_manifest(directory).name
    except UsageError:
        return None


def resolve_all(names: Iterable[str], runs: Path) -> tuple[Path, ...]:
    """Return the campaigns that names mean, once each; without names, the newest submission."""
    directories = [path for name in names for path in resolve_submission(name, runs)]
    if directories:
        return tuple(dict.fromkeys(directories))
    newest = find_newest(runs)
    if refusal := describe_refusal(newest):
        raise UsageError(refusal, hint=f"Name the campaign that you mean: {newest.name}")
    return list_submission(newest)


def warn_about_writers(directory: Path) -> tuple[str, ...]:
    """Return warnings for readers of a campaign: who else can change its contents."""
    try:
        owner = files.find_foreign_owner(directory)
        is_open = files.is_world_writable(directory.stat())
        parent_status = directory.absolute().parent.stat()
    except OSError:
        return ()
    warnings = []
    if owner:
        warnings.append(f"{directory} belongs to {owner}, who can change its contents.")
    elif is_open:
        warnings.append(f"{directory} can be changed by everybody, not only by you.")
    if files.is_world_writable(parent_status):
        warnings.append(
            f"Anybody can put another directory in the place of {directory}: "
            f"chmod +t {directory.absolute().parent}"
        )
    return tuple(warnings)


def refuse_foreign(directory: Path) -> None:
    """Refuse to run, submit or cancel a campaign that is not the user's, unless they trust it.

    Raises:
        UsageError: A part of it belongs to somebody else, or everybody can write to it.
    """
    paths = [directory / name for name in (*_FOLDERS, MANIFEST, RECIPE)]
    paths += directory.glob("scripts/*")
    for path in paths:
        if path.is_symlink():
            raise UsageError(
                "This is a link: hpcbert does not run or submit what it leads to.",
                where=str(path),
                hint="Replace it by the file itself.",
            )
    owner = find_foreign_owner(directory)
    command = f"hpcbert submit --like {shlex.quote(str(directory))}"
    advice = f"Ask {owner} to do it, or measure the same: {command}"
    trust.refuse_untrusted([directory, *paths], advice=advice if owner else "")


def log_path(directory: Path, array: Array, repeat: int, attempt: int = 0) -> Path:
    """Return the path of the log of one attempt of one repeat, whether it exists or not."""
    path = directory / array.log.replace("{repeat}", str(repeat))
    return path.with_name(f"{path.stem}.r{attempt}.log") if attempt else path


def read_script(directory: Path, array: Array) -> bytes:
    """Return an array's script as it was rendered.

    Raises:
        UsageError: It differs from what the manifest says was rendered.
    """
    path = directory / array.script
    try:
        raw = files.read(path)
    except OSError:
        raw = b""
    if hashlib.sha256(raw).hexdigest() != array.script_sha256:
        raise UsageError(
            "The script differs from the one that was rendered for this campaign.",
            where=str(path),
            hint="Submit again, so that manifest and script agree.",
        )
    return raw


# --- The library that scripts source -------------------------------------------------------------


class LibraryFile(NamedTuple):
    """A file of a library that is not as its scripts need it."""

    name: str
    state: Literal["missing", "different", "not needed"]


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file, hexadecimal; empty if it is missing or can't be read."""
    try:
        return files.hash_file(path)[1]
    except OSError:
        return ""


def compare_library(folder: Path, expected: Collection[tuple[str, str]]) -> Iterator[LibraryFile]:
    """Yield files that are missing, differ or are not needed in a folder, apart from scripts.

    `expected` has the name and the SHA-256 of each file.
    """
    for name, sha256 in expected:
        sha256_found = hash_file(folder / name)
        if sha256_found != sha256:
            yield LibraryFile(name, "different" if sha256_found else "missing")
    names = {name for name, _ in expected}
    paths = sorted(folder.iterdir()) if folder.is_dir() else ()
    for path in paths:
        if path.name not in names and path.suffix != ".sbatch" and not path.is_dir():
            yield LibraryFile(path.name, "not needed")


def refuse_changed_library(directory: Path, campaign: Campaign) -> None:
    """Refuse to run a campaign with another library than it was written with.

    Raises:
        UsageError: A file is missing or differs.
    """
    for name, state in compare_library(directory / SCRIPTS_FOLDER, campaign.library):
        if state != "not needed":
            raise UsageError(
                f"The file is {state}: the campaign was written with it.",
                where=str(directory / SCRIPTS_FOLDER / name),
                hint="Submit again, so that manifest and library agree.",
            )


# --- The user's note: no part of the manifest, because it may change at any time ------------------


def check_note(text: str) -> str:
    """Return a note as it is stored: on one line.

    Raises:
        UsageError: It is too long, or has control characters.
    """
    line = " ".join(text.split())
    if len(line) > _LONGEST_NOTE:
        raise UsageError(f"The note has {len(line):,} characters; the limit is {_LONGEST_NOTE:,}.")
    if not line.isprintable():
        raise UsageError("The note has characters that can't be printed.")
    return line


def write_note(directory: Path, text: str) -> None:
    """Write a campaign's note, replacing the present one; an empty one removes it.

    Raises:
        HpcbertError: The file system refused; the old note stays.
    """
    line, path = check_note(text), directory / NOTE
    if line:
        files.write_text(path, f"{line}\n")
        return
    with files.translate_errors("remove the note", path), contextlib.suppress(FileNotFoundError):
        path.unlink()


def read_note(directory: Path) -> str:
    """Return a campaign's note; empty if there is none, or if it can't be read."""
    try:
        raw = files.read(directory / NOTE, max_bytes=_MAX_NOTE_BYTES)
    except OSError:
        return ""
    line = " ".join(raw.decode("utf-8", "replace").split())
    return "".join(char if char.isprintable() else "�" for char in line)[:_LONGEST_NOTE]
