"""A small image registry on this machine: enough of the distribution API v2 for any client to pull.

With it the available `enroot` imports over real HTTP, and failures can be requested. It serves only
pulls; Python code adds images.

    with Registry() as registry:
        registry.push("bert/tiny:1.0", [{"etc/marker": b"here"}], env=["A=1"])
        ...  # enroot import docker://{registry.host}#bert/tiny:1.0 with ENROOT_ALLOW_HTTP=y
        assert registry.pulls("bert/tiny") == 1
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import platform
import re
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_V2S2 = "application/vnd.docker.distribution.manifest.v2+json"
_OCI = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.docker.container.image.v1+json"
_LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"
_PATH = re.compile(r"/v2/(?P<name>.+)/(?P<kind>manifests|blobs)/(?P<which>[^/]+)")
_ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}

Layer = dict[str, bytes] | Path


# The image that most tests pull.
TINY = "bert/tiny:1.0"


@contextmanager
def serving_tiny(address: str = "127.0.0.1", **options: Any) -> Iterator[Registry]:
    """Serve one small image."""
    with Registry(address, **options) as registry:
        registry.push(TINY, [{"etc/marker": b"tiny"}])
        yield registry


@dataclass(frozen=True)
class Request:
    """One request and its answer."""

    method: str
    path: str
    status: int


@dataclass
class _Image:
    manifest: bytes
    media_type: str
    blobs: dict[str, bytes] = field(default_factory=dict)


class Registry:
    """A registry that serves on a free port until it is closed.

    Args:
        address: The address to listen on; the loopback by default.
        auth: How clients authenticate: `none`, `basic` or `bearer`.
        user, password: The only account, if there is one.
        anonymous: Whether anybody gets tokens.
    """

    def __init__(
        self,
        address: str = "127.0.0.1",
        *,
        auth: str = "none",
        user: str = "",
        password: str = "",
        anonymous: bool = False,
    ) -> None:
        self.anonymous = anonymous
        self.auth, self.user, self.password = auth, user, password
        self.requests: list[Request] = []
        # Status to answer with, by a part of the path: {"/manifests/": 429}.
        self.trouble: dict[str, int] = {}
        # Seconds of delay before a blob.
        self.delay = 0.0
        self._images: dict[tuple[str, str], _Image] = {}
        self._blobs: dict[str, bytes] = {}
        self._closing = threading.Event()
        handler = type("Handler", (_Handler,), {"registry": self})
        self._server = ThreadingHTTPServer((address, 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def host(self) -> str:
        """`ADDRESS:PORT`, as image references name it."""
        address, port = self._server.server_address[:2]
        return f"{address!s}:{port}"

    def uri(self, image: str = TINY) -> str:
        return f"docker://{self.host}#{image}"

    def __enter__(self) -> Registry:  # noqa: PYI034 - Self came with Python 3.11
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def push(
        self,
        image: str,
        layers: list[Layer],
        *,
        env: list[str] | None = None,
        workdir: str = "",
        entrypoint: list[str] | None = None,
        labels: dict[str, str] | None = None,
        oci: bool = False,
    ) -> str:
        """Add an image, and return its digest `sha256:…`.

        Args:
            image: Its name, NAME:TAG.
            layers: Bottom first; a directory, or contents by path (executable if under bin/).
            env, workdir, entrypoint, labels: Values in its configuration.
            oci: Whether the manifest has OCI's format instead of docker's schema 2.
        """
        packed = [_pack(layer) for layer in layers]
        config = json.dumps(
            {
                "architecture": _ARCHITECTURE.get(platform.machine(), platform.machine()),
                "os": "linux",
                "config": {
                    "Env": env or [],
                    "WorkingDir": workdir,
                    "Entrypoint": entrypoint,
                    "Labels": labels or {},
                },
                "rootfs": {
                    "type": "layers",
                    "diff_ids": [_digest(gzip.decompress(content)) for content in packed],
                },
            }
        ).encode()
        kind = _OCI if oci else _V2S2
        manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": kind,
                "config": _described(config, _CONFIG),
                "layers": [_described(content, _LAYER) for content in packed],
            }
        ).encode()
        for blob in (config, *packed):
            self._blobs[_digest(blob)] = blob
        name, _, tag = image.partition(":")
        stored = _Image(manifest, kind)
        self._images[name, tag] = self._images[name, _digest(manifest)] = stored
        return _digest(manifest)

    def manifest(self, name: str, tag: str) -> bytes:
        """Return the manifest of an image as clients get it."""
        return self._images[name, tag].manifest

    def pulls(self, name: str) -> int:
        """Return how often clients got an image's manifest: once for each import."""
        start = f"/v2/{name}/manifests/"
        return sum(
            request.method == "GET" and request.status == 200 and request.path.startswith(start)
            for request in self.requests
        )

    def answer(self, method: str, path: str, headers: Any) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body for one request."""
        url = urlsplit(path)
        for part, status in self.trouble.items():
            if part in url.path:
                return status, {}, b'{"errors":[]}'
        if url.path == "/token":
            return self._token(headers)
        refused = self._refused(url.path, headers)
        if refused:
            return refused
        match = _PATH.fullmatch(url.path)
        if match is None:
            return (200 if url.path == "/v2/" else 404), {}, b"{}"
        if match["kind"] == "blobs":
            blob = self._blobs.get(match["which"])
            self._closing.wait(self.delay if method == "GET" else 0)
            return (200, {}, blob) if blob is not None else (404, {}, b"{}")
        return self._manifest(
            match["name"], match["which"], ",".join(headers.get_all("Accept") or ())
        )

    def _manifest(
        self, name: str, reference: str, accept: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Refuse requests for lists, and give OCI manifests only to clients that ask for them."""
        image = self._images.get((name, reference))
        plain = accept in ("", "*/*")
        accepted = image is not None and image.media_type in accept
        if image is None or not (accepted or (plain and image.media_type == _V2S2)):
            return 404, {}, b'{"errors":[{"code":"MANIFEST_UNKNOWN"}]}'
        headers = {
            "Content-Type": image.media_type,
            "Docker-Content-Digest": _digest(image.manifest),
        }
        return 200, headers, image.manifest

    def _refused(self, path: str, headers: Any) -> tuple[int, dict[str, str], bytes] | None:
        sent = headers.get("Authorization") or ""
        if self.auth == "none" or sent in (self._basic(), "Bearer letmein"):
            return None
        match = _PATH.fullmatch(path)
        scope = f"repository:{match['name']}:pull" if match else ""
        challenge = {
            "basic": 'Basic realm="registry"',
            "bearer": f'Bearer realm="http://{self.host}/token",service="registry",scope="{scope}"',
        }[self.auth]
        body = b'{"errors":[{"code":"UNAUTHORIZED"}]}'
        return 401, {"WWW-Authenticate": challenge}, body

    def _token(self, headers: Any) -> tuple[int, dict[str, str], bytes]:
        sent = headers.get("Authorization")
        if sent != self._basic() and not (self.anonymous and sent is None):
            return 401, {}, b'{"errors":[{"code":"UNAUTHORIZED"}]}'
        return 200, {"Content-Type": "application/json"}, b'{"token":"letmein"}'

    def _basic(self) -> str:
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


class _Handler(BaseHTTPRequestHandler):
    registry: Registry
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        status, headers, body = self.registry.answer(self.command, self.path, self.headers)
        self.registry.requests.append(Request(self.command, self.path, status))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815 - the name is the base class's

    def log_message(self, *args: Any) -> None:
        pass


def _digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def _described(content: bytes, media_type: str) -> dict[str, Any]:
    return {"mediaType": media_type, "size": len(content), "digest": _digest(content)}


def _pack(layer: Layer) -> bytes:
    """Return a layer as tar.gz."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as tar:
        if isinstance(layer, Path):
            tar.add(layer, arcname=".", filter=_owned_by_root)
        else:
            for path, content in layer.items():
                entry = tarfile.TarInfo(path)
                entry.size = len(content)
                entry.mode = 0o755 if "bin/" in path else 0o644
                tar.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def _owned_by_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry
