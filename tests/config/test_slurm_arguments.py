"""Options of sbatch and srun that are hpcbert's own are refused, however they are spelled."""

from typing import Any

import pytest

from hpcbert.cli.request import read_requests
from hpcbert.config.options import Options
from hpcbert.config.slurm_arguments import argument_value, explain_refusal
from hpcbert.errors import ConfigError, UsageError
from tests.kit.cases import cases, read_constant
from tests.kit.drafts import site


@cases
def test_an_option_that_is_hpcberts_own_is_refused(program, name, words):
    assert f"{program}'s --{name})" in explain_refusal(program, words)


def test_other_options_are_handed_on_but_no_script_or_command():
    for program, arguments in read_constant(__file__, "ALLOWED").items():
        for words in arguments:
            assert explain_refusal(program, words) == "", words
    for words in (["x"], ["--hold", "x"], ["-z", "x"], ["--"], ["-"], [""]):
        assert "is not an option" in explain_refusal("sbatch", words), words
    # The last value of an option is what sbatch takes.
    assert argument_value(["--clusters=a", "-M", "b,c"], "clusters") == "b,c"
    assert argument_value(["-Mx"], "clusters") == "x"
    assert argument_value(["--comment=x"], "clusters") == ""


@pytest.mark.parametrize(("program", "word"), [("sbatch", "-N3"), ("srun", "--nod=3")])
def test_a_command_line_and_a_site_that_have_one_are_refused(tmp_path, program, word):
    site(tmp_path)
    words: dict[str, Any] = {"site_file": str(tmp_path / "site.toml"), f"{program}_arg": (word,)}
    with pytest.raises(UsageError, match="hpcbert's --nodes") as refusal:
        read_requests(Options(**words))
    assert f"--{program}-arg: {word!r} ({program}'s --nodes)" in refusal.value.message
    with pytest.raises(ConfigError, match=f"slurm.{program}_args"):
        site(tmp_path, f'[slurm]\n{program}_args = ["{word}", "y"]\n')
