"""Image references: what the user writes, and the one form that every runtime understands.

pyxis takes what begins with `.` or `/` for a squashfs file and puts `docker://` before anything
else (NVIDIA/pyxis 0.24.0, pyxis_slurmstepd.c, enroot_import_container). enroot 4 reads
`docker://HOST/IMAGE` as Docker does, where HOST has a dot or a colon; 3.x reads every slash form
as an image of Docker Hub; both read `docker://[USER@]REGISTRY#IMAGE:TAG` alike (NVIDIA/enroot
4.1.2, src/docker.sh, docker::_parse_uri), which is therefore the form that leaves this module.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hpcbert.errors import UsageError

# The hub's name for enroot before 4.2, in the URI and in the file of credentials.
HUB = "registry-1.docker.io"
_HUB_NAMES = ("docker.io", "index.docker.io", HUB)
_DAEMONS = ("dockerd://", "podman://")
_DOCKER = "docker://"
_FILE_SUFFIXES = (".sqsh", ".squashfs", ".sqfs", ".sif")
# Registries of other kinds, which Apptainer alone fetches from: SIF files in one of OCI's, and its
# own libraries, where names may have capitals (apptainer/apptainer, pkg/../library/client/ref.go).
_APPTAINER_SCHEMES = ("oras", "library")

# Names, tags and digests as the distribution project defines them
# (distribution/reference, regexp.go), a little wider for names, as enroot is.
_USER = re.compile(r"[A-Za-z0-9_.!~*'()%;:&=+$,-]+")
_REGISTRY = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?")
_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?(/[a-z0-9]([a-z0-9._-]*[a-z0-9])?)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_HINT = "Write docker://[USER@]REGISTRY#IMAGE:TAG, or the path of a .sqsh or .sif file."
_ORAS = re.compile(
    r"oras://(?P<registry>[A-Za-z0-9.-]+(:[0-9]{1,5})?)/(?P<name>[a-z0-9._/-]+?)"
    r"(:(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_LIBRARY = re.compile(
    r"library://((?P<registry>[A-Za-z0-9.-]+(\.[A-Za-z0-9-]+|:[0-9]{1,5}))/)?"
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._/-]*?)(:(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?"
)


@dataclass(frozen=True)
class Image:
    """An image: a file, or one in a registry.

    Attributes:
        kind: `file`, or the registry's kind: `docker`, `oras` or `library`.
        path: The file's path, as written; empty for an image of a registry.
        user: User to log in as; empty for the user in enroot's own credentials.
        registry: Host, with `:PORT` if it has one; empty for Apptainer's own library.
        name: Name within the registry, `nvidia/pytorch`.
        tag: Its tag; empty if only a digest is given.
        digest: `sha256:` and 64 hexadecimal digits; empty without one. It wins over the tag.
    """

    kind: Literal["file", "docker", "oras", "library"]
    path: str = ""
    user: str = ""
    registry: str = ""
    name: str = ""
    tag: str = ""
    digest: str = ""

    @property
    def uri(self) -> str:
        """The image for enroot or pyxis: the URI, or the path of the file.

        A path begins with `.` or `/`, so that pyxis does not take it for the name of an image.
        """
        if self.kind != "docker":
            return self.slashed
        user = f"{self.user}@" if self.user else ""
        suffix = f"@{self.digest}" if self.digest else f":{self.tag}"
        return f"{_DOCKER}{user}{self.registry}#{self.name}{suffix}"

    @property
    def slashed(self) -> str:
        """The image for Apptainer, which takes no user and has a short name for Docker's hub."""
        if self.kind == "file":
            return self.path
        registry = "docker.io" if self.registry == HUB else self.registry
        suffix = f"@{self.digest}" if self.digest else f":{self.tag}"
        return f"{self.kind}://{registry}{'/' if registry else ''}{self.name}{suffix}"

    @property
    def stem(self) -> str:
        """Name for files about this image: `nvcr.io+nvidia+pytorch+25.04-py3`.

        No two images have the same: hosts, names and tags contain no plus and no at sign, and hosts
        no underscore. The user who logs in does not matter.
        """
        if self.kind == "file":
            return re.sub(r"[^A-Za-z0-9._-]", "_", Path(self.path).stem)
        location = "+".join((self.registry.replace(":", "_"), *self.name.split("/")))
        tag = "@" + self.digest.replace(":", "+") if self.digest else "+" + self.tag
        return f"{'' if self.kind == 'docker' else self.kind + '@'}{location}{tag}"


