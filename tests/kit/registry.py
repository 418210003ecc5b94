"""A small image registry on this machine: enough of the distribution API v2 for any client to pull.

With it the available `enroot` imports over real HTTP, and failures can be requested. It serves only
pulls; Python code adds images.

    with Registry() as registry:
        registry.push("bert/tiny:1.0", [{"etc/marker": b"here"}], env=["A=1"])
        ...  # enroot import docker://{registry.host}#bert/tiny:1.0 with ENROOT_ALLOW_HTTP=y
        assert registry.pulls("bert/tiny") == 1
"""

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
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_CONFIG = "application/vnd.docker.container.image.v1+json"
_LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"
_PATH = re.compile(r"/v2/(?P<name>.+)/(?P<kind>manifests|blobs)/(?P<which>[^/]+)")
_ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}
# The image that most tests pull.
TINY = "bert/tiny:1.0"
Layer = dict[str, bytes] | Path
_Answer = tuple[int, dict[str, str], bytes]


class Request(NamedTuple):
    """One request and its answer."""

    method: str
    path: str
    status: int


@dataclass
class Registry:
    """A registry that serves on a free port, as long as its context lasts.

    Attributes:
        address: The address to listen on; the loopback by default.
        auth: How clients authenticate: `none`, `basic` or `bearer`.
        user, password: The only account, if there is one.
        anonymous: Whether anybody gets tokens.
        trouble: Status to answer with, by a part of the path: {"/manifests/": 429}.
        delay: Seconds before a blob.
    """

    address: str = "127.0.0.1"
    auth: str = "none"
    user: str = ""
    password: str = ""
    anonymous: bool = False
    delay: float = 0.0

    def __post_init__(self) -> None:
        self.trouble: dict[str, int] = {}
        self.requests: list[Request] = []
        self._manifests: dict[tuple[str, str], bytes] = {}
        self._blobs: dict[str, bytes] = {}
        self._closing = threading.Event()
        handler = type("Handler", (_Handler,), {"registry": self})
        self._server = ThreadingHTTPServer((self.address, 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def host(self) -> str:
        """`ADDRESS:PORT`, as image references name it."""
        address, port = self._server.server_address[:2]
        return f"{address!s}:{port}"

    def uri(self, image: str = TINY) -> str:
        return f"docker://{self.host}#{image}"

    def __enter__(self) -> "Registry":  # noqa: PYI034 - Self came with Python 3.11
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def push(
        self, image: str, layers: list[Layer], *, env: list[str] | None = None, workdir: str = "",
        entrypoint: list[str] | None = None,
    ) -> None:  # fmt: skip
        """Add an image NAME:TAG of layers, bottom first.

        A layer is a directory, or contents by path, executable if under bin/.
        """
        packed = [_pack(layer) for layer in layers]
        digests = [_digest(gzip.decompress(content)) for content in packed]
        settings = {"Env": env or [], "WorkingDir": workdir, "Entrypoint": entrypoint}
        machine = platform.machine()
        config = {
            "architecture": _ARCHITECTURE.get(machine, machine),
            "os": "linux",
            "config": {**settings, "Labels": {}},
            "rootfs": {"type": "layers", "diff_ids": digests},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": self._store(json.dumps(config).encode(), _CONFIG),
            "layers": [self._store(content, _LAYER) for content in packed],
        }
        name, _, tag = image.partition(":")
        content = json.dumps(manifest).encode()
        self._manifests[name, tag] = self._manifests[name, _digest(content)] = content

    def _store(self, blob: bytes, media_type: str) -> dict[str, Any]:
        self._blobs[_digest(blob)] = blob
        return {"mediaType": media_type, "size": len(blob), "digest": _digest(blob)}

    def pulls(self, name: str) -> int:
        """Return how often clients got an image's manifest: once for each import."""
        start = f"/v2/{name}/manifests/"
        return sum(
            (method, status) == ("GET", 200) and path.startswith(start)
            for method, path, status in self.requests
        )

    def answer(self, method: str, path: str, headers: Any) -> _Answer:
        """Return status, headers and body for one request."""
        path = urlsplit(path).path
        sent, match = headers.get("Authorization"), _PATH.fullmatch(path)
        account = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        for part, status in self.trouble.items():
            if part in path:
                return status, {}, b'{"errors":[]}'
        if path == "/token" and (sent == f"Basic {account}" or (self.anonymous and sent is None)):
            return 200, {"Content-Type": "application/json"}, b'{"token":"letmein"}'
        if self.auth != "none" and sent not in (f"Basic {account}", "Bearer letmein"):
            scope = f"repository:{match['name']}:pull" if match else ""
            realm = f'realm="http://{self.host}/token",service="registry",scope="{scope}"'
            challenge = {"basic": 'Basic realm="registry"', "bearer": f"Bearer {realm}"}[self.auth]
            body = b'{"errors":[{"code":"UNAUTHORIZED"}]}'
            return 401, {"WWW-Authenticate": challenge}, body
        if match is None:
            return (200 if path == "/v2/" else 404), {}, b"{}"
        return self._pull(match, method, ",".join(headers.get_all("Accept") or ()))

    def _pull(self, match: re.Match[str], method: str, accept: str) -> _Answer:
        """Refuse requests for lists."""
        if match["kind"] == "blobs":
            self._closing.wait(self.delay if method == "GET" else 0)
            blob = self._blobs.get(match["which"])
            return (404, {}, b"{}") if blob is None else (200, {}, blob)
        manifest = self._manifests.get((match["name"], match["which"]))
        if manifest is None or not (accept in ("", "*/*") or _MANIFEST in accept):
            return 404, {}, b'{"errors":[{"code":"MANIFEST_UNKNOWN"}]}'
        digest = {"Docker-Content-Digest": _digest(manifest)}
        return 200, {"Content-Type": _MANIFEST, **digest}, manifest


@contextmanager
def serving_tiny(address: str = "127.0.0.1", **options: Any) -> Iterator[Registry]:
    """Serve one small image."""
    with Registry(address, **options) as registry:
        registry.push(TINY, [{"etc/marker": b"tiny"}])
        yield registry


class _Handler(BaseHTTPRequestHandler):
    registry: Registry
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        status, headers, body = self.registry.answer(self.command, self.path, self.headers)
        self.registry.requests.append(Request(self.command, self.path, status))
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815 - the name is the base class's

    def log_message(self, *args: Any) -> None:
        pass


def _digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def _pack(layer: Layer) -> bytes:
    """Return a layer as tar.gz."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as tar:
        if isinstance(layer, Path):
            tar.add(layer, arcname=".", filter=_give_to_root)
        for path, content in layer.items() if isinstance(layer, dict) else ():
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            entry.mode = 0o755 if "bin/" in path else 0o644
            tar.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def _give_to_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry
