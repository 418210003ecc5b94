"""The command line: `enroot COMMAND [OPTION...] [ARGUMENT...]`."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from tests.containers.enroot_stand_in.settings import Settings

VERSION = "4.1.2"

# Options of each command: name -> short name; those that take a value are in _VALUED.
_OPTIONS = {
    "create": {"name": "n", "force": "f"},
    "digest": {"arch": "a"},
    "exec": {"env": "e"},
    "export": {"output": "o", "force": "f"},
    "import": {"arch": "a", "output": "o"},
    "list": {"fancy": "f"},
    "remove": {"force": "f"},
    "start": {"conf": "c", "env": "e", "mount": "m", "rc": "", "root": "r", "rw": "w"},
    "version": {},
}
_VALUED = {"name", "arch", "env", "output", "conf", "mount", "rc"}
_MANY = {"env", "mount"}
_FEWEST = {"create": 1, "digest": 1, "exec": 2, "export": 1, "import": 1, "remove": 1, "start": 1}

Options = dict[str, list[str]]


def main(argv: list[str]) -> NoReturn:
    # enroot makes its directories before it looks at what is asked for.
    settings = Settings()
    command, *words = argv or ["help"]
    if command not in _OPTIONS:
        _usage(command)
    options, arguments = _parse(command, words)
    if "force" in options:
        os.environ["ENROOT_FORCE_OVERRIDE"] = "y"
    _dispatch(settings, command, options, arguments)
    sys.exit(0)


def _dispatch(settings: Settings, command: str, options: Options, arguments: list[str]) -> None:
    # Each command pays for its own imports only: 32 ranks of a node start this at once.
    if command == "version":
        sys.stdout.write(f"{VERSION}\n")
    elif command in ("start", "exec"):
        from tests.containers.enroot_stand_in import running

        getattr(running, command)(settings, options, arguments)
    elif command in ("import", "digest"):
        from tests.containers.enroot_stand_in import registry

        verb = registry.fetch if command == "import" else registry.digest
        verb(settings, options, arguments[0])
    else:
        from tests.containers.enroot_stand_in import store

        getattr(store, f"{command}_")(settings, options, arguments)


def _parse(command: str, words: list[str]) -> tuple[Options, list[str]]:
    known = _OPTIONS[command]
    found: Options = {}
    while words and words[0].startswith("-") and len(words[0]) > 1:
        word = words.pop(0)
        if word == "--":
            break
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--"):
            name, equals = next((n for n, s in known.items() if s and f"-{s}" == word), ""), ""
        if name not in known or (equals and name not in _VALUED):
            _usage(command)
        if name in _VALUED and not equals:
            value = words.pop(0) if words else ""
        if name in _VALUED and not value:
            _usage(command)
        found[name] = [*found.get(name, []), value] if name in _MANY else [value]
    fewest = _FEWEST.get(command, 0)
    most = sys.maxsize if command in ("start", "exec", "remove") else fewest
    if not fewest <= len(words) <= most:
        _usage(command)
    return found, words


def _usage(command: str) -> NoReturn:
    name = command if command in _OPTIONS else "COMMAND"
    sys.stdout.write(f"Usage: enroot {name} [options] [ARG...]\n")
    sys.exit(1)
