"""The script of a retry: the first one's, letter for letter, but for what must differ."""

from __future__ import annotations

import difflib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcbert.errors import UsageError
from hpcbert.model import Array, JobRequest
from hpcbert.scheduler.slurm import TRAITS as SLURM_TRAITS
from hpcbert.script.request import is_written_to, read_request, retry_request, rewrite_script
from hpcbert.system.runner import run
from tests.kit.cases import cases
from tests.kit.drafts import drafted, reference
from tests.kit.scripts import sbatch_options


def render_script(
    folder: Path, *words: str, together: bool = False, **slurm: Any
) -> tuple[Array, str]:
    site = reference(folder, slurm={"sbatch_args": words, **slurm})
    draft = drafted(site, options={"together": together})
    (array,) = draft.campaign.arrays
    return array, draft.scripts[array.name]


def retry(
    array: Array, text: str, exclude: tuple[str, ...] = ("n3", "n4"), limit: str = ""
) -> tuple[JobRequest, str]:
    request = retry_request(
        array.request, name="job.t1", indices=(2, 4), exclude=exclude, time_limit=limit
    )
    return request, rewrite_script(
        text, array.request, request, scheduler=SLURM_TRAITS, repeats=(2, 4), first_attempt=3
    )


def list_changes(old: str, new: str) -> list[str]:
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), n=0, lineterm="")
    return [line[1:] for line in lines if line[:1] == "+" and line[:3] != "+++"]


def test_a_retry_adds_options_of_sbatch_and_changes_its_first_attempt(tmp_path: Path) -> None:
    array, text = render_script(tmp_path)
    _, script = retry(array, text, limit="02:00:00")
    *options, attempt = [line for line in list_changes(text, script) if "array_name=" not in line]
    assert options == [
        "#SBATCH --job-name=job.t1",
        "#SBATCH --comment=job.t1",
        "#SBATCH --array=2,4%1",
        "#SBATCH --time=02:00:00",
        "#SBATCH --exclude=n3,n4",
    ]
    assert "first_attempt=3 " in attempt
    assert run(["bash", "-n"], stdin=script).ok
    with pytest.raises(UsageError, match="first_attempt"):
        retry(array, text.replace("first_attempt=", "attempt_from="))


def test_repeats_that_share_a_job_share_it_again(tmp_path: Path) -> None:
    array, text = render_script(tmp_path, together=True)
    request, script = retry(array, text, exclude=())
    assert request.array == ""
    assert "repeats=(2 4)" in list_changes(text, script)
    assert "--array" not in script


@cases
@pytest.mark.parametrize("exclusive", [True, False], ids=["exclusive", "shared"])
def test_the_request_on_record_is_what_sbatch_reads_in_the_script(
    tmp_path: Path, words: list[str], exclusive: bool
) -> None:
    array, text = render_script(tmp_path, *words, exclusive=exclusive, partition="gpu")
    assert read_request(sbatch_options(text)) == array.request
    request, script = retry(array, text, limit="2-0")
    assert read_request(sbatch_options(script)) == request


def test_the_users_own_comment_and_excluded_nodes_stay(tmp_path: Path) -> None:
    array, text = render_script(tmp_path, "--comment=mine", "--exclude=n[7-8]")
    request, _ = retry(array, text)
    assert (request.comment, request.exclude) == ("mine", "n[7-8],n3,n4")
    assert retry(array, text, exclude=())[0].exclude == "n[7-8]"


@pytest.mark.parametrize("name", ["a b", "a %j b"])
def test_a_request_says_which_campaign_it_writes_to(tmp_path: Path, name: str) -> None:
    directory = tmp_path / name
    output = f"{directory}/slurm/".replace("%", "%%") + "%A_%a.out"
    request = replace(JobRequest(), output=output)
    assert not is_written_to(request, tmp_path)
    directory.mkdir()
    assert is_written_to(request, directory)
    assert not is_written_to(request, tmp_path)
    assert not is_written_to(replace(request, output=""), directory)
