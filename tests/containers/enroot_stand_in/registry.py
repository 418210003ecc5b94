"""Images from a registry (OCI distribution specification): import and digest."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.containers.enroot_stand_in.settings import Settings, fail, log, remove_all
from tests.containers.enroot_stand_in.store import squash

Options = dict[str, list[str]]
_URI = re.compile(
    r"docker://(?:(?P<user>[^@/#]+)@)?(?:(?P<registry>[^/#@]+)[#])?(?P<image>[a-z0-9/._-]+)"
    r"(?::(?P<tag>[A-Za-z0-9._-]+))?(?:@(?P<digest>sha256:\w+))?"
)
_SLASH = re.compile(r"docker://((?:[^@/#]+@)?[^/#@]*[.:][^/#@]*)/(.+)")
_LIST = "application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.oci.image.index.v1+json"
_ONE = "application/vnd.docker.distribution.manifest.v2+json, application/vnd.oci.image.manifest.v1+json"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass
class Registry:
    """One repository of one registry, and the header that lets us in."""

    base: str
    host: str
    user: str
    tag: str
    header: str = ""

    def ask(self, url: str, *, accept: str = "", method: str = "GET", missing: bool = False) -> Any:
        headers = {"Accept": accept} if accept else {}
        headers |= {"Authorization": self.header} if self.header else {}
        try:
            request = urllib.request.Request(url, headers=headers, method=method)
            return urllib.request.urlopen(request, timeout=30)
        except urllib.error.HTTPError as error:
            if missing and error.code in (401, 404):
                return error
            fail(f"URL {url} returned error code: {error.code} {error.reason}")
        except urllib.error.URLError as error:
            fail(f"Could not reach {url}: {error.reason}")

    def authenticate(self, settings: Settings) -> None:
        """Ask without a word of who we are; enroot sends no Accept header here either."""
        log("Querying registry for permission grant")
        url = f"{self.base}/manifests/{self.tag}"
        request = urllib.request.Request(url, method="HEAD")
        try:
            urllib.request.urlopen(request, timeout=30).close()
        except urllib.error.HTTPError as error:
            challenge = error.headers.get("WWW-Authenticate")
            if error.code != 401 or not challenge:
                fail(f"URL {url} returned error code: {error.code} {error.reason}")
            self._answer(settings, str(challenge))
        except urllib.error.URLError as error:
            fail(f"Could not reach {url}: {error.reason}")
        else:
            log("Permission granted")

    def _answer(self, settings: Settings, challenge: str) -> None:
        log(f"Authenticating with user: {self.user or '<anonymous>'}")
        scheme, _, rest = challenge.partition(" ")
        fields = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        password = _password(settings, self.host, self.user)
        basic = "Basic " + base64.b64encode(f"{self.user}:{password}".encode()).decode()
        if scheme.lower() == "basic":
            request = urllib.request.Request(
                f"{self.base}/manifests/{self.tag}",
                method="HEAD",
                headers={"Authorization": basic, "Accept": _ONE},
            )
            try:
                urllib.request.urlopen(request, timeout=30).close()
            except urllib.error.HTTPError:
                # No word of what is wrong: so does enroot.
                sys.exit(1)
            self.header = basic
        else:
            query = urllib.parse.urlencode({k: v for k, v in fields.items() if k != "realm"})
            headers = {"Authorization": basic} if self.user else {}
            request = urllib.request.Request(f"{fields['realm']}?{query}", headers=headers)
            try:
                with urllib.request.urlopen(request, timeout=30) as reply:
                    answer = json.load(reply)
            except urllib.error.HTTPError as error:
                fail(f"URL {fields['realm']} returned error code: {error.code} {error.reason}")
            self.header = f"Bearer {answer.get('token') or answer.get('access_token')}"
        log("Authentication succeeded")


def fetch(settings: Settings, options: Options, uri: str) -> None:
    """Import an image: layers through CACHE and TEMP into one squashfs file."""
    source = _parse(settings, uri)
    image = source.base.partition("/v2/")[2].replace("/", "+")
    output = Path(options.get("output", [f"{image}+{source.tag}.sqsh"])[0]).resolve()
    if output.exists():
        fail(f"File already exists: {output}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = Path(tempfile.mkdtemp(prefix="enroot.", dir=settings.temp))
    try:
        source.authenticate(settings)
        config, layers = _manifest(source, _architecture(options))
        tree = folder / "rootfs"
        tree.mkdir()
        paths = [_blob(settings, source, each) for each in (config, *layers)]
        log("Extracting image layers...")
        for path in paths[1:]:
            _extract(path, tree)
        _configure(tree, json.loads(paths[0].read_text()).get("config") or {}, uri)
        log("Creating squashfs filesystem...")
        squash(settings, tree, output, [])
    finally:
        remove_all(folder)


def digest(settings: Settings, options: Options, uri: str) -> None:
    source = _parse(settings, uri)
    source.authenticate(settings)
    reply = source.ask(
        f"{source.base}/manifests/{source.tag}", accept=f"{_LIST}, {_ONE}", method="HEAD"
    )
    sys.stdout.write(f"{reply.headers['Docker-Content-Digest']}\n")


def _parse(settings: Settings, uri: str) -> Registry:
    match = _URI.fullmatch(_SLASH.sub(r"docker://\1#\2", uri) if "#" not in uri else uri)
    if match is None:
        fail(
            f"Invalid image reference: {uri}"
            if uri.startswith("docker://")
            else f"Invalid argument: {uri}"
        )
    host = match["registry"] or "registry-1.docker.io"
    image = match["image"]
    if host == "registry-1.docker.io" and "/" not in image:
        image = f"library/{image}"
    scheme = "http" if settings.on("ALLOW_HTTP") else "https"
    user = match["user"] or _login(settings, host)
    return Registry(
        f"{scheme}://{host}/v2/{image}", host, user, match["digest"] or match["tag"] or "latest"
    )


def _credentials(settings: Settings, host: str) -> list[list[str]]:
    path = settings.config / ".credentials"
    if not path.is_file():
        return []
    lines = [shlex.split(line) for line in path.read_text().splitlines()]
    return [each for each in lines if len(each) > 3 and each[1] == host.partition(":")[0]]


def _login(settings: Settings, host: str) -> str:
    return next((each[3] for each in _credentials(settings, host)), "")


def _password(settings: Settings, host: str, user: str) -> str:
    for words in _credentials(settings, host):
        if words[3] == user:
            log(f"Using credentials from file: {settings.config / '.credentials'}")
            said = words[5] if len(words) > 5 else ""
            if not said.startswith("$"):
                return said
            return subprocess.run(
                ["bash", "-c", f"echo {said}"], capture_output=True, text=True, check=False
            ).stdout.strip()
    return ""


def _architecture(options: Options) -> str:
    said = options.get("arch", [platform.machine()])[0]
    return _ARCHITECTURES.get(said, said)


def _manifest(source: Registry, architecture: str) -> tuple[str, list[str]]:
    url = f"{source.base}/manifests/{source.tag}"
    log("Fetching image manifest list")
    reply = json.loads(source.ask(url, accept=_LIST, missing=True).read() or b"{}")
    for each in reply.get("manifests") or []:
        if each.get("platform", {}).get("architecture") == architecture:
            url = f"{source.base}/manifests/{each['digest']}"
            break
    log("Fetching image manifest")
    manifest = json.loads(source.ask(url, accept=_ONE).read())
    try:
        return manifest["config"]["digest"], [each["digest"] for each in manifest["layers"]]
    except (KeyError, TypeError):
        fail(f"Could not parse digest information from {url}")


def _blob(settings: Settings, source: Registry, name: str) -> Path:
    """Download a blob into CACHE under another name; rename it when its checksum is right."""
    path = settings.cache / name.removeprefix("sha256:")
    if path.exists():
        return path
    checksum = hashlib.sha256()
    number, temporary = tempfile.mkstemp(prefix=f"{path.name}.", dir=settings.cache)
    try:
        with os.fdopen(number, "wb") as file:
            reply = source.ask(f"{source.base}/blobs/{name}")
            while part := reply.read(1 << 20):
                checksum.update(part)
                file.write(part)
        if checksum.hexdigest() != path.name:
            fail(f"Checksum mismatch: {path.name}")
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)
    return path


def _extract(layer: Path, tree: Path) -> None:
    """Put one layer on top of those before; whiteouts remove what lies below."""
    with tarfile.open(layer) as archive:
        names = archive.getnames()
    for name in names:
        path = tree / name
        if path.name == ".wh..wh..opq" and path.parent.is_dir():
            shutil.rmtree(path.parent)
            path.parent.mkdir()
        elif path.name.startswith(".wh."):
            remove_all(path.with_name(path.name.removeprefix(".wh.")))
    words = [
        "tar",
        "-C",
        str(tree),
        "--warning=no-timestamp",
        "--anchored",
        "--delay-directory-restore",
    ]
    words += ["--exclude=dev/*", "--exclude=./dev/*", "--no-anchored", "--exclude=.wh.*"]
    if subprocess.run([*words, "-pxf", str(layer)], check=False).returncode != 0:
        sys.exit(1)


def _configure(tree: Path, config: dict[str, Any], uri: str) -> None:
    """Turn the image's configuration into the files that a start reads."""
    etc = tree / "etc"
    etc.mkdir(exist_ok=True)
    variables = config.get("Env") or []
    (etc / "environment").write_text("".join(f"{each}\n" for each in variables))
    lines = [
        f"${{ENROOT_ROOTFS}}{v} {v} none x-create=dir,bind,rw,nosuid,nodev"
        for v in config.get("Volumes") or {}
    ]
    (etc / "fstab").write_text("".join(f"{line}\n" for line in lines))
    folder = config.get("WorkingDir") or "/"
    (tree / folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
    entry = _quoted(config.get("Entrypoint") or [])
    command = _quoted(config.get("Cmd") or ([] if entry else ["/bin/sh"]))
    (etc / "rc").write_text(command_script(folder, entry, command, uri))
    (etc / "rc.local").write_text("# Sourced before the entrypoint and the command.\n")


def _quoted(words: list[str]) -> str:
    return " ".join("'" + word.replace("'", "'\\''") + "'" for word in words)


def command_script(folder: str, entry: str, command: str, uri: str) -> str:
    """Return what /etc/rc has to be: go to the working directory, then entrypoint and command."""
    return (
        f"# {uri}\n"
        f'cd "{folder}" && unset OLDPWD || exit 1\n'
        "if [ -s /etc/rc.local ]; then . /etc/rc.local; fi\n"
        f'if [ $# -gt 0 ]; then exec {entry} "$@"; else exec {entry} {command}; fi\n'
    )
