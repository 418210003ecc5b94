"""Any command: streams, JSON, exit codes, permissions, what it does not load, and a sentence for
whatever a person names and whatever the system refuses."""

import json
import os
import shutil
import stat
import sys
from pathlib import Path

import click
import pytest

from hpcbert import load
from hpcbert.campaign import store
from hpcbert.cli.main import COMMANDS, EMPTY_MEANS, root
from hpcbert.errors import UsageError
from hpcbert.model import MANIFEST
from tests.campaign.test_archive import forge_manifest
from tests.kit import drafts
from tests.kit.campaigns import collect_campaigns, report_states
from tests.kit.cases import cases, read_constant
from tests.kit.cli import HEAVY, UNCOUNTED, Cli, run, run_here, start_process
from tests.kit.paths import REPOSITORY
from tests.kit.scripts import tool

pytestmark = pytest.mark.slow
# What a command needs apart from the path under test; what runs nothing for real.
NEEDS = read_constant(__file__, "NEEDS")
# What would make a lab of this machine.
LAB = {"lab up", "lab down"}


def list_commands():
    commands: dict[str, click.Command] = {}
    for name in COMMANDS:
        command = root.get_command(click.Context(root), name)
        assert command is not None
        for inner in getattr(command, "commands", {"": command}).values():
            commands[name if inner is command else f"{name} {inner.name}"] = inner
    return commands


def test_help_ends_well_loads_nothing_heavy_and_lists_every_command_in_the_order_of_work(tmp_path):
    lines = [["--help"], ["--version"], ["-h"], *([name, "--help"] for name in COMMANDS)]
    argv = [sys.executable, "-c", read_constant(__file__, "PROGRAM"), json.dumps(lines)]
    environment = {**os.environ, **UNCOUNTED, "PYTHONPATH": str(REPOSITORY)}
    result = start_process(argv, cwd=tmp_path, env=environment)
    document = json.loads(result.stderr)
    assert document["codes"] == [0] * len(lines)
    assert not HEAVY & set(document["modules"])
    places = [result.stdout.index(f"\n  {name} ") for name in COMMANDS]
    assert places == sorted(places)


def test_dry_run_writes_nothing_and_shows_argv_and_script(tmp_path):
    # Looking upward for a site ends at home.
    hpcbert = Cli(tmp_path, {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}, run=run_here)
    words = ("submit", "--nodes", "4", "--gpus-per-node", "8", "--fw", "oneflow", "--dry-run")
    result = hpcbert(*words, status=0)
    for part in ("$ sbatch --parsable", "#SBATCH --nodes=4", "--array=1-5%1"):
        assert part in result.stdout
    assert list(tmp_path.iterdir()) == []
    (array,) = hpcbert(*words, "--json").data["arrays"]
    assert (array["argv"][:2], array["global_batch_size"]) == (["sbatch", "--parsable"], 1024)


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
    tool(tools, "sbatch", f"#!/bin/sh\numask >{tmp_path}/its-umask\necho 7\n")
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


@pytest.mark.parametrize("name", COMMANDS)
def test_every_parameter_refuses_an_empty_value(name, empty_directory):
    assert all(EMPTY_MEANS.values())
    for full_name, command in list_commands().items():
        words = full_name.split()
        arguments = [param for param in command.params if isinstance(param, click.Argument)]
        for param in command.params if words[0] == name else ():
            if isinstance(param, click.Option) and (param.is_flag or param.count):
                continue
            for value in ("", " \u3000"):
                line = [*words, f"{param.opts[-1]}={value}"]
                if param in arguments:
                    line = [*words, *["x"] * arguments.index(param), value]
                result = run(*line)
                is_refused = result.returncode == 2 and "Invalid value for" in result.output
                has_meaning = (words[-1], param.name) in EMPTY_MEANS
                assert is_refused is not has_meaning, (line, result.output)


def test_a_path_that_cannot_be_used_is_a_sentence_everywhere(tmp_path, run_commands):
    (tmp_path / "locked" / "inner").mkdir(parents=True)
    (tmp_path / "locked").chmod(0)
    (tmp_path / "file").write_text("x")
    (tmp_path / "loop").symlink_to("loop")
    paths = [f"{tmp_path}/{name}" for name in ("file/inner", "loop", "locked/inner", "x" * 300)]
    names = read_constant(__file__, "PATHS")
    lines: list[list[str]] = []
    for name, command in list_commands().items():
        for param in command.params if name not in LAB else ():
            if param.name in names and not getattr(param, "is_flag", False):
                is_option = isinstance(param, click.Option)
                words = [*NEEDS.get(name, []), param.opts[-1]] if is_option else []
                # One of the first two: each place is tried with three paths.
                chosen = [paths[len(lines) % 2], *paths[2:]]
                lines += [[*name.split(), *words, path, "--json"] for path in chosen]
    assert len(lines) > 3 * 30
    for words, result in zip(lines, run_commands(lines, cwd=tmp_path), strict=True):
        result.check(as_json=True)
        harmless = {"--data", "--source", "--image", "--repository", "--runs"} & set(words)
        assert result.returncode or harmless or "--leftovers" in words, (words, result)
    (tmp_path / "locked").chmod(0o700)


def test_every_command_survives_the_loss_of_its_working_directory(run_commands):
    names = list_commands().keys() - {"cancel", *LAB}
    lines = [[*name.split(), *NEEDS.get(name, []), "--json"] for name in sorted(names)]
    for result in run_commands(lines, gone=True):
        result.check(as_json=True)
    plain = [["config"], ["collect"], ["submit", "--dry-run"], ["--help"]]
    for result in (results := run_commands(plain, gone=True)):
        result.check(as_json=False)
    assert "working directory was removed" in results[0].stderr
    assert (results[0].returncode, results[-1].returncode) == (1, 0)


