"""`hpcbert`, `python -m hpcbert`: the command line, and what Ctrl-C does while it loads."""

from __future__ import annotations

import gc
import os
import sys

# New objects between two searches for garbage, usually 700: those for modules and tables stay.
_NEW_OBJECTS = 100_000


def main() -> None:
    """Run the command line; an interrupt at any moment gives a sentence and exit code 130."""
    gc.set_threshold(_NEW_OBJECTS)
    try:
        try:
            from hpcbert.cli.main import main as run

            run()
        except KeyboardInterrupt as error:
            # A second one has nothing left to interrupt.
            _ignore_interrupts()
            from hpcbert.cli.main import exit_on_error

            exit_on_error(error)
    finally:
        _ignore_interrupts()
        gc.freeze()  # a process that ends need not search for garbage once more


def _ignore_interrupts() -> None:
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _drop_working_directory() -> None:
    """Import nothing from the working directory: somebody else's may have a `click.py`.

    `python -m` puts it first in the search path; an empty part of PYTHONPATH means the same.
    """
    try:
        working_directory = os.path.realpath(".")
    except FileNotFoundError:  # It was removed.
        working_directory = ""
    excluded = {"", ".", working_directory}
    sys.path = [folder for folder in sys.path if folder not in excluded]


if __name__ == "__main__":
    _drop_working_directory()
    main()
