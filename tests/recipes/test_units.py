"""A number is read with its unit: what is printed per second, or per step, is never taken for something else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpcbert.logs.setting import Setting
from tests.kit.logs import Reader
from tests.kit.recipes import grammar

# A unit in a record: its words before the number, or right after it.
_UNIT = re.compile(
    r"(?i)(?:samples?|seq\w*|sentences|examples?|exp|steps?|bandwidth)\S{0,3}[ /_]*(?:per)?[ /_]*s(?:ec|\b|')"
    r"|\(ms\\?\)|\bms(?:/|,)|\bbandwidth\b"
)
# Programs that print a number without a unit: the pattern then has all that may follow it.
_BARE = {
    ("oneflow", "step"): "throughput: 139.896 1598056537.0029895",
    ("oneflow-models", "step"): "throughput: 8.639, epoch: 0 1795317070.6374612",
    ("mlperf-bert", "tracked"): '"throughput": 53540.83384651906, "epoch_num"',
}


def test_every_record_states_the_unit_of_what_its_rules_read(name: str) -> None:
    for rule in grammar(name).rules:
        if rule.field == "time" or rule.kind == "custom" or rule.unit == "GB/s":
            continue
        record = rule.record
        text = record.contains.decode() + " " + record.match.pattern.decode()
        bare = (name, record.name) in _BARE
        assert bool(_UNIT.search(text)) != bare, f"{name}, {record.name}: {text}"


@pytest.mark.parametrize("shown", ["65.5 Ktokens/s", "65536.0 tokens/s", "65.5 k tokens per sec"])
def test_a_recipe_without_a_unit_reads_no_other(shown: str, tmp_path: Path) -> None:
    toml = """
[[log.records]]
name = "step"
contains = "speed "
match = 'step (?P<iteration>\\d+): speed (?P<rate>[\\d.]+).*? of epoch'

[[log.rules]]
name = "rate"
kind = "rate"
"""
    settings = Setting(nodes=1, gpus_per_node=1, gpus=1)
    text = "".join(f"step {n}: speed {shown} of epoch 1\n" for n in range(1, 121))
    assert Reader(tmp_path)(toml, text, "", settings).throughput is None
    last = toml.replace(".*? of epoch", "")
    assert Reader(tmp_path)(last, text, "", settings).throughput is None
    plain = text.replace(shown, "512.0")
    assert Reader(tmp_path)(toml, plain, "", settings).throughput == 512
