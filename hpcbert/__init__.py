"""Hpcbert: BERT pre-training throughput on Slurm clusters.

In a notebook: `hpcbert.load("runs/…")`, see docs/how-to/notebook.md.
"""

from __future__ import annotations

# As in `typing`, which takes longer to import than everything that `--version` needs.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hpcbert.notebook import LoadedResult, load

__all__ = ["LoadedResult", "__version__", "load"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import the notebook interface on first use, because it imports pandas."""
    if name in ("LoadedResult", "load"):
        from hpcbert import notebook

        return getattr(notebook, name)
    raise AttributeError(f"module 'hpcbert' has no attribute {name!r}")
