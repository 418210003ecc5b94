"""The values of a site as they are chosen: what there is, what was taken, and why."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hpcbert.config.decode import did_you_mean
from hpcbert.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True)
class SaidValues:
    """What the command line says; what is empty is chosen."""

    partition: str = ""
    account: str = ""
    qos: str = ""
    gpu_type: str = ""
    gpus_per_node: int = 0
    time_limit: str = ""
    mpi: str = ""
    interface: str = ""
    runtime: str = ""
    runs: str = ""


@dataclass(frozen=True)
class Question:
    """What a person on a terminal is asked.

    Attributes:
        name: What it is about: `partition`.
        flag: The option that answers it.
        options: What can be chosen, each with what is known of it.
        default: What is taken where nobody can be asked; empty: somebody has to say.
    """

    name: str
    flag: str
    options: Mapping[str, str]
    default: str = ""


@dataclass(frozen=True)
class Choice:
    """One value of the site.

    Attributes:
        key: Its key in the site.toml.
        value: What was chosen; empty where it is left to the cluster.
        why: Why, the end of a sentence.
        others: What else there is.
        flag: The option that chooses otherwise.
    """

    key: str
    value: str
    why: str
    others: tuple[str, ...] = ()
    flag: str = ""


@dataclass
class Proposal:
    """A site to be.

    Attributes:
        asked: What is said already.
        pick: Answers a question with one of its options, or with nothing.
        choices: What was chosen.
        values: TOML values by dotted key; None to comment a key out.
        warnings: What the user has to know before trusting it.
    """

    asked: SaidValues
    pick: Callable[[Question], str]
    choices: list[Choice] = field(default_factory=list)
    values: dict[str, str | None] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The cluster's name."""
        return str(json.loads(self.values.get("name") or '""'))

    def take(self, choice: Choice) -> None:
        """Note a choice, as the value of its key."""
        self.choices.append(choice)
        number = choice.value.isdigit() and choice.key.endswith("_node")
        self.values[choice.key] = choice.value if number else json.dumps(choice.value)

    def choose(self, question: Question, given: str) -> str:
        """Return the answer to a question: given, or picked where there is more than one.

        Raises:
            UsageError: What was given is not there, or nobody says what nobody can know.
        """
        if given:
            if question.options and given not in question.options:
                hint = did_you_mean(given, question.options)
                raise UsageError(f"There is no {question.name} {given!r} here.", hint=hint)
            return given
        if len(question.options) == 1:
            return next(iter(question.options))
        answer = self.pick(question)
        if not answer:
            listed = "; ".join(question.options.values())
            hint = f"Give {question.flag}" + (f": {listed}." if listed else ".")
            raise UsageError(f"Which {question.name} to use, only you can say.", hint=hint)
        return answer

    def said(self, key: str) -> str:
        """Return the value that was chosen for a key; empty if none was."""
        return next((one.value for one in self.choices if one.key == key), "")
