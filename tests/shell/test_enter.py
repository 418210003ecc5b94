"""enter.sh and pyxis.sh: how containers go (renamed at once, deleted as far as there is time, the rest
by the next job), and where they lie: where everybody can write, nobody takes a name away from a user."""

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hpcbert.prepare.image import _make_private
from tests.kit.cases import read_constant
from tests.kit.logs import write_file
from tests.kit.scripts import run_functions, run_program, tool

pytestmark = pytest.mark.slow

NODE = "n7"


class Place:
    """A node with the directories of an ordinary user; squeue and enroot are in the TOML."""

    def __init__(self, folder):
        self.folder, self.scratch = folder, folder / "scratch"
        self.data, self.base = folder / "data", self.scratch / f"hpcbert-{os.geteuid()}"
        self.folders = (self.data, self.base / "data", self.base / "state")
        for path in self.folders:
            path.mkdir(parents=True)
        for name, text in read_constant(__file__, "TOOLS").items():
            tool(folder / "bin", name, text)
        # Where the container of job 5 lies.
        self.containers = {"pyxis": self.data / "pyxis_hpcbert-5"}
        self.containers["enroot"] = self.base / "data" / f"hpcbert-5-{NODE}"
        self.containers["apptainer"] = self.base / "state" / f"hpcbert-5-{NODE}" / "unpacked"

    def run(self, program, *words, **variables):
        """Run a program as job 5; return what is reported."""
        node = {"HOME": str(self.folder), "SLURMD_NODENAME": NODE, "SLURM_JOB_ID": "5"}
        return run_program(program, *words, tools=self.folder / "bin", **node, **variables).stderr

    def remove(self, runtime="pyxis", job=5, **variables):
        name = f"hpcbert-{job}"
        if runtime == "pyxis":
            return self.run("pyxis.sh", "remove", name, self.scratch, **variables)
        words = ("--with", runtime, "--name", name, "--scratch", self.scratch)
        return self.run("enter.sh", "remove", *words, **variables)

    def list_all(self):
        return [path.name for folder in self.folders for path in folder.iterdir()]


def fill(path):
    """Make the tree of a container, with a directory that its owner can't enter."""
    write_file(path, "usr/closed/file", "x").parent.chmod(0)
    return path


@pytest.mark.parametrize("runtime", ["pyxis", "enroot", "apptainer"])
def test_a_job_removes_its_container_and_what_dead_jobs_of_any_runtime_left(tmp_path, runtime):
    place = Place(tmp_path)
    tree = fill(place.containers[runtime])
    # What the limit cuts has no usable name, and goes with the next job.
    (line,) = place.remove(runtime, HPCBERT_REMOVAL_LIMIT="0").splitlines()
    assert not tree.exists()
    (name,) = place.list_all()
    assert name.startswith(f"hpcbert-removed.{NODE}.")
    assert line.startswith(f"hpcbert: {NODE}: removal was cut after 0 s: your next job")
    assert name in line
    assert place.remove(next(other for other in place.containers if other != runtime), job=6) == ""
    assert place.list_all() == []
    dead, alive = (
        [Path(name.format(data=place.data, base=place.base)) for name in names]
        for names in (read_constant(__file__, "DEAD"), read_constant(__file__, "ALIVE"))
    )
    for path in (tree, *dead, *alive):
        fill(path)
    assert place.remove(runtime) == ""
    assert not [path for path in (tree, *dead) if path.exists()]
    assert all(path.exists() for path in alive)


@pytest.mark.needs("users")
def test_a_deletion_that_takes_too_long_or_is_refused_is_reported(tmp_path):
    place = Place(tmp_path)
    fill(place.containers["pyxis"])
    tool(place.folder / "bin", "rm", "#!/bin/bash\nexec sleep 600\n")
    assert "removal was cut after" in place.remove(HPCBERT_REMOVAL_LIMIT="1")
    assert place.list_all()[0].startswith(f"hpcbert-removed.{NODE}.pyxis_hpcbert-5.")
    complaint = "rm: cannot remove x: Device or resource busy"
    tool(place.folder / "bin", "rm", f"#!/bin/bash\necho '{complaint}' >&2\nexit 1\n")
    assert f"({complaint})" in place.remove()
    complaint = "mkdir: cannot create directory '/run/enroot'"
    tool(place.folder / "bin", "enroot", f'#!/bin/bash\necho "{complaint}" >&2\nexit 1\n')
    assert "hpcbert-5 stays" in place.remove()


