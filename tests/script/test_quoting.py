from __future__ import annotations

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
def test_a_quoted_text_is_one_word_for_bash(text: str) -> None:
    assert read_shell_words(quote(text)) == [text]


@settings(max_examples=150, deadline=None)
@given(st.lists(TEXT, min_size=1, max_size=20))
@example(["\x01\x7f\r\t", "$'a'", "a\\nb"])
def test_whatever_is_typed_arrives_as_typed(texts: list[str]) -> None:
    assert read_shell_words(_word(tuple(texts))) == texts


@given(TEXT)
def test_quoted_text_never_spans_lines(text: str) -> None:
    assert "\n" not in quote(text)
    assert "\n" not in comment(text)


def read_directive(line: str) -> list[str]:
    """Split an #SBATCH line as sbatch 22.05 was seen to: tests/cluster asks the real one."""
    words: list[str] = []
    word, quote, index, inside = "", "", 0, False
    while index < len(line):
        char = line[index]
        if char.isspace() and not quote:
            words, word, inside = ([*words, word] if inside else words), "", False
        elif char == "\\" and index + 1 < len(line) and (quote or not line[index + 1].isspace()):
            index += 1
            word, inside = word + line[index], True
        elif quote and char == quote:
            quote = ""
        elif not quote and char in "'\"":
            quote, inside = char, True
        elif char == "#" and not quote:
            break
        else:
            word, inside = word + char, True
        index += 1
    return [*words, word] if inside else words


@given(TEXT.filter(lambda text: not any(ord(c) < 32 or ord(c) == 127 for c in text)))
def test_a_directive_is_read_back_as_typed(text: str) -> None:
    option = f"--comment={text}"
    assert read_directive(directive(option)) == [option]


@pytest.mark.parametrize("text", ["a\nb", "a\rb", "\x00", "a\x1b[31m"])
def test_a_directive_refuses_what_it_can_not_carry(text: str) -> None:
    with pytest.raises(UsageError):
        directive(text)


def test_what_no_word_can_be_is_refused() -> None:
    for text in ("a\0b", "\ud800"):
        with pytest.raises(UsageError):
            quote(text)
    for name in ("a b", "1a", "", "a=b", "$(id)"):
        with pytest.raises(UsageError):
            identifier(name)


def test_numbers_booleans_and_verbatim_text() -> None:
    assert _word(3) == "3"
    assert _word(1e-4) == "0.0001"
    assert _word(True) == "true"
    assert _word(Verbatim("$x")) == "$x"
    assert shlex.split(_word(["a b", 2])) == ["a b", "2"]
    with pytest.raises(TypeError):
        _word(None)
