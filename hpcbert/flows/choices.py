"""The values of a site as they are chosen: the alternatives, the choice, and its reason."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hpcbert.errors import UsageError
from hpcbert.system.decode import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True)
class SaidValues:
    """The choices on the command line; init makes the missing ones."""

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
    """A question for the user at a terminal.

    Attributes:
        name: What the question is about: `partition`.
        flag: The option that answers it.
        options: The possible answers, each with what is known about it.
        default: The answer if there is no terminal; empty: only the user can know.
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
        value: The chosen value; empty if the cluster decides.
        why: The reason, as the end of a sentence.
        others: The alternatives.
        flag: The option to choose otherwise.
    """

    key: str
    value: str
    why: str
    others: tuple[str, ...] = ()
    flag: str = ""


@dataclass
class Proposal:
    """A site in the making.

    Attributes:
        asked: What the command line says.
        pick: Answers a question with one of its options, or with nothing.
        choices: What was chosen.
        values: TOML values by dotted key; None to comment a key out.
        warnings: What the user must know before relying on the site.
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
        """Return the answer to a question: as given, or picked if there is more than one option.

        Raises:
            UsageError: The given answer is not among the options, or only the user can answer.
        """
        if given:
            if question.options and given not in question.options:
                hint = did_you_mean(given, question.options)
                raise UsageError(f"This cluster has no {question.name} {given!r}.", hint=hint)
            return given
        if len(question.options) == 1:
            return next(iter(question.options))
        answer = self.pick(question)
        if not answer:
            listed = "; ".join(question.options.values())
            hint = f"Give {question.flag}" + (f": {listed}." if listed else ".")
            raise UsageError(f"Only you can say which {question.name} to use.", hint=hint)
        return answer

    def said(self, key: str) -> str:
        """Return the value chosen for a key; empty if there is none."""
        return next((one.value for one in self.choices if one.key == key), "")
