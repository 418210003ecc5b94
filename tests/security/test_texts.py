"""Texts from elsewhere steer no terminal and run in no job; who reads a job's files."""

import json
import os
import stat
import subprocess
from dataclasses import replace

import click
import pytest

from hpcbert.campaign import record, store
from hpcbert.cli.main import exit_on_error
from hpcbert.cli.output import dump_json, replace_controls
from hpcbert.slurm.hostlist import expand
from hpcbert.slurm.state_sources import reduce_events
from tests.kit.campaigns import node, status_file, write_nodes
from tests.kit.cases import cases, read_constant
from tests.kit.cli import Cli
from tests.kit.scripts import events, kinds, run_script, write_ranks
from tests.kit.slurm import Answer, failed
from tests.kit.waiting import CEILING

# Clear the screen, set the title, the same with a C1 code, back up, delete, right to left.
HOSTILE = "\x1b[2J\x1b]0;owned\x07\x9b2J\x08\x7f\u202e"
FORBIDDEN = ("\x1b[2J", "\x1b]", "\x07", "\x9b", "\x08", "\x7f", "\u202e")


def show(hpcbert, *words):
    """Return all that hpcbert sends to a terminal of its own, which is clean."""
    shown = hpcbert.on_terminal(*words, PYTHONUTF8="1")[1]
    check_clean(shown)
    return shown


def check_clean(shown):
    assert shown.strip()
    assert "Traceback" not in shown
    assert [character for character in FORBIDDEN if character in shown] == []


def test_no_command_lets_it_through(build, tmp_path):
    """Everything that can be is hostile in a campaign of the local scheduler."""
    terminal = Cli(tmp_path, {"HPCBERT_RUNS": str(tmp_path / "runs")})
    built = build("1n1g", "2n2g", repeats=2, scheduler="local").finish()
    write_nodes(built.directory, built.array("1n1g"), 1, node("n1", host__kernel=HOSTILE))
    write_nodes(built.directory, built.array("1n1g"), 2, node("n1"))
    built.log("2n2g", 1, HOSTILE + built.text("2n2g", 38.0, last=3) + HOSTILE)
    finished = {"event": "finished", "state": "FAILED", "exit": 1, "reason": HOSTILE}
    built.mark("2n2g", 2, {"event": "start", "nodelist": HOSTILE, "host": HOSTILE}, finished)
    arrays = []
    for array in built.campaign.arrays:
        point = replace(array.point, model=f"m{HOSTILE}", options=(("o", HOSTILE),))
        arrays.append(replace(array, error=HOSTILE, point=point))
        for repeat in (1, 2):
            path = built.directory / array.status(repeat)
            path.rename(built.directory / arrays[-1].status(repeat))
    texts = {"user": HOSTILE, "site": HOSTILE, "image": HOSTILE, "command": (HOSTILE,)}
    built = built.change(arrays=tuple(arrays), **texts)
    for words in read_constant(__file__, "COMMANDS"):
        show(terminal, *(word.replace("{}", str(built.directory)) for word in words))
    # What was collected is audited.
    for array in built.campaign.arrays:
        for repeat in (1, 2):
            finished = {"event": "finished", "state": "COMPLETED", "exit": 0}
            status_file(built.directory / array.status(repeat), finished, time=1)
    show(terminal, "collect", built.directory)
    (built.directory / "logs" / f"{HOSTILE}.log").write_text("")
    assert "it did not exist before" in show(terminal, "audit", built.directory)
    # A hostile site is named safely.
    for text in (f"x = {HOSTILE}", f'schema = 1\nname = "{HOSTILE}"', "[a]\n" * 2):
        (tmp_path / "site.toml").write_text(text)
        for command in ("config", "doctor"):
            show(terminal, command, "--site", "site.toml")


def test_what_slurm_says_is_shown_safely(hpcbert, slurm, watched):
    tracked = watched()
    rows = tracked.sacct(1, f"FAILED {HOSTILE}") + tracked.sacct(2, HOSTILE)
    waits = tracked.squeue(1, "PENDING", reason=HOSTILE)
    garbage = f"{HOSTILE}|x\n"
    for answer in (
        {"sacct": [rows + garbage], "squeue": [waits + garbage]},
        {"sacct": [Answer(HOSTILE, 1, HOSTILE)], "squeue": [Answer(HOSTILE, 1, HOSTILE)]},
        {"sacct": [rows.replace("n[1-2]", HOSTILE)], "squeue": [""]},
    ):
        slurm.answers(**answer)
        for words in (["monitor", "--once"], ["collect"]):
            show(hpcbert, *words, tracked.directory)
    slurm.answers(sbatch=[failed(f"sbatch: error: refused {HOSTILE}")], squeue=[""], sacct=[""])
    words = ["submit", "--nodes", "1", "--gpus-per-node", "1", "--fw", "pytorch"]
    assert "refused" in show(hpcbert, *words)


