"""The site matrix: the systems that the suite ran on, and the results.

With HPCBERT_MATRIX=FILE a run of tests adds its results to FILE; `python -m tests.kit.matrix` makes
docs/reference/site-matrix.md of docs/reference/site-matrix.json. A room (a folder of tests) is
recorded if all of it was requested; a test names by `@pytest.mark.site("...")` the configuration of
a cluster that it tries.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from hpcbert.lab.files import PLUGINS
from hpcbert.lab.lifecycle import find_missing
from hpcbert.system.runner import run
from tests.kit.paths import REFERENCE, REPOSITORY

DATA = REFERENCE / "site-matrix.json"
PAGE = REFERENCE / "site-matrix.md"
OUTCOMES = ("passed", "failed", "skipped")
# The property of a test's report that names its configuration.
SITE = "site"
_RUNTIMES = ("enroot", "apptainer")

Counts = Mapping[str, int]


@dataclass(frozen=True)
class Configuration:
    """A kind of cluster, or of job, that tests try.

    Attributes:
        tests: The tests, by their ids without parameters.
        counts: The number of each outcome; each set of parameters is one.
    """

    tests: tuple[str, ...] = ()
    counts: Counts = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """The system that the suite ran on, and the results.

    Attributes:
        system: The distribution.
        slurm: Its version; empty if the tests that need it are left out.
        python: Its version.
        dependencies: `lowest` if each is at the bound in pyproject.toml, `locked` if each is as
            .ci/locks has it, else `newest`.
        selected: pytest's -m; empty: everything.
        date: Of the latest part.
        cgroup: `v1` or `v2`.
        mpi: How Slurm's plugins let ranks meet.
        runtimes: Container runtimes that are installed; others have stand-ins.
        torch: PyTorch's version; empty where there is none.
        rooms: Outcomes by folder of tests.
        configurations: Outcomes by configuration.
    """

    system: str
    slurm: str
    python: str
    dependencies: str
    selected: str
    date: str
    cgroup: str
    mpi: tuple[str, ...] = ()
    runtimes: tuple[str, ...] = ()
    torch: str = ""
    rooms: Mapping[str, Counts] = field(default_factory=dict)
    configurations: Mapping[str, Configuration] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, ...]:
        """The values that distinguish it from other runs."""
        return (self.system, self.slurm, self.python, self.dependencies, self.selected)

    @property
    def counts(self) -> Counter[str]:
        """Outcomes of all rooms."""
        return sum(map(Counter, self.rooms.values()), Counter())


# --- The file -------------------------------------------------------------------------------------


def read(path: Path = DATA) -> list[Run]:
    """Return the runs on record."""
    rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return [_read(row) for row in rows]


def _read(row: dict[str, Any]) -> Run:
    configurations = {
        name: Configuration(tuple(values["tests"]), values["counts"])
        for name, values in row.pop("configurations").items()
    }
    mpi, runtimes = tuple(row.pop("mpi")), tuple(row.pop("runtimes"))
    return Run(**row, mpi=mpi, runtimes=runtimes, configurations=configurations)


def write(runs: Iterable[Run], path: Path = DATA) -> None:
    """Write runs, in an order that does not depend on when they were made."""
    rows = [asdict(entry) for entry in sorted(runs, key=lambda entry: entry.key)]
    path.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def merged(runs: Sequence[Run], new: Run) -> list[Run]:
    """Return the runs with a new one; of the same kind of run, its rooms replace the old ones."""
    old = next((entry for entry in runs if entry.key == new.key), new)
    union = replace(
        new,
        rooms={room: old.rooms[room] for room in old.rooms if is_room(room)} | dict(new.rooms),
        configurations={**old.configurations, **new.configurations},
    )
    return [*(entry for entry in runs if entry.key != new.key), union]


# --- A run of pytest ------------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    """Count if requested; not in workers, because the main process gets their reports."""
    if (name := os.environ.get("HPCBERT_MATRIX")) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(REPOSITORY / name, config))


def pytest_itemcollected(item: pytest.Item) -> None:
    """Make the reports of a test name the configurations that it tries."""
    tried = [argument for mark in item.iter_markers(SITE) for argument in mark.args]
    # The container runtime in the parameters of a test of all runtimes.
    callspec = getattr(item, "callspec", None)
    if callspec and (runtime := callspec.params.get("trial")):
        tried.append("no container" if runtime == "none" else f"containers of {runtime}")
    item.user_properties += [(SITE, name) for name in tried]


class Recorder:
    """Counts the outcomes of a run of pytest, of all workers, and adds them to a file."""

    def __init__(self, path: Path, config: pytest.Config) -> None:
        self._path = path
        self._config = config
        self._outcomes: dict[str, str] = {}
        self._sites: dict[str, list[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the worst of a test's phases."""
        # xdist adds the name of a test's group.
        test = report.nodeid.partition("@tests/")[0]
        before = self._outcomes.get(test, "")
        if report.when == "call" or report.outcome != "passed":
            worse = before == "failed" and report.outcome != "failed"
            self._outcomes[test] = before if worse else report.outcome
        self._sites[test] = [str(value) for name, value in report.user_properties if name == SITE]

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Add the results to the file, unless the run was interrupted."""
        option = self._config.option
        if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) or option.keyword:
            return
        rooms = whole_rooms(self._config.args)
        outcomes = {test: text for test, text in self._outcomes.items() if room_of(test) in rooms}
        if not outcomes:
            return
        new = summary(describe_machine(option.markexpr), outcomes, self._sites)
        write(merged(read(self._path), new), self._path)


def is_room(name: str) -> bool:
    """Return whether tests have a folder of that name."""
    return (REPOSITORY / "tests" / name).is_dir()


def whole_rooms(args: Sequence[str]) -> set[str]:
    """Return the rooms that the arguments of a run name completely."""
    rooms = {path.name for path in (REPOSITORY / "tests").iterdir() if is_room(path.name)}
    named = {Path(argument).resolve() for argument in args}
    if REPOSITORY / "tests" in named or REPOSITORY in named:
        return rooms
    return {room for room in rooms if REPOSITORY / "tests" / room in named}


def room_of(test: str) -> str:
    """Return the room of a test id."""
    return test.split("/")[1]


def summary(run_: Run, outcomes: Mapping[str, str], sites: Mapping[str, Sequence[str]]) -> Run:
    """Return a run with the outcomes of its tests."""
    rooms = {
        room: dict(Counter(text for test, text in outcomes.items() if room_of(test) == room))
        for room in sorted({room_of(outcome) for outcome in outcomes})
    }
    names = sorted({name for outcome in outcomes for name in sites.get(outcome, ())})
    tried = {
        name: [outcome for outcome in outcomes if name in sites.get(outcome, ())] for name in names
    }
    configurations = {
        name: Configuration(
            tuple(sorted({test.partition("[")[0] for test in tests})),
            dict(Counter(outcomes[test] for test in tests)),
        )
        for name, tests in tried.items()
    }
    return replace(run_, rooms=rooms, configurations=configurations)


def describe_machine(selected: str) -> Run:
    """Return the facts of this machine and interpreter."""
    slurm = "" if selected or find_missing(accounting=True) else _slurm()
    return Run(
        system=_system(),
        slurm=slurm,
        python=platform.python_version(),
        dependencies=_dependencies(),
        selected=selected,
        date=datetime.now(timezone.utc).date().isoformat(),
        cgroup="v2" if Path("/sys/fs/cgroup/cgroup.controllers").exists() else "v1",
        mpi=_mpi() if slurm else (),
        runtimes=tuple(filter(None, map(_runtime, _RUNTIMES))) if slurm else (),
        torch=_version("torch"),
    )


def _system() -> str:
    lines = Path("/etc/os-release").read_text(encoding="utf-8").splitlines()
    texts = {name: value.strip('"') for name, _, value in (line.partition("=") for line in lines)}
    # A future release has a name, but not yet a number.
    number = texts.get("VERSION_ID") or Path("/etc/debian_version").read_text().strip()
    return f"{texts['NAME'].split()[0]} {number.rpartition('/')[2]}"


def _slurm() -> str:
    return run(["slurmctld", "-V"]).stdout.split()[-1]


def _mpi() -> tuple[str, ...]:
    names = {path.stem.removeprefix("mpi_") for path in Path("/").glob(PLUGINS)}
    kinds = {"none", "pmi2", "pmix"}
    return tuple(sorted(name for name in names if name in kinds or name.startswith("pmix_v")))


def _runtime(name: str) -> str:
    words = [name, "version"] if name == "enroot" else [name, "--version"]
    return f"{name} {run(words).stdout.split()[-1]}" if shutil.which(name) else ""


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _dependencies() -> str:
    bounds = run([sys.executable, str(REPOSITORY / ".ci" / "lowest")], cwd=REPOSITORY).stdout
    pinned = [word.split("==") for word in bounds.split()]
    if pinned and _are_installed(pinned):
        return "lowest"
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    lock = REPOSITORY / ".ci" / "locks" / f"demo-{python}.txt"
    locked = re.findall(
        r"^([\w.-]+)==(\S+)", lock.read_text() if lock.is_file() else "", re.MULTILINE
    )
    return "locked" if locked and _are_installed(locked) else "newest"


def _are_installed(versions: Iterable[Sequence[str]]) -> bool:
    return all(Version(_version(name) or "0") == Version(version) for name, version in versions)


# --- The page -------------------------------------------------------------------------------------

_HEAD = """\
# Site matrix

