"""Container mounts, written as pyxis takes them: `SRC[:DST[:FLAGS]]`.

The form and its defaults are those of NVIDIA/pyxis 0.24.0, args.c (parse_mount_option, add_mount):
flags are joined with `+` and added to the defaults; a missing DST is SRC.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcbert.errors import UsageError

_KINDS = ("tmpfs", "umount")
_HINT = 'Write "SRC", "SRC:DST", "SRC:DST:FLAG+FLAG", "tmpfs:DST" or "umount:DST".'


@dataclass(frozen=True)
class Mount:
    """One mount.

    Attributes:
        source: A path, `tmpfs` or `umount`.
        target: Where in the container.
        flags: What is added to the defaults, in order.
    """

    source: str
    target: str
    flags: tuple[str, ...] = ()

    @property
    def spec(self) -> str:
        """The mount as pyxis takes it."""
        return ":".join((self.source, self.target, *(["+".join(self.flags)] if self.flags else [])))


def parse(text: str) -> Mount:
    """Read one mount.

    Raises:
        UsageError: Source or target is neither a path nor one of the known words, or contains what
            no mount can: a colon, a comma or a control character.
    """
    source, *rest = text.split(":")
    target = rest[0] if rest else source
    flags = rest[1] if rest[1:] else ""
    if rest[2:]:
        raise UsageError(
            f"The mount {text!r} has too many colons; paths can't contain colons.", hint=_HINT
        )
    if "," in text:
        raise UsageError(f"The mount {text!r} contains a comma, which mounts can't.", hint=_HINT)
    if not text.isprintable():
        raise UsageError(f"The mount {text!r} contains a control character.", hint=_HINT)
    if source not in _KINDS and not source.startswith((".", "/")):
        raise UsageError(
            f"The mount {text!r} must begin with a path, tmpfs or umount.",
            hint="A path must begin with / or ./ here.",
        )
    if not target.startswith((".", "/")):
        raise UsageError(f"The mount {text!r} must name a path in the container.", hint=_HINT)
    return Mount(source, target, tuple(flag for flag in flags.split("+") if flag))


def bind(path: str) -> Mount:
    """Return the mount of a path to the same path.

    Raises:
        UsageError: The path contains what no mount can.
    """
    if ":" in path or "," in path or not path.isprintable():
        raise UsageError(f"{path!r} contains a comma or a colon, which container mounts can't.")
    return Mount(path, path)
