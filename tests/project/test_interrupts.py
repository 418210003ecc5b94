"""Tests that interrupt a program, where a shell started the suite in its background."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcbert.system.runner import run
from tests.kit.paths import REPOSITORY

ASK = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"


def test_programs_notice_an_interrupt_although_the_shell_has_it_ignored(
    pytestconfig: pytest.Config,
) -> None:
    """`nohup make test &`: what is ignored stays ignored in all that a process starts."""
    conftest: Any = next(
        plugin
        for plugin in pytestconfig.pluginmanager.get_plugins()
        if getattr(plugin, "__file__", None) == str(Path(REPOSITORY, "tests", "conftest.py"))
    )
    config = SimpleNamespace(pluginmanager=SimpleNamespace(import_plugin=lambda name: None))
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert run([sys.executable, "-ISc", ASK]).stdout.strip() == "False"
        conftest.pytest_configure(config)
        assert run([sys.executable, "-ISc", ASK]).stdout.strip() == "True"
    finally:
        signal.signal(signal.SIGINT, before)
