"""One grammar of a time limit everywhere, and no retry that can only end as before."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcbert.errors import ConfigError
from hpcbert.slurm.commands import read_squeue
from hpcbert.timelimit import TimeLimit
from tests.kit.cases import cases
from tests.kit.drafts import site

pytestmark = pytest.mark.slow


@cases
def test_every_form_of_sbatch_means_the_same_everywhere(
    text: str, seconds: int | None, tmp_path: Path
) -> None:
    limit = TimeLimit.parse(text)
    assert limit.seconds == seconds
    assert site(tmp_path, f'[slurm]\ntime_limit = "{text}"\n').slurm.time_limit.text == text
    (row,) = read_squeue(f"7_1|me|RUNNING|1|2|3|0:10|{text}|n1|name|None\n").rows
    assert row.limit == seconds
    if seconds:
        assert TimeLimit.parse(str(TimeLimit(seconds))).seconds == seconds


@cases
def test_what_is_no_time_limit_is_refused_everywhere(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"time limit|ten years"):
        TimeLimit.parse(text)
    with pytest.raises(ConfigError, match="time_limit"):
        site(tmp_path, f'[slurm]\ntime_limit = "{text}"\n')


def test_every_command_with_a_time_takes_and_refuses_the_same(
    run_commands: Callable[..., list[Any]],
) -> None:
    commands = (
        ["render", "--fw", "oneflow", "--scheduler", "slurm"],
        ["submit", "--dry-run", "--scheduler", "slurm", "--fw", "oneflow"],
        ["prepare", "--fw", "oneflow", "--dry-run", "--on-node"],
        ["retry", "--dry-run"],
    )
    times = ("1-12", "12 hours")
    results = run_commands(
        [[*words, f"--time={time}", "--json"] for words in commands for time in times]
    )
    for good, bad in zip(results[::2], results[1::2], strict=True):
        assert "time limit" in bad.document["errors"][0]["message"]
        assert bad.returncode == 2
        assert "time limit" not in json.dumps(good.document["errors"])
    assert "#SBATCH --time=1-12\n" in next(iter(results[0].data.values()))
