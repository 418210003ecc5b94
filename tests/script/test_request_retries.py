"""The script of a retry: the first one's, letter for letter, but for what must differ."""

from __future__ import annotations

import difflib
from dataclasses import replace
from pathlib import Path

import pytest

from hpcbert.errors import UsageError
from hpcbert.model import Array, JobRequest
from hpcbert.scheduler.slurm import TRAITS as SLURM_TRAITS
from hpcbert.script.request import is_written_to, read_request, retry_request, rewrite_script
from hpcbert.system.runner import run
from tests.kit.drafts import drafted, reference
from tests.kit.scripts import sbatch_options


def render_script(tmp_path: Path, *words: str, together: bool = False) -> tuple[Array, str]:
    where = reference(tmp_path, slurm={"sbatch_args": words})
    draft = drafted(where, options={"together": together})
    (array,) = draft.campaign.arrays
    return array, draft.scripts[array.name]


def rewrite_again(
    array: Array, text: str, *, exclude: tuple[str, ...] = ("n3", "n4"), time_limit: str = ""
) -> tuple[JobRequest, str]:
    request = retry_request(
        array.request, name="job.t1", indices=(2, 4), exclude=exclude, time_limit=time_limit
    )
    return request, rewrite_script(
        text, array.request, request, scheduler=SLURM_TRAITS, repeats=(2, 4), first_attempt=3
    )


def list_changes(old: str, new: str) -> list[str]:
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), n=0, lineterm="")
    return [line[1:] for line in lines if line[:1] == "+" and line[:3] != "+++"]


def test_a_retry_adds_options_of_sbatch_and_changes_its_first_attempt(tmp_path: Path) -> None:
    array, text = render_script(tmp_path)
    _, script = rewrite_again(array, text, time_limit="02:00:00")
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


@pytest.mark.parametrize(
    "assignments",
    ["first_attempt=0 # a comment\n", "nodes=4 tasks_per_node=8 first_attempt=0\n"],
    ids=["alone", "among-others"],
)
def test_the_first_attempt_is_changed_wherever_a_line_assigns_it(
    tmp_path: Path, assignments: str
) -> None:
    array, _ = render_script(tmp_path)
    _, script = rewrite_again(array, f"#!/bin/bash\n#SBATCH --nodes=1\nset -e\n{assignments}")
    assert script.endswith(assignments.replace("first_attempt=0", "first_attempt=3"))
    assert "#SBATCH --job-name=job.t1\n" in script.partition("set -e")[0]


def test_repeats_that_share_a_job_share_it_again(tmp_path: Path) -> None:
    array, text = render_script(tmp_path, together=True)
    request, script = rewrite_again(array, text, exclude=())
    assert request.array == ""
    assert "repeats=(2 4)" in list_changes(text, script)
    assert "--array" not in script


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--comment=mine",),
        ('--comment=a b "c"',),
        ("--exclude=n[7-8]",),
        ("-x", "n7", "-t", "10", "-p", "long"),
        ("-A", "project", "--qos=high", "--gres=gpu:a100:2", "--mem=4G", "-c8"),
        ("--exclusive=user",),
        ("--exclusive",),
        ("--clusters=other", "--partit=long"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("exclusive", [True, False], ids=["exclusive", "shared"])
def test_the_request_on_record_is_what_sbatch_reads_in_the_script(
    tmp_path: Path, words: tuple[str, ...], exclusive: bool
) -> None:
    where = reference(
        tmp_path, slurm={"sbatch_args": words, "exclusive": exclusive, "partition": "gpu"}
    )
    draft = drafted(where)
    (array,) = draft.campaign.arrays
    text = draft.scripts[array.name]
    assert read_request(sbatch_options(text)) == array.request
    assert array.request.nodes == 1
    request, script = rewrite_again(array, text, time_limit="2-0")
    assert read_request(sbatch_options(script)) == request


def test_the_users_own_comment_stays(tmp_path: Path) -> None:
    array, text = render_script(tmp_path, "--comment=mine")
    assert rewrite_again(array, text)[0].comment == "mine"


def test_nodes_that_the_script_keeps_away_from_stay_excluded(tmp_path: Path) -> None:
    array, text = render_script(tmp_path, "--exclude=n[7-8]")
    assert rewrite_again(array, text)[0].exclude == "n[7-8],n3,n4"
    assert rewrite_again(array, text, exclude=())[0].exclude == "n[7-8]"


def test_a_script_of_another_version_is_refused(tmp_path: Path) -> None:
    array, text = render_script(tmp_path)
    with pytest.raises(UsageError, match="first_attempt"):
        rewrite_again(array, text.replace("first_attempt=", "attempt_from="))


@pytest.mark.parametrize("name", ["a b", "a %j b"])
def test_a_request_says_which_campaign_it_writes_to(tmp_path: Path, name: str) -> None:
    array, _ = render_script(tmp_path)
    directory = tmp_path / name
    output = f"{directory}/slurm/".replace("%", "%%") + "%A_%a.out"
    request = replace(array.request, output=output)
    assert not is_written_to(request, tmp_path)
    directory.mkdir()
    assert is_written_to(request, directory)
    assert not is_written_to(request, tmp_path)
    assert not is_written_to(replace(request, output=""), directory)
