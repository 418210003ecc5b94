"""What hpcbert takes for granted of the enroot command; the stand-in and the real one pass it alike.

The real one is tried where `enroot` is on PATH, or where HPCBERT_ENROOT names it.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.kit.containers import Image, Person, ended, ordinary_person
from tests.kit.registry import Registry
from tests.kit.waiting import CEILING, until

LIMIT = CEILING


@dataclass(frozen=True)
class Enroot:
    """enroot as an ordinary user, with directories of its own."""

    person: Person

    @property
    def folder(self) -> Path:
        return self.person.root

    def start(self, *words: str, **variables: str) -> subprocess.Popen[str]:
        return self.person.start("enroot", *words, **variables)

    def run(
        self, *words: str, stdin: str = "", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        return ended(self.start(*words, **variables), stdin)

    def says(self, *words: str, **variables: str) -> str:
        result = self.run(*words, **variables)
        assert result.returncode == 0, result.stderr
        return result.stdout.strip()

    def data(self, name: str) -> Path:
        return self.folder / "data" / name


@pytest.fixture(scope="module")
def enroot() -> Iterator[Enroot]:
    with ordinary_person() as person:
        person.need_namespaces()
        yield Enroot(person)


@pytest.fixture(scope="module")
def image(enroot: Enroot) -> Path:
    variables = {"IMAGE_ONLY": "image", "BOTH": "image", "QUOTED": '"in quotes"'}
    return Image(variables, files={"etc/rc.local": "export BY_RC_LOCAL=1\n"}).write(
        enroot.folder.parent / "image.sqsh"
    )


@pytest.fixture(scope="module")
def box(enroot: Enroot, image: Path) -> str:
    """A container that tests only read, or write where no other test looks."""
    enroot.says("create", "--name", "box", str(image))
    return "box"


@pytest.fixture
def leader(enroot: Enroot, box: str) -> Iterator[subprocess.Popen[str]]:
    """A container that stopped itself, as the one that other ranks join does."""
    command = "export LEADER=led; cd /opt; exec bash -c 'kill -STOP $$; exit 3'"
    child = enroot.start("start", box, "bash", "-c", command)
    wait_until_stopped(child)
    yield child
    if child.poll() is None:
        child.send_signal(signal.SIGKILL)
    child.communicate()


def wait_until_stopped(child: subprocess.Popen[str]) -> None:
    def stopped() -> bool:
        if child.poll() is not None:
            assert child.stderr is not None
            pytest.fail(f"the leader ended: {child.stderr.read()}")
        return "\nState:\tT" in Path(f"/proc/{child.pid}/status").read_text()

    until(stopped, "the leader never stopped itself", pause=0.01)


def start_container(
    enroot: Enroot, *words: str, options: Sequence[str] = (), **variables: str
) -> str:
    return enroot.says("start", *options, "box", *words, **variables)


def write_conf(enroot: Enroot, text: str) -> tuple[str, str]:
    path = enroot.folder.parent / f"conf-{abs(hash(text))}"
    path.write_text(text)
    return ("--conf", str(path))


# --- Commands on images and containers ---------------------------------------------------------


def test_directories_are_made_before_anything_else(enroot: Enroot) -> None:
    fresh = {
        f"ENROOT_{n}_PATH": str(enroot.folder / "fresh" / n) for n in ("DATA", "CACHE", "RUNTIME")
    }
    enroot.says("list", **fresh)
    for path in fresh.values():
        assert Path(path).is_dir()
        assert Path(path).stat().st_mode & 0o777 == 0o700


def test_a_directory_that_cannot_be_made_fails_even_a_list(enroot: Enroot) -> None:
    result = enroot.run("list", ENROOT_RUNTIME_PATH="/proc/enroot")
    assert result.returncode != 0
    assert "cannot create directory" in result.stderr + result.stdout


def test_create_lists_and_removes(enroot: Enroot, image: Path) -> None:
    enroot.says("create", "--name", "short-lived", str(image))
    assert "short-lived" in enroot.says("list").splitlines()
    assert enroot.data("short-lived").joinpath("etc/rc").is_file()
    enroot.says("remove", "-f", "short-lived")
    assert not enroot.data("short-lived").exists()


def test_create_refuses_a_name_that_is_taken(enroot: Enroot, box: str, image: Path) -> None:
    result = enroot.run("create", "--name", box, str(image))
    assert result.returncode == 1
    assert "File already exists" in result.stderr


@pytest.mark.parametrize(
    ("name", "complaint"),
    [("missing.sqsh", "No such file or directory"), ("text.sqsh", "Invalid image format")],
)
def test_create_says_what_is_wrong_with_an_image(enroot: Enroot, name: str, complaint: str) -> None:
    (enroot.folder.parent / "text.sqsh").write_text("no image\n")
    result = enroot.run("create", "--name", "bad", str(enroot.folder.parent / name))
    assert result.returncode == 1
    assert complaint in result.stderr


def test_remove_of_what_is_not_there_fails(enroot: Enroot) -> None:
    result = enroot.run("remove", "-f", "nothing")
    assert result.returncode == 1
    assert "No such file or directory" in result.stderr


def test_export_gives_an_image_with_what_was_written(enroot: Enroot, image: Path) -> None:
    enroot.says("create", "--name", "grown", str(image))
    enroot.says("start", "--rw", "grown", "sh", "-c", "echo new >/opt/new; ln -s new /opt/link")
    output = enroot.folder / "grown.sqsh"
    enroot.says("export", "--output", str(output), "grown")
    assert "File already exists" in enroot.run("export", "--output", str(output), "grown").stderr
    enroot.says("create", "--name", "grown-again", str(output))
    assert enroot.says("start", "grown-again", "cat", "/opt/link") == "new"
    listed = subprocess.run(
        ["unsquashfs", "-l", output], capture_output=True, text=True, check=True
    )
    assert "/.lock" not in listed.stdout


def test_a_fancy_list_names_who_runs_in_a_container(
    enroot: Enroot, box: str, leader: subprocess.Popen[str]
) -> None:
    head, *rows = enroot.says("list", "--fancy").splitlines()
    assert head.split()[:2] == ["NAME", "PID"]
    assert [box, str(leader.pid)] in [row.split()[:2] for row in rows]


# --- start: environment --------------------------------------------------------------------------


def test_nothing_of_the_host_passes(enroot: Enroot, box: str) -> None:
    names = {
        line.partition("=")[0]
        for line in start_container(enroot, "env", HOST_ONLY="1").splitlines()
    }
    assert "HOST_ONLY" not in names
    assert not any(name.startswith("ENROOT_") for name in names)
    assert {"IMAGE_ONLY", "HOME", "PATH", "USER", "SHELL", "LOGNAME"} <= names


def test_a_conf_file_wins_over_the_image(enroot: Enroot, box: str) -> None:
    both = ("sh", "-c", "echo $BOTH $QUOTED")
    options = write_conf(enroot, 'environ() { echo "BOTH=$FROM_HOST"; }\n')
    assert start_container(enroot, *both) == "image in quotes"
    assert start_container(enroot, *both, options=options, FROM_HOST="conf") == "conf in quotes"


# --- start: command, directory, entrypoint -------------------------------------------------------


def test_status_and_input_pass(enroot: Enroot, box: str) -> None:
    assert enroot.run("start", box, "sh", "-c", "exit 7").returncode == 7
    assert enroot.run("start", box, "no-such-command").returncode == 127
    assert enroot.run("start", box, "cat", stdin="a\nb\n").stdout == "a\nb\n"


def test_the_started_process_becomes_the_command(enroot: Enroot, box: str) -> None:
    with enroot.start("start", box, "sh", "-c", "echo $$; exec cat") as child:
        assert child.stdout is not None
        assert child.stdout.readline().strip() == str(child.pid)
        child.send_signal(signal.SIGTERM)
        assert child.wait(LIMIT) == -signal.SIGTERM


def test_the_directory_is_the_images(enroot: Enroot, box: str) -> None:
    assert start_container(enroot, "pwd") == "/work"


def test_rc_local_is_sourced_before_the_command(enroot: Enroot, box: str) -> None:
    assert start_container(enroot, "sh", "-c", "echo $BY_RC_LOCAL") == "1"


def test_an_rc_local_that_executes_skips_the_entrypoint_and_keeps_the_directory(
    enroot: Enroot,
) -> None:
    path = enroot.folder.parent / "entry.sqsh"
    enroot.says("create", "--name", "entry", str(Image(entrypoint="echo entered").write(path)))
    assert enroot.says("start", "entry", "pwd") == "entered pwd"
    hooks = 'hooks() {\n  echo \'exec "$@"\' >"$ENROOT_ROOTFS/etc/rc.local"\n}\n'
    assert enroot.says("start", *write_conf(enroot, hooks), "entry", "pwd") == "/work"
    # What a hook writes into a created container stays there.
    assert enroot.says("start", "entry", "pwd") == "/work"


def test_without_a_command_script_home_is_the_directory(enroot: Enroot) -> None:
    path = enroot.folder.parent / "plain.sqsh"
    enroot.says("create", "--name", "plain", str(Image(rc=False).write(path)))
    lines = enroot.says("start", "plain", "sh", "-c", 'pwd; echo "$HOME"').splitlines()
    assert lines[0] == lines[1]


# --- start: files ---------------------------------------------------------------------------------


def test_the_root_is_read_only_unless_asked_for(enroot: Enroot, box: str) -> None:
    assert enroot.run("start", box, "touch", "/opt/x").returncode != 0
    start_container(enroot, "touch", "/opt/x", options=["--rw"])
    assert enroot.data(box).joinpath("opt/x").exists()
    start_container(enroot, "touch", "/opt/y", ENROOT_ROOTFS_WRITABLE="y")


@pytest.mark.parametrize(
    ("word", "on"), [("no", False), ("F", False), ("false", False), ("0", True), ("off", True)]
)
def test_only_some_words_switch_off(enroot: Enroot, box: str, word: str, on: bool) -> None:
    result = enroot.run("start", box, "touch", "/opt/word", ENROOT_ROOTFS_WRITABLE=word)
    assert (result.returncode == 0) == on


def test_each_start_has_a_tmp_of_its_own(enroot: Enroot, box: str) -> None:
    mark = Path("/tmp", f"hpcbert-{os.getpid()}")
    mark.touch()
    try:
        start_container(enroot, "sh", "-c", f"test ! -e {mark} && touch /tmp/mine")
    finally:
        mark.unlink()
    start_container(enroot, "test", "!", "-e", "/tmp/mine")


def test_shared_memory_is_the_hosts(enroot: Enroot, box: str) -> None:
    mark = Path("/dev/shm", f"hpcbert-{os.getpid()}")
    mark.touch()
    try:
        start_container(enroot, "test", "-e", str(mark))
    finally:
        mark.unlink()


def test_root_is_asked_for(enroot: Enroot, box: str) -> None:
    st_uid = enroot.folder.stat().st_uid
    assert start_container(enroot, "id", "-u") == str(st_uid)
    assert start_container(enroot, "id", "-u", options=["--root"]) == "0"
    assert start_container(enroot, "id", "-u", ENROOT_REMAP_ROOT="y") == "0"


def test_a_mount_without_options_binds_and_makes_its_target(enroot: Enroot, box: str) -> None:
    (enroot.folder / "src").mkdir(exist_ok=True)
    (enroot.folder / "src" / "f").touch()
    spec = f"{enroot.folder}/src:/mnt/made"
    assert start_container(enroot, "ls", "/mnt/made", options=["--mount", spec]) == "f"
    assert (
        start_container(
            enroot, "ls", f"{enroot.folder}/src", options=["--mount", spec.partition(":")[0]]
        )
        == "f"
    )


def test_any_option_replaces_the_default(enroot: Enroot, box: str) -> None:
    bare = f"{enroot.folder}:/mnt/bare"
    assert enroot.run("start", "--mount", f"{bare}:ro", box, "true").returncode != 0
    full = ["--mount", f"{bare}:x-create=auto,rbind,ro"]
    assert (
        start_container(enroot, "sh", "-c", "touch /mnt/bare/x || echo read-only", options=full)
        == "read-only"
    )


def test_mounts_of_a_conf_file(enroot: Enroot, box: str) -> None:
    (enroot.folder / "file").write_text("content\n")
    (enroot.folder / "under").mkdir(exist_ok=True)
    (enroot.folder / "under" / "lower").touch()
    lines = (
        f"{enroot.folder}/file /mnt/file x-create=auto,rbind,ro",
        f"{enroot.folder}/under /mnt/under x-create=auto,rbind",
        "tmpfs /mnt/memory x-create=dir,size=1M",
        "/nowhere /mnt/nowhere x-create=auto,rbind,nofail",
        "umount /mnt/under x-detach",
    )
    text = "mounts() {\n" + "".join(f"  echo '{line}'\n" for line in lines) + "}\n"
    command = "cat /mnt/file; ls /mnt/under; stat -f -c %T /mnt/memory; touch /mnt/memory/x"
    options = write_conf(enroot, text)
    assert start_container(enroot, "sh", "-c", command, options=options).split() == [
        "content",
        "tmpfs",
    ]


@pytest.mark.parametrize("spec", ["/nowhere:/mnt/x", "/nowhere:/mnt/x:x-create=auto,rbind"])
def test_a_source_that_is_missing_is_fatal(enroot: Enroot, box: str, spec: str) -> None:
    result = enroot.run("start", "--mount", spec, box, "true")
    assert result.returncode == 1
    assert "/nowhere" in result.stderr
    assert "No such file or directory" in result.stderr


def test_a_blank_in_a_mount_is_refused(enroot: Enroot, box: str) -> None:
    assert "Invalid argument" in enroot.run("start", "--mount", "/a b:/c", box, "true").stderr


def test_home_is_mounted_when_asked_for(enroot: Enroot, box: str) -> None:
    (enroot.folder / "in-home").touch()
    assert (
        start_container(enroot, "sh", "-c", "ls ~/in-home", ENROOT_MOUNT_HOME="y")
        == f"{enroot.folder}/in-home"
    )
    assert enroot.run("start", box, "ls", f"{enroot.folder}/in-home").returncode != 0


# --- exec -----------------------------------------------------------------------------------------


def test_exec_joins_the_leaders_namespaces(enroot: Enroot, leader: subprocess.Popen[str]) -> None:
    command = "readlink /proc/self/ns/user /proc/self/ns/mnt"
    # As its owner: root of a container may not look at processes of others.
    links = [f"/proc/{leader.pid}/ns/{kind}" for kind in ("user", "mnt")]
    namespaces = ended(enroot.person.start("readlink", *links)).stdout.splitlines()
    assert len(namespaces) == 2
    assert enroot.says("exec", str(leader.pid), "sh", "-c", command).splitlines() == namespaces
    enroot.says("exec", str(leader.pid), "touch", "/tmp/shared")
    enroot.says("exec", str(leader.pid), "test", "-e", "/tmp/shared")


def test_exec_has_the_leaders_environment_and_directory(
    enroot: Enroot, leader: subprocess.Popen[str]
) -> None:
    lines = set(enroot.says("exec", str(leader.pid), "env", HOST_ONLY="1").splitlines())
    assert {"IMAGE_ONLY=image", "LEADER=led"} <= lines
    assert not any(line.startswith("HOST_ONLY") for line in lines)
    assert enroot.says("exec", str(leader.pid), "pwd") == "/opt"


def test_exec_passes_status_signals_and_input(
    enroot: Enroot, leader: subprocess.Popen[str]
) -> None:
    pid = str(leader.pid)
    assert enroot.run("exec", pid, "sh", "-c", "exit 9").returncode == 9
    assert enroot.run("exec", pid, "cat", stdin="in\n").stdout == "in\n"
    with enroot.start("exec", pid, "sh", "-c", "echo $$; exec cat") as child:
        assert child.stdout is not None
        assert child.stdout.readline().strip() == str(child.pid)
        child.send_signal(signal.SIGTERM)
        assert child.wait(LIMIT) == -signal.SIGTERM


def test_a_leader_goes_on_with_its_own_status(leader: subprocess.Popen[str]) -> None:
    leader.send_signal(signal.SIGCONT)
    assert leader.wait(LIMIT) == 3


def test_a_leader_may_end_before_those_that_joined(
    enroot: Enroot, leader: subprocess.Popen[str]
) -> None:
    with enroot.start("exec", str(leader.pid), "sh", "-c", "echo in; cat; pwd") as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "in\n"
        leader.send_signal(signal.SIGKILL)
        leader.wait(LIMIT)
        assert child.communicate("", timeout=LIMIT)[0] == "/opt\n"


def test_exec_into_a_process_that_is_gone_fails(enroot: Enroot) -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    result = enroot.run("exec", str(process.pid), "true")
    assert result.returncode == 1
    assert "Process not found" in result.stderr


def test_a_container_can_be_removed_while_it_runs(enroot: Enroot, image: Path) -> None:
    enroot.says("create", "--name", "busy", str(image))
    child = enroot.start("start", "busy", "bash", "-c", "kill -STOP $$; cat /etc/rc")
    wait_until_stopped(child)
    enroot.says("remove", "-f", "busy")
    assert "busy" not in enroot.says("list").splitlines()
    child.send_signal(signal.SIGKILL)
    child.communicate()


# --- import ---------------------------------------------------------------------------------------

PLAIN = {"ENROOT_ALLOW_HTTP": "y", "ENROOT_SQUASH_OPTIONS": "-comp gzip"}
IMPORTED = "team/program:1.0"
_LAYERS = (
    {"etc/kept": b"kept\n", "etc/gone": b"", "opt/old": b"old\n", "dev/null": b""},
    {"etc/.wh.gone": b"", "opt/new": b"new\n", "etc/kept": b"changed\n"},
)


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with Registry() as server:
        server.push(
            IMPORTED,
            list(_LAYERS),
            env=["IMAGE_ONLY=image", "BLANKS=a b"],
            workdir="/srv/work",
            entrypoint=["echo", "it's"],
        )
        yield server


def test_import_makes_an_image_of_layers_and_configuration(
    enroot: Enroot, registry: Registry
) -> None:
    output = enroot.folder / "imported.sqsh"
    before = registry.pulls("team/program")
    enroot.says("import", "--output", str(output), registry.uri(IMPORTED), **PLAIN)
    assert registry.pulls("team/program") == before + 1
    enroot.says("create", "--name", "imported", str(output))
    root = enroot.data("imported")
    assert (root / "etc/kept").read_text() == "changed\n"
    assert (root / "opt/new").exists()
    assert (root / "opt/old").exists()
    assert not (root / "etc/gone").exists()
    assert not (root / "dev/null").exists()
    assert {"IMAGE_ONLY=image", "BLANKS=a b"} <= set(
        (root / "etc/environment").read_text().split("\n")
    )
    assert 'cd "/srv/work"' in (root / "etc/rc").read_text().replace("'", '"')
    assert (root / "srv/work").is_dir()
    assert list((enroot.folder / "temp").iterdir()) == []


def test_import_refuses_an_output_that_is_there(enroot: Enroot, registry: Registry) -> None:
    output = enroot.folder / "taken.sqsh"
    output.touch()
    result = enroot.run("import", "--output", str(output), registry.uri(IMPORTED), **PLAIN)
    assert result.returncode == 1
    assert "File already exists" in result.stderr


def test_import_says_what_the_registry_answered(enroot: Enroot, registry: Registry) -> None:
    output = str(enroot.folder / "absent.sqsh")
    result = enroot.run("import", "--output", output, registry.uri("team/absent:1"), **PLAIN)
    assert result.returncode != 0
    assert "returned error code: 404" in result.stderr
    assert not Path(output).exists()


def test_an_import_that_is_killed_leaves_half_a_file_in_the_way(
    enroot: Enroot, registry: Registry
) -> None:
    registry.push("team/big:1", [{"opt/big": os.urandom(1 << 20) * 24}])
    output = enroot.folder / "killed.sqsh"
    words = ("import", "--output", str(output), registry.uri("team/big:1"))
    slow = {**PLAIN, "ENROOT_SQUASH_OPTIONS": "-comp gzip -throttle 99"}
    child = enroot.start(*words, **slow)
    until(output.exists, "nothing was written", pause=0.01)
    os.killpg(child.pid, signal.SIGKILL)
    ended(child)
    looked = subprocess.run(["unsquashfs", "-s", output], capture_output=True, check=False)
    assert looked.returncode != 0
    assert "File already exists" in enroot.run(*words, **PLAIN).stderr


def test_credentials_come_from_the_file(enroot: Enroot) -> None:
    with Registry(auth="basic", user="someone", password="good word") as closed:
        closed.push("team/closed:1", [{"etc/mark": b"1"}])
        where = enroot.folder / "config"
        where.mkdir(exist_ok=True)
        file = where / ".credentials"
        words = (
            "import",
            "--output",
            str(enroot.folder / "closed.sqsh"),
            closed.uri("team/closed:1"),
        )
        host = closed.host.partition(":")[0]
        file.write_text(f"machine {host} login someone password bad\n")
        result = enroot.run(*words, **PLAIN)
        assert result.returncode != 0
        assert "Authenticating with user: someone" in result.stderr
        file.write_text(f'machine {host} login someone password "good word"\n')
        enroot.says(*words, **PLAIN)
        file.unlink()
