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
from typing import Any, Literal

from hpcbert.errors import UsageError

# The hub's name for enroot before 4.2, in the URI and in the file of credentials.
HUB = "registry-1.docker.io"
_HUB_NAMES = ("docker.io", "index.docker.io", HUB)
_DAEMONS = ("dockerd", "podman")
_FILE_SUFFIXES = (".sqsh", ".squashfs", ".sqfs", ".sif")
# Names, tags and digests as the distribution project defines them
# (distribution/reference, regexp.go), a little wider for names, as enroot is.
_USER = r"[A-Za-z0-9_.!~*'()%;:&=+$,-]+"
_REGISTRY = r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?"
_NAME = r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?(/[a-z0-9]([a-z0-9._-]*[a-z0-9])?)*"
_TAG = r"(:(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?"
_DIGEST = r"(@(?P<digest>sha256:[0-9a-f]{64}))?"
_HINT = "Write docker://[USER@]REGISTRY#IMAGE:TAG, or the path of a .sqsh or .sif file; Apptainer "
_HINT += "also has oras://REGISTRY/IMAGE:TAG and library://[REGISTRY/]IMAGE:TAG."
# Apptainer alone fetches from registries of other kinds: SIF files in one of OCI's, and its own
# libraries, where names may have capitals (apptainer/apptainer, pkg/../library/client/ref.go).
_FORMS = {
    # The host before a slash has a dot or a port, or is this machine: otherwise it is a folder of
    # the hub.
    "docker": re.compile(
        rf"((?P<user>{_USER})@(?!sha256:))??"
        rf"((?P<registry>{_REGISTRY})#|(?P<host>(?=[^/]*[.:]|localhost/){_REGISTRY})/"
        r"|(?![^/]*[.:][^/]*/|localhost/))"
        rf"(?P<name>{_NAME}){_TAG}{_DIGEST}"
    ),
    "oras": re.compile(
        rf"(?P<registry>[A-Za-z0-9.-]+(:[0-9]{{1,5}})?)/(?P<name>[a-z0-9._/-]+?){_TAG}{_DIGEST}"
    ),
    "library": re.compile(
        r"((?P<registry>[A-Za-z0-9.-]+(\.[A-Za-z0-9-]+|:[0-9]{1,5}))/)?"
        rf"(?P<name>[A-Za-z0-9][A-Za-z0-9._/-]*?){_TAG}"
    ),
}


@dataclass(frozen=True)
class Image:
    """An image: a file, or one in a registry.

    Attributes:
        user: User to log in as; empty for the user in enroot's own credentials.
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
        return f"docker://{user}{self.registry}#{self.name}{suffix}"

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
    scheme, separator, reference = text.partition("://")
    if not separator:
        scheme, reference = "docker", text
    if scheme in _DAEMONS:
        message = f"{text!r} asks a daemon of one machine, which compute nodes don't run."
        hint = "Push the image to a registry, or import it there and name the .sqsh file."
        raise UsageError(message, hint=hint)
    if not separator and text.endswith(_FILE_SUFFIXES):
        message = f"{text!r} would be read as the name of an image in a registry."
        raise UsageError(message, hint=f"For a file, write ./{text} or its whole path.")
    match = _FORMS[scheme].fullmatch(reference) if scheme in _FORMS else None
    if match is None or "//" in match["name"] or match["name"].endswith("/"):
        raise UsageError(f"{text!r} is not an image.", hint=_HINT)
    parts = match.groupdict(default="")
    if scheme == "docker":
        parts["registry"] = parts.pop("host") or parts["registry"] or HUB
        if parts["registry"] in _HUB_NAMES:
            parts["registry"] = HUB
            # Images of the hub itself are in its folder `library`.
            parts["name"] = parts["name"] if "/" in parts["name"] else f"library/{parts['name']}"
    if not parts["tag"] and not parts.get("digest"):
        parts["tag"] = "latest"
    kind: Any = scheme
    return Image(kind, **parts)
