"""How containers go: renamed at once, deleted as far as there is time, the rest by the next job."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.kit.cases import read_constant
from tests.kit.containers import Image, ended, ordinary_person
from tests.kit.needs import require
from tests.kit.paths import REPOSITORY

pytestmark = pytest.mark.slow

SHELL = REPOSITORY / "hpcbert" / "shell"
NODE = "n7"
# Jobs 5 and 6 run; of the rest, 7 was purged long ago, and 8 has ended.
_SQUEUE = read_constant(__file__, "_SQUEUE")
# Names `enroot list` and a data path as every version does; counts its calls.
_ENROOT = read_constant(__file__, "_ENROOT")


@dataclass
class Place:
    """A node with the directories of an ordinary user."""

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def scratch(self) -> Path:
        return self.folder / "scratch"

    @property
    def base(self) -> Path:
        return self.scratch / f"hpcbert-{os.geteuid()}"

    def tool(self, name: str, text: str) -> None:
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def run(self, script: str, *words: str, **variables: str) -> str:
        """Run one of the package's files; return what it reports."""
        environment = {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "SLURMD_NODENAME": NODE,
            "SLURM_JOB_ID": "5",
        }
        result = subprocess.run(
            ["bash", "-p", str(SHELL / script), *words],
            env={**environment, **self.variables, **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        return result.stderr

    def remove(self, runtime: str, job: int = 5, **variables: str) -> str:
        name = f"hpcbert-{job}"
        if runtime == "pyxis":
            return self.run("pyxis.sh", "remove", name, str(self.scratch), **variables)
        words = ("--with", runtime, "--name", name, "--scratch", str(self.scratch))
        return self.run("enter.sh", "remove", *words, **variables)

    def container(self, path: Path) -> Path:
        """Make the tree of a container, with a directory that its owner can't enter."""
        (path / "usr" / "closed").mkdir(parents=True)
        (path / "usr" / "closed" / "file").write_text("x")
        (path / "usr" / "closed").chmod(0)
        return path

    def listed(self, folder: Path) -> set[str]:
        return {path.name for path in folder.iterdir()} if folder.exists() else set()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    node = Place(tmp_path)
    node.tool("squeue", _SQUEUE)
    node.tool("enroot", _ENROOT)
    node.tool("apptainer", "#!/bin/bash\n")
    for folder in (node.data, node.scratch, node.base, node.base / "state", node.base / "data"):
        folder.mkdir()
    return node


RUNTIMES = ("pyxis", "enroot", "apptainer")
EVERY = pytest.mark.parametrize("runtime", RUNTIMES)


def find_container(place: Place, runtime: str) -> Path:
    """Return where the container of job 5 lies."""
    return {
        "pyxis": place.data / "pyxis_hpcbert-5",
        "enroot": place.base / "data" / f"hpcbert-5-{NODE}",
        "apptainer": place.base / "state" / f"hpcbert-5-{NODE}" / "unpacked",
    }[runtime]


@EVERY
def test_a_job_removes_its_container(place: Place, runtime: str) -> None:
    place.container(find_container(place, runtime))
    assert place.remove(runtime) == ""
    assert place.listed(place.data) | place.listed(place.base / "data") == set()
    assert place.listed(place.base / "state") == set()


@EVERY
def test_a_job_removes_what_dead_jobs_of_any_runtime_left(place: Place, runtime: str) -> None:
    data, tool_data, state = place.data, place.base / "data", place.base / "state"
    dead = [
        *(data / "pyxis_hpcbert-7", data / "pyxis_8_hpcbert-8", tool_data / f"hpcbert-7-{NODE}"),
        *(state / f"hpcbert-8-{NODE}" / "unpacked", data / f"hpcbert-removed.{NODE}.hpcbert-4.1-2"),
    ]
    alive = [
        *(data / "pyxis_hpcbert-6", tool_data / f"hpcbert-6-{NODE}", data / "hpcbert-7-n8"),
        *(data / "pyxis_mine", data / "hpcbert-build.x", data / "pyxis_hpcbert-99"),
        data / "hpcbert-removed.n8.hpcbert-4.1-2",
    ]
    for path in (*dead, *alive):
        place.container(path)
    assert place.remove(runtime) == ""
    assert not [path for path in dead if path.exists()]
    assert all(path.exists() for path in alive)


@EVERY
def test_what_the_limit_cuts_has_no_usable_name_and_goes_with_the_next_job(
    place: Place, runtime: str
) -> None:
    tree = place.container(find_container(place, runtime))
    report = place.remove(runtime, HPCBERT_REMOVAL_LIMIT="0")
    assert not tree.exists()
    (path,) = [
        *place.data.glob("*"), *(place.base / "data").glob("*"), *(place.base / "state").glob("*"),
    ]  # fmt: skip
    assert path.name.startswith(f"hpcbert-removed.{NODE}.")
    (line,) = report.splitlines()
    assert line.startswith(f"hpcbert: {NODE}: removal was cut after 0 s: your next job")
    assert str(path) in line
    for other in RUNTIMES:
        if other != runtime:
            assert place.remove(other, job=6) == ""
            break
    assert not path.exists()


def test_a_deletion_that_takes_too_long_is_cut_and_reported(place: Place) -> None:
    place.container(find_container(place, "pyxis"))
    place.tool("rm", "#!/bin/bash\nexec sleep 600\n")
    report = place.remove("pyxis", HPCBERT_REMOVAL_LIMIT="1")
    assert "removal was cut after" in report
    assert place.listed(place.data).pop().startswith(f"hpcbert-removed.{NODE}.pyxis_hpcbert-5.")


def test_the_time_before_a_deletion_counts_too(place: Place) -> None:
    """A script gives its last step 60 s in all: questions about other jobs take their part."""
    tree = place.container(find_container(place, "pyxis"))
    place.tool("squeue", "#!/bin/bash\necho COMPLETED\n")
    program = (
        f'node={NODE}; say() {{ echo "$*"; }}; . "{SHELL}/sweep.sh"; add_place "{place.data}";'
        f"SECONDS=50; remove_container {tree.name}; sweep"
    )
    result = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.startswith("removal was cut after 0 s: your next job")
    (remainder,) = place.listed(place.data)
    assert remainder.startswith(f"hpcbert-removed.{NODE}.")


@pytest.mark.needs("users")
def test_a_refusal_of_the_file_system_is_reported(place: Place) -> None:
    tree = find_container(place, "pyxis")
    tree.mkdir()
    place.tool(
        "rm", "#!/bin/bash\necho 'rm: cannot remove x: Device or resource busy' >&2\nexit 1\n"
    )
    assert "(rm: cannot remove x: Device or resource busy)" in place.remove("pyxis")


def test_an_enroot_that_does_not_work_is_reported(place: Place) -> None:
    place.tool(
        "enroot", "#!/bin/bash\necho \"mkdir: cannot create directory '/run/enroot'\" >&2\nexit 1\n"
    )
    assert "hpcbert-5 stays" in place.remove("pyxis")


def test_two_jobs_that_sweep_at_once_remove_everything_once(place: Place) -> None:
    for number in range(100, 120):
        place.container(place.data / f"hpcbert-removed.{NODE}.{number}")
    for number in range(20):
        place.container(place.base / "data" / f"hpcbert-7-{NODE}" / f"{number}")
    words = ["bash", "-p", str(SHELL / "pyxis.sh"), "remove", "hpcbert-5", str(place.scratch)]
    environment = {
        "PATH": f"{place.folder / 'bin'}:{os.environ['PATH']}",
        "HOME": str(place.folder),
    }
    environment |= {"SLURMD_NODENAME": NODE}
    children = [subprocess.Popen(words, env=environment) for _ in range(4)]
    assert [child.wait() for child in children] == [0] * 4
    assert place.listed(place.data) | place.listed(place.base / "data") == set()


def test_a_slurm_that_does_not_answer_is_asked_once(place: Place) -> None:
    for number in range(200, 205):
        place.container(place.data / f"pyxis_hpcbert-{number}")
    path = place.folder / "asked"
    words = f"[[ $2 == squeue ]] || exec /usr/bin/timeout \"$@\"\necho >>'{path}'\nexit 124\n"
    place.tool("timeout", f"#!/bin/bash\n{words}")
    assert place.remove("pyxis") == ""
    assert len(place.listed(place.data)) == 5
    assert path.read_text() == "\n"


def test_a_container_in_use_is_ended_and_removed(place: Place) -> None:
    state = place.base / "state" / f"hpcbert-5-{NODE}" / "step-0-0"
    state.mkdir(parents=True)
    child = subprocess.Popen(["sleep", "600"])
    moment = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[19]
    (state / "rank.1").write_text(f"{child.pid} {moment}\n")
    other = subprocess.Popen(["sleep", "600"])
    (state / "rank.2").write_text(f"{other.pid} 1\n")  # the number of a process that is gone
    try:
        assert place.remove("enroot") == ""
        assert child.wait() == -9
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_job_sweeps_before_it_makes_its_container(place: Place) -> None:
    path = place.container(place.data / f"hpcbert-removed.{NODE}.old")
    image = place.folder / "image.sqsh"
    image.write_text("")
    words = ("--name", "hpcbert-5", "--scratch", str(place.scratch), "--image", str(image))
    place.run("enter.sh", "create", *words)
    assert not path.exists()
    tree = place.base / "data" / f"hpcbert-5-{NODE}"
    assert (tree / "file").read_text() == f"made of {image}\n"
    assert place.remove("enroot") == ""
    assert not tree.exists()


def test_half_a_container_of_a_killed_create_is_replaced(place: Place) -> None:
    half = place.base / "data" / f"hpcbert-5-{NODE}"
    half.mkdir()
    (half / "half").write_text("")
    image = place.folder / "image.sqsh"
    image.write_text("")
    words = ("--name", "hpcbert-5", "--scratch", str(place.scratch), "--image", str(image))
    place.run("enter.sh", "create", *words)
    assert place.listed(half) == {"file"}


@pytest.mark.slow
def test_enroot_names_its_data_path() -> None:
    """With the real enroot where there is one, else with the stand-in."""
    require("squashfs")
    with ordinary_person() as person:
        person.need_namespaces()
        image = Image().write(person.root.parent / "image.sqsh")
        for name in ("pyxis.sh", "sweep.sh"):
            (person.root / name).write_text((SHELL / name).read_text())
        created = ended(person.start("enroot", "create", "-n", "pyxis_hpcbert-5", str(image)))
        assert created.returncode == 0, created.stderr
        removed = ended(person.start("bash", str(person.root / "pyxis.sh"), "remove", "hpcbert-5"))
        assert (removed.returncode, removed.stderr) == (0, "")
        assert ended(person.start("enroot", "list")).stdout == ""
