"""What enroot and pyxis print when something is wrong, its meaning, and what to do; pure.

symptoms.toml has the rows, the words of the programs and their sources.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import tomli


@dataclass(frozen=True)
class Symptom:
    """One kind of problem.

    Attributes:
        name: Short name, for checks and tests.
        shows: Regular expression to find in the output.
        problem: One sentence.
        hint: What to change, and where.
    """

    name: str
    shows: str
    problem: str
    hint: str


SYMPTOMS = tuple(
    Symptom(**row)
    for row in tomli.loads(Path(__file__).with_name("symptoms.toml").read_text(encoding="utf-8"))[
        "symptoms"
    ]
)


def find_symptom(output: str) -> Symptom | None:
    """Return the first row that matches the output of a failed program; None if none does."""
    for symptom in SYMPTOMS:
        if re.search(symptom.shows, output, re.IGNORECASE | re.DOTALL):
            return symptom
    return None
