"""Time limits as sbatch(1) writes them: one grammar for options, TOML, scripts and squeue.

`M`, `M:S`, `H:M:S`, `D-H`, `D-H:M`, `D-H:M:S` in whole numbers of any size, and `UNLIMITED`, which
`INFINITE`, `-1` and a limit of zero mean too (SchedMD/slurm, src/common/parse_time.c,
time_str2secs).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import ClassVar

FORMS = "Write HH:MM:SS, D-HH:MM:SS, D-HH, MM:SS or minutes; UNLIMITED for none."
# Seconds: ten years. More is a slip of the finger, and no clock of Slurm's holds much more.
MOST = 10 * 365 * 86_400
_WORDS = {"UNLIMITED", "INFINITE", "-1"}
_LIMIT = re.compile(
    r"(?P<days>\d{1,9})-(?P<h>\d{1,9})(?::(?P<m>\d{1,9})(?::(?P<s>\d{1,9}))?)?"
    r"|(?P<hours>\d{1,9}):(?P<minutes>\d{1,9}):(?P<seconds>\d{1,9})"
    r"|(?P<alone>\d{1,9})(?::(?P<rest>\d{1,9}))?",
    re.ASCII,
)


def read(text: str) -> int | None:
    """Return a time limit in seconds, None for none.

    Raises:
        ValueError: It is no time limit, or one of more than ten years; a sentence says which.
    """
    if text.strip().upper() in _WORDS:
        return None
    match = _LIMIT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a time limit.")
    part = {name: int(value or 0) for name, value in match.groupdict().items()}
    hours = part["days"] * 24 + part["h"] + part["hours"]
    minutes = hours * 60 + part["m"] + part["minutes"] + part["alone"]
    seconds = minutes * 60 + part["s"] + part["seconds"] + part["rest"]
    if seconds > MOST:
        raise ValueError(f"{text!r} is more than ten years.")
    return seconds or None


def form(seconds: int) -> str:
    """Return a time limit in its full form, `HH:MM:SS` or `D-HH:MM:SS`."""
    days, rest = divmod(seconds, 86_400)
    clock = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock


def longer(one: int | None, other: int | None) -> bool:
    """Say whether a limit is longer than another."""
    return other is not None and (one is None or one > other)


@dataclass(frozen=True)
class TimeLimit:
    """How long one repeat may take.

    Attributes:
        seconds: None for no limit.
        text: As it was written.
    """

    FORM: ClassVar[str] = "must look like HH:MM:SS: "
    FORMS: ClassVar[str] = FORMS

    seconds: int | None
    text: str = field(compare=False)

    @classmethod
    def parse(cls, text: str) -> TimeLimit:
        """Read what sbatch takes.

        Raises:
            ValueError: It is no time limit, or one of more than ten years; a sentence says which.
        """
        return cls(read(text), text)
