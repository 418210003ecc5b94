"""The command line: `enroot COMMAND [OPTION...] [ARGUMENT...]`."""

from __future__ import annotations

import getopt
import sys
from importlib import import_module
from typing import NoReturn

from tests.containers.enroot_stand_in.settings import Options, Settings

VERSION = "4.1.2"
# Each command's module, function and options.
_COMMANDS = {
    "create": ("store", "create", "n:", ["name="]),
    "exec": ("running", "join", "", []),
    "export": ("store", "export", "o:", ["output="]),
    "import": ("registry", "fetch", "o:", ["output="]),
    "list": ("store", "show", "f", ["fancy"]),
    "remove": ("store", "remove", "f", ["force"]),
    "start": ("running", "start", "c:m:rw", ["conf=", "mount=", "rc=", "root", "rw"]),
}
_LONG = {"n": "name", "o": "output", "c": "conf", "m": "mount", "r": "root", "w": "rw"}


def main(argv: list[str]) -> NoReturn:
    # enroot makes its directories before it looks at what is asked for.
    settings = Settings()
    command, *words = argv or ["help"]
    if command == "version":
        sys.stdout.write(f"{VERSION}\n")
        sys.exit(0)
    if command not in _COMMANDS:
        _usage("COMMAND")
    module, verb, short, long = _COMMANDS[command]
    try:
        pairs, arguments = getopt.getopt(words, short, long)
    except getopt.GetoptError:
        _usage(command)
    options: Options = {}
    for word, value in pairs:
        name = word.lstrip("-")
        options.setdefault(_LONG.get(name, name), []).append(value)
    # Each command pays for its own imports only: 32 ranks of a node start this at once.
    run = getattr(import_module(f"tests.containers.enroot_stand_in.{module}"), verb)
    sys.exit(run(settings, options, arguments))


def _usage(command: str) -> NoReturn:
    sys.stdout.write(f"Usage: enroot {command} [options] [ARG...]\n")
    sys.exit(1)
