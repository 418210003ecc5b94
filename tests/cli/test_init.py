"""hpcbert init as a process, where a cluster answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbert.config.site import read_site
from tests.kit.cases import read_constant
from tests.kit.cli import Cli
from tests.kit.slurm import AWAY, DENIED, Answers

pytestmark = pytest.mark.slow

SINFO = read_constant(__file__, "SINFO")


def cli(folder: Path, answers: Answers) -> Cli:
    programs = answers.programs(folder / "bin")
    return Cli(folder, {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(folder)})


def test_a_program_reads_what_was_chosen_and_why(tmp_path: Path) -> None:
    result = cli(tmp_path, Answers(sinfo=SINFO))("init", "--json", status=0)
    site = read_site(tmp_path / "site.toml", base=tmp_path, env={})
    assert (site.scheduler, site.slurm.partition) == ("slurm", "big")
    assert (site.slurm.gres, site.nodes.gpus_per_node) == ("gpu:2080ti", 8)
    choices = {choice["key"]: choice for choice in result.data["choices"]}
    assert set(choices["slurm.partition"]) == {"key", "value", "why", "others", "flag"}
    assert "the default, cpu, has no GPUs" in choices["slurm.partition"]["why"]
    assert choices["slurm.partition"]["flag"] == "--partition"
    assert result.data["detected"]["slurm.partition"] == '"big"'


@pytest.mark.parametrize(
    ("answers", "typed", "values"),
    [
        (Answers(sinfo=SINFO), "small\n", ("small", 4)),
        (Answers(complaints={"sinfo": DENIED, "partitions": DENIED}), "own\n4\n", ("own", 4)),
    ],
    ids=["a choice", "what Slurm keeps private"],
)
def test_a_person_is_asked_where_there_is_a_choice_and_only_there(
    answers: Answers, typed: str, values: tuple[str, int], tmp_path: Path
) -> None:
    words = ("init", "--runtime", "none")  # The machine may have one, which would be a choice.
    code, output = cli(tmp_path, answers).on_terminal(*words, answer=typed)
    assert code == 0, output
    assert "(--partition" in output
    assert "Which GPU type" not in output
    site = read_site(tmp_path / "site.toml", base=tmp_path, env={})
    assert (site.slurm.partition, site.nodes.gpus_per_node) == values


def test_a_controller_that_is_away_leaves_no_site(tmp_path: Path) -> None:
    hpcbert = cli(tmp_path, Answers(complaints={"sinfo": AWAY, "partitions": AWAY}))
    for words in (("init",), ("init", "--slurm")):
        result = hpcbert(*words, "--json", status=3)
        assert "controller does not answer" in result.error["message"]
        assert not (tmp_path / "site.toml").exists()
