"""Container mounts, written as pyxis takes them: `SRC[:DST[:FLAGS]]`.

The form and its defaults are those of NVIDIA/pyxis 0.24.0, args.c (parse_mount_option, add_mount):
flags are joined with `+` and added to the defaults; a missing DST is SRC.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcbert.errors import UsageError

_MOUNT_WORDS = ("tmpfs", "umount")
_MOUNT_HINT = 'Write "SRC", "SRC:DST", "SRC:DST:FLAG+FLAG", "tmpfs:DST" or "umount:DST".'


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


def parse_mount(text: str) -> Mount:
    """Read one mount.

    Raises:
        UsageError: Source or target is neither a path nor one of the known words, or contains what
            no mount can: a colon, a comma or a control character.
    """
    source, *fields = text.split(":")
    target = fields[0] if fields else source
    flags = fields[1] if fields[1:] else ""
    if fields[2:]:
        raise UsageError(
            f"The mount {text!r} has too many colons; paths can't contain colons.", hint=_MOUNT_HINT
        )
    if "," in text:
        raise UsageError(
            f"The mount {text!r} contains a comma, which mounts can't.", hint=_MOUNT_HINT
        )
    if not text.isprintable():
        raise UsageError(f"The mount {text!r} contains a control character.", hint=_MOUNT_HINT)
    if source not in _MOUNT_WORDS and not source.startswith((".", "/")):
        raise UsageError(
            f"The mount {text!r} must begin with a path, tmpfs or umount.",
            hint="A path must begin with / or ./ here.",
        )
    if not target.startswith((".", "/")):
        raise UsageError(f"The mount {text!r} must name a path in the container.", hint=_MOUNT_HINT)
    return Mount(source, target, tuple(flag for flag in flags.split("+") if flag))


def bind_mount(path: str) -> Mount:
    """Return the mount of a path to the same path.

    Raises:
        UsageError: The path contains what no mount can.
    """
    if ":" in path or "," in path or not path.isprintable():
        raise UsageError(f"{path!r} contains a comma or a colon, which container mounts can't.")
    return Mount(path, path)
