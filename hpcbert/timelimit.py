"""Time limits as sbatch(1) writes them: one type for options, TOML, scripts, squeue and sinfo.

`M`, `M:S`, `H:M:S`, `D-H`, `D-H:M`, `D-H:M:S` in whole numbers of any size, and `UNLIMITED`, which
`INFINITE`, `-1` and a limit of zero mean too (SchedMD/slurm, src/common/parse_time.c,
time_str2secs).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import ClassVar

_UNLIMITED_WORDS = {"UNLIMITED", "INFINITE", "-1"}
_LIMIT = re.compile(
    r"(?P<days>\d{1,9})-(?P<h>\d{1,9})(?::(?P<m>\d{1,9})(?::(?P<s>\d{1,9}))?)?"
    r"|(?P<hours>\d{1,9}):(?P<minutes>\d{1,9}):(?P<seconds>\d{1,9})"
    r"|(?P<alone>\d{1,9})(?::(?P<rest>\d{1,9}))?",
    re.ASCII,
)


@dataclass(frozen=True)
class TimeLimit:
    """The time limit of a job.

    Attributes:
        seconds: None for no limit.
    """

    FORM: ClassVar[str] = "must look like HH:MM:SS: "
    FORMS: ClassVar[str] = "Write HH:MM:SS, D-HH:MM:SS, D-HH, MM:SS or minutes; UNLIMITED for none."
    # Seconds: ten years. More is a typing error, and no clock of Slurm's holds much more.
    MOST: ClassVar[int] = 10 * 365 * 86_400

    seconds: int | None
    text: str = field(default="", compare=False)

    @classmethod
    def parse(cls, text: str) -> TimeLimit:
        """Read a time limit as sbatch does.

        Raises:
            ValueError: It is not a time limit, or more than ten years; a sentence says which.
        """
        if text.strip().upper() in _UNLIMITED_WORDS:
            return cls(None, text)
        match = _LIMIT.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"{text!r} is not a time limit.")
        parts = {name: int(value or 0) for name, value in match.groupdict().items()}
        hours = parts["days"] * 24 + parts["h"] + parts["hours"]
        minutes = hours * 60 + parts["m"] + parts["minutes"] + parts["alone"]
        seconds = minutes * 60 + parts["s"] + parts["seconds"] + parts["rest"]
        if seconds > cls.MOST:
            raise ValueError(f"{text!r} is more than ten years.")
        return cls(seconds or None, text)

    @classmethod
    def parse_reported(cls, text: str) -> TimeLimit:
        """Read a limit of squeue or sinfo; `NOT_SET`, `INVALID` and similar words mean none."""
        try:
            return cls.parse(text)
        except ValueError:
            return cls(None, text)

    def __str__(self) -> str:
        """Return it in its full form, `HH:MM:SS` or `D-HH:MM:SS`."""
        if self.seconds is None:
            return "UNLIMITED"
        days, remainder = divmod(self.seconds, 86_400)
        clock = f"{remainder // 3600:02}:{remainder // 60 % 60:02}:{remainder % 60:02}"
        return f"{days}-{clock}" if days else clock

    @property
    def bound(self) -> int:
        """Seconds, for callers that need a limit: ten years for none."""
        return self.seconds or self.MOST

    def exceeds(self, other: TimeLimit) -> bool:
        """Compare two limits; none is the longest."""
        return other.seconds is not None and (self.seconds is None or self.seconds > other.seconds)
