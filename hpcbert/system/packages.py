"""Python packages that hpcbert does without, and how to install them on this machine.

The package need not come from an index, so that an extra's name would install nothing: commands
name what is in it.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

# As pyproject.toml has them; for newer Pythons it asks for newer ones, and pip finds none other.
EXTRAS = {
    "data": ("google-crc32c>=1.6", "h5py>=3.10", "tokenizers>=0.20"),
    "torch": ("torch>=2.4", "numpy>=1.26"),
}
# The index of PyTorch's builds (pytorch.org/get-started/locally): PyPI's is for NVIDIA's GPUs.
_BUILDS = "https://download.pytorch.org/whl"
_AMD = Path("/dev/kfd")


def install(extra: str, python: str = sys.executable) -> str:
    """Return the command that installs an extra of hpcbert."""
    return shlex.join([python, "-m", "pip", "install", *EXTRAS[extra]])


def install_torch(python: str = sys.executable) -> str:
    """Return how to install the build of PyTorch that suits this machine's devices, a sentence."""
    command = install("torch", python)
    if shutil.which("nvidia-smi"):
        return f"For NVIDIA GPUs: {command}"
    if _AMD.exists():
        return f"For AMD GPUs: {command} --index-url {_BUILDS}/ROCM, with the release of ROCm here."
    return f"This machine has no GPU: {command} --extra-index-url {_BUILDS}/cpu"
