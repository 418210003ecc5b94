"""`hpcbert`, `python -m hpcbert`: the command line, and what Ctrl-C does while it loads."""

from __future__ import annotations

# So many new objects are searched for garbage; Python's own number is 700 to 2,000.
_OBJECTS = 50_000
# The width in columns up to which click fits its help to the terminal.
_WIDTH = 80


def main() -> None:
    """Run the command line; an interrupt at any moment gives a sentence and exit code 130."""
    try:
        try:
            _search_memory_less()
            if _answered():
                raise SystemExit(0)
            from hpcbert.cli.main import main as run

            run()
        except KeyboardInterrupt as error:
            # A second one has nothing left to interrupt.
            _ignore_interrupts()
            from hpcbert.cli.main import end

            end(error)
    finally:
        _ignore_interrupts()
        _search_memory_no_more()


def _answered() -> bool:
    """Print what needs no command line: importing click takes three times as long as all the rest.

    Output errors, and help for a narrow terminal, are left to the command line.
    """
    import os
    import sys

    asked = sys.argv[1:]
    if asked not in (["--version"], ["--help"], ["-h"]) or "_HPCBERT_COMPLETE" in os.environ:
        return False
    if asked == ["--version"]:
        from hpcbert import __version__

        text = f"hpcbert {__version__}\n".encode()
    elif _is_wide():
        with open(os.path.join(os.path.dirname(__file__), "cli", "help.txt"), "rb") as file:  # noqa: PTH118, PTH120, PTH123 - pathlib costs as much
            text = file.read()
    else:
        return False
    try:
        return os.write(1, text) == len(text)
    except OSError:
        return False


def _is_wide() -> bool:
    """Return whether help has its full width, which click uses for 80 columns and more."""
    import os

    try:
        columns = int(os.environ.get("COLUMNS", "0")) or os.get_terminal_size(1).columns
    except ValueError:
        return False
    except OSError:  # No terminal.
        return True
    return columns >= _WIDTH or columns == 0


def _search_memory_less() -> None:
    """Let more objects be made before Python looks for garbage: imports make many, and none."""
    import gc

    gc.set_threshold(_OBJECTS, *gc.get_threshold()[1:])


def _search_memory_no_more() -> None:
    """Exempt all objects from the searches with which Python ends: the system frees memory too."""
    import gc

    gc.freeze()


def _ignore_interrupts() -> None:
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _leave_here_out() -> None:
    """Import nothing from the working directory: somebody else's may have a `click.py`.

    `python -m` puts it first in the search path; an empty part of PYTHONPATH means the same.
    """
    import os
    import sys
    from contextlib import suppress

    here = {"", "."}
    with suppress(FileNotFoundError):  # The working directory was removed.
        here.add(os.path.realpath("."))
    sys.path = [one for one in sys.path if one not in here]


if __name__ == "__main__":
    _leave_here_out()
    main()
