"""When Slurm mails about a job, and to whom: sbatch(1), --mail-type and --mail-user. Pure."""

from __future__ import annotations

from typing import NamedTuple

from hpcbert.errors import UsageError

# In 22.05 to 26.05.
TYPES = (
    *("NONE", "BEGIN", "END", "FAIL", "REQUEUE", "ALL", "INVALID_DEPEND", "STAGE_OUT"),
    *("TIME_LIMIT", "TIME_LIMIT_90", "TIME_LIMIT_80", "TIME_LIMIT_50", "ARRAY_TASKS"),
)
_USUAL = ("END", "FAIL")


class Mail(NamedTuple):
    """The requested mail.

    Attributes:
        types: Some of `TYPES`; empty: no mail is requested.
        user: An address; empty: Slurm writes to the submitter.
    """

    types: tuple[str, ...] = ()
    user: str = ""

    @property
    def words(self) -> tuple[str, ...]:
        """The options of sbatch."""
        words = [f"--mail-type={','.join(self.types)}"] if self.types else []
        return (*words, f"--mail-user={self.user}") if self.user else tuple(words)

    def __str__(self) -> str:
        scope = "of each repeat" if "ARRAY_TASKS" in self.types else "of each array"
        types = ", ".join(mail_type for mail_type in self.types if mail_type != "ARRAY_TASKS")
        recipient = self.user or "you, at the address that it has for you"
        return f"Slurm mails {types} {scope} to {recipient}, if this cluster sends mail."


def parse(text: str) -> Mail:
    """Read the value of `--notify`: mail types and an address, by commas; without types END, FAIL.

    Raises:
        UsageError: A word is neither.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    users = [word for word in words if "@" in word]
    types = [word.upper().replace("-", "_") for word in words if word not in users]
    for mail_type in types:
        if mail_type not in TYPES:
            raise UsageError(
                f"--notify needs Slurm's mail types and an address, not {mail_type!r}.",
                hint=f"{', '.join(TYPES)}; or name@example.org.",
            )
    if len(users) > 1 or any(not user.isprintable() or " " in user for user in users):
        raise UsageError(
            "--notify takes only one address.", hint="Use a mailing list for several people."
        )
    if not words:
        return Mail()
    if set(types) <= {"ARRAY_TASKS"}:
        types = [*_USUAL, *types]
    return Mail(tuple(dict.fromkeys(types)), users[0] if users else "")
