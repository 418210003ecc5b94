"""Secrets are recognised by name and by form, and nothing else is touched."""

import string
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbert.system import redact
from hpcbert.system.redact import MASK, is_secret_name, mask_command, mask_environment, mask_text
from tests.kit.cases import cases, read_constant
from tests.kit.scripts import bash

pytestmark = pytest.mark.slow

SECRET_NAMES = read_constant(__file__, "SECRET_NAMES")
PLAIN_NAMES = read_constant(__file__, "PLAIN_NAMES")


def test_names_give_a_secret_away_or_not_and_its_option_masks_the_next_word():
    for name in (*SECRET_NAMES, *PLAIN_NAMES):
        is_secret = name in SECRET_NAMES
        assert is_secret_name(name) is is_secret, name
        assert mask_environment({name: "a b:/c"}) == {name: MASK if is_secret else "a b:/c"}
        if is_secret:
            text = mask_text(f"run --export={name}=abc,FOO=1")
            assert text == f"run --export={name}={MASK},FOO=1"
            words = ("curl", f"--{name}", "abc", f"--{name}=abc", "-v")
            masked = ("curl", f"--{name}", MASK, f"--{name}={MASK}", "-v")
            assert mask_command([*words]) == masked
    line = "curl -u me:{} --user 1000:1000 --proxy-user a:{} x:y"
    masked_words = line.format(MASK, MASK).split()
    assert mask_command(line.format("word", "b:c").split()) == tuple(masked_words)


@cases
def test_forms_that_are_secrets_wherever_they_stand(form):
    for around in ("{}", "see {} there", "[{}]", "a={}", "https://host/x?q={}", '{{"v": "{}"}}'):
        assert form not in mask_text(around.format(form))


@cases
def test_what_is_around_a_secret_and_what_is_none_stays(before, after):
    assert mask_text(before) == (before if after is None else after)
    if after is None:
        assert mask_command(before.split()) == tuple(before.split())


def test_all_that_a_maintained_rule_set_knows_is_masked():
    pytest.importorskip("detect_secrets", reason="its rules are this test's reference")
    from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
    from detect_secrets.settings import default_settings

    examples = read_constant(__file__, "EXAMPLES")
    with default_settings():
        kinds: dict[str, Any] = {**get_mapping_from_secret_type_to_class()}
        rules = {name: kind() for name, kind in kinds.items()}

        def find_secrets(name, text):
            hits = [rules[name].analyze_line("x.sh", line, 1) for line in text.splitlines()]
            return {str(hit.secret_value) for line_hits in hits for hit in line_hits}

        assert set(rules) == set(examples)
        for name, parts in examples.items():
            example = "".join(parts)
            assert not example or find_secrets(name, example), f"{name}: the example is none"
            unmasked = find_secrets(name, mask_text(example)) - {MASK}
            assert not unmasked, f"{name}: {unmasked} in {mask_text(example)}"


@given(
    st.text(string.ascii_letters + string.digits, min_size=20, max_size=40),
    st.sampled_from(SECRET_NAMES),
    st.sampled_from(PLAIN_NAMES),
)
def test_a_secret_never_comes_through(word, name, other):
    variables = {name: word, other: "x", "URL": f"https://u:{word}@h/", "H": f"{name}={word}"}
    shown = mask_environment(variables)
    assert list(shown) == list(variables)
    line = ["x", f"--env={name}={word}", f"--{name}", word, f"{other}=y", f"https://:{word}@h"]
    assert word not in str(shown) + str(mask_command(line))


@given(st.lists(st.text(max_size=60), max_size=8))
def test_masking_twice_is_masking_once_and_a_command_keeps_its_words(words):
    once = mask_text(" ".join(words))
    assert mask_text(once) == once
    assert len(mask_command(words)) == len(words)


@cases
def test_long_texts_take_no_long_time(piece):
    began = time.process_time()
    mask_text(piece * (50_000 // len(piece)))
    assert time.process_time() - began < 1


@settings(max_examples=10)
@given(st.lists(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,12}", fullmatch=True), min_size=1))
def test_bash_knows_the_same_names(names):
    """The expression means the same to bash, which leaves secrets out on the nodes."""
    names += [*SECRET_NAMES, *PLAIN_NAMES]
    script = "for name; do [[ _${name^^}_ =~ $NAMES ]] && echo 1 || echo 0; done"
    outcome = bash("-c", script, "names", *names, NAMES=redact.NAMES, LC_ALL="C")
    assert outcome.stdout.split() == [str(int(is_secret_name(name))) for name in names]
