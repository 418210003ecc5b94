"""A scheduler that hpcbert does not know works on its commands, from an installed package."""

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hpcbert.model import MANIFEST
from tests.kit import cli, drafts, scripts
from tests.kit.cases import cases
from tests.kit.logs import WORDS, announce, stand_in, write_file
from tests.kit.paths import REPOSITORY

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """The package of "Add a scheduler"; tests/docs installs it with pip."""
    place = tmp_path_factory.mktemp("a package")
    scripts.write_files(scripts.read_steps(scripts.SPOOL_PAGE), place)
    announce(place / "spool", "spool", "schedulers", "hpcbert_spool:TRAITS")
    return place / "spool"


class Spool:
    """A site of this scheduler; the second repeat of its program fails once there is a flag."""

    def __init__(self, folder, package):
        self.place, self.package, self.flag = folder / "spool", package, folder / "flag"
        self.place.mkdir()
        self.choose("spool")
        condition = f"$SLURM_ARRAY_TASK_ID == 2 && -e {self.flag}"
        self.program = stand_in(folder, f"if [[ {condition} ]]; then rm {self.flag}; exit 7; fi")

    def choose(self, scheduler):
        drafts.site(self.place.parent, start=drafts.MINIMAL.replace("slurm", scheduler))

    def submit(self, *words, **options):
        argv = (*WORDS, "--repeats", "2", "--python", self.program, "--json", *words)
        return cli.run(*argv, **options)

    def work(self):
        """Run what waits, as the batch system's daemon would."""
        env = {**os.environ, "PYTHONPATH": f"{self.package}:{REPOSITORY}"}
        subprocess.run([sys.executable, "-m", "hpcbert_spool"], env=env, check=True)

    def jobs(self):
        return sorted(str(path.relative_to(self.place)) for path in self.place.glob("*/[wrcd]*"))

    def kinds(self):
        counts = cli.run("monitor", "--once", "--json").data["repeats"]
        return {name: count for name, count in counts.items() if name != "asked"}


@pytest.fixture
def spool(tmp_path, package, empty_directory, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, str(package)])
    monkeypatch.setenv("SPOOL", str(tmp_path / "spool"))
    return Spool(tmp_path, package)


def test_what_doctor_and_a_dry_run_show_is_its_own(spool):
    findings = {finding["name"]: finding for finding in cli.run("doctor", "--json").data}
    assert (findings["spool"]["status"], findings["spool"]["detail"]) == ("ok", str(spool.place))
    assert not {"sbatch", "slurmctld", "PyTorch"} & set(findings)
    assert "with the spool scheduler" in cli.run("doctor", "--nodes", "2", status=2).stderr
    result = cli.run(*WORDS, "--python", "true", "--dry-run")
    assert "$ (spool queue)" in result.stdout
    assert "sbatch --test-only" not in result.stdout
    partition = spool.submit("--partition", "gpu", status=2)
    assert "--partition has no effect" in partition.error["message"]
    assert not list(spool.place.iterdir())


def test_a_campaign_is_submitted_followed_retried_and_collected(spool):
    spool.flag.touch()
    data = spool.submit("--time", "5").data
    assert spool.jobs() == ["0001/waiting"]
    assert [entry["job_id"] for entry in data["arrays"]] == ["0001"]
    assert spool.kinds() == {"waiting": 2}
    shown = cli.run("monitor", "--once").stdout
    assert ("QUEUED" in shown, "check again" in shown) == (True, False)
    spool.work()
    assert cli.run("monitor", "--json").returncode == 0
    assert spool.kinds() == {"succeeded": 1, "failed": 1}
    again = cli.run("retry", "--time", "2:00:00", "--json")
    (array,) = again.data["campaigns"][0]["arrays"]
    assert ([entry["repeat"] for entry in array["repeats"]], array["job_id"]) == ([2], "0002")
    scripts = [path.read_text() for path in Path(data["directory"]).glob("scripts/*.sbatch")]
    limits = [re.findall("^#.* limit=([0-9]+)$", text, re.MULTILINE) for text in scripts]
    assert sorted(limits) == [["300"], ["300", "7200"]]
    assert "SBATCH" not in "".join(scripts)
    spool.work()
    collected = cli.run("collect", "--json", status=0)
    attempts = {repeat: run["attempt"] for repeat, run in cli.runs(collected.document).items()}
    assert attempts == {1: 0, 2: 1}


def test_an_option_names_it_too_and_a_manifest_that_names_an_unknown_one_is_damaged(spool):
    spool.choose("local")
    directory = Path(spool.submit("--scheduler", "spool").data["directory"])
    assert spool.jobs() == ["0001/waiting"]
    refused = spool.submit("--scheduler", "spoo")
    assert (refused.returncode, "local, slurm, spool" in refused.stderr) == (2, True)
    path = directory / MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), "scheduler": "pbs"}))
    assert "scheduler" in cli.run("monitor", str(directory), "--json", status=2).error["message"]


@cases
def test_a_broken_package_is_named(spool, module, keyword):
    folder = spool.place.parent / f"package {keyword.strip('.')}"
    name = f"broken_{keyword.lower().replace('.', '_').replace(' ', '_')}"
    announce(folder, "broken", "schedulers", f"{name}:TRAITS")
    write_file(folder, f"{name}.py", module)
    sys.path.append(str(folder))
    spool.choose("broken")
    assert keyword in cli.run("doctor", "--json", status=2).error["message"]


def test_what_is_cancelled_stays_on_record_and_can_be_retried(spool):
    directory = Path(spool.submit().data["directory"])
    result = cli.run("cancel", str(directory), "--yes", "--json")
    assert (result.data["cancelled"], result.data["jobs"]) == (True, ["0001"])
    assert (spool.jobs(), spool.kinds()) == (["0001/cancelled"], {"failed": 2})
    assert cli.run("cancel", str(directory), "--yes").stdout.startswith("No job of")
    collected = cli.run("collect", "--json")
    assert {run["state"] for run in cli.runs(collected.document).values()} == {"CANCELLED"}
    cli.run("retry", "--json")
    spool.work()
    assert spool.kinds() == {"succeeded": 2}


def test_a_job_that_an_interrupted_submission_left_is_found(spool, monkeypatch):
    scheduler = importlib.import_module("hpcbert_spool.backend").Spool
    start = scheduler.start

    def start_and_die(*words):
        start(*words)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(scheduler, "start", start_and_die)
        stopped = spool.submit()
    assert stopped.error["code"] == "interrupted", stopped
    result = cli.run("submit", "--resume", stopped.data["directory"], "--json")
    assert [array["job_id"] for array in result.data["arrays"]] == ["0001"]
    assert len(list(spool.place.iterdir())) == 1


def test_nobody_compares_a_schedulers_name():
    compared = re.compile(r"""(==|!=|\bin|\bcase) *[({\[]?["'](local|slurm)["']""")
    files = [*(REPOSITORY / "hpcbert").rglob("*.py"), *(REPOSITORY / "templates").rglob("*.j2")]
    for path in files:
        lines = path.read_text(encoding="utf-8").splitlines()
        assert [line for line in lines if compared.search(line)] == [], path
