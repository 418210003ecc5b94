"""Whatever a person names and whatever the system refuses: a sentence, an exit code, a document."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click
import pytest

from hpcbert.cli.main import COMMANDS, root
from hpcbert.system.runner import Outcome, run
from tests.kit import cli
from tests.kit.cases import cases, read_constant
from tests.kit.waiting import CEILING

pytestmark = pytest.mark.slow
# What an option or argument of these names takes is a path, or may be one.
PATHS = read_constant(__file__, "PATHS")
# What a command needs apart from the path under test; what runs nothing for real.
NEEDS = read_constant(__file__, "NEEDS")


def list_commands() -> Iterator[tuple[str, click.Command]]:
    """Yield every command with its whole name; not those that would make a lab of this machine."""
    for name in COMMANDS:
        command = root.get_command(click.Context(root), name)
        assert command is not None
        for inner in getattr(command, "commands", {"": command}).values():
            full_name = name if inner is command else f"{name} {inner.name}"
            if full_name not in {"lab up", "lab down"}:
                yield full_name, inner


@pytest.fixture
def home(tmp_path):
    """A directory whose folders can be removed after the test."""
    (tmp_path / "home").mkdir()
    yield tmp_path / "home"
    for path in (tmp_path / "home").rglob("*"):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o700)


def test_a_path_that_cannot_be_used_is_a_sentence_everywhere(home, run_commands):
    (home / "locked" / "inner").mkdir(parents=True)
    (home / "locked").chmod(0)
    (home / "file").write_text("x")
    (home / "loop").symlink_to("loop")
    paths = [str(home / name) for name in ("file/inner", "loop", "locked/inner", "x" * 300)]
    lines: list[list[str]] = []
    for name, parameter in (
        (name, param) for name, entry in list_commands() for param in entry.params
    ):
        if parameter.name in PATHS and not getattr(parameter, "is_flag", False):
            is_option = isinstance(parameter, click.Option)
            words = [*NEEDS.get(name, []), parameter.opts[-1]] if is_option else []
            # One of the first two: each place is tried with three paths.
            chosen = [paths[len(lines) % 2], *paths[2:]]
            lines += [[*name.split(), *words, path, "--json"] for path in chosen]
    assert len(lines) > 3 * 30
    for words, result in zip(lines, run_commands(lines, cwd=home), strict=True):
        result.check(as_json=True)
        harmless = {"--data", "--source", "--image", "--repository", "--runs"} & set(words)
        assert result.returncode or harmless or "--leftovers" in words, (words, result)


def test_every_command_survives_the_loss_of_its_working_directory(run_commands):
    names = [name for name, _ in list_commands() if name != "cancel"]
    lines = [[*name.split(), *NEEDS.get(name, []), "--json"] for name in names]
    for result in run_commands(lines, gone=True):
        result.check(as_json=True)
    plain = [["config"], ["collect"], ["submit", "--dry-run"], ["--help"]]
    for result in (results := run_commands(plain, gone=True)):
        result.check(as_json=False)
    assert "working directory was removed" in results[0].stderr
    assert (results[0].returncode, results[-1].returncode) == (1, 0)


def test_a_campaign_with_something_unreadable_in_it_is_not_an_empty_one(home, run_commands):
    """It was submitted to a Slurm that answers nothing else."""
    tools = home / "tools"
    tools.mkdir()
    (tools / "sbatch").write_text("#!/bin/sh\necho 7\n")
    (tools / "sbatch").chmod(0o755)
    words = ["submit", "--fw", "oneflow", "--rehearse", "--scheduler", "slurm", "--json"]
    words += ["--runs", str(home / "runs"), "--data", "/d", "--source", "/s"]
    (submitted,) = run_commands([words], PATH=f"{tools}:{os.environ['PATH']}")
    campaign = Path(submitted.data["directory"])
    shutil.rmtree(tools)
    copies = []
    for name in (".", "manifest.json", "status", "logs"):
        copies.append(campaign.parents[1] / name.replace(".", "dot") / campaign.name)
        shutil.copytree(campaign, copies[-1])
        (copies[-1] / name).chmod(0)
    commands = read_constant(__file__, "READERS")
    lines = [[*text.split(), str(copy), "--json"] for copy in copies for text in commands]
    for line, result in zip(lines, run_commands(lines), strict=True):
        result.check(as_json=True)
        # All of it was submitted: nothing has to be read.
        assert result.returncode or line[0] == "submit", result
    campaign.parent.chmod(0o300)
    lines = [[word, "--json"] for word in ("audit", "collect", "logs", "retry")]
    for result in run_commands(lines, HPCBERT_RUNS=str(campaign.parent)):
        result.check(as_json=True)
        assert result.returncode == 1
        assert "Permission denied" in result.error["message"]
    campaign.parent.chmod(0o700)


def run_shell(line: str, cwd: Path) -> Outcome:
    """Run a shell line in which hpcbert is this one."""
    function = f'hpcbert() {{ "{sys.executable}" -m hpcbert "$@"; }}'
    words = ["bash", "-c", f"{function}\n{line}"]
    return run(words, cwd=cwd, env={**os.environ, "HOME": str(cwd)}, timeout=CEILING)


@cases
def test_a_stream_that_takes_or_gives_nothing(line, code, message, tmp_path):
    outcome = run_shell(line, tmp_path)
    assert outcome.returncode == code, outcome
    assert (message or "") in outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert "Exception ignored" not in outcome.stderr
    assert outcome.stderr.count("rror: ") <= 2
    if "2>" in line:  # It hides no result.
        assert json.loads(outcome.stdout)["exit_code"] == code


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("module", ["click", "jinja2"])
def test_an_interrupt_while_modules_load(module, as_json, tmp_path):
    code = read_constant(__file__, "INTERRUPTED")
    result = subprocess.run(
        [sys.executable, "-c", code, module, "submit", "--dry-run", *["--json"] * as_json],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=CEILING,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert result.returncode == 130, result
    if as_json:
        assert json.loads(result.stdout)["errors"][0]["code"] == "interrupted"
        assert result.stderr.strip() == ""
    else:
        # submit names its site before it loads the rest.
        lines = [line for line in result.stderr.splitlines() if not line.startswith("site ")]
        assert lines == ["error: Interrupted."]


def test_a_bug_is_a_sentence_and_a_traceback_on_demand(tmp_path):
    start = partial(
        cli.start_process,
        [sys.executable, "-c", read_constant(__file__, "BUG"), "config", "--json"], cwd=tmp_path,
    )  # fmt: skip
    result = start(env=os.environ)
    document = json.loads(result.stdout)
    assert result.returncode == document["exit_code"] == 1
    assert "KeyError: 'what'" in document["errors"][0]["message"]
    assert "HPCBERT_DEBUG" in document["errors"][0]["hint"]
    assert result.stderr == ""
    assert "Traceback" in start(env={**os.environ, "HPCBERT_DEBUG": "1"}).stderr


@pytest.mark.parametrize("key", ["runs", "sources", "container.images", "name", "slurm.partition"])
def test_a_nul_character_in_a_site(key, home, monkeypatch):
    monkeypatch.chdir(home)
    table, _, name = key.rpartition(".")
    text = 'schema = 1\nscheduler = "local"\n' + ("" if key == "name" else 'name = "x"\n')
    text += f"[{table}]\n" if table else ""
    Path("site.toml").write_text(text + f'{name} = "a\\u0000b"\n')
    result = cli.run("config", "--json")
    result.check(as_json=True)
    assert result.returncode == 2
    assert key in result.error["message"]
