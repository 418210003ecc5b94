"""The examples of the log grammar give the numbers that it says they give."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpcbert.logs import grammar, scan
from hpcbert.logs.setting import Setting
from tests.kit.logs import parse
from tests.kit.paths import REFERENCE

PAGE = (REFERENCE / "log-grammar-examples.md").read_text(encoding="utf-8")
_EXAMPLE = re.compile(
    r"^`([a-z-]+)`: (?:[^\n]+\n)+\n```text\n(.*?)```\n\n```toml\n(.*?)```\n\n([^\n]+)",
    re.MULTILINE | re.DOTALL,
)
EXAMPLES = {match[1]: match for match in _EXAMPLE.finditer(PAGE)}


@pytest.mark.parametrize("kind", EXAMPLES)
def test_an_example_gives_its_number(kind: str, tmp_path: Path) -> None:
    _, log, table, sentence = EXAMPLES[kind].groups()
    log_grammar = parse(table)
    (rule,) = log_grammar.rules
    assert rule.kind == kind
    path = tmp_path / "run.log"
    path.write_text(log)
    setting = Setting(nodes=1, gpus_per_node=2, batch_size_per_device=32, skip=1, iters=4)
    (number,) = re.findall(r"\*\*([\d.]+)\*\* samples/s", sentence)
    reading = scan.read(path, log_grammar, rule, setting)
    assert not reading.reasons
    assert f"{reading.throughput:.2f}" == number


def test_every_kind_has_an_example() -> None:
    assert EXAMPLES.keys() == set(grammar._KEYS) - {"custom"}
