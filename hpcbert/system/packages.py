"""Optional Python packages, and how to install them on this machine.

hpcbert may not come from an index, and then the name of an extra would install nothing: the
commands name its packages.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

# As in pyproject.toml; newer Pythons need newer versions, and pip finds only those.
EXTRAS = {
    "data": ("google-crc32c>=1.6", "h5py>=3.10", "tokenizers>=0.20"),
    "torch": ("torch>=2.4", "numpy>=1.26"),
}
# The index of PyTorch's builds (pytorch.org/get-started/locally): the build on PyPI is for NVIDIA's
# GPUs.
_TORCH_INDEX = "https://download.pytorch.org/whl"
_AMD_DEVICE = Path("/dev/kfd")


def install_command(extra: str, python: str = sys.executable) -> str:
    """Return the command that installs an extra of hpcbert."""
    return shlex.join([python, "-m", "pip", "install", *EXTRAS[extra]])


def describe_torch_install(python: str = sys.executable) -> str:
    """Return a sentence on how to install the build of PyTorch for this machine's devices."""
    command = install_command("torch", python)
    if shutil.which("nvidia-smi"):
        return f"For NVIDIA GPUs: {command}"
    if _AMD_DEVICE.exists():
        return f"For AMD GPUs: {command} --index-url {_TORCH_INDEX}/ROCM, with the release of ROCm here."
    return f"This machine has no GPU: {command} --extra-index-url {_TORCH_INDEX}/cpu"
