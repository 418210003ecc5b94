"""A scheduler that hpcbert does not know works on its commands, from an installed package."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcbert.model import MANIFEST
from tests.kit import cli
from tests.kit.cases import cases
from tests.kit.cli import CliResult, runs
from tests.kit.logs import WORDS, stand_in
from tests.kit.paths import REPOSITORY
from tests.kit.scripts import install

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the scheduler's package is installed."""
    return install(tmp_path_factory.mktemp("a package"))


@pytest.fixture
def place(
    tmp_path: Path, packages: Path, empty_directory: None, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The batch system's directory, and a site that names it."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(packages)])
    folder = tmp_path / "spool"
    folder.mkdir()
    monkeypatch.setenv("SPOOL", str(folder))
    site = 'schema = 1\nname = "third"\nscheduler = "spool"\n[container]\nruntime = "none"\n'
    (tmp_path / "site.toml").write_text(site)
    return folder


@pytest.fixture
def work(place: Path, packages: Path) -> Callable[[], None]:
    """Runs what waits, as the batch system's daemon would."""
    env = {**os.environ, "PYTHONPATH": f"{packages}:{REPOSITORY}"}
    words = [sys.executable, "-m", "hpcbert_spool"]

    def run_waiting() -> None:
        subprocess.run(words, env=env, check=True)

    return run_waiting


@pytest.fixture
def flag(tmp_path: Path) -> Path:
    """A file that makes the second repeat fail once."""
    return tmp_path / "flag"


@pytest.fixture
def submit(tmp_path: Path, place: Path, flag: Path) -> Callable[..., CliResult]:
    program = stand_in(
        tmp_path, f"if [[ $SLURM_ARRAY_TASK_ID == 2 && -e {flag} ]]; then rm {flag}; exit 7; fi"
    )
    return lambda *words: cli.run(*WORDS, "--repeats", "2", "--python", program, "--json", *words)


def list_jobs(place: Path) -> list[str]:
    return sorted(str(path.relative_to(place)) for path in place.glob("*/[wrcd]*"))


def kinds() -> dict[str, int]:
    counts: dict[str, int] = cli.run("monitor", "--once", "--json").data["repeats"]
    return {name: count for name, count in counts.items() if name != "asked"}


def test_doctor_asks_it(place: Path) -> None:
    findings = {finding["name"]: finding for finding in cli.run("doctor", "--json").data}
    assert (findings["spool"]["status"], findings["spool"]["detail"]) == ("ok", str(place))
    assert not {"sbatch", "slurmctld", "PyTorch"} & set(findings)
    refused = cli.run("doctor", "--nodes", "2")
    assert (refused.returncode, "with the spool scheduler" in refused.stderr) == (2, True)


def test_what_a_dry_run_shows_is_its_own(submit: Callable[..., CliResult], place: Path) -> None:
    result = cli.run(*WORDS, "--python", "true", "--dry-run")
    assert result.returncode == 0, result.stderr
    assert "$ (spool queue)" in result.stdout
    assert "sbatch --test-only" not in result.stdout
    refused = submit("--partition", "gpu")
    assert (refused.returncode, "--partition has no effect" in refused.error["message"]) == (
        2,
        True,
    )
    assert not list(place.iterdir())


def test_a_campaign_is_submitted_followed_retried_and_collected(
    submit: Callable[..., CliResult], work: Callable[[], None], place: Path, flag: Path
) -> None:
    flag.touch()
    data = submit().data
    assert list_jobs(place) == ["0001/waiting"]
    assert [entry["job_id"] for entry in data["arrays"]] == ["0001"]
    assert kinds() == {"waiting": 2}
    shown = cli.run("monitor", "--once").stdout
    assert ("QUEUED" in shown, "check again" in shown) == (True, False)
    work()
    assert cli.run("monitor", "--json").returncode == 0
    assert kinds() == {"succeeded": 1, "failed": 1}
    again = cli.run("retry", "--json")
    (array,) = again.data["campaigns"][0]["arrays"]
    assert ([entry["repeat"] for entry in array["repeats"]], array["job_id"]) == ([2], "0002")
    work()
    collected = cli.run("collect", "--json")
    assert collected.returncode == 0, collected.stderr
    assert {repeat: run["attempt"] for repeat, run in runs(collected.document).items()} == {
        1: 0,
        2: 1,
    }


def test_a_retry_adds_its_directives(
    submit: Callable[..., CliResult], work: Callable[[], None], flag: Path
) -> None:
    flag.touch()
    directory = Path(submit("--time", "5").data["directory"])
    work()
    cli.run("retry", "--time", "2:00:00", "--json")
    limits = [
        re.findall("^#.* limit=([0-9]+)$", path.read_text(), re.MULTILINE)
        for path in sorted(directory.glob("scripts/*.sbatch"))
    ]
    assert sorted(limits) == [["300"], ["300", "7200"]]
    assert "SBATCH" not in "".join(path.read_text() for path in directory.glob("scripts/*.sbatch"))


def test_an_option_names_it_too(submit: Callable[..., CliResult], place: Path) -> None:
    site = place.parent / "site.toml"
    site.write_text(site.read_text().replace('"spool"', '"local"'))
    submit("--scheduler", "spool")
    assert list_jobs(place) == ["0001/waiting"]
    refused = submit("--scheduler", "spoo")
    assert (refused.returncode, "local, slurm, spool" in refused.stderr) == (2, True)


@cases
def test_a_broken_package_is_named(place: Path, tmp_path: Path, module: str, keyword: str) -> None:
    folder = tmp_path / f"package {keyword.strip('.')}"
    info = folder / "broken-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Name: broken\nVersion: 1.0\n")
    name = f"broken_{keyword.lower().replace('.', '_').replace(' ', '_')}"
    (info / "entry_points.txt").write_text(f"[hpcbert.schedulers]\nbroken = {name}:TRAITS\n")
    (folder / f"{name}.py").write_text(module)
    sys.path.append(str(folder))
    site = tmp_path / "site.toml"
    site.write_text(site.read_text().replace('"spool"', '"broken"'))
    refused = cli.run("doctor", "--json")
    assert (refused.returncode, keyword in refused.error["message"]) == (2, True)


