"""The script of a retry: the first one's, letter for letter, but for what must differ."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from hpcbert.errors import UsageError
from hpcbert.script.directives import option
from hpcbert.script.rewrite import retried, writes_to
from hpcbert.system.runner import run
from tests.kit.drafts import drafted, reference


def rendered(tmp_path: Path, *words: str, together: bool = False) -> str:
    where = reference(tmp_path, slurm={"sbatch_args": words})
    made = drafted(where, options={"together": together})
    (text,) = made.scripts.values()
    return text


def again(text: str, *, exclude: tuple[str, ...] = ("n3", "n4")) -> str:
    return retried(text, name="job.t1", repeats=(2, 4), first_attempt=3, exclude=exclude)


def changes(old: str, new: str) -> list[str]:
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), n=0, lineterm="")
    return [line[1:] for line in lines if line[:1] == "+" and line[:3] != "+++"]


def test_a_retry_changes_names_indices_attempt_and_nodes_only(tmp_path: Path) -> None:
    text = rendered(tmp_path)
    name, array, comment, exclude, attempt, mark = changes(text, again(text))
    assert name == "#SBATCH --job-name=job.t1"
    assert comment == "#SBATCH --comment=job.t1"
    assert mark.startswith("array_name=job.t1 # ")
    assert array == "#SBATCH --array=2,4%1"
    assert exclude == "#SBATCH --exclude=n3,n4"
    assert attempt.startswith("first_attempt=3 ")
    assert run(["bash", "-n"], stdin=again(text)).ok


def test_repeats_that_share_a_job_share_it_again(tmp_path: Path) -> None:
    text = rendered(tmp_path, together=True)
    found = changes(text, again(text, exclude=()))
    assert [line.partition("=")[0] for line in found] == [*_NAMES, *_REST]
    assert "repeats=(2 4)" in found


_NAMES = ["#SBATCH --job-name", "#SBATCH --comment"]
_REST = ["repeats", "first_attempt", "array_name"]


def test_the_users_own_comment_stays(tmp_path: Path) -> None:
    text = rendered(tmp_path, "--comment=mine")
    assert option(again(text), "comment") == "mine"


def test_nodes_that_the_script_keeps_away_from_stay_excluded(tmp_path: Path) -> None:
    text = rendered(tmp_path, "--exclude=n[7-8]")
    assert option(again(text), "exclude") == "n[7-8],n3,n4"
    assert option(again(text, exclude=()), "exclude") == "n[7-8]"


def test_a_script_of_another_version_is_refused(tmp_path: Path) -> None:
    text = rendered(tmp_path).replace("first_attempt=", "attempt_from=")
    with pytest.raises(UsageError, match="no line like"):
        again(text)


def test_a_script_says_which_campaign_it_writes_to(tmp_path: Path) -> None:
    text = rendered(tmp_path)
    (line,) = (one for one in text.splitlines() if one.startswith("campaign="))
    directory = Path(line.partition("=")[2].strip("'"))
    assert not writes_to(text, tmp_path)
    directory.mkdir(parents=True)
    assert writes_to(text, directory)
    assert not writes_to(text, tmp_path)
    assert not writes_to("", directory)


def test_options_are_read_as_sbatch_does() -> None:
    text = '#SBATCH --time=01:00:00\n#SBATCH --partition="a b"\n#SBATCH --time=02:00:00\n'
    assert (option(text, "time"), option(text, "partition"), option(text, "qos")) == (
        *("02:00:00", "a b", ""),
    )
    head = "#!/bin/bash\n\n  # a comment\n#SBATCH --qos=low\n"
    assert option(f"{head}set -e\n#SBATCH --qos=high\n", "qos") == "low"
    assert option(f"{head}#SBATCH --qos=high", "qos") == "high"
