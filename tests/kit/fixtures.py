"""Fixtures for several folders of tests."""

import json
import os
import shutil
import sys
from functools import partial

import pytest

from hpcbert.model import Protocol
from tests.kit import campaigns, cli
from tests.kit.cases import read_constant
from tests.kit.cli import Cli, CliResult, start_process
from tests.kit.logs import TEST_RECIPES, write_logs
from tests.kit.logs import read as read_log
from tests.kit.slurm import Programs


@pytest.fixture
def build(tmp_path):
    """Makes campaigns of the PyTorch reference, as submit would leave them."""
    return partial(campaigns.campaign, tmp_path / "runs")


@pytest.fixture
def empty_directory(tmp_path, monkeypatch):
    """A directory without a site, with a place for campaigns."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HPCBERT_RUNS", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def without_slurm(tmp_path, monkeypatch):
    """PATH without Slurm's programs, which every point of a dry run would start."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in ("bash", "env", "python3"):
        (folder / name).symlink_to(shutil.which(name) or sys.executable)
    monkeypatch.setenv("PATH", str(folder))


@pytest.fixture
def me(monkeypatch):
    """The user whom rows of sacctmgr call `me`, in the group `users`."""
    monkeypatch.setattr("hpcbert.system.files.user_name", lambda _: "me")
    monkeypatch.setattr("hpcbert.system.files.is_in_any_group", lambda groups: "users" in groups)


@pytest.fixture
def collect(empty_directory):
    """Runs `hpcbert collect WORDS` in this process, with the tests' own recipes."""
    return partial(cli.run, "collect", "--templates", TEST_RECIPES)


@pytest.fixture
def collect_json(collect):
    """Runs it with --json and returns the document."""
    return lambda *words: collect(*words, "--json").document


@pytest.fixture
def run(empty_directory):
    """Runs `hpcbert collect WORDS --json` with hpcbert's own recipes and returns the document."""
    return lambda *words: cli.run("collect", *words, "--json").document


@pytest.fixture
def slurm(tmp_path):
    """A scripted Slurm's commands, to be put on PATH."""
    return Programs(tmp_path / "bin")


@pytest.fixture
def hpcbert(tmp_path, slurm):
    """hpcbert in a directory with a space in its name; the site's Slurm is the scripted one."""
    folder = tmp_path / "with a space"
    folder.mkdir()
    (folder / "site.toml").write_text(
        'schema = 1\nname = "t"\nscheduler = "slurm"\n[slurm]\npoll_floor = 0.2\n'
    )
    return Cli(folder, {"PATH": slurm.path, "HOME": str(folder)})


@pytest.fixture
def watched(tmp_path):
    """Makes a submitted campaign of 120 iterations, of a point a job, next to the site of `hpcbert`."""
    runs = tmp_path / "with a space" / "runs"

    def make(name="20261121T100000Z-pytorch-aaaaaa", *, job_id="12", repeats=2, **changes):
        options = {"jobs": (job_id,), "protocol": Protocol(repeats), **changes}
        return campaigns.campaign(runs, name=name, repeats=repeats, **options)

    return make


@pytest.fixture
def run_commands(tmp_path):
    """Run command lines, each in a child of one process, as somebody whom permissions bind."""
    # Root reads whatever it likes, unless it gives these up.
    mortal = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")

    def run(lines, *, cwd=None, gone=False, umask=None, **env):
        path, home = tmp_path / "results", tmp_path / "home"
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        home.mkdir(exist_ok=True)
        program = read_constant(__file__, "_MANY")
        options = {"cwd": str(cwd or home), "gone": gone, "env": env, "umask": umask}
        process = start_process(
            [*(mortal if os.geteuid() == 0 else ()), sys.executable, "-c", program, str(path)],
            stdin=json.dumps({"lines": lines, **options}), env={**os.environ, "HOME": str(home)},
        )  # fmt: skip
        assert process.ok, process.stderr
        results = []
        for number, (words, code) in enumerate(zip(lines, process.stdout.split(), strict=True)):
            texts = ((path / f"{number}.{end}").read_text() for end in ("out", "err"))
            results.append(CliResult(tuple(words), int(code), *texts))
        return results

    return run


@pytest.fixture
def read(tmp_path):
    """Reads a log's text with a grammar's."""
    return partial(read_log, tmp_path)


@pytest.fixture
def logs(tmp_path):
    """Return a folder of logs that hpcbert never submitted."""
    return write_logs(tmp_path / "foreign", {"1n1g": [11.0, 12.0, 13.0, 14.0, 15.0]})


@pytest.fixture
def finished(build):
    """Return a campaign of which every repeat completed."""
    return build("1n1g").finish().directory
