"""Processes below this one, where nothing else runs."""

import subprocess
import sys

from tests.kit.cases import read_constant


def test_a_process_without_children_reads_about_no_other():
    subprocess.run([sys.executable, "-c", read_constant(__file__, "QUESTIONS")], check=True)
