"""What every command keeps to: streams, JSON, exit codes, permissions, and what it does not load."""

import json
import os
import stat
import subprocess
import sys

import pytest

from hpcbert.cli.main import COMMANDS
from tests.kit.cases import read_constant
from tests.kit.cli import HEAVY, UNCOUNTED, Cli, run_here
from tests.kit.paths import REPOSITORY

pytestmark = pytest.mark.slow


def test_help_ends_well_loads_nothing_heavy_and_lists_every_command_in_the_order_of_work(tmp_path):
    lines = [["--help"], ["--version"], ["-h"], *([name, "--help"] for name in COMMANDS)]
    result = subprocess.run(
        [sys.executable, "-c", read_constant(__file__, "PROGRAM"), json.dumps(lines)],
        cwd=tmp_path, env={**os.environ, **UNCOUNTED, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    document = json.loads(result.stderr)
    assert document["codes"] == [0] * len(lines)
    assert not HEAVY & set(document["modules"])
    places = [result.stdout.index(f"\n  {name} ") for name in COMMANDS]
    assert places == sorted(places)


def test_errors_speak_json_on_stdout_too(tmp_path, run_commands):
    (tmp_path / "x.sbatch").write_text("#!/bin/bash\n")
    lines = [line.split() for line in read_constant(__file__, "ERRORS")]
    results = run_commands(
        [words + more for words in lines for more in ([], ["--json"])], cwd=tmp_path
    )
    for plain, result in zip(results[::2], results[1::2], strict=True):
        document = json.loads(result.stdout)
        assert set(document) == {
            "version", "command", "status", "exit_code", "data", "errors", "warnings",
        }  # fmt: skip
        assert document["status"] == "error"
        assert document["exit_code"] == result.returncode == plain.returncode == 2
        assert set(document["errors"][0]) == {"code", "message", "hint"}
        assert plain.stdout == ""
        assert "rror: " in plain.stderr


def test_dry_run_writes_nothing_and_shows_argv_and_script(tmp_path):
    # Looking upward for a site ends at home.
    hpcbert = Cli(tmp_path, {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}, run=run_here)
    words = ("submit", "--nodes", "4", "--gpus-per-node", "8", "--fw", "oneflow", "--dry-run")
    result = hpcbert(*words, status=0)
    for part in ("$ sbatch --parsable", "#SBATCH --nodes=4", "--array=1-5%1"):
        assert part in result.stdout
    assert list(tmp_path.iterdir()) == []
    (array,) = hpcbert(*words, "--json").data["arrays"]
    assert array["argv"][:2] == ["sbatch", "--parsable"]
    assert array["global_batch_size"] == 1024


def test_colour_follows_flag_then_variables(tmp_path):
    process, words = Cli(tmp_path, {"HOME": str(tmp_path)}), ("submit", "--fw", "nix")
    assert "\x1b[" in process("--color", "always", *words).stderr
    assert "\x1b[" in process(*words, FORCE_COLOR="1").stderr
    assert "\x1b[" not in process(*words, FORCE_COLOR="1", NO_COLOR="1").stderr


@pytest.mark.parametrize(("umask", "mode_of_folders"), [(0o002, 0o775), (0o077, 0o700)])
def test_what_is_written_has_the_permissions_of_the_umask(
    umask, mode_of_folders, run_commands,
    tmp_path, logs,
):  # fmt: skip
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "sbatch").write_text(f"#!/bin/sh\numask >{tmp_path}/its-umask\necho 7\n")
    (tools / "sbatch").chmod(0o755)
    earlier = {*tmp_path.rglob("*"), tmp_path / "results", tmp_path / "home"}
    words = ["submit", "--fw", "oneflow", "--rehearse", "--scheduler", "slurm"]
    command_lines = [
        ["init", "--local"],
        [*words, "--data", "/d", "--source", "/s", "--runs", str(tmp_path / "deep" / "runs")],
        ["render", "--output", str(tmp_path / "scripts")],
        ["collect", str(logs), "--output", str(tmp_path / "table.md")],
    ]
    for result in run_commands(command_lines, umask=umask, PATH=f"{tools}:/usr/bin:/bin"):
        assert result.returncode == 0, result
    created = [path for path in tmp_path.rglob("*") if path not in earlier]
    created = [path for path in created if not path.is_symlink() and path.parent.name != "results"]
    created.remove(tmp_path / "its-umask")
    assert len(created) > 11
    for path in created:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (mode_of_folders & ~(0 if path.is_dir() else 0o111)), (path, oct(mode))
    assert int((tmp_path / "its-umask").read_text(), 8) == umask | 0o002
