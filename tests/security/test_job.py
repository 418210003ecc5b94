"""What the scheduler's environment and programs say stays text in a job; who reads its files."""

import json
import os
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hpcbert.campaign import record, store
from hpcbert.commands.submit import write_campaign
from hpcbert.slurm.hostlist import expand
from hpcbert.slurm.state_sources import reduce_events
from tests.kit.cases import cases, read_constant
from tests.kit.drafts import reference
from tests.kit.scripts import RECORDER, drafted, run_script, slurm_in, tool, with_python
from tests.kit.waiting import CEILING

PATH = os.environ["PATH"]
# What ends up in a record.
SAID = ("SLURM_JOB_NODELIST", "SLURM_ARRAY_JOB_ID", "SLURM_JOB_QOS")


def run(tmp_path: Path, names: str = "localhost", **environment: str | bytes) -> Any:
    """Run a rendered script with a stand-in for Slurm; return it and the campaign."""
    where = with_python(reference(tmp_path), tool(tmp_path, "python", RECORDER))
    draft = drafted(where, scheduler="slurm", shape="1n1g")
    slurm = slurm_in(tmp_path / "bin", 'printf "%s\\n" "$NAMES"')
    return run_script(draft, tmp_path, **{**slurm, "NAMES": names, **environment}), draft


@contextmanager
def masked(umask: int) -> Iterator[None]:
    before = os.umask(umask)
    try:
        yield
    finally:
        os.umask(before)


def modes_of(paths: set[Path]) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in paths}


TEXTS = read_constant(__file__, "TEXTS")


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_texts_of_the_scheduler_are_json_in_the_record_and_never_run(tmp_path, text):
    sprung = tmp_path / "sprung"
    text = text.replace("{sprung}", str(sprung))
    result, built = run(tmp_path, **dict.fromkeys(SAID, text))
    assert result.returncode == 0, result.stderr
    raw = (built.directory / built.campaign.arrays[0].status(1)).read_bytes()
    events = [json.loads(line) for line in raw.splitlines()]
    assert [event["event"] for event in events] == ["start", "step", "step-end", "end"]
    job_record = reduce_events(events)
    assert (job_record.attempt, job_record.exit) == (0, 0)
    assert isinstance(expand(job_record.nodelist), tuple)
    assert job_record.nodelist == "".join(char if " " <= char <= "~" else "?" for char in text)
    (tmp_path / "again").mkdir()
    run(tmp_path / "again", names=text)
    assert not sprung.exists()


def test_bytes_that_are_no_text_leave_the_record_readable(tmp_path):
    result, built = run(tmp_path, SLURM_JOB_NODELIST=b"n\xff\xfe\x80")
    assert result.returncode == 0
    (array,) = built.campaign.arrays
    assert len(record.read_record(built.directory / array.status(1)).events) == 4


@cases
def test_what_is_no_number_is_refused_before_bash_counts_with_it(tmp_path, variable, text):
    result, built = run(tmp_path, **{variable: text})
    assert result.returncode == 125
    assert f"{variable} is not a number" in result.stderr
    assert not list(tmp_path.glob("**/sprung"))
    assert not list((built.directory / "status").iterdir())


@pytest.mark.parametrize("umask", [0o002, 0o027, 0o077], ids=oct)
def test_the_umask_decides_who_reads_a_campaign(tmp_path, umask):
    tmp_path.chmod(0o2775)
    with masked(umask):
        result, built = run(tmp_path)
        assert result.returncode == 0, result.stderr
        store.write_json(built.directory / "measurements.json", {})
    paths = {built.directory, *built.directory.rglob("*")}
    assert modes_of(paths) == {0o2777 & ~umask, 0o666 & ~umask}
    names = {path.name for path in paths}
    assert {"env", "logs", "status", "scripts", "slurm", "manifest.json"} <= names
    assert {".log", ".jsonl"} <= {path.suffix for path in paths}


def test_a_job_leaves_nothing_that_everybody_can_write_to(tmp_path):
    """The umask of whoever calls sbatch by hand."""
    with masked(0o077):
        python = tool(tmp_path, "python", RECORDER)
        draft = drafted(with_python(reference(tmp_path), python))
        write_campaign(draft)
    before = set(draft.directory.rglob("*"))
    argv = ["bash", str(draft.directory / draft.campaign.arrays[0].script)]
    env = {"PATH": PATH, "SLURM_ARRAY_TASK_ID": "1", "RECORD": str(tmp_path / "record")}
    with masked(0):
        subprocess.run(argv, env=env, check=True, timeout=CEILING)
    assert modes_of(set(draft.directory.rglob("*")) - before) == {0o775, 0o664}