def test_clicks_own_errors_and_json_are_escaped(capsys):
    with pytest.raises(SystemExit, match="2"):
        exit_on_error(click.UsageError(f"No such option: --{HOSTILE}"))
    err = capsys.readouterr().err
    assert "No such option: --" in err
    check_clean(err)
    data = {"a": HOSTILE, "b": "é😀\u2028"}
    document = dump_json(data)
    assert json.loads(document) == data
    assert replace_controls(document) == document
    assert "é😀" in document


def run(tmp_path, names="localhost", status=0, **environment):
    """Run a rendered script with a stand-in for Slurm; return it and the campaign."""
    draft = write_ranks(tmp_path, scheduler="slurm", shape="1n1g")
    return run_script(draft, tmp_path, status=status, HOSTS=names, **environment), draft


def test_texts_of_the_scheduler_are_json_in_the_record_and_never_run(tmp_path):
    sprung = tmp_path / "sprung"
    variables = ("SLURM_JOB_NODELIST", "SLURM_ARRAY_JOB_ID", "SLURM_JOB_QOS")
    for number, template in enumerate(read_constant(__file__, "TEXTS")):
        text, place = template.replace("{sprung}", str(sprung)), tmp_path / f"{number}"
        place.mkdir()
        _, built = run(place, names=text, **dict.fromkeys(variables, text))
        assert kinds(built) == ["start", "step", "step-end", "end"], text
        job_record = reduce_events(events(built))
        assert (job_record.attempt, job_record.exit) == (0, 0)
        assert isinstance(expand(job_record.nodelist), tuple)
        assert job_record.nodelist == "".join(char if " " <= char <= "~" else "?" for char in text)
        assert not sprung.exists(), text
    # Bytes that are no text leave the record readable.
    _, built = run(tmp_path, SLURM_JOB_NODELIST=b"n\xff\xfe\x80")
    (array,) = built.campaign.arrays
    assert len(record.read_record(built.directory / array.status(1)).events) == 4


@cases
def test_what_is_no_number_is_refused_before_bash_counts_with_it(tmp_path, variable, text):
    result, built = run(tmp_path, status=125, **{variable: text})
    assert f"{variable} is not a number" in result.stderr
    assert not list(tmp_path.glob("**/sprung"))
    assert not list((built.directory / "status").iterdir())


def test_the_umask_decides_who_reads_a_campaign(tmp_path):
    def modes_of(paths):
        return {stat.S_IMODE(path.stat().st_mode) for path in paths}

    before = os.umask(0o022)
    try:
        for umask in (0o022, 0o027, 0o077):
            place = tmp_path / oct(umask)
            place.mkdir()
            place.chmod(0o2775)
            os.umask(umask)
            _, built = run(place)
            store.write_json(built.directory / "measurements.json", {})
            paths = {built.directory, *built.directory.rglob("*")}
            assert modes_of(paths) == {0o2777 & ~umask, 0o666 & ~umask}
            names = {path.name for path in paths}
            assert {"env", "logs", "status", "scripts", "slurm", "manifest.json"} <= names
            assert {".log", ".jsonl"} <= {path.suffix for path in paths}
        # Whoever calls sbatch by hand leaves nothing that everybody can write to.
        draft = write_ranks(tmp_path)
        before_job = set(draft.directory.rglob("*"))
        argv = ["bash", str(draft.directory / draft.campaign.arrays[0].script)]
        env = {"PATH": os.environ["PATH"], "SLURM_ARRAY_TASK_ID": "1"}
        os.umask(0)
        subprocess.run(
            argv, env={**env, "RECORD": str(tmp_path / "record")}, check=True, timeout=CEILING
        )
        assert modes_of(set(draft.directory.rglob("*")) - before_job) == {0o775, 0o664}
    finally:
        os.umask(before)
