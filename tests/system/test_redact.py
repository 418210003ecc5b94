"""Secrets are recognised by name and by form, and nothing else is touched."""

from __future__ import annotations

import shutil
import string
import subprocess
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbert.system import redact
from hpcbert.system.redact import MASK, is_secret_name, mask_command, mask_environment, mask_text
from tests.kit.cases import cases, read_constant

pytestmark = pytest.mark.slow

SECRET_NAMES = read_constant(__file__, "SECRET_NAMES")
PLAIN_NAMES = read_constant(__file__, "PLAIN_NAMES")
EXAMPLES = read_constant(__file__, "EXAMPLES")


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_names_that_give_a_secret_away(name: str) -> None:
    assert is_secret_name(name)
    assert mask_environment({name: "x"}) == {name: MASK}
    assert mask_text(f"run --export={name}=abc,FOO=1") == f"run --export={name}={MASK},FOO=1"
    assert mask_command(["curl", f"--{name}", "abc", f"--{name}=abc", "-v"]) == (
        *("curl", f"--{name}", MASK, f"--{name}={MASK}", "-v"),
    )


@pytest.mark.parametrize("name", PLAIN_NAMES)
def test_names_that_do_not(name: str) -> None:
    assert not is_secret_name(name)
    assert mask_environment({name: "a b:/c"}) == {name: "a b:/c"}


@cases
def test_forms_that_are_secrets_wherever_they_stand(form: str) -> None:
    for around in ("{}", "see {} there", "[{}]", "a={}", "https://host/x?q={}", '{{"v": "{}"}}'):
        assert form not in mask_text(around.format(form))


@cases
def test_what_is_around_a_secret_stays(before: str, after: str) -> None:
    assert mask_text(before) == after


@cases
def test_what_is_no_secret_stays(plain: str) -> None:
    assert mask_text(plain) == plain
    assert mask_command(plain.split()) == tuple(plain.split())


def test_a_word_after_its_option_is_masked_in_a_command() -> None:
    words = ("curl", "-u", "me:word", "--user", "1000:1000", "--proxy-user", "a:b:c", "x:y")
    masked = ("curl", "-u", f"me:{MASK}", "--user", "1000:1000", "--proxy-user", f"a:{MASK}", "x:y")
    assert mask_command(words) == masked


def test_all_that_a_maintained_rule_set_knows_is_masked() -> None:
    pytest.importorskip("detect_secrets", reason="its rules are this test's reference")
    from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
    from detect_secrets.settings import default_settings

    with default_settings():
        kinds: dict[str, Any] = {**get_mapping_from_secret_type_to_class()}
        rules = {name: kind() for name, kind in kinds.items()}

        def find_secrets(name: str, line: str) -> set[str]:
            lines = line.splitlines()
            hits = [rules[name].analyze_line("x.sh", text, 1) for text in lines]
            return {str(hit.secret_value) for text in hits for hit in text}

        assert set(rules) == set(EXAMPLES)
        for name, parts in EXAMPLES.items():
            example = "".join(parts)
            if example:
                assert find_secrets(name, example), f"{name}: the example is none"
                unmasked = find_secrets(name, mask_text(example)) - {MASK}
                assert not unmasked, f"{name}: {unmasked} in {mask_text(example)}"


@given(
    st.text(string.ascii_letters + string.digits, min_size=20, max_size=40),
    st.sampled_from(SECRET_NAMES),
    st.sampled_from(PLAIN_NAMES),
)
def test_a_secret_never_comes_through(word: str, name: str, other: str) -> None:
    variables = {name: word, other: "x", "URL": f"https://u:{word}@h/", "H": f"{name}={word}"}
    shown = mask_environment(variables)
    assert list(shown) == list(variables)
    assert word not in str(shown)
    line = ["x", f"--env={name}={word}", f"--{name}", word, f"{other}=y", f"https://:{word}@h"]
    assert word not in str(mask_command(line))


@given(st.text(max_size=200))
def test_masking_twice_is_masking_once(value: str) -> None:
    once = mask_text(value)
    assert mask_text(once) == once


@given(st.lists(st.text(max_size=20), max_size=8))
def test_a_command_keeps_its_number_of_words(words: list[str]) -> None:
    assert len(mask_command(words)) == len(words)


@cases
def test_long_texts_take_no_long_time(piece: str) -> None:
    began = time.process_time()
    mask_text(piece * (200_000 // len(piece)))
    assert time.process_time() - began < 5


@settings(max_examples=40, deadline=None)
@given(st.lists(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,12}", fullmatch=True), min_size=1))
def test_bash_knows_the_same_names(names: list[str]) -> None:
    """The expression means the same to bash, which leaves secrets out on the nodes."""
    bash = shutil.which("bash")
    assert bash
    script = "for name; do [[ _${name^^}_ =~ $NAMES ]] && echo 1 || echo 0; done"
    result = subprocess.run(
        [bash, "-c", script, "names", *names],
        env={"NAMES": redact.NAMES, "LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.split() == [str(int(is_secret_name(name))) for name in names]
