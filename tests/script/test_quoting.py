"""Whatever a person types reaches bash and sbatch as it was typed, or is refused."""

import shlex
import subprocess

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hpcbert.errors import UsageError
from hpcbert.script.quoting import Verbatim, comment, directive, identifier, quote
from hpcbert.script.render import _word
from tests.kit.cases import cases

TEXT = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=40)


def read_shell_words(script: str) -> list[str]:
    """Return what bash makes of words, split by NULs."""
    command = ["bash", "-c", f"printf '%s\\0' {script}"]
    raw = subprocess.run(command, capture_output=True, check=True).stdout
    return [word.decode() for word in raw.split(b"\0")[:-1]]


@cases
def test_a_quoted_text_is_one_word_for_bash(text):
    assert read_shell_words(quote(text)) == [text]


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.lists(TEXT, min_size=1, max_size=20))
@example(["\x01\x7f\r\t", "$'a'", "a\\nb"])
def test_whatever_is_typed_arrives_as_typed_on_one_line(texts):
    assert read_shell_words(_word(tuple(texts))) == texts
    assert "\n" not in "".join(f"{quote(text)}{comment(text)}" for text in texts)


@given(TEXT.filter(lambda text: not any(ord(c) < 32 or ord(c) == 127 for c in text)))
def test_a_directive_is_read_back_as_typed(text):
    """As shlex does: tests/cluster asks sbatch itself."""
    assert shlex.split(directive(f"--comment={text}"), comments=True) == [f"--comment={text}"]


@pytest.mark.parametrize(
    ("write", "texts"),
    [
        (directive, ("a\nb", "a\rb", "\x00", "a\x1b[31m")),
        (quote, ("a\0b", "\ud800")),
        (identifier, ("a b", "1a", "", "a=b", "$(id)")),
    ],
    ids=["directive", "word", "name"],
)
def test_what_it_can_not_carry_is_refused(write, texts):
    for text in texts:
        with pytest.raises(UsageError):
            write(text)


def test_numbers_booleans_and_verbatim_text():
    words = {3: "3", 1e-4: "0.0001", Verbatim("$x"): "$x"}
    assert {value: _word(value) for value in words} == words
    assert _word(True) == "true"
    assert shlex.split(_word(["a b", 2])) == ["a b", "2"]
    with pytest.raises(TypeError):
        _word(None)
