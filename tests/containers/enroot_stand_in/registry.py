"""Images from a registry (OCI distribution specification): import."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
import signal
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

from tests.containers.enroot_stand_in.settings import Options, Settings, fail, log, remove_all
from tests.containers.enroot_stand_in.store import squash

_URI = re.compile(
    r"docker://(?:(?P<user>[^@/#]+)@)?(?P<registry>[^/#@]+)[#/](?P<image>[a-z0-9/._-]+)"
    r"(?::(?P<tag>[A-Za-z0-9._-]+))?(?:@(?P<digest>sha256:\w+))?"
)
_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json, application/vnd.oci.image.manifest.v1+json"
_RC = """\
# {uri}
cd "{folder}" && unset OLDPWD || exit 1
if [ -s /etc/rc.local ]; then . /etc/rc.local; fi
if [ $# -gt 0 ]; then exec {entry} "$@"; else exec {entry} {command}; fi
"""


@dataclass
class Repository:
    """One repository of one registry, and the header that lets us in."""

    base: str
    tag: str
    header: str = ""

    def ask(self, resource: str, method: str = "GET") -> HTTPResponse:
        url = f"{self.base}/{resource}"
        headers = {"Accept": _MANIFEST, "Authorization": self.header}
        request = urllib.request.Request(url, method=method)
        request.headers = {name: value for name, value in headers.items() if value}
        try:
            reply: HTTPResponse = urllib.request.urlopen(request, timeout=600)
        except urllib.error.HTTPError as error:
            if error.code == 401 and not self.header and error.headers["WWW-Authenticate"]:
                raise PermissionError from None
            fail(f"URL {url} returned error code: {error.code} {error.reason}")
        except urllib.error.URLError as error:
            fail(f"Could not reach {url}: {error.reason}")
        return reply

    def log_in(self, settings: Settings, user: str, host: str) -> None:
        """Ask without a word of who we are, then by name and password."""
        log("Querying registry for permission grant")
        manifest = f"manifests/{self.tag}"
        try:
            self.ask(manifest, "HEAD").close()
        except PermissionError:
            login, password = _credentials(settings, host)
            log(f"Authenticating with user: {user or login or '<anonymous>'}")
            words = f"{user or login}:{password}".encode()
            self.header = "Basic " + base64.b64encode(words).decode()
            self.ask(manifest, "HEAD").close()


def fetch(settings: Settings, options: Options, arguments: list[str]) -> None:
    """Import an image: layers through CACHE and TEMP into one squashfs file."""
    (uri,) = arguments
    match = _URI.fullmatch(uri)
    if match is None:
        fail(f"Invalid argument: {uri}")
    scheme = "http" if settings.on("ALLOW_HTTP") else "https"
    tag = match["digest"] or match["tag"] or "latest"
    source = Repository(f"{scheme}://{match['registry']}/v2/{match['image']}", tag)
    output = Path(options.get("output", [f"{match['image'].replace('/', '+')}+{tag}.sqsh"])[0])
    if output.exists():
        fail(f"File already exists: {output}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = Path(tempfile.mkdtemp(prefix="enroot.", dir=settings.temp))
    try:
        source.log_in(settings, match["user"] or "", match["registry"].partition(":")[0])
        log("Fetching image manifest")
        manifest = json.load(source.ask(f"manifests/{source.tag}"))
        blobs = [layer["digest"] for layer in (manifest["config"], *manifest["layers"])]
        paths = [_blob(settings, source, blob) for blob in blobs]
        tree = folder / "rootfs"
        tree.mkdir()
        log("Extracting image layers...")
        for path in paths[1:]:
            _extract(path, tree)
        _configure(tree, json.loads(paths[0].read_text()).get("config") or {}, uri)
        squash(settings, tree, output, [])
    finally:
        remove_all(folder)


def _credentials(settings: Settings, host: str) -> tuple[str, str]:
    """Return login and password from lines `machine HOST login NAME password WORD`."""
    path = settings.config / ".credentials"
    lines = path.read_text().splitlines() if path.is_file() else []
    matches = (words for line in lines if (words := shlex.split(line))[1] == host)
    return next(((words[3], words[5]) for words in matches), ("", ""))


def _blob(settings: Settings, source: Repository, name: str) -> Path:
    """Download a blob into CACHE under another name; rename it when its checksum is right."""
    path = settings.cache / name.removeprefix("sha256:")
    if path.exists():
        return path
    with tempfile.NamedTemporaryFile(dir=settings.cache, delete=False) as file:
        content = source.ask(f"blobs/{name}").read()
        file.write(content)
    if hashlib.sha256(content).hexdigest() != path.name:
        fail(f"Checksum mismatch: {path.name}")
    return Path(file.name).replace(path)


def _extract(layer: Path, tree: Path) -> None:
    """Put one layer on top of those before; whiteouts remove what lies below."""
    with tarfile.open(layer) as archive:
        names = archive.getnames()
    for path in (tree / name for name in names):
        if path.name.startswith(".wh."):
            remove_all(path.with_name(path.name.removeprefix(".wh.")))
    words = ["--warning=no-timestamp", "--anchored", "--delay-directory-restore"]
    words += ["--exclude=dev/*", "--exclude=./dev/*", "--no-anchored", "--exclude=.wh.*"]
    if subprocess.run(["tar", "-C", tree, *words, "-pxf", layer], check=False).returncode:
        sys.exit(1)


def _configure(tree: Path, config: dict[str, Any], uri: str) -> None:
    """Turn the image's configuration into the files that a start reads."""
    etc = tree / "etc"
    etc.mkdir(exist_ok=True)
    (etc / "environment").write_text(
        "".join(f"{variable}\n" for variable in config.get("Env") or [])
    )
    (etc / "fstab").touch()
    folder = config.get("WorkingDir") or "/"
    (tree / folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
    entry = config.get("Entrypoint") or []
    command = config.get("Cmd") or ([] if entry else ["/bin/sh"])
    words = {"entry": shlex.join(entry), "command": shlex.join(command)}
    (etc / "rc").write_text(_RC.format(uri=uri, folder=folder, **words))
    (etc / "rc.local").write_text("# Sourced before the entrypoint and the command.\n")
