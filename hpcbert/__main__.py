"""`python -m hpcbert`."""

from __future__ import annotations

from hpcbert.cli.main import main

if __name__ == "__main__":
    main()