def test_who_waits_sees_it_retry_what_failed(
    submit: Callable[..., CliResult], work: Callable[[], None], flag: Path
) -> None:
    flag.touch()
    over = threading.Event()

    def serve() -> None:
        while not over.wait(0.1):
            work()

    daemon = threading.Thread(target=serve)
    daemon.start()
    try:
        result = submit("--wait", "--max-retries", "1")
    finally:
        over.set()
        daemon.join()
    assert result.returncode == 0, result.stderr
    assert {repeat: run["attempt"] for repeat, run in runs(result.document).items()} == {1: 0, 2: 1}


def test_what_is_cancelled_stays_on_record_and_can_be_retried(
    submit: Callable[..., CliResult], work: Callable[[], None], place: Path
) -> None:
    directory = Path(submit().data["directory"])
    result = cli.run("cancel", str(directory), "--yes", "--json")
    assert (result.data["cancelled"], result.data["jobs"]) == (True, ["0001"])
    assert list_jobs(place) == ["0001/cancelled"]
    assert kinds() == {"failed": 2}
    assert cli.run("cancel", str(directory), "--yes").stdout.startswith("No job of")
    work()
    collected = cli.run("collect", "--json")
    assert {run["state"] for run in runs(collected.document).values()} == {"CANCELLED"}
    cli.run("retry", "--json")
    work()
    assert kinds() == {"succeeded": 2}


def test_a_job_that_an_interrupted_submission_left_is_found(
    submit: Callable[..., CliResult], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start_and_die(*words: Any) -> str:
        start(*words)
        raise KeyboardInterrupt

    scheduler = importlib.import_module("hpcbert_spool.backend").Spool
    start = scheduler.start
    with monkeypatch.context() as patch:
        patch.setattr(scheduler, "start", start_and_die)
        stopped = submit()
    assert stopped.error["code"] == "interrupted", stopped
    directory = Path(stopped.data["directory"])
    result = cli.run("submit", "--resume", str(directory), "--json")
    assert [array["job_id"] for array in result.data["arrays"]] == ["0001"]
    assert len(list(place.iterdir())) == 1


def test_a_manifest_that_names_an_unknown_scheduler_is_damaged(
    submit: Callable[..., CliResult], place: Path
) -> None:
    directory = Path(submit().data["directory"])
    path = directory / MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), "scheduler": "pbs"}))
    result = cli.run("monitor", str(directory), "--json")
    assert (result.returncode, "scheduler" in result.error["message"]) == (2, True)


def test_nobody_compares_a_schedulers_name() -> None:
    compared = re.compile(r"""(==|!=|\bin|\bcase) *[({\[]?["'](local|slurm)["']""")
    files = [*(REPOSITORY / "hpcbert").rglob("*.py"), *(REPOSITORY / "templates").rglob("*.j2")]
    texts = [
        f"{path.relative_to(REPOSITORY)}: {line.strip()}"
        for path in files
        for line in path.read_text(encoding="utf-8").splitlines()
        if compared.search(line)
    ]
    assert texts == []
