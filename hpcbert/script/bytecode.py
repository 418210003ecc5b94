"""Compiled templates, kept in the user's cache directory: compiling takes longer than rendering.

Kept code is loaded only from a directory and a file that belong to the user or to root and are not
open to everybody, and only if a digest of it, of the template's text and of everything that
compiles it is right. Anything cut short, from another version or from somebody else is compiled
again. If nothing can be kept, as in a read-only home, nothing is.
"""

from __future__ import annotations

import contextlib
import hashlib
import marshal
import os
import sys
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2
from jinja2.bccache import Bucket, BytecodeCache

from hpcbert import __version__
from hpcbert.system import ownership

if TYPE_CHECKING:
    from collections.abc import Mapping

# Bytes of the largest template's code, many times over.
_MOST = 1 << 22
# Characters of a file's name.
_NAMED = 16
_DIGEST = hashlib.sha256().digest_size
_PRIVATE_FOLDER, _PRIVATE = 0o700, 0o600


def folder(environ: Mapping[str, str]) -> Path | None:
    """Return the directory of compiled templates; None if the user has no place for it.

    As in the XDG Base Directory Specification: `$XDG_CACHE_HOME`, or `~/.cache`. hpcbert does not
    make that directory, because a dry run leaves nothing behind. A process that changed its user
    but kept the first user's variables, as sudo may, has none.
    """
    base = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME", ""), ".cache")  # noqa: PTH118 - of an empty one
    path = Path(base)
    if not path.is_absolute():
        return None
    with contextlib.suppress(OSError):
        return path / "hpcbert" / "templates" if path.stat().st_uid == os.geteuid() else None
    return None


class Compiled(BytecodeCache):
    """Keeps the code of templates.

    Args:
        directory: The directory; made when something is kept.
        makers: Other files that the template's code depends on: Jinja's set-up.
    """

    def __init__(self, directory: Path, makers: tuple[Path, ...]) -> None:
        self._directory, self._makers = directory, makers

    @cached_property
    def _stamp(self) -> bytes:
        """Everything that determines the code, except the template."""
        words = (__version__, jinja2.__version__, sys.version, sys.implementation.cache_tag)
        made = hashlib.sha256(repr(words).encode())
        for path in self._makers:
            made.update(path.read_bytes())
        return made.digest()

    def get_bucket(
        self, environment: jinja2.Environment, name: str, filename: str | None, source: str
    ) -> Bucket:
        """Return what is kept of a template, one of each name: there are no more files than names.

        A template's code has its file's name in it.
        """
        key = hashlib.sha256(name.encode()).hexdigest()[:_NAMED]
        text = hashlib.sha256(f"{filename}\0{source}".encode(errors="surrogateescape")).hexdigest()
        bucket = Bucket(environment, key, text)
        self.load_bytecode(bucket)
        return bucket

    def _path(self, bucket: Bucket) -> Path:
        return self._directory / f"{bucket.key}.bin"

    def _digest(self, bucket: Bucket, code: bytes) -> bytes:
        return hashlib.sha256(self._stamp + bucket.checksum.encode() + code).digest()

    def load_bytecode(self, bucket: Bucket) -> None:
        """Load a template's code if it belongs to the template, is whole and is the user's own."""
        with contextlib.suppress(OSError):
            raw = ownership.read_own(self._path(bucket), most=_MOST)
            digest, code = raw[:_DIGEST], raw[_DIGEST:]
            if digest == self._digest(bucket, code):
                bucket.code = marshal.loads(code)  # noqa: S302 - the digest is right, the file ours

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keep a template's code, visible whole or not at all."""
        code = marshal.dumps(bucket.code)
        path = self._path(bucket)
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        with contextlib.suppress(OSError):
            self._directory.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
            flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
            with os.fdopen(os.open(temporary, flags, _PRIVATE), "wb") as file:
                file.write(self._digest(bucket, code) + code)
            temporary.replace(path)
