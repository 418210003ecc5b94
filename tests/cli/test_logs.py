"""Which log `hpcbert logs` prints."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.kit import campaigns
from tests.kit.cli import run


@pytest.mark.parametrize("with_log", [True, False], ids=["a log", "no log"])
def test_output_of_a_later_script_comes_after_the_log_of_ranks(
    with_log: bool, tmp_path: Path
) -> None:
    campaign = campaigns.campaign(tmp_path, "1n1g", "2n1g", repeats=1)
    if with_log:
        os.utime(campaign.log("1n1g", 1, "trainer: error: rank 0\n"), (1, 1))
    (campaign.directory / "slurm" / "71_1.out").write_text("hpcbert: held back\n")
    printed = run("logs", campaign.directory).stdout
    assert printed == ("trainer: error: rank 0\n" if with_log else "hpcbert: held back\n")
