"""campaign.toml is read strictly: what it may say, and what is said of what it may not."""

import re

import pytest

from hpcbert.config import campaignfile
from hpcbert.config.campaignfile import AxisValues
from hpcbert.errors import ConfigError, Refusals
from hpcbert.model import Shape
from tests.kit.cases import cases, read_constant


def read(folder, text, head="schema = 1\n"):
    path = folder / "campaign.toml"
    path.write_text(head + text)
    return campaignfile.read(path)


def test_options_and_variables_of_an_inclusion_are_taken_one_by_one(tmp_path):
    file = read(tmp_path, read_constant(__file__, "INCLUSION"))
    axes = file.include[0].over(file)
    assert (axes.frameworks, axes.precisions) == (file.frameworks, ("bf16",))
    options = [(option.name, option.values) for option in axes.options]
    assert options == [("seed", (3,)), ("fast", (True,))]
    assert axes.env == (file.env[0], AxisValues("env.OTHER", "", "OTHER", ("x",)))


@cases
def test_what_it_may_not_say_is_named_with_its_place(text, message, hint, tmp_path):
    with pytest.raises(ConfigError) as refusal:
        read(tmp_path, text)
    assert refusal.value.where == str(tmp_path / "campaign.toml")
    assert message in refusal.value.message
    assert (hint or "") in refusal.value.hint


def test_all_keys_that_are_wrong_are_named_at_once(tmp_path):
    text = "framewrks = 'x'\nshapes = ['1n1g', '4x8']\nrepeats = 0\nmodels = 'bert-tiny'"
    with pytest.raises(Refusals) as refusal:
        read(tmp_path, text)
    messages = sorted(error.message for error in refusal.value.each)
    words = ("framewrks is not known", "repeats must be at", "'4x8', which is not a shape")
    assert [word in message for word, message in zip(words, messages, strict=True)] == [True] * 3


def test_a_file_of_another_schema_is_refused(tmp_path):
    for head, message in (("schema = 2\n", "schema is 2"), ("", "schema is missing")):
        with pytest.raises(ConfigError, match=message):
            read(tmp_path, "", head)


@cases
def test_a_width_is_a_share_in_any_spelling(text, share, tmp_path):
    file = read(tmp_path, f"repeats = 'auto'\nprecision_of_median = {text}")
    assert file.precision_of_median == pytest.approx(share)


def test_the_example_is_read_as_it_is_and_with_all_that_it_shows(tmp_path):
    text = campaignfile.EXAMPLE.read_text(encoding="utf-8")
    plain = read(tmp_path, text, "")
    assert (plain.frameworks, plain.shapes) == (("pytorch",), (Shape(1, 1),))
    every = re.sub(r"^#(?=[\w\[])", "", text, flags=re.MULTILINE)
    every = every.replace('["1n1g"]\nnodes', '["1n1g", "scaling"]\nnodes')
    every = every.replace("repeats = 5", 'repeats = "auto"')
    both = read(tmp_path, every.replace("global_batch_size", "# "), "")
    assert read(tmp_path, re.sub("(?m)^accumulation", "# ", every), "").global_batch_size
    assert all(getattr(both, name) is not None for name in ("name", "skip", "accumulation"))
    assert len(both.include) == len(both.exclude) == 1
