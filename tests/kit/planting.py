"""Faults planted on a lab's nodes, and removed again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hpcbert.lab.record import Lab, load
from hpcbert.system.runner import run
from tests.kit.lab_faults import inside, show_at_once, show_late


def on_node(lab: Lab, node: str, *argv: str) -> str:
    """Run a command on a node as root; it must succeed."""
    outcome = run([*inside(lab, node), *argv], env=lab.daemon_environment)
    assert outcome.ok, outcome
    return outcome.stdout


@contextmanager
def mounted(lab: Lab, node: str, path: Path | str, *options: str) -> Iterator[None]:
    """Mount something over a path of a node."""
    on_node(lab, node, "mount", *options, str(path))
    try:
        yield
    finally:
        on_node(lab, node, "umount", "--lazy", str(path))


@contextmanager
def read_only(lab: Lab, node: str, path: Path) -> Iterator[None]:
    """Let a node read a directory only."""
    with mounted(lab, node, path, "--bind", str(path)):
        on_node(lab, node, "mount", "-o", "remount,bind,ro", str(path))
        yield


@contextmanager
def replaced(lab: Lab, node: str, path: Path | str, text: str, folder: Path) -> Iterator[None]:
    """Let a node see another text instead of a file."""
    replacement = folder / f"{node}-{Path(path).name}"
    replacement.write_text(text)
    replacement.chmod(0o755)
    with mounted(lab, node, path, "--bind", str(replacement)):
        yield


@contextmanager
def late(lab: Lab, node: str, path: Path, seconds: float) -> Iterator[None]:
    """Let a node see a directory late."""
    show_late(lab, node, path, seconds=seconds, run=run)
    try:
        yield
    finally:
        show_at_once(lab, node, path, run=run)


@contextmanager
def limited(lab: Lab, node: str, kind: str, most: int) -> Iterator[None]:
    """Let a node's jobs have less of something, as prlimit calls it."""
    fresh = load(lab.directory)
    assert fresh is not None
    process = fresh.daemons[node]
    assert process is not None
    words = ["prlimit", f"--pid={process.pid}"]
    usual = run([*words, f"--{kind}", "--output=SOFT", "--noheadings"]).stdout.strip()
    assert run([*words, f"--{kind}={most}:"]).ok
    try:
        yield
    finally:
        assert run([*words, f"--{kind}={usual}:"]).ok
