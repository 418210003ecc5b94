"""Whatever a person names and whatever the system refuses: a sentence, an exit code, a document."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from hpcbert.cli.main import COMMANDS, root
from hpcbert.system.runner import Outcome, run
from tests.kit.cases import cases
from tests.kit.waiting import CEILING

pytestmark = pytest.mark.slow

# What an option or argument of these names takes is a path, or may be one.
PATHS = (
    *("campaign", "campaigns", "check", "data", "directory", "image", "output", "path", "paths"),
    *("repository", "runs", "site_file", "source", "templates"),
)
# What a command needs apart from the path under test; what runs nothing for real.
NEEDS = {
    "frameworks show": ["oneflow"],
    "images remove": ["--leftovers"],
    "init": ["--local"],
    "prepare": ["--fw", "pytorch", "--dry-run"],
    "submit": ["--dry-run"],
    "cancel": ["20261121T100000Z-oneflow-3f9a1c"],
}
# These would make a lab of this machine.
LEFT_OUT = {"lab up", "lab down"}


def commands() -> Iterator[tuple[str, click.Command]]:
    """Yield every command with its whole name, those in groups too."""
    for name in COMMANDS:
        command = root.get_command(click.Context(root), name)
        assert command is not None
        if isinstance(command, click.Group):
            for inner in command.commands.values():
                yield f"{name} {inner.name}", inner
        else:
            yield name, command


def list_command_lines(value: str) -> list[list[str]]:
    """Return a command line for each place that takes a path, with this one there."""
    command_lines = []
    for name, parameter in (
        (name, param) for name, command in commands() for param in command.params
    ):
        if parameter.name not in PATHS or getattr(parameter, "is_flag", False) or name in LEFT_OUT:
            continue
        needs = NEEDS.get(name, []) if isinstance(parameter, click.Option) else []
        words = [parameter.opts[-1], value] if isinstance(parameter, click.Option) else [value]
        command_lines.append([*name.split(), *needs, *words, "--json"])
    return command_lines


def where(home: Path, kind: str) -> str:
    """Make a path that can't be used, and name it."""
    if kind == "locked":
        locked = home / "locked"
        (locked / "inner").mkdir(parents=True)
        locked.chmod(0)
        return str(locked / "inner")
    if kind == "below a file":
        (home / "file").write_text("x")
        return str(home / "file" / "inner")
    if kind == "loop":
        (home / "loop").symlink_to("loop")
        return str(home / "loop")
    return str(home / ("x" * 300))


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "home"
    folder.mkdir()
    yield folder
    for path in folder.rglob("*"):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o700)


@pytest.mark.parametrize("kind", ["locked", "below a file", "loop", "long"])
def test_a_path_that_cannot_be_used_is_a_sentence_everywhere(
    kind: str, home: Path, run_commands: Callable[..., list[Any]]
) -> None:
    value = where(home, kind)
    command_lines = list_command_lines(value)
    assert len(command_lines) > 30
    for words, result in zip(command_lines, run_commands(command_lines, cwd=home), strict=True):
        result.check(as_json=True)
        harmless = {"--data", "--source", "--image", "--repository", "--runs"} & set(words)
        assert result.returncode or harmless or "--leftovers" in words, (words, result)


def test_every_command_survives_the_loss_of_its_working_directory(
    run_commands: Callable[..., list[Any]],
) -> None:
    command_lines = [
        [*name.split(), *NEEDS.get(name, []), *extra]
        for name, _ in commands()
        if name not in LEFT_OUT | {"cancel"}
        for extra in ([], ["--json"])
    ]
    for words, result in zip(command_lines, run_commands(command_lines, gone=True), strict=True):
        result.check(as_json="--json" in words)
    results = run_commands([["config"], ["--help"]], gone=True)
    assert "working directory was removed" in results[0].stderr
    assert (results[0].returncode, results[1].returncode) == (1, 0)


@pytest.fixture
def campaign(home: Path, run_commands: Callable[..., list[Any]]) -> Path:
    """Return a campaign that was submitted to a Slurm that answers nothing else."""
    tools = home / "tools"
    tools.mkdir()
    (tools / "sbatch").write_text("#!/bin/sh\necho 7\n")
    (tools / "sbatch").chmod(0o755)
    words = ["submit", "--fw", "oneflow", "--rehearse", "--scheduler", "slurm", "--json"]
    path = f"{tools}:{os.environ['PATH']}"
    (result,) = run_commands(
        [[*words, "--runs", str(home / "runs"), "--data", "/d", "--source", "/s"]], PATH=path
    )
    assert result.returncode == 0, result
    shutil.rmtree(tools)
    return Path(result.document["data"]["directory"])


