"""Processes below this one, where nothing else runs."""

from __future__ import annotations

import subprocess
import sys

_QUESTIONS = """
import subprocess, sys
from hpcbert.system import processes

asked = []
processes.descendants = lambda pid: asked.append(pid) or ()
assert processes.has_no_children() and processes.kill_descendants() == () and not asked
with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE):
    assert not processes.has_no_children()
    processes.kill_descendants()
    assert asked
"""


def test_a_process_without_children_reads_about_no_other() -> None:
    subprocess.run([sys.executable, "-c", _QUESTIONS], check=True)
