"""Arguments of the user's own for sbatch and srun: which are hpcbert's to set, and their values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import tomli

# A name, and what follows `=` or a blank: a word with a blank in it was meant to be two.
_LONG = re.compile(r"--([^=\s]+)(?:[=\s](.*))?", re.DOTALL)
_TABLES = tomli.loads(Path(__file__).with_name("slurm_arguments.toml").read_text(encoding="utf-8"))
_FLAGS = frozenset(_TABLES["flags"].split())
_READ_NAMES = frozenset(_TABLES["read"].split())
_ENVIRONMENT_OPTIONS = ("environment", "uenv", "view")
# Some centres require this of all jobs: a script then passes its own environment on to its steps.
_EXPORTS = frozenset({"none", "nil", "all"})


class _Program(NamedTuple):
    """What hpcbert knows of the arguments of sbatch or srun."""

    letters: dict[str, str]
    reserved: dict[str, str]

    def expand_name(self, name: str) -> str:
        """Return the long name of an abbreviation, as getopt does; a reserved one if in doubt."""
        names = _FLAGS | _READ_NAMES | set(self.letters.values()) | set(self.reserved)
        if name in names or name == "container":  # Slurm's own, for OCI bundles
            return name
        matches = sorted(candidate for candidate in names if candidate.startswith(name))
        return next((match for match in matches if match in self.reserved), [*matches, name][0])


def _make_program(name: str) -> _Program:
    letters, reserved = _TABLES["letters"], _TABLES["reserved"]
    pairs = f"{letters['both']} {letters[name]}".split()
    reasons = {
        option: reason
        for table in (reserved["both"], reserved[name])
        for reason, options in table.items()
        for option in options.split()
    }
    return _Program(dict(pair.split("=") for pair in pairs), reasons)


_PROGRAMS = {name: _make_program(name) for name in ("sbatch", "srun")}


class _Option(NamedTuple):
    """One option among arguments; without a name if the word is not an option."""

    word: str
    name: str = ""
    value: str = ""


def explain_refusal(program: str, words: Sequence[str]) -> str:
    """Return which arguments for sbatch or srun can't be passed on, and why; empty if all can.

    Args:
        words: As the user gives them: `--mem=0`, `-J name`, or `-J` and `name`.
    """
    for word, name, value in _parse_words(_PROGRAMS[program], words):
        if not name:
            return f"{word!r} is not an option of {program}."
        if name == "export" and program == "sbatch" and value.lower() in _EXPORTS:
            continue
        if reason := _PROGRAMS[program].reserved.get(name):
            return f"{word!r} ({program}'s --{name}) is hpcbert's own: {reason}."
    return ""


def argument_value(words: Sequence[str], name: str, program: str = "sbatch") -> str:
    """Return the value that arguments give to an option, the last of several; else empty."""
    return argument_values(words, program).get(name, "")


def argument_values(words: Sequence[str], program: str = "sbatch") -> dict[str, str]:
    """Return the value of each option in the arguments, the last of several, by its long name."""
    return {option.name: option.value for option in _parse_words(_PROGRAMS[program], words)}


def environment_arguments(words: Sequence[str]) -> tuple[str, ...]:
    """Return arguments for srun with which a site's plugin changes the programs' environment.

    They are options of plugins: `--environment` of CSCS' container engine takes an EDF file
    (docs.cscs.ch, Container Engine), `--uenv` and `--view` a mounted software stack
    (eth-cscs/slurm-uenv-mount).
    """
    arguments: list[str] = []
    for word, name, value in _parse_words(_PROGRAMS["srun"], words):
        if name in _ENVIRONMENT_OPTIONS:
            has_value = "=" in word or " " in word
            arguments += [word] if has_value or not value else [word, value]
    return tuple(arguments)


def _parse_words(program: _Program, words: Sequence[str]) -> list[_Option]:
    """Read arguments as getopt_long does, except that a value apart must not begin with a dash."""
    options: list[_Option] = []
    lacks_value = False
    for word in words:
        if word.startswith("-") and word.strip("-"):
            options += _parse_option(program, word)
            _, name, value = options[-1]
            has_value = bool(value) or "=" in word
            lacks_value = len(name) > 1 and name not in _FLAGS and not has_value
        elif lacks_value:
            options[-1] = options[-1]._replace(value=word)
            lacks_value = False
        else:
            options.append(_Option(word))
    return options


def _parse_option(program: _Program, word: str) -> list[_Option]:
    """Read a long option, or short ones of which the first with a value takes the rest."""
    if long := _LONG.fullmatch(word):
        return [_Option(word, program.expand_name(long[1]), long[2] or "")]
    options: list[_Option] = []
    for position, letter in enumerate(word[1:], start=2):
        name = program.letters.get(letter, letter)
        if letter in program.letters and name not in _FLAGS:
            return [*options, _Option(word, name, word[position:].strip())]
        options.append(_Option(word, name))
    return options