@pytest.mark.parametrize("name", [".", "manifest.json", "status", "logs"])
def test_a_campaign_with_something_unreadable_in_it(
    name: str, campaign: Path, run_commands: Callable[..., list[Any]]
) -> None:
    command_lines = [
        [*words, str(campaign), "--json"]
        for words in (
            *(["collect"], ["audit"], ["logs"], ["retry", "--dry-run"], ["submit", "--resume"]),
            *(["monitor", "--once"], ["cancel", "--yes"]),
        )
    ]
    (campaign / name).chmod(0)
    results = run_commands(command_lines)
    (campaign / name).chmod(0o700)
    for words, result in zip(command_lines, results, strict=True):
        result.check(as_json=True)
        # All of it was submitted: nothing has to be read.
        assert result.returncode or words[0] == "submit", result


def test_a_folder_of_campaigns_that_cannot_be_read_is_not_an_empty_one(
    campaign: Path, run_commands: Callable[..., list[Any]]
) -> None:
    runs = campaign.parent
    runs.chmod(0o300)
    command_lines = [[*words, "--json"] for words in (["audit"], ["collect"], ["logs"], ["retry"])]
    results = run_commands(command_lines, HPCBERT_RUNS=str(runs))
    runs.chmod(0o700)
    for result in results:
        result.check(as_json=True)
        assert result.returncode == 1
        assert "Permission denied" in result.document["errors"][0]["message"]


def shell(line: str, cwd: Path) -> Outcome:
    """Run a shell line in which hpcbert is this one."""
    function = f'hpcbert() {{ "{sys.executable}" -m hpcbert "$@"; }}'
    words = ["bash", "-c", f"{function}\n{line}"]
    return run(words, cwd=cwd, env={**os.environ, "HOME": str(cwd)}, timeout=CEILING)


@cases
def test_a_stdout_that_takes_nothing(line: str, code: int, message: str, tmp_path: Path) -> None:
    outcome = shell(line, tmp_path)
    assert outcome.returncode == code, outcome
    assert message in outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert "Exception ignored" not in outcome.stderr
    assert outcome.stderr.count("rror: ") <= 2


@pytest.mark.parametrize(
    "line", ["hpcbert config --json 2>&-", "hpcbert submit --fw nix --json 2>/dev/full"]
)
def test_a_stderr_that_takes_nothing_hides_no_result(line: str, tmp_path: Path) -> None:
    outcome = shell(line, tmp_path)
    document = json.loads(outcome.stdout)
    assert document["exit_code"] == outcome.returncode
    assert outcome.returncode == (2 if "nix" in line else 0)


def test_a_stdin_that_is_closed_answers_nothing(campaign: Path, tmp_path: Path) -> None:
    outcome = shell(f"hpcbert cancel {campaign} <&-", tmp_path)
    assert outcome.returncode in {2, 3}
    assert "Traceback" not in outcome.stderr


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("module", ["click", "jinja2"])
def test_an_interrupt_while_modules_load(module: str, as_json: bool, tmp_path: Path) -> None:
    code = f"""
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
from hpcbert.__main__ import main
main()
"""
    words = ["submit", "--dry-run", *(["--json"] if as_json else [])]
    result = subprocess.run(
        [sys.executable, "-c", code, *words],
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


def test_a_bug_is_a_sentence_and_a_traceback_on_demand(tmp_path: Path) -> None:
    code = """
import hpcbert.config.site
hpcbert.config.site.load = lambda *_: {}["what"]
from hpcbert.__main__ import main
main()
"""

    def run(**env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code, "config", "--json"], cwd=tmp_path,
            env={**os.environ, **env}, capture_output=True, text=True, check=False, timeout=CEILING,
        )  # fmt: skip

    result = run()
    document = json.loads(result.stdout)
    assert result.returncode == document["exit_code"] == 1
    assert "KeyError: 'what'" in document["errors"][0]["message"]
    assert "HPCBERT_DEBUG" in document["errors"][0]["hint"]
    assert result.stderr == ""
    assert "Traceback" in run(HPCBERT_DEBUG="1").stderr


@pytest.mark.parametrize("key", ["runs", "sources", "container.images", "name", "slurm.partition"])
def test_a_nul_character_in_a_site(
    key: str, home: Path, run_commands: Callable[..., list[Any]]
) -> None:
    table, _, name = key.rpartition(".")
    text = 'schema = 1\nscheduler = "local"\n' + ("" if key == "name" else 'name = "x"\n')
    text += f"[{table}]\n" if table else ""
    (home / "site.toml").write_text(text + f'{name} = "a\\u0000b"\n')
    (result,) = run_commands([["config", "--json"]], cwd=home)
    result.check(as_json=True)
    assert result.returncode == 2
    assert key in result.document["errors"][0]["message"]
