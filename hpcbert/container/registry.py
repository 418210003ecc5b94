"""Size and digest of an image before it is fetched, as far as its registry gives them to anybody.

No account is used or read: only the tool logs in. What a registry hides from anonymous users stays
unknown, and only the check for space and the image's record depend on it.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
from http.client import HTTPException
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

if TYPE_CHECKING:
    from hpcbert.container.reference import Image

# Manifests and lists of them, docker's and OCI's (distribution/distribution,
# docs/content/spec/manifest-v2-2.md; opencontainers/image-spec, media-types.md).
_ACCEPT = (
    "application/vnd.docker.distribution.manifest.v2+json,"
    "application/vnd.oci.image.manifest.v1+json,"
    "application/vnd.docker.distribution.manifest.list.v2+json,"
    "application/vnd.oci.image.index.v1+json"
)
_ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_PATIENCE = 20.0
_UNTOLD = (OSError, HTTPException, ValueError, LookupError, TypeError, AttributeError)
# A manifest is kilobytes.
_MOST = 1 << 22


def compressed_bytes(image: Image, *, http: bool = False) -> int | None:
    """Return the size of an image's layers as they are fetched; None if unknown.

    Args:
        image: An image of a registry.
        http: Whether to speak plain HTTP, for a registry on this machine.
    """
    address = _manifests(image, http=http)
    try:
        text, token = _get(address + (image.digest or image.tag), "")
        manifest = _object(text)
        if "manifests" in manifest:
            manifest = _object(_get(address + _own(manifest), token)[0])
        return sum(int(layer["size"]) for layer in manifest["layers"])
    except _UNTOLD:
        return None


def digest(image: Image, *, http: bool = False) -> str:
    """Return the digest of an image's tag at this moment; empty if unknown.

    Args:
        image: An image of a registry.
        http: Whether to speak plain HTTP, for a registry on this machine.
    """
    if image.digest or image.kind == "library":  # which has another interface
        return image.digest
    try:
        text, _ = _get(_manifests(image, http=http) + image.tag, "")
    except _UNTOLD:
        return ""
    return f"sha256:{hashlib.sha256(text).hexdigest()}"


def _manifests(image: Image, *, http: bool) -> str:
    return f"http{'' if http else 's'}://{image.registry}/v2/{image.name}/manifests/"


def _own(manifests: dict[str, Any]) -> str:
    """Return the digest of this architecture's manifest in a list."""
    machine = platform.machine()
    wanted = _ARCHITECTURE.get(machine, machine)
    for one in manifests["manifests"]:
        if one["platform"]["architecture"] == wanted:
            return str(one["digest"])
    raise LookupError(wanted)


def _get(address: str, token: str) -> tuple[bytes, str]:
    """Return a document, and the token that was needed for it."""
    headers = {"Accept": _ACCEPT, **({"Authorization": f"Bearer {token}"} if token else {})}
    try:
        return _read(Request(address, headers=headers)), token  # noqa: S310 - http or https, above
    except HTTPError as error:
        # The part of a refusal that says where to get tokens.
        header = error.headers.get("WWW-Authenticate") or ""
        challenge = dict(_CHALLENGE.findall(header)) if header.startswith("Bearer ") else {}
        if token or not challenge:
            raise
    return _get(address, _anonymous(challenge))


def _anonymous(challenge: dict[str, str]) -> str:
    realm = challenge["realm"]
    if not realm.startswith(("https://", "http://")):
        raise ValueError(realm)
    rest = {name: text for name, text in challenge.items() if name in {"service", "scope"}}
    answer = _object(_read(Request(f"{realm}?{urlencode(rest)}")))  # noqa: S310 - checked above
    return str(answer.get("token") or answer["access_token"])


def _read(request: Request) -> bytes:
    try:
        with urlopen(request, timeout=_PATIENCE) as answer:  # noqa: S310 - checked by the callers
            text: bytes = answer.read(_MOST)
    except HTTPError as error:
        error.close()  # It is an answer too.
        raise
    return text


def _object(text: bytes) -> dict[str, Any]:
    document = json.loads(text)
    if not isinstance(document, dict):
        raise TypeError(document)
    return document