The systems on which the tests ran, and the results. Nothing here is written by hand: runs of the
tests write `site-matrix.json`, and `python -m tests.kit.matrix` makes this page from it.

`make matrix` adds a run of all tests in fresh roots of Debian 12, 13 and unstable.
`HPCBERT_MATRIX=docs/reference/site-matrix.json make test` adds a run on this machine, for example
with another Python. If you run only a folder of tests, its new counts replace the old ones.
"""
_SYSTEMS = """
## Systems

A run with a selection (of pytest's marks) leaves out the tests that need Slurm. If a container
runtime is not installed, the tests use a stand-in.
"""
_CONFIGURATIONS = """
## Configurations

Settings of a cluster that tests with the mark `site` try, and how many of those tests passed.
In a scripted one, commands answer as published output of a real cluster has it. Slurm 20.11 and 21.08
are only scripted: sacct without `SubmitLine`, the list of `srun --mpi=list` on stderr, and the keys of
a lab's files. The oldest release that runs all tests is 22.05.
"""
_ROOMS = """
## Folders of tests

The results of each folder.
"""


def page(runs: Sequence[Run]) -> str:
    """Return the page for some runs."""
    parts = [_HEAD, _SYSTEMS, _table(_systems(runs)), _CONFIGURATIONS]
    parts += [_table(_configurations([entry for entry in runs if entry.slurm])), _ROOMS]
    return "\n".join([*parts, _table(_rooms(runs))])


def _systems(runs: Sequence[Run]) -> list[list[str]]:
    titles = "System,Slurm,Python,Dependencies,Selection,cgroup,MPI,Containers,PyTorch"
    rows = [[*titles.split(","), "Passed", "Failed", "Skipped", "Date"]]
    for entry in runs:
        facts = [*entry.key[:4], _code(entry.selected), entry.cgroup, ", ".join(entry.mpi)]
        facts += [", ".join(entry.runtimes), entry.torch]
        rows.append([*facts, *(str(entry.counts[word]) for word in OUTCOMES), entry.date])
    return rows


def _configurations(runs: Sequence[Run]) -> list[list[str]]:
    rows = [["Configuration", "Tests", *(f"Slurm {entry.slurm}, {entry.system}" for entry in runs)]]
    for name in sorted({name for entry in runs for name in entry.configurations}):
        tried = [entry.configurations.get(name, Configuration()) for entry in runs]
        tests = sorted({test for configuration in tried for test in configuration.tests})
        rows.append(
            [
                name,
                "<br>".join(map(_code, tests)),
                *(_describe_counts(configuration.counts) for configuration in tried),
            ]
        )
    return rows


def _rooms(runs: Sequence[Run]) -> list[list[str]]:
    rooms = sorted({room for entry in runs for room in entry.rooms})
    rows = (
        [_code(room), *(_describe_counts(entry.rooms.get(room, {})) for entry in runs)]
        for room in rooms
    )
    return [["Folder", *(_short(entry) for entry in runs)], *rows]


def _short(row: Run) -> str:
    low = " lowest" if row.dependencies == "lowest" else ""
    return f"{row.system}, Python {row.python}{low}{f', Slurm {row.slurm}' if row.slurm else ''}"


def _describe_counts(counts: Counts) -> str:
    return ", ".join(f"{counts[word]} {word}" for word in OUTCOMES if counts.get(word))


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = (f"| {' | '.join(cell or '-' for cell in row)} |\n" for row in rows)
    return "".join([head, "|" + " --- |" * len(rows[0]) + "\n", *body])


if __name__ == "__main__":
    PAGE.write_text(page(read()), encoding="utf-8")