def parse_reference(text: str) -> Image:
    """Read an image reference.

    Args:
        text: `./x.sqsh`, `/x.sqsh`, `docker://[USER@]REGISTRY#IMAGE[:TAG]`,
            `docker://[USER@]REGISTRY/IMAGE[:TAG]`, or the latter without `docker://`; instead of
            or after the tag a digest, `@sha256:…`. `oras://REGISTRY/IMAGE[:TAG]` and
            `library://[REGISTRY/]IMAGE[:TAG]` are for Apptainer.
    """
    if not text.isprintable() or not text.strip() or text != text.strip():
        raise UsageError(f"{text!r} is not an image.", hint=_HINT)
    if text.startswith((".", "/")):
        return Image("file", path=text)
    if text.startswith(_DAEMONS):
        message = f"{text!r} asks a daemon of one machine, which compute nodes don't run."
        hint = "Push the image to a registry, or import it there and name the .sqsh file."
        raise UsageError(message, hint=hint)
    kind = text.partition("://")[0]
    if kind in _APPTAINER_SCHEMES:
        return _parse_apptainer(kind, text)
    reference = text.removeprefix(_DOCKER)
    if reference == text and text.endswith(_FILE_SUFFIXES):
        message = f"{text!r} would be read as the name of an image in a registry."
        raise UsageError(message, hint=f"For a file, write ./{text} or its whole path.")
    return _parse_docker(reference, text)


def _parse_apptainer(kind: str, text: str) -> Image:
    match = (_ORAS if kind == "oras" else _LIBRARY).fullmatch(text)
    if not match or "//" in match["name"] or match["name"].endswith("/"):
        hint = "Write oras://REGISTRY/IMAGE:TAG or library://[REGISTRY/]IMAGE:TAG."
        raise UsageError(f"{text!r} is not an image.", hint=hint)
    parts = match.groupdict(default="")
    if not parts["tag"] and not parts.get("digest"):
        parts["tag"] = "latest"
    return Image("oras" if kind == "oras" else "library", **parts)


def _parse_docker(reference: str, text: str) -> Image:
    if "://" in reference:
        raise UsageError(f"{text!r} names an unknown kind of image.", hint=_HINT)
    location, separator, digest = reference.rpartition("@")
    if not separator or not digest.startswith("sha256:"):
        location, digest = reference, ""
    authority, name, tag = _split_location(location)
    user, _, registry = authority.rpartition("@")
    if registry in _HUB_NAMES:
        registry = HUB
        name = name if "/" in name else f"library/{name}"
    if not tag and not digest:
        tag = "latest"
    for part, value, pattern, is_needed in (
        ("user", user, _USER, False),
        ("registry", registry, _REGISTRY, True),
        ("name", name, _NAME, True),
        ("tag", tag, _TAG, not digest),
        ("digest", digest, _DIGEST, False),
    ):
        if (value or is_needed) and not pattern.fullmatch(value):
            raise UsageError(f"{text!r} is not an image: its {part} is {value!r}.", hint=_HINT)
    return Image("docker", "", user, registry, name, tag, digest)


def _split_location(location: str) -> tuple[str, str, str]:
    """Split `[USER@][REGISTRY(#|/)]IMAGE[:TAG]` into authority, name and tag."""
    if "#" in location:
        authority, _, path = location.partition("#")
    else:
        user, separator, address = location.rpartition("@")
        host, slash, path = address.partition("/")
        # A host has a dot or a port, or is this machine: otherwise it is a folder of the hub.
        if not slash or not ("." in host or ":" in host or host == "localhost"):
            host, path = HUB, address
        authority = f"{user}{separator}{host}"
    folders, slash, basename = path.rpartition("/")
    name, _, tag = basename.partition(":")
    return authority, f"{folders}{slash}{name}", tag
