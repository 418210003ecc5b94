"""When Slurm writes mail, as it is typed."""

from __future__ import annotations

import pytest

from hpcbert.config.options import Options
from hpcbert.config.site import load
from hpcbert.errors import UsageError
from hpcbert.slurm.commands import Mail, parse_mail
from tests.kit.cases import cases
from tests.kit.cli import run


@cases
def test_types_and_address_become_words_of_sbatch(typed: str, words: tuple[str, ...]) -> None:
    assert parse_mail(typed).words == words
    assert load(options=Options(notify=typed)).slurm.sbatch_args[-2:] == words[-2:]


@pytest.mark.parametrize("typed", ["ENDED", "me", "a@b,c@d", "a b@c"])
def test_what_is_neither_is_refused(typed: str) -> None:
    with pytest.raises(UsageError, match="--notify"):
        parse_mail(typed)


def test_it_is_said_what_is_mailed_and_that_a_cluster_may_send_none() -> None:
    assert "END, FAIL of each array to a@b, if" in str(Mail(("END", "FAIL"), "a@b"))
    assert "FAIL of each repeat to you" in str(Mail(("FAIL", "ARRAY_TASKS")))


@pytest.mark.usefixtures("empty_directory")
def test_a_script_has_it_and_the_local_queue_says_that_it_sends_none() -> None:
    words = ("submit", "--dry-run", "--notify", "fail,me@example.org", "--json")
    result = run(*words, "--scheduler", "slurm")
    (array,) = result.data["arrays"]
    assert "#SBATCH --mail-type=FAIL\n#SBATCH --mail-user=me@example.org" in array["script_text"]
    assert any("Slurm mails FAIL" in warning for warning in result.document["warnings"])
    refused = run("submit", "--notify", "END", "--scheduler", "local", "--json")
    assert (refused.returncode, "sends no mail" in refused.error["message"]) == (2, True)
