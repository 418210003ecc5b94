"""Nodes of a lab with a share of a processor each, so that a process can slow one of them down."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hpcbert.lab.record import Lab
from tests.kit.needs import not_applicable

# Of each period of a processor in microseconds, a node has so much, whatever else the machine does.
PERIOD, QUOTA = 20_000, 4_000
_VERSION_1 = Path("/sys/fs/cgroup/cpu")
_VERSION_2 = Path("/sys/fs/cgroup")


@contextmanager
def share_processor(lab: Lab) -> Iterator[dict[str, Path]]:
    """Put each node's slurmd, and so its jobs, into a control group; yield their folders by node."""
    root = _VERSION_1 if _VERSION_1.is_dir() else _VERSION_2
    folders = {node: root / f"{lab.mark}-{node}" for node in lab.plan.node_names}
    try:
        try:
            for node, folder in folders.items():
                daemon = lab.daemons[node]
                assert daemon, node
                _limit_group(folder)
                (folder / "cgroup.procs").write_text(str(daemon.pid))
        except OSError as error:
            not_applicable(f"control groups can't limit processors here: {error}")
        yield folders
    finally:
        for folder in filter(Path.is_dir, folders.values()):
            for pid in (folder / "cgroup.procs").read_text().split():
                (root / "cgroup.procs").write_text(pid)
            folder.rmdir()


def _limit_group(folder: Path) -> None:
    folder.mkdir()
    if (folder / "cpu.cfs_quota_us").exists():
        (folder / "cpu.cfs_period_us").write_text(str(PERIOD))
        (folder / "cpu.cfs_quota_us").write_text(str(QUOTA))
    else:
        (folder / "cpu.max").write_text(f"{QUOTA} {PERIOD}")


@contextmanager
def compete(folder: Path) -> Iterator[None]:
    """Run a process in a control group that takes what time it can get, at a lower priority."""
    argv = ["nice", "-n", "5", "bash", "-c", "while :; do :; done"]
    with subprocess.Popen(argv) as rival:
        try:
            (folder / "cgroup.procs").write_text(str(rival.pid))
            yield
        finally:
            rival.kill()
