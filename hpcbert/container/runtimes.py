"""Container runtimes, their mounts, the options of pyxis, and the runtimes' error messages.

A site's file names a runtime. A runtime has a tool that fetches images; pyxis uses enroot's. Mounts
are written as pyxis takes them, `SRC[:DST[:FLAGS]]`: flags are joined with `+` and added to the
defaults; a missing DST is SRC (NVIDIA/pyxis 0.24.0, args.c, parse_mount_option and add_mount).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tomli

from hpcbert.container.reference import Image
from hpcbert.errors import UsageError

_MOUNT_WORDS = ("tmpfs", "umount")
_MOUNT = re.compile(
    r"(?P<source>[./][^:,]*(?=:|$)|(?:tmpfs|umount)(?=:))"
    r"(:(?P<target>[./][^:,]*)(:(?P<flags>[^:,]*))?)?"
)
_MOUNT_HINT = 'Write "SRC", "SRC:DST", "SRC:DST:FLAG+FLAG", "tmpfs:DST" or "umount:DST". '
_MOUNT_HINT += "Paths begin with / or ./ and have no colon, comma or control character."


@dataclass(frozen=True)
class Mount:
    """One mount."""

    source: str
    target: str
    flags: tuple[str, ...] = ()

    @property
    def spec(self) -> str:
        """The mount as pyxis takes it."""
        return ":".join((self.source, self.target, *(["+".join(self.flags)] if self.flags else [])))


def parse_mount(text: str) -> Mount:
    """Read one mount.

    Raises:
        UsageError: Source or target is neither a path nor one of the known words, or contains a
            colon, a comma or a control character.
    """
    match = _MOUNT.fullmatch(text)
    if match is None or not text.isprintable():
        raise UsageError(f"{text!r} is not a mount.", hint=_MOUNT_HINT)
    target = match["target"] or match["source"]
    flags = (match["flags"] or "").split("+")
    return Mount(match["source"], target, tuple(filter(None, flags)))


def bind_mount(path: str) -> Mount:
    """Return the mount of a path to the same path.

    Raises:
        UsageError: The path contains a character that mounts can't have.
    """
    if ":" in path or "," in path or not path.isprintable():
        raise UsageError(f"{path!r} contains a comma or a colon, which container mounts can't.")
    return Mount(path, path)


_TABLES = tomli.loads(Path(__file__).with_name("runtimes.toml").read_text(encoding="utf-8"))
PYXIS_SINCE: Mapping[str, str] = _TABLES["pyxis"]
# Descriptions name other options too: an option's own line begins with it.
_SRUN_OPTION = re.compile(r"^\s*(?:-\w, )?--([a-z][a-z-]*)", re.MULTILINE)


def pyxis_options(
    *, home: bool, remap_root: bool, entrypoint: bool, writable: bool
) -> tuple[str, ...]:
    """Return the options that a job script gives to srun, without dashes."""
    return (
        "container-image",
        "container-name",
        "container-mounts",
        "container-workdir",
        "container-env",
        "container-mount-home" if home else "no-container-mount-home",
        "container-remap-root" if remap_root else "no-container-remap-root",
        "container-entrypoint" if entrypoint else "no-container-entrypoint",
        "container-writable" if writable else "container-readonly",
    )


def missing_pyxis_options(usage: str, required: Collection[str]) -> tuple[str, ...]:
    """Return the required options that the output of `srun --help` lacks, the newest last."""
    options = _SRUN_OPTION.findall(usage)
    return tuple(flag for flag in PYXIS_SINCE if flag in required and flag not in options)


@dataclass(frozen=True)
class Runtime:
    """A way to enter a container, and the tool that fetches its images.

    Attributes:
        tool: The tool's name in scripts: `hpcbert/shell/TOOL.sh` has its actions.
        ends: Suffixes of image files that it can't enter, because they are another tool's.
        magic, offset: The text that identifies an image file, and its place.
        folders: Variables for the tool's directories, and their names below a directory of its own.
        prefix: The beginning of its prepared images' names, so that no tool takes another's.
        slashed: Whether it writes `REGISTRY/IMAGE`, instead of `REGISTRY#IMAGE`.
        flags: Flags that mounts may have; none: all that the kernel supports.
        digest: Command that prints a registry's digest of a URI; none: it has no such command.
        enters_by_tool: A job enters by the tool's command; otherwise srun does, by a plugin.
        forbidden_characters: Characters that a shell would expand in mounts.
    """

    name: str
    tool: str
    schemes: Sequence[str]
    ends: Sequence[str]
    form: str
    magic: str
    folders: Mapping[str, str]
    offset: int = 0
    prefix: str = ""
    slashed: bool = False
    flags: Sequence[str] = ()
    digest: Sequence[str] = ()
    enters_by_tool: bool = True
    forbidden_characters: str = ""

    def reads(self, path: str) -> bool:
        """Return whether a file is an image by its magic; Apptainer enters a directory as well."""
        if self.slashed and Path(path).is_dir():
            return True
        try:
            with Path(path).open("rb") as file:
                return (
                    file.read(self.offset + len(self.magic))[self.offset :] == self.magic.encode()
                )
        except OSError:
            return False

    def fetches(self, image: Image) -> bool:
        """Return whether it reads the image's kind of registry, or its file's suffix."""
        own_file = not image.path.endswith(tuple(self.ends))
        return own_file if image.kind == "file" else image.kind in self.schemes

    @property
    def files(self) -> tuple[str, ...]:
        """The files in hpcbert/shell that a job runs."""
        if self.enters_by_tool:
            shell = ("enter.sh", "join.sh", "sweep.sh", "image.sh", f"{self.tool}.sh")
            return ("joined.bash", *shell)
        return ("pyxis.bash", "pyxis.sh", "sweep.sh")


RUNTIMES = {
    name: Runtime(name, **{**_TABLES["tools"][row["tool"]], **row})
    for name, row in _TABLES["runtimes"].items()
}


def image_uri(image: Image | None, runtime: str) -> str:
    """Return an image in the form that a runtime needs; empty without an image."""
    if image is None:
        return ""
    return image.slashed if runtime in RUNTIMES and RUNTIMES[runtime].slashed else image.uri


def check_image(image: Image, runtime: Runtime, where: str) -> Image:
    """Return an image if a runtime can enter it."""
    if not runtime.fetches(image):
        able = [f'"{other.name}"' for other in RUNTIMES.values() if other.fetches(image)]
        action = f"enter {image.path!r}" if image.kind == "file" else f"fetch {image.uri!r}"
        hint = f"container.runtime = {' or '.join(able)} can."
        raise UsageError(f"{runtime.name} can't {action}.", where=where, hint=hint)
    return image


def check_mount(mount: Mount, runtime: Runtime, where: str) -> None:
    """Refuse a mount that a runtime can't make."""
    flags = runtime.flags
    unknown = [flag for flag in mount.flags if flags and flag not in flags]
    problem = ""
    if any(char in runtime.forbidden_characters for char in mount.spec):
        problem = "it contains characters that a shell would expand on the node"
    elif flags and mount.source in _MOUNT_WORDS:
        problem = "it does not support this kind"
    elif unknown:
        problem = f"it does not know the flag {unknown[0]}, but {', '.join(sorted(flags))}"
    if problem:
        message = f"{runtime.name} can't make the mount {mount.spec!r}: {problem}."
        raise UsageError(message, where=where, hint='container.runtime = "enroot" can.')


# --- What enroot and pyxis print when something is wrong, its meaning, and what to do -------------


@dataclass(frozen=True)
class Symptom:
    """One kind of problem."""

    name: str
    shows: str
    problem: str
    hint: str


SYMPTOMS = tuple(
    Symptom(**row)
    for row in tomli.loads(Path(__file__).with_name("symptoms.toml").read_text("utf-8"))["symptoms"]
)


def find_symptom(output: str) -> Symptom | None:
    """Return the first row that matches the output of a failed program; None if none does."""
    for symptom in SYMPTOMS:
        if re.search(symptom.shows, output, re.IGNORECASE | re.DOTALL):
            return symptom
    return None
