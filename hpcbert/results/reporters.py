"""The formats of tables: a new one is a `Reporter` and a line in `FORMS`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from hpcbert.results import delimited, dlperf, document, markdown, text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hpcbert.model import Provenance, SpeedupTable


class Reporter(Protocol):
    """Writes tables in one form."""

    def __call__(self, tables: Sequence[SpeedupTable], made: Provenance, width: int, /) -> str:
        """Return the text without its last newline.

        Args:
            tables: What to write.
            made: By what, when and by which command.
            width: The maximum length of a line, in forms that fold lines. 0: no maximum.

        Raises:
            UsageError: The form can't represent these tables.
        """
        ...


@dataclass(frozen=True)
class Form:
    """One form.

    Attributes:
        write: Writes it.
        endings: Endings of file names that select this form.
        exact: Whether programs read it: then it is printed byte for byte.
        unsaid: Returns the content that it can't hold, one sentence per table.
        pack: Makes the file of a binary format; then `write` is not used.
    """

    write: Reporter
    endings: tuple[str, ...] = ()
    exact: bool = False
    unsaid: Callable[[Sequence[SpeedupTable], Provenance], tuple[str, ...]] = lambda *_: ()
    pack: Callable[[Sequence[SpeedupTable], Provenance], bytes] | None = None


def _parquet(tables: Sequence[SpeedupTable], made: Provenance) -> bytes:
    from hpcbert import frame  # pandas

    return frame.parquet(tables, made)


# By name, for `collect --format`.
FORMS = {
    "text": Form(text.render, (".txt",)),
    "wide": Form(text.render_wide),
    "markdown": Form(markdown.render, (".md", ".markdown")),
    "csv": Form(delimited.render, (".csv",)),
    "csv-runs": Form(delimited.render_runs),
    "json": Form(document.render, (".json",), exact=True),
    "parquet": Form(text.render, (".parquet",), pack=_parquet),
    "dlperf-json": Form(dlperf.render, exact=True, unsaid=dlperf.unsaid),
}


def meant_by(ending: str) -> str:
    """Return the name of the form that a file name's ending selects; empty if none."""
    return next((name for name, form in FORMS.items() if ending.lower() in form.endings), "")
