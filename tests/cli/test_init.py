"""hpcbert init as a process, where a cluster answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbert.config.site import read_site
from tests.kit.cli import Cli
from tests.kit.slurm import AWAY, DENIED, Answers

pytestmark = pytest.mark.slow

SINFO = "cpu*|up|4|infinite|1-infinite|(null)|c[1-4]\n" + "".join(
    f"{name}|up|2|infinite|1-infinite|gpu:2080ti:{count}|{name}[1-2]\n"
    for name, count in (("big", 8), ("small", 4))
)


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


def test_a_person_is_asked_where_there_is_a_choice_and_only_there(tmp_path: Path) -> None:
    words = ("init", "--runtime", "none")  # The machine may have one, which would be a choice.
    code, output = cli(tmp_path, Answers(sinfo=SINFO)).on_terminal(*words, answer="small\n")
    assert code == 0, output
    assert "Which partition? (--partition)" in output
    assert "Which GPU type" not in output
    site = read_site(tmp_path / "site.toml", base=tmp_path, env={})
    assert (site.slurm.partition, site.nodes.gpus_per_node) == ("small", 4)


def test_a_person_names_what_slurm_keeps_private(tmp_path: Path) -> None:
    answers = Answers(complaints={"sinfo": DENIED, "partitions": DENIED})
    words = ("init", "--runtime", "none")
    code, output = cli(tmp_path, answers).on_terminal(*words, answer="secret\n4\n")
    assert code == 0, output
    site = read_site(tmp_path / "site.toml", base=tmp_path, env={})
    assert (site.slurm.partition, site.nodes.gpus_per_node) == ("secret", 4)


@pytest.mark.parametrize("words", [(), ("--slurm",)], ids=["init", "init --slurm"])
def test_a_controller_that_is_away_leaves_no_site(words: tuple[str, ...], tmp_path: Path) -> None:
    answers = Answers(complaints={"sinfo": AWAY, "partitions": AWAY})
    result = cli(tmp_path, answers)("init", *words, "--json", status=3)
    assert "controller does not answer" in result.error["message"]
    assert not (tmp_path / "site.toml").exists()
