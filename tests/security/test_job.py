"""What the scheduler's environment and programs say stays text in a job; who reads its files."""

import os
import stat
import subprocess

from hpcbert.campaign import record, store
from hpcbert.slurm.hostlist import expand
from hpcbert.slurm.state_sources import reduce_events
from tests.kit.cases import cases, read_constant
from tests.kit.scripts import events, kinds, run_script, write_ranks
from tests.kit.waiting import CEILING


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
