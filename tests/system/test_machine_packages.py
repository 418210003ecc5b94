"""What is installed beside hpcbert, and how."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import tomli

from hpcbert.system import machine
from tests.kit.paths import REPOSITORY


def test_what_extras_name_is_what_the_project_says() -> None:
    project = tomli.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    # What newer Pythons need beyond that, pip finds.
    requirements = {
        name: tuple(word for word in words if ";" not in word) for name, words in extras.items()
    }
    assert requirements == machine.EXTRAS


@pytest.mark.parametrize(
    ("program", "device", "expected"),
    [("nvidia-smi", "", "NVIDIA"), ("", "/dev/null", "ROCm"), ("", "", "/cpu")],
)
def test_torch_is_installed_for_the_devices_that_there_are(
    monkeypatch: pytest.MonkeyPatch, program: str, device: str, expected: str
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: name if name == program else None)
    monkeypatch.setattr(machine, "_AMD_DEVICE", Path(device or "/nothing"))
    message = machine.describe_torch_install("/my python")
    assert expected in message
    assert "'/my python' -m pip install 'torch>=2.4'" in message
