"""Options of sbatch and srun that are hpcbert's own are refused, however they are spelled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hpcbert.cli.request import read_requests
from hpcbert.config.options import Options
from hpcbert.config.slurm_arguments import argument_value, explain_refusal
from hpcbert.errors import ConfigError, UsageError
from tests.kit.cases import cases, read_constant
from tests.kit.drafts import MINIMAL, site

ALLOWED = read_constant(__file__, "ALLOWED")


@cases
def test_an_option_of_sbatch_that_is_hpcberts_own_is_refused(name: str, words: list[str]) -> None:
    assert f"sbatch's --{name})" in explain_refusal("sbatch", words)


@cases
def test_an_option_of_srun_that_is_hpcberts_own_is_refused(name: str, words: list[str]) -> None:
    assert f"srun's --{name})" in explain_refusal("srun", words)


@pytest.mark.parametrize("program", ALLOWED)
def test_other_options_are_handed_on(program: str) -> None:
    for words in ALLOWED[program]:
        assert explain_refusal(program, words) == "", words


def test_what_is_not_an_option_would_be_read_as_a_script_or_a_command() -> None:
    for words in (["x"], ["--hold", "x"], ["--"], ["-"], [""]):
        assert "is not an option" in explain_refusal("sbatch", words)


def test_the_last_value_of_an_option_is_what_sbatch_takes() -> None:
    assert argument_value(["--clusters=a", "-M", "b,c"], "clusters") == "b,c"
    assert argument_value(["-Mx"], "clusters") == "x"
    assert argument_value(["--comment=x"], "clusters") == ""


def test_the_command_line_names_the_option_that_is_meant_instead(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text(MINIMAL)
    named = Options(site_file=str(path))
    for program, word, options in (
        ("sbatch", "-N3", replace(named, sbatch_arg=("-N3",))),
        ("srun", "--nod=3", replace(named, srun_arg=("--nod=3",))),
    ):
        with pytest.raises(UsageError, match="hpcbert's --nodes") as caught:
            read_requests(options)
        assert f"--{program}-arg: {word!r} ({program}'s --nodes)" in caught.value.message


def test_a_site_that_names_one_is_refused_with_its_key(tmp_path: Path) -> None:
    for program, word in (("sbatch", "-J"), ("srun", "--outp=x")):
        with pytest.raises(ConfigError, match=f"slurm.{program}_args"):
            site(tmp_path, f'[slurm]\n{program}_args = ["{word}", "y"]\n')
