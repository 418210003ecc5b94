"""Whatever a person types reaches bash and sbatch as it was typed, or is refused."""

import shlex

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hpcbert.errors import UsageError
from hpcbert.script.quoting import Verbatim, comment, directive, identifier, quote
from hpcbert.script.render import _word
from tests.kit.scripts import bash

TEXT = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=40)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.lists(TEXT, min_size=1, max_size=20))
@example(["\x01\x7f\r\t", "$'a'", "a\\nb", "", " ", "-x", "a b", "'", '"', "\\", "#", "é"])
@example(["$(touch x)", "`id`", "a\nb", "!", "~", "*"])
def test_whatever_is_typed_arrives_as_typed_on_one_line(texts):
    printed = bash("-c", f"printf '%s\\0' {_word(tuple(texts))}").stdout
    assert printed.split("\0")[:-1] == texts
    assert "\n" not in "".join(f"{quote(text)}{comment(text)}" for text in texts)


@given(TEXT.filter(lambda text: not any(ord(c) < 32 or ord(c) == 127 for c in text)))
def test_a_directive_is_read_back_as_typed(text):
    """As shlex does: tests/cluster asks sbatch itself."""
    assert shlex.split(directive(f"--comment={text}"), comments=True) == [f"--comment={text}"]


def test_what_it_can_not_carry_is_refused_and_numbers_are_words():
    for write, texts in (
        (directive, ("a\nb", "a\rb", "\x00", "a\x1b[31m")),
        (quote, ("a\0b", "\ud800")),
        (identifier, ("a b", "1a", "", "a=b", "$(id)")),
    ):
        for text in texts:
            with pytest.raises(UsageError):
                write(text)
    words = {3: "3", 1e-4: "0.0001", Verbatim("$x"): "$x"}
    assert {value: _word(value) for value in words} == words
    assert shlex.split(_word(["a b", 2])) == ["a b", "2"]
