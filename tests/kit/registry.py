"""A small image registry on this machine: enough of the distribution API v2 for any client to pull.

with Registry() as registry:
    registry.push("bert/tiny:1.0", [{"etc/marker": b"here"}], Env=["A=1"])
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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_CONFIG = "application/vnd.docker.container.image.v1+json"
_LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"
_PATH = re.compile(r"/v2/(?P<name>.+)/(?P<kind>manifests|blobs)/(?P<which>[^/]+)")
_ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}
# The image that most tests pull.
TINY = "bert/tiny:1.0"
Layer = dict[str, bytes] | Path


class Registry(ThreadingHTTPServer):
    """A registry that serves on a free port, as long as its context lasts.

    Attributes:
        host: `ADDRESS:PORT`, as image references name it.
        auth: How clients authenticate: `basic`, `bearer` with a token that anybody gets, or not.
        account: The only account, as NAME:PASSWORD.
        requests: Method, path and status of each request.
    """

    daemon_threads = True

    def __init__(self, address: str = "127.0.0.1", *, auth: str = "", account: str = "") -> None:
        super().__init__((address, 0), _Handler)
        name, port = self.server_address[:2]
        self.host = f"{name!s}:{port}"
        self.auth, self.delay = auth, 0.0
        self._secret = f"Basic {base64.b64encode(account.encode()).decode()}"
        self.requests: list[tuple[str, str, int]] = []
        self._contents: dict[tuple[str, str], bytes] = {}
        self._closing = threading.Event()

    def uri(self, image: str = TINY) -> str:
        return f"docker://{self.host}#{image}"

    def __enter__(self) -> "Registry":  # noqa: PYI034 - Self came with Python 3.11
        threading.Thread(target=self.serve_forever, args=(0.05,)).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self.shutdown()
        self.server_close()

    def push(self, image: str, layers: Sequence[Layer], **settings: object) -> None:
        """Add an image NAME:TAG of layers, bottom first, with Env, WorkingDir and Entrypoint.

        A layer is a directory, or contents by path, executable if under bin/.
        """
        packed = [_pack(layer) for layer in layers]
        digests = [_digest(gzip.decompress(content)) for content in packed]
        machine, (name, _, tag) = platform.machine(), image.partition(":")
        config = {
            "architecture": _ARCHITECTURE.get(machine, machine),
            "os": "linux",
            "config": {"Env": [], "WorkingDir": "", "Entrypoint": None, "Labels": {}, **settings},
            "rootfs": {"type": "layers", "diff_ids": digests},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": self._store(json.dumps(config).encode(), _CONFIG),
            "layers": [self._store(content, _LAYER) for content in packed],
        }
        content = json.dumps(manifest).encode()
        self._contents[name, tag] = self._contents[name, _digest(content)] = content

    def _store(self, blob: bytes, media_type: str) -> dict[str, Any]:
        self._contents["", _digest(blob)] = blob
        return {"mediaType": media_type, "size": len(blob), "digest": _digest(blob)}

    def pulls(self, name: str) -> int:
        """Return how often clients got an image's manifest: once for each import."""
        start = f"/v2/{name}/manifests/"
        return sum(
            (method, status) == ("GET", 200) and path.startswith(start)
            for method, path, status in self.requests
        )

    def answer(self, method: str, path: str, headers: Any) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body for one request; those for lists are refused."""
        path, sent = urlsplit(path).path, headers.get("Authorization")
        accept, match = ",".join(headers.get_all("Accept") or ()), _PATH.fullmatch(path)
        if path == "/token":
            return 200, {"Content-Type": "application/json"}, b'{"token":"letmein"}'
        if self.auth and sent not in (self._secret, "Bearer letmein"):
            scope = f"repository:{match['name']}:pull" if match else ""
            realm = f'realm="http://{self.host}/token",service="registry",scope="{scope}"'
            challenge = {"basic": 'Basic realm="registry"', "bearer": f"Bearer {realm}"}[self.auth]
            body = b'{"errors":[{"code":"UNAUTHORIZED"}]}'
            return 401, {"WWW-Authenticate": challenge}, body
        if match is None:
            return (200 if path == "/v2/" else 404), {}, b"{}"
        is_blob = match["kind"] == "blobs"
        self._closing.wait(self.delay if is_blob and method == "GET" else 0)
        content = self._contents.get(("" if is_blob else match["name"], match["which"]))
        if content is None or not (is_blob or accept in ("", "*/*") or _MANIFEST in accept):
            return 404, {}, b'{"errors":[{"code":"MANIFEST_UNKNOWN"}]}'
        digest = {"Content-Type": _MANIFEST, "Docker-Content-Digest": _digest(content)}
        return 200, {} if is_blob else digest, content


@contextmanager
def serving_tiny(address: str = "127.0.0.1", *, auth: str = "") -> Iterator[Registry]:
    """Serve one small image."""
    with Registry(address, auth=auth) as registry:
        registry.push(TINY, [{"etc/marker": b"tiny"}])
        yield registry


class _Handler(BaseHTTPRequestHandler):
    server: Registry
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        status, headers, body = self.server.answer(self.command, self.path, self.headers)
        self.server.requests.append((self.command, self.path, status))
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
    def give_to_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return entry

    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as tar:
        if isinstance(layer, Path):
            tar.add(layer, arcname=".", filter=give_to_root)
        for path, content in layer.items() if isinstance(layer, dict) else ():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content), 0o755 if "bin/" in path else 0o644
            tar.addfile(entry, io.BytesIO(content))
    return packed.getvalue()
