"""What can be known before submitting is known before submitting: hpcbert as a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import CEILING

Command = Callable[..., tuple[int, dict[str, Any]]]


pytestmark = pytest.mark.slow

SINFO = "gpu*|up|4|1-00:00:00|1-infinite|gpu:8|n[1-4]"
SITE = """schema = 1
name = "x"
scheduler = "slurm"
[slurm]
partition = "gpu"
"""


def program(folder: Path, name: str, body: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/bash\n{body}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def hpcbert(tmp_path: Path) -> Command:
    """Run hpcbert where a cluster of four nodes answers, and refuses every job."""
    tools = tmp_path / "bin"
    program(tools, "sinfo", f"echo '{SINFO}'")
    program(
        tools,
        "sbatch",
        f'[[ $1 == --version ]] && exit\necho called >>"{tmp_path}/sbatch"; echo refused >&2; exit 1',
    )
    for name in ("squeue", "sacct", "scontrol"):
        program(tools, name, "exit 0")
    (tmp_path / "site.toml").write_text(SITE)

    def command(*words: str) -> tuple[int, dict[str, Any]]:
        done = subprocess.run(
            [sys.executable, "-m", "hpcbert", *words, "--json"],
            cwd=tmp_path,
            env={
                "PATH": f"{tools}:{os.environ['PATH']}",
                "HOME": str(tmp_path),
                "HPCBERT_RUNS": "/srv/nobody-has-this/runs",
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=CEILING,
        )
        return done.returncode, json.loads(done.stdout.splitlines()[-1])

    return command


def messages(document: dict[str, Any]) -> str:
    return "\n".join(f"{one['message']} {one['hint']}" for one in document["errors"])


SUBMIT = ("submit", "--fw", "pytorch", "--nodes", "2", "--gpus-per-node", "8")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--partition", "gpus"), "no partition 'gpus'"),
        (("--nodes", "5"), "has 4 nodes; 5 are asked for"),
        (("--time", "25:00:00"), "at most 1-00:00:00"),
        (("--runs", "/dev/shm/runs"), "each machine has for itself"),
        (("--python", "/no/such/python"), "no program /no/such/python"),
        (("--fw", "oneflow", "--data", "/no/data", "--source", "/"), "no /no/data here"),
        (("--fw", "oneflow", "--data", "/", "--source", "/no/source"), "no /no/source here"),
        (("--runtime", "enroot", "--image", "/no/image.sqsh"), "no /no/image.sqsh here"),
        (("--runtime", "pyxis", "--image", "./no.sqsh", "--rehearse"), "no.sqsh here"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value).replace("/", "_"),
)
def test_what_is_known_to_fail_is_not_submitted(
    hpcbert: Command, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    code, document = hpcbert(*SUBMIT, *words)
    assert (code, document["status"]) == (2, "error")
    assert said in messages(document)
    assert "--force" in messages(document)
    assert not (tmp_path / "sbatch").exists()


def test_force_submits_all_the_same_and_says_what_it_passed_over(
    hpcbert: Command, tmp_path: Path
) -> None:
    code, document = hpcbert(*SUBMIT, "--nodes", "5", "--runs", str(tmp_path / "runs"), "--force")
    assert code == 3
    assert (tmp_path / "sbatch").exists()
    assert "refused" in messages(document)


def test_a_dry_run_says_it_and_shows_the_script(hpcbert: Command) -> None:
    _, document = hpcbert(*SUBMIT, "--nodes", "5", "--dry-run")
    assert document["data"]["arrays"]
    assert any("5 are asked for" in one for one in document["warnings"])


def test_a_framework_without_data_names_all_that_helps(hpcbert: Command) -> None:
    code, document = hpcbert(*SUBMIT, "--fw", "oneflow")
    assert code == 2
    for word in (
        "hpcbert prepare --fw oneflow",
        "--rehearse",
        "frameworks.oneflow.data",
        "frameworks.oneflow.source",
        "--data",
        "--source",
    ):
        assert word in messages(document)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[frameworks.onflow]\nmodel = "bert-base"\n', "Did you mean oneflow"),
        ("[frameworks.oneflow.options]\nbogus = 1\n", "no option 'bogus'"),
        ('[frameworks.oneflow]\nmodel = "bert-bas"\n', "Did you mean bert-base"),
        ("[frameworks.oneflow.batch_sizes]\ntf32 = 1\n", "does not run in tf32"),
        ('[container]\nmounts = ["data"]\n', "must begin with a path"),
        ('[container]\nmounts = ["/a:/b:ro:rw"]\n', "too many colons"),
    ],
    ids=["framework", "option", "model", "precision", "mount", "colons"],
)
def test_what_a_site_says_of_nothing_is_an_error(
    hpcbert: Command, tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "site.toml").write_text(SITE + text)
    code, document = hpcbert("config")
    assert code == 2
    assert said in messages(document)
    assert document["data"]["settings"]
    code, document = hpcbert("doctor")
    assert code == 5
    failed = [one for one in document["data"] if one["status"] == "fail"]
    assert any(said in f"{one['detail']} {one['hint']}" for one in failed)


def test_the_doctor_finds_what_submit_would_refuse(hpcbert: Command, tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(
        SITE
        + 'time_limit = "2-00:00:00"\n[nodes]\ngpus_per_node = 16\n'
        + '[frameworks.oneflow]\ndata = "/no/data"\nsource = "/no/source"\n'
    )
    code, document = hpcbert("doctor", "--fw", "oneflow")
    assert code == 5
    text = json.dumps([one for one in document["data"] if one["status"] == "fail"])
    for said in ("/no/data", "/no/source", "gpu:16", "at most 1-00:00:00"):
        assert said in text
