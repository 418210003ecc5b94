from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

PLUGIN = Path(__file__).resolve().with_name("lab_plugin.py")
NAME = "hpcbert_lab_plugin"


def pytest_configure(config: pytest.Config) -> None:
    if config.pluginmanager.has_plugin(NAME):
        return
    spec = importlib.util.spec_from_file_location(NAME, PLUGIN)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)
    config.pluginmanager.register(module, NAME)