def test_the_time_before_a_deletion_counts_and_a_silent_slurm_is_asked_once(tmp_path):
    """A script gives its last step 60 s in all: questions about other jobs take their part."""
    place = Place(tmp_path)
    tree = fill(place.containers["pyxis"])
    start = f"node={NODE}\nsay() {{ echo $*; }}\nsqueue() {{ echo COMPLETED; }}"
    words = f"add_place {place.data}\nSECONDS=50\nremove_container {tree.name}\nsweep"
    (line,) = run_functions(f'{start}\n. "$library/sweep.sh"\n{words}')
    assert line.startswith("removal was cut after 0 s: your next job")
    assert [name.startswith(f"hpcbert-removed.{NODE}.") for name in place.list_all()] == [True]
    assert place.remove() == ""
    for number in range(200, 205):
        fill(place.data / f"pyxis_hpcbert-{number}")
    questions = place.folder / "questions"
    words = f"[[ $2 == squeue ]] || exec /usr/bin/timeout \"$@\"\necho >>'{questions}'\nexit 124\n"
    tool(place.folder / "bin", "timeout", f"#!/bin/bash\n{words}")
    assert place.remove() == ""
    assert len(place.list_all()) == 5
    assert questions.read_text() == "\n"


def test_jobs_that_sweep_at_once_remove_everything_once(tmp_path):
    place = Place(tmp_path)
    for number in range(20):
        fill(place.data / f"hpcbert-removed.{NODE}.{number}")
        fill(place.base / "data" / f"hpcbert-7-{NODE}" / f"{number}")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(place.remove, ["pyxis"] * 4))
    assert place.list_all() == []


def test_a_container_in_use_is_ended_and_removed(tmp_path):
    place = Place(tmp_path)
    state = place.base / "state" / f"hpcbert-5-{NODE}" / "step-0-0"
    state.mkdir(parents=True)
    child, other = (subprocess.Popen(["sleep", "600"]) for _ in range(2))
    moment = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[19]
    (state / "rank.1").write_text(f"{child.pid} {moment}\n")
    (state / "rank.2").write_text(f"{other.pid} 1\n")  # the number of a process that is gone
    try:
        assert place.remove("enroot") == ""
        assert child.wait() == -9
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_job_sweeps_before_it_makes_its_container_also_after_a_killed_create(tmp_path):
    place = Place(tmp_path)
    image, tree = place.folder / "image.sqsh", place.containers["enroot"]
    image.write_text("")
    path = fill(place.data / f"hpcbert-removed.{NODE}.old")
    (tree / "half").mkdir(parents=True)
    words = ("--name", "hpcbert-5", "--scratch", place.scratch, "--image", image)
    place.run("enter.sh", "create", *words, ENROOT_REMAP_ROOT="y", ENROOT_CONFIG_PATH="/c")
    assert not path.exists()
    assert [entry.name for entry in tree.iterdir()] == ["file"]
    # Only enroot's places may come from outside, not the way it makes containers.
    assert (tree / "file").read_text() == f"made of {image} with /c and no mapping\n"
    assert place.remove("enroot") == ""
    assert not tree.exists()


@pytest.mark.needs("users")
@pytest.mark.parametrize("kind", ["directory", "link", "file"])
def test_where_it_is_taken_another_is_found_by_every_rank(tmp_path, kind):
    def take(name):
        """Have another user make a directory, a file or a link to a directory of ours."""
        path = tmp_path / name
        if kind == "link":
            (tmp_path / "victims-own").mkdir(exist_ok=True)
            path.symlink_to(tmp_path / "victims-own")
        else:
            path.touch() if kind == "file" else path.mkdir(mode=0o777)
        os.chown(path, 54321, 54321, follow_symlinks=False)

    def choose_place(name="hpcbert-7"):
        words = ("place", "--name", name, "--scratch", tmp_path)
        return Path(run_program("enter.sh", *words).stdout.strip())

    base = f"hpcbert-{os.geteuid()}"
    assert choose_place() == tmp_path / base
    shutil.rmtree(tmp_path / base)
    take(base)
    take(f"{base}.0000000000")
    path = choose_place()
    assert path.parent == tmp_path
    assert path.name.startswith(f"{base}.")
    assert not path.is_symlink()
    assert (path.stat().st_uid, path.stat().st_mode & 0o777) == (os.geteuid(), 0o700)
    assert choose_place() == path
    # A job that began before stays where it is, whatever appears or goes away after that.
    (path / "state" / f"hpcbert-7-{os.uname().nodename}").mkdir(parents=True)
    (tmp_path / f"{base}.000000000A").mkdir()
    assert choose_place() == path
    assert choose_place("hpcbert-8") == tmp_path / f"{base}.000000000A"
    if kind != "file":
        take("enroot-me")
        private = _make_private(tmp_path / "enroot-me")
        assert private.name.startswith("enroot-me.")
        assert private.stat().st_mode & 0o777 == 0o700
        assert _make_private(tmp_path / "enroot-you") == tmp_path / "enroot-you"
