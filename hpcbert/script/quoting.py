"""Text in a bash script: as a shell word, in a `#SBATCH` line, in a comment."""

from __future__ import annotations

import re
import shlex

from hpcbert.errors import UsageError
from hpcbert.system.decode import has_surrogate

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_UNSAFE_IN_DIRECTIVE = re.compile(r"[^\w@%+=:,./\[\]-]", re.ASCII)
_ESCAPED_IN_QUOTES = re.compile(r'(["\\])')
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ESCAPES = {"\n": r"\n", "\t": r"\t", "\r": r"\r", "\\": r"\\", "'": r"\'"}


class Verbatim(str):
    """Text that is shell already."""

    __slots__ = ()


def quote(text: str) -> str:
    r"""Return text as one shell word that is exactly that text; control characters as `$'\n'`.

    Raises:
        UsageError: The text has a NUL or is not valid Unicode: a shell word cannot have either.
    """
    _refuse_unwritable(text)
    if not _CONTROL.search(text):
        return shlex.quote(text)
    escaped = "".join(
        _ESCAPES.get(char) or (f"\\x{ord(char):02x}" if _CONTROL.match(char) else char)
        for char in text
    )
    return f"$'{escaped}'"


def directive(text: str) -> Verbatim:
    r"""Return text in the form after `#SBATCH` from which sbatch reads exactly that word.

    Within double quotes a backslash takes the next character as it is, `#` begins no comment and
    blanks do not end the word; outside of them a blank can't be escaped (seen with sbatch 22.05.8;
    SchedMD/slurm, src/sbatch/opt.c, _get_argument).

    Raises:
        UsageError: The text has a control character, which no directive can contain.
    """
    _refuse_unwritable(text)
    if _CONTROL.search(text):
        raise UsageError(
            f"{text!r} contains a line break or another control character.",
            hint="An #SBATCH line can't contain it: remove it.",
        )
    if not _UNSAFE_IN_DIRECTIVE.search(text):
        return Verbatim(text)
    name, equals, value = text.partition("=")
    if _UNSAFE_IN_DIRECTIVE.search(name):
        name, equals, value = "", "", text
    escaped = _ESCAPED_IN_QUOTES.sub(r"\\\1", value)
    return Verbatim(f'{name}{equals}"{escaped}"')


def comment(text: str) -> Verbatim:
    """Return text fit for the rest of a comment line."""
    return Verbatim(_CONTROL.sub(" ", text))


def identifier(text: str) -> Verbatim:
    """Return a variable's name, or refuse an invalid one.

    Raises:
        UsageError: The text is not a shell identifier.
    """
    if not _IDENTIFIER.fullmatch(text):
        raise UsageError(f"{text!r} is not a valid name for an environment variable.")
    return Verbatim(text)


def _refuse_unwritable(text: str) -> None:
    if "\0" in text or has_surrogate(text):
        raise UsageError(f"{text!r} contains a NUL character or half of a character.")
