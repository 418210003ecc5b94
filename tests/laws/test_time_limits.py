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
from tests.kit.drafts import site

pytestmark = pytest.mark.slow

DAY = 86_400
GOOD = {
    "90": 5400,
    "90:30": 5430,
    "1:30:00": 5400,
    "01:30:00": 5400,
    "100:00:00": 360_000,
    "1-12": 36 * 3600,
    "1-0": DAY,
    "2-12:30": 2 * DAY + 45_000,
    "2-12:30:15": 2 * DAY + 45_015,
    "0-0:0:1": 1,
    "1:90": 150,
    "UNLIMITED": None,
    "infinite": None,
    "-1": None,
    "0": None,
    "00:00:00": None,
}


@pytest.mark.parametrize("text", GOOD)
def test_every_form_of_sbatch_means_the_same_everywhere(text: str, tmp_path: Path) -> None:
    assert TimeLimit.parse(text).seconds == GOOD[text]
    assert site(tmp_path, f'[slurm]\ntime_limit = "{text}"\n').slurm.time_limit.text == text
    line = f"7_1|me|RUNNING|1|2|3|0:10|{text}|n1|name|None\n"
    (row,) = read_squeue(line).rows
    assert row.limit == GOOD[text]


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", "1-", "-12", "1:2:3:4", "1-2:3:4:5", "1.5", "1h", "12 h", "1-1-1", "-2", "+5"),
        *("nan", ":30", "1:", "1::2", "٣", "9999999999", "99999-0", "3650-0:0:1", "1_0", "0x10"),
        "1:-5",
    ],
)
def test_what_is_no_time_limit_is_refused_everywhere(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"time limit|ten years"):
        TimeLimit.parse(text)
    with pytest.raises(ConfigError, match="time_limit"):
        site(tmp_path, f'[slurm]\ntime_limit = "{text}"\n')


def test_the_full_form_reads_as_what_it_was() -> None:
    for seconds in (1, 59, 3600, DAY, DAY + 1, TimeLimit.MOST):
        assert TimeLimit.parse(str(TimeLimit(seconds))).seconds == seconds
    assert str(TimeLimit(36 * 3600)) == "1-12:00:00"


def test_every_command_with_a_time_takes_and_refuses_the_same(
    run_commands: Callable[..., list[Any]],
) -> None:
    commands = (
        ["render", "--fw", "oneflow", "--scheduler", "slurm"],
        ["submit", "--dry-run", "--scheduler", "slurm", "--fw", "oneflow"],
        ["prepare", "--fw", "oneflow", "--dry-run", "--on-node"],
        ["retry", "--dry-run"],
    )
    for words in commands:
        good, bad = run_commands(
            [[*words, f"--time={text}", "--json"] for text in ("1-12", "12 hours")]
        )
        assert "time limit" in bad.document["errors"][0]["message"]
        assert bad.returncode == 2
        assert "time limit" not in json.dumps(good.document["errors"])
        if words[0] == "render":
            assert "#SBATCH --time=1-12\n" in next(iter(good.document["data"].values()))
