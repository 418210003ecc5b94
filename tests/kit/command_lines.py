"""Many command lines in one process each, as somebody whom file permissions bind."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hpcbert.system.runner import run as start_process
from tests.kit.cli import CliResult
from tests.kit.logs import pytorch
from tests.kit.waiting import CEILING

# Root reads whatever it likes, unless it gives these up.
_MORTAL = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
# A child each: modules are loaded once.
_MANY = """
import json, os, pathlib, sys
import click
import hpcbert.cli.options, hpcbert.cli.collect, hpcbert.script.draft
from hpcbert.__main__ import main
from hpcbert.cli.main import COMMANDS, root

cases = json.load(sys.stdin)
# What a directory that is gone does to loading is part of the test.
if not cases[0]["gone"]:
    import hpcbert.commands.obstacles, hpcbert.cli.request, hpcbert.cli.submit_run
    import hpcbert.scheduler.local.backend, hpcbert.scheduler.slurm.dependencies, hpcbert.script.rerun
    for name in COMMANDS:
        root.get_command(click.Context(root), name)
for number, one in enumerate(cases):
    folder = pathlib.Path(sys.argv[1], str(number))
    pid = os.fork()
    if not pid:
        os.environ.update(one["env"])
        for stream, name in ((1, "out"), (2, "err")):
            file = os.open(f"{folder}.{name}", os.O_CREAT | os.O_WRONLY, 0o644)
            os.dup2(file, stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if one["umask"] is not None:
            os.umask(one["umask"])
        try:
            os.chdir(one["cwd"])
            if one["gone"]:
                os.rmdir(one["cwd"])
            sys.argv = ["hpcbert", *one["words"]]
            sys.exit(main())
        except SystemExit as leave:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(leave.code or 0)
        except BaseException:
            import traceback

            traceback.print_exc()
        os._exit(99)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@pytest.fixture
def run_commands(tmp_path: Path) -> Callable[..., list[CliResult]]:
    """Run command lines, each in a process of its own, as somebody whom permissions bind."""

    def run(
        lines: Sequence[Sequence[str]],
        *,
        cwd: Path | None = None,
        gone: bool = False,
        umask: int | None = None,
        **env: str,
    ) -> list[CliResult]:
        path = tmp_path / "results"
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        home = tmp_path / "home"
        home.mkdir(exist_ok=True)
        cases = []
        for number, words in enumerate(lines):
            folder = path / f"cwd{number}" if gone else cwd or home
            folder.mkdir(exist_ok=True)
            cases.append(
                {"words": words, "cwd": str(folder), "gone": gone, "env": env, "umask": umask}
            )
        process = start_process(
            [*(_MORTAL if os.geteuid() == 0 else ()), sys.executable, "-c", _MANY, str(path)],
            stdin=json.dumps(cases), env={**os.environ, "HOME": str(home)}, timeout=CEILING,
        )  # fmt: skip
        assert process.ok, process.stderr
        return [
            CliResult(
                tuple(words),
                int(code),
                *((path / f"{n}.{end}").read_text() for end in ("out", "err")),
            )
            for n, (words, code) in enumerate(zip(lines, process.stdout.split(), strict=True))
        ]

    return run


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Return a folder of logs that hpcbert never submitted."""
    folder = tmp_path / "foreign"
    path = folder / "pytorch" / "bert" / "bz4" / "1n1g"
    path.mkdir(parents=True)
    for repeat in range(1, 6):
        text = pytorch("1n1g", 10.0 + repeat, last=120, start=1763717655.5 + 1000 * repeat)
        (path / f"bert_b4_fp32_{repeat}.log").write_text(text.replace("/12 ", "/120 "))
    return folder


@pytest.fixture
def finished(build: Any) -> Path:
    """Return a campaign of which every repeat completed."""
    built = build("1n1g")
    built.finish()
    directory: Path = built.directory
    return directory
