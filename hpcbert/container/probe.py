"""A machine's support for containers: the findings of probe.sh, and what to change; pure.

The rows are the problems that can be found before they cost a job (NVIDIA/enroot 4.1.2,
NVIDIA/pyxis 0.24.0; `hpcbert.container.symptoms` has those that appear only later).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpcbert.container import symptoms

if TYPE_CHECKING:
    from collections.abc import Sequence

SCRIPT = Path(__file__).parent.parent / "shell" / "probe.sh"
_FIELDS = 4


@dataclass(frozen=True)
class Probed:
    """A finding on one node.

    Attributes:
        status: `ok`, `warn` or `fail`.
    """

    node: str
    name: str
    status: str
    detail: str


@dataclass(frozen=True)
class Remedy:
    """What to change when a probe finds something.

    Attributes:
        change: Name of the setting, package or file to change.
        hint: How, one sentence.
    """

    change: str
    hint: str


REMEDIES = {
    "user-namespaces": Remedy(
        "sysctl user.max_user_namespaces",
        "Ask the administrator to allow user namespaces: user.max_user_namespaces above 0, "
        "kernel.unprivileged_userns_clone = 1, kernel.apparmor_restrict_unprivileged_userns = 0.",
    ),
    "account": Remedy(
        "name service of the node",
        "Ask the administrator to make users known there (getent passwd): enroot copies the entry "
        "into the container.",
    ),
    "squashfs-tools": Remedy(
        "package squashfs-tools",
        "Ask the administrator to install it there; enroot unpacks images with it.",
    ),
    "enroot": Remedy(
        "package enroot",
        'Ask the administrator to install enroot there, or set container.runtime = "none".',
    ),
    "apptainer": Remedy(
        "package apptainer",
        "Ask the administrator to install Apptainer or SingularityCE there; load its module before "
        'you submit, if it has one; or set container.runtime = "none".',
    ),
    "mounting": Remedy(
        "/dev/fuse, package squashfuse",
        "It works without, if the node has room for the unpacked image (container.scratch). To "
        "make it faster, ask the administrator for mode 0666 and squashfuse, or for the setuid "
        "starter.",
    ),
    "scratch": Remedy(
        "site.toml: container.scratch",
        "Name a directory on each node's own disk that users can write, with room for three to "
        "four times an unpacked image.",
    ),
    "temp": Remedy(
        "ENROOT_TEMP_PATH, or site.toml: container.scratch",
        "Name a directory on a local disk with room for three to four times an unpacked image.",
    ),
    "directories": Remedy(
        "enroot.conf: ENROOT_RUNTIME_PATH, ENROOT_CACHE_PATH, ENROOT_DATA_PATH",
        "Ask the administrator to name directories that users can write (a prolog makes them), or "
        "set container.scratch in the site.toml.",
    ),
    "capabilities": Remedy(
        "package enroot+caps",
        "Ask the administrator to install it, again after each upgrade; or import on a node that "
        "has it: hpcbert prepare --on-node.",
    ),
    "fuse": Remedy(
        "/dev/fuse, package squashfuse",
        "Needed only if pyxis is set to use_squashfuse: ask the administrator for mode 0666 and "
        "squashfuse.",
    ),
    "nvidia-container-cli": Remedy(
        "package libnvidia-container-tools",
        "Ask the administrator to install it; without it, containers see no GPU.",
    ),
    "images": Remedy(
        "site.toml: container.images",
        "Name a directory of yours that all nodes share, with room for the images.",
    ),
    "image": Remedy(
        "site.toml: container.images",
        "Put the image where every node can read it: hpcbert prepare.",
    ),
    "data": Remedy(
        "site.toml: frameworks.NAME.data",
        "Name a directory that every node mounts at the same path.",
    ),
    "leftovers": Remedy(
        "containers on that node",
        "Run enroot remove -f NAME there; pyxis with container_scope=job removes its own.",
    ),
    "plugin": Remedy(
        "plugstack.conf",
        "Ask the administrator to add pyxis on that node and restart its slurmd; without it, a job "
        "would run on the bare host.",
    ),
    "registry": Remedy(
        "~/.config/enroot/.credentials",
        "Add the registry's line: `machine HOST login USER password WORD`.",
    ),
}


def read(printed: str) -> tuple[Probed, ...]:
    """Return the findings in the output of probe.sh; other lines are skipped."""
    rows = [line.split("\t") for line in printed.splitlines()]
    return tuple(
        Probed(*row) for row in rows if len(row) == _FIELDS and row[2] in ("ok", "warn", "fail")
    )


def remedy(found: Probed) -> Remedy:
    """Return what to change; a known cause in the detail comes before the general advice."""
    if found.status == "ok":
        return Remedy("", "")
    general = REMEDIES.get(found.name, Remedy("", ""))
    known = symptoms.explain(found.detail)
    return Remedy(general.change, known.hint if known else general.hint)


def by_finding(found: Sequence[Probed]) -> dict[tuple[str, str, str], tuple[str, ...]]:
    """Return the nodes of each distinct name, status and detail, in order of appearance."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for one in found:
        groups.setdefault((one.name, one.status, one.detail), []).append(one.node)
    return {key: tuple(dict.fromkeys(nodes)) for key, nodes in groups.items()}