def test_a_campaign_with_something_unreadable_in_it_is_not_an_empty_one(
    tmp_path, slurm, run_commands
):
    words = ["submit", "--fw", "oneflow", "--rehearse", "--scheduler", "slurm", "--json"]
    words += ["--runs", f"{tmp_path}/runs", "--data", "/d", "--source", "/s"]
    (submitted,) = run_commands([words], PATH=slurm.path)
    campaign = Path(submitted.data["directory"])
    closed, lines = [campaign.parent], []
    for name in (".", "manifest.json", "status", "logs"):
        copy = tmp_path / name.replace(".", "dot") / campaign.name
        shutil.copytree(campaign, copy)
        (copy / name).chmod(0)
        closed.append(copy / name)
        lines += [
            [*text.split(), str(copy), "--json"] for text in read_constant(__file__, "READERS")
        ]
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
    for path in closed:
        path.chmod(0o700)


@cases
def test_a_stream_that_takes_or_gives_nothing(line, code, message, tmp_path):
    function = f'hpcbert() {{ "{sys.executable}" -m hpcbert "$@"; }}'
    env = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(REPOSITORY)}
    outcome = start_process(["bash", "-c", f"{function}\n{line}"], cwd=tmp_path, env=env)
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
    words = ["submit", "--dry-run", *["--json"] * as_json]
    argv = [sys.executable, "-c", read_constant(__file__, "INTERRUPTED"), module, *words]
    result = start_process(argv, cwd=tmp_path)
    assert result.returncode == 130, result
    if as_json:
        assert json.loads(result.stdout)["errors"][0]["code"] == "interrupted"
        assert result.stderr.strip() == ""
    else:
        # submit names its site before it loads the rest.
        lines = [line for line in result.stderr.splitlines() if not line.startswith("site ")]
        assert lines == ["error: Interrupted."]


def test_a_bug_is_a_sentence_and_a_traceback_on_demand(tmp_path):
    argv = [sys.executable, "-c", read_constant(__file__, "BUG"), "config", "--json"]
    result = start_process(argv, cwd=tmp_path)
    document = json.loads(result.stdout)
    assert result.returncode == document["exit_code"] == 1
    assert "KeyError: 'what'" in document["errors"][0]["message"]
    assert "HPCBERT_DEBUG" in document["errors"][0]["hint"]
    assert result.stderr == ""
    debugging = {**os.environ, "HPCBERT_DEBUG": "1"}
    assert "Traceback" in start_process(argv, cwd=tmp_path, env=debugging).stderr


@pytest.fixture
def built(build, monkeypatch):
    """A collected campaign below the working directory, which has a site."""
    built = build("1n1g", "1n2g", repeats=2, name="20261121T100000Z-pytorch-3f9a1c").finish()
    collect_campaigns(built.directory, states=report_states())
    folder = built.directory.parent.parent
    monkeypatch.chdir(folder)
    drafts.site(folder)
    return built


def change_schema(directory, **changed):
    manifest = json.loads((directory / MANIFEST).read_text())
    del manifest["schema"]
    (directory / MANIFEST).write_text(json.dumps({**changed, **manifest}))


@pytest.mark.parametrize("command", read_constant(__file__, "SCHEMA_READERS"))
def test_a_command_refuses_a_campaign_of_another_schema(built, command):
    words = [word.format(built.directory) for word in command.split()]
    for changed in ({"schema": store.SCHEMA + 1}, {}):
        change_schema(built.directory, **changed)
        before = sorted(built.directory.rglob("*"))
        refused = run(*words, "--json", status=2)
        refused.check(as_json=True)
        message = f"schema {changed.get('schema')}; this hpcbert reads only schema"
        assert message in refused.error["message"]
        assert "version of hpcbert that wrote it" in refused.error["hint"]
        assert sorted(built.directory.rglob("*")) == before


def test_a_notebook_refuses_another_schema_and_it_is_removed_only_by_force(built):
    change_schema(built.directory, schema=store.SCHEMA - 1)
    with pytest.raises(UsageError, match="reads only schema"):
        load(built.directory)
    refused = run("rm", built.directory, "--yes", "--json", status=2)
    assert "reads only schema" in refused.error["message"]
    assert "--force" in refused.error["hint"]
    assert run("rm", built.directory, "--yes", "--force").returncode == 0
    assert not built.directory.exists()


def test_an_archive_of_another_schema_is_refused(built):
    run("archive", built.directory, "--output", "old.zip", status=0)
    change_schema(built.directory, schema=1)
    forge_manifest("old.zip", (built.directory / MANIFEST).read_text())
    for command in read_constant(__file__, "ARCHIVE_READERS"):
        refused = run(*command.split(), "old.zip", "--json", status=2)
        assert "reads only schema" in refused.error["message"]


@cases
def test_a_command_about_many_campaigns_names_those_of_another_schema(
    built, build, command, purpose
):
    """An older campaign next to it does not disturb it."""
    other = build("1n1g", repeats=2, name="20261120T100000Z-pytorch-7b20de", jobs=("90",))
    change_schema(other.directory, schema=store.SCHEMA - 1)
    result = run(*command.split(), "--json")
    warnings = [text for text in result.document["warnings"] if "Left out" in text]
    if purpose is None:
        assert result.returncode == 0
        return
    (warning,) = warnings
    assert warning.startswith(f"Left out of {purpose}, because this hpcbert reads only schema")
    assert other.directory.name in warning
