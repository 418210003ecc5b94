"""campaign.toml is read strictly: what it may say, and what is said of what it may not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpcbert.config import campaignfile
from hpcbert.config.campaignfile import CampaignFile, OptionValues, Sizes, Variable
from hpcbert.errors import ConfigError, Refusals
from hpcbert.model import Shape
from tests.kit.cases import cases, read_constant

FULL = read_constant(__file__, "FULL")


def read(folder: Path, text: str, head: str = "schema = 1\n") -> CampaignFile:
    path = folder / "campaign.toml"
    path.write_text(head + text)
    return campaignfile.read(path)


def test_a_file_says_all_of_it(tmp_path: Path) -> None:
    campaign_file = read(tmp_path, FULL)
    assert campaign_file.frameworks == ("pytorch", "oneflow")
    assert campaign_file.precisions == ("fp16",)
    assert campaign_file.shapes == (Shape(1, 1), "scaling")
    assert campaign_file.batch_sizes == (
        Sizes("batch_sizes.float32", "", "fp32", (32,)),
        Sizes("batch_sizes.fp16", "", "fp16", (64, 128)),
        Sizes("batch_sizes.oneflow", "oneflow", "", (16,)),
        Sizes("batch_sizes.pytorch.fp16", "pytorch", "fp16", (96,)),
    )
    assert campaign_file.options == (
        OptionValues("options.seed", "", "seed", (1, 2)),
        OptionValues("options.oneflow.fast", "oneflow", "fast", (True,)),
    )
    assert campaign_file.env == (Variable("NCCL_ALGO", ("Ring", "Tree")), Variable("OTHER", ("",)))
    assert campaign_file.run_options() == {
        "nodes": 4, "gpus_per_node": 8, "nodelist": "n[01-04],m7", "time_limit": "1-0",
    }  # fmt: skip


def test_options_and_variables_of_an_inclusion_are_taken_one_by_one(tmp_path: Path) -> None:
    text = '[[include]]\nprecisions = "bf16"\noptions = { seed = 3 }\nenv = { OTHER = "x" }\n'
    campaign_file = read(tmp_path, FULL.replace("[[exclude]]", f"{text}[[exclude]]"))
    axes = campaign_file.include[1].over(campaign_file)
    assert (axes.frameworks, axes.precisions) == (campaign_file.frameworks, ("bf16",))
    assert [(option.name, option.values) for option in axes.options] == [
        ("seed", (3,)),
        ("fast", (True,)),
    ]
    assert axes.env == (campaign_file.env[0], Variable("OTHER", ("x",)))


@cases
def test_what_it_may_not_say_is_named_with_its_place(
    text: str, message: str, hint: str | None, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, text)
    assert refused.value.where == str(tmp_path / "campaign.toml")
    assert message in refused.value.message
    assert (hint or "") in refused.value.hint


def test_all_keys_that_are_wrong_are_named_at_once(tmp_path: Path) -> None:
    text = "framewrks = 'x'\nshapes = ['1n1g', '4x8']\nrepeats = 0\nmodels = 'bert-tiny'"
    with pytest.raises(Refusals) as refused:
        read(tmp_path, text)
    messages = [usage_error.message for usage_error in refused.value.each]
    assert len(messages) == 3, messages
    for words in ("framewrks is not known", "'4x8', which is not a shape", "repeats must be at"):
        assert sum(words in message for message in messages) == 1


@cases
def test_a_width_is_a_share_in_any_spelling(text: str, share: float, tmp_path: Path) -> None:
    campaign_file = read(tmp_path, f"repeats = 'auto'\nprecision_of_median = {text}")
    assert campaign_file.precision_of_median == pytest.approx(share)


def test_a_file_of_another_time_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="schema is 2"):
        read(tmp_path, "", "schema = 2\n")
    with pytest.raises(ConfigError, match="schema is missing"):
        read(tmp_path, "", "")


def test_the_example_is_read_as_it_is_and_with_all_that_it_shows(tmp_path: Path) -> None:
    text = campaignfile.EXAMPLE.read_text(encoding="utf-8")
    plain = read(tmp_path, text, "")
    assert (plain.frameworks, plain.shapes) == (("pytorch",), (Shape(1, 1),))
    every = re.sub(r"^#(?=[\w\[])", "", text, flags=re.MULTILINE)
    every = every.replace('["1n1g"]\nnodes', '["1n1g", "scaling"]\nnodes')
    both = read(tmp_path, every.replace("global_batch_size", "# "), "")
    assert read(tmp_path, re.sub("(?m)^accumulation", "# ", every), "").global_batch_size
    assert all(getattr(both, name) is not None for name in ("name", "skip", "accumulation"))
    assert len(both.include) == len(both.exclude) == 1
