"""What hpcbert takes for granted of enroot; the stand-in and the real one (HPCBERT_ENROOT) pass it alike."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.kit.containers import Image, ended, ordinary_person
from tests.kit.registry import Registry
from tests.kit.waiting import CEILING, until

PLAIN = {"ENROOT_ALLOW_HTTP": "y", "ENROOT_SQUASH_OPTIONS": "-comp gzip"}


class Enroot:
    """enroot as an ordinary user, with directories of its own and a container named box."""

    def __init__(self, person):
        self.person, self.folder, self.data = person, person.root, person.root / "data"
        variables = {"IMAGE_ONLY": "image", "BOTH": "image", "QUOTED": '"in quotes"'}
        files = {"etc/rc.local": "export BY_RC_LOCAL=1\n"}
        self.image = self.create("box", Image(variables, files=files))

    def create(self, name, image):
        path = image.write(self.folder.parent / f"{name}.sqsh")
        self.says("create", "--name", name, str(path))
        return str(path)

    def start(self, *words, **variables):
        return self.person.start("enroot", *words, **variables)

    def run(self, *words, **variables):
        return ended(self.start(*words, **variables), "a\nb\n")

    def says(self, *words, **variables):
        result = self.run(*words, **variables)
        assert result.returncode == 0, result.stderr
        return result.stdout.strip()

    def refuses(self, keyword, *words, **variables):
        result = self.run(*words, **variables)
        assert result.returncode != 0
        assert keyword in result.stderr

    def conf(self, text):
        path = self.folder.parent / "conf"
        path.write_text(text)
        return ("--conf", str(path))

    def stopped(self, name, command):
        """Start a command in a container, and wait until it has stopped itself."""
        child = self.start("start", name, "bash", "-c", command)

        def is_stopped():
            assert child.poll() is None, ended(child).stderr
            return "\nState:\tT" in Path(f"/proc/{child.pid}/status").read_text()

        until(is_stopped, "it never stopped itself", pause=0.01)
        return child


@pytest.fixture(scope="module")
def enroot():
    with ordinary_person() as person:
        person.need_namespaces()
        yield Enroot(person)


@pytest.fixture
def leader(enroot):
    """A container that stopped itself, as the one that other ranks join does."""
    command = "export LEADER=led; cd /opt; exec bash -c 'kill -STOP $$; exit 3'"
    with enroot.stopped("box", command) as child:
        yield child
        child.kill()


def expect_same_process(child):
    """The process prints its id, which is the started one's, and ends by the signal that it gets."""
    with child:
        assert child.stdout.readline().strip() == str(child.pid)
        child.send_signal(signal.SIGTERM)
        assert child.wait(CEILING) == -signal.SIGTERM


def test_its_directories_are_made_first_and_one_that_cannot_be_fails_even_a_list(enroot):
    names = ("DATA", "CACHE", "RUNTIME")
    fresh = {f"ENROOT_{name}_PATH": str(enroot.folder / "fresh" / name) for name in names}
    enroot.says("list", **fresh)
    assert {Path(path).stat().st_mode & 0o777 for path in fresh.values()} == {0o700}
    enroot.refuses("cannot create directory", "list", ENROOT_RUNTIME_PATH="/proc/enroot")


def test_containers_are_created_listed_exported_and_removed(enroot):
    enroot.says("create", "--name", "grown", enroot.image)
    enroot.refuses("File already exists", "create", "--name", "grown", enroot.image)
    assert "grown" in enroot.says("list").splitlines()
    enroot.says("start", "--rw", "grown", "sh", "-c", "echo new >/opt/new; ln -s new /opt/link")
    output = str(enroot.folder / "grown.sqsh")
    enroot.says("export", "--output", output, "grown")
    enroot.refuses("File already exists", "export", "--output", output, "grown")
    enroot.says("remove", "-f", "grown")
    assert not (enroot.data / "grown").exists()
    enroot.refuses(f"No such file or directory: {enroot.data}/grown", "remove", "-f", "grown")
    enroot.says("create", "--name", "again", output)
    assert enroot.says("start", "again", "cat", "/opt/link") == "new"
    listed = subprocess.run(["unsquashfs", "-l", output], capture_output=True, check=True)
    assert b"/.lock" not in listed.stdout


def test_create_says_what_is_wrong_with_an_image(enroot):
    text = enroot.folder.parent / "text.sqsh"
    text.write_text("no image\n")
    enroot.refuses("Invalid image format", "create", "--name", "bad", str(text))
    enroot.refuses("No such file or directory", "create", "--name", "bad", "/missing.sqsh")


def test_who_runs_in_a_container_is_listed_and_keeps_nobody_from_removing_it(enroot, leader):
    head, *rows = enroot.says("list", "--fancy").splitlines()
    assert head.split()[:2] == ["NAME", "PID"]
    assert ["box", str(leader.pid)] in [row.split()[:2] for row in rows]
    enroot.says("create", "--name", "busy", enroot.image)
    with enroot.stopped("busy", "kill -STOP $$; cat /etc/rc") as child:
        try:
            enroot.says("remove", "-f", "busy")
            assert "busy" not in enroot.says("list").splitlines()
        finally:
            child.kill()


def test_the_environment_is_the_images_and_the_conf_files_and_nothing_of_the_host(enroot):
    lines = enroot.says("start", "box", "env", HOST_ONLY="1").splitlines()
    names = {line.partition("=")[0] for line in lines}
    assert "HOST_ONLY" not in names
    assert not any(name.startswith("ENROOT_") for name in names)
    assert {"IMAGE_ONLY", "HOME", "PATH", "USER", "SHELL", "LOGNAME"} <= names
    command = ("box", "sh", "-c", "echo $BOTH $QUOTED $BY_RC_LOCAL")
    assert enroot.says("start", *command) == "image in quotes 1"
    conf = enroot.conf('environ() { echo "BOTH=$FROM_HOST"; }\n')
    assert enroot.says("start", *conf, *command, FROM_HOST="conf") == "conf in quotes 1"


def test_the_started_process_becomes_the_command_in_the_images_directory(enroot):
    assert enroot.run("start", "box", "sh", "-c", "exit 7").returncode == 7
    assert enroot.run("start", "box", "no-such-command").returncode == 127
    assert enroot.run("start", "box", "cat").stdout == "a\nb\n"
    assert enroot.says("start", "box", "pwd") == "/work"
    expect_same_process(enroot.start("start", "box", "sh", "-c", "echo $$; exec cat"))


def test_an_rc_local_that_executes_skips_the_entrypoint_and_keeps_the_directory(enroot):
    enroot.create("entry", Image(entrypoint="echo entered"))
    assert enroot.says("start", "entry", "pwd") == "entered pwd"
    hooks = 'hooks() {\n  echo \'exec "$@"\' >"$ENROOT_ROOTFS/etc/rc.local"\n}\n'
    assert enroot.says("start", *enroot.conf(hooks), "entry", "pwd") == "/work"
    # What a hook writes into a created container stays there.
    assert enroot.says("start", "entry", "pwd") == "/work"
    enroot.create("plain", Image(rc=False))
    where, home = enroot.says("start", "plain", "sh", "-c", 'pwd; echo "$HOME"').splitlines()
    assert where == home


def test_the_root_is_writable_and_its_user_root_only_where_asked_for(enroot):
    assert enroot.run("start", "box", "touch", "/opt/x").returncode != 0
    enroot.says("start", "--rw", "box", "touch", "/opt/x")
    assert (enroot.data / "box/opt/x").exists()
    # Only some words switch a setting off.
    for word, is_on in {"y": True, "0": True, "off": True, "no": False, "F": False}.items():
        result = enroot.run("start", "box", "touch", "/opt/y", ENROOT_ROOTFS_WRITABLE=word)
        assert (result.returncode == 0) == is_on, word
    assert enroot.says("start", "box", "id", "-u") == str(enroot.folder.stat().st_uid)
    assert enroot.says("start", "--root", "box", "id", "-u") == "0"
    assert enroot.says("start", "box", "id", "-u", ENROOT_REMAP_ROOT="y") == "0"


def test_each_start_has_a_tmp_of_its_own_and_the_hosts_shared_memory(enroot):
    marks = [Path(folder, f"hpcbert-{os.getpid()}") for folder in ("/tmp", "/dev/shm")]
    for mark in marks:
        mark.touch()
    command = f"test ! -e {marks[0]} && test -e {marks[1]} && touch /tmp/mine"
    enroot.says("start", "box", "sh", "-c", command)
    enroot.says("start", "box", "test", "!", "-e", "/tmp/mine")
    for mark in marks:
        mark.unlink()


def test_a_mount_binds_and_makes_its_target_and_any_option_replaces_that(enroot):
    source = enroot.folder / "src"
    source.mkdir()
    (source / "f").touch()
    for spec, target in ((f"{source}:/mnt/made", "/mnt/made"), (str(source), str(source))):
        assert enroot.says("start", "--mount", spec, "box", "ls", target) == "f"
    bare = f"{enroot.folder}:/mnt/bare"
    assert enroot.run("start", "--mount", f"{bare}:ro", "box", "true").returncode != 0
    full = ("--mount", f"{bare}:x-create=auto,rbind,ro")
    assert enroot.says("start", *full, "box", "test", "!", "-w", "/mnt/bare") == ""
    for missing in ("/nowhere:/mnt/x", "/nowhere:/mnt/x:x-create=auto,rbind"):
        enroot.refuses("/nowhere", "start", "--mount", missing, "box", "true")
        enroot.refuses("No such file", "start", "--mount", missing, "box", "true")
    enroot.refuses("Invalid argument", "start", "--mount", "/a b:/c", "box", "true")


def test_mounts_of_a_conf_file_and_of_home(enroot):
    (enroot.folder / "file").write_text("content\n")
    (enroot.folder / "under").mkdir()
    lines = (
        f"{enroot.folder}/file /mnt/file x-create=auto,rbind,ro",
        f"{enroot.folder} /mnt/under x-create=auto,rbind",
        "tmpfs /mnt/memory x-create=dir,size=1M",
        "/nowhere /mnt/nowhere x-create=auto,rbind,nofail",
        "umount /mnt/under x-detach",
    )
    text = "mounts() {\n" + "".join(f"  echo '{line}'\n" for line in lines) + "}\n"
    command = "cat /mnt/file; ls /mnt/under; stat -f -c %T /mnt/memory; touch /mnt/memory/x"
    printed = enroot.says("start", *enroot.conf(text), "box", "sh", "-c", command)
    assert printed.split() == ["content", "tmpfs"]
    assert enroot.run("start", "box", "ls", f"{enroot.folder}/file").returncode != 0
    home = enroot.says("start", "box", "sh", "-c", "ls ~/file", ENROOT_MOUNT_HOME="y")
    assert home == f"{enroot.folder}/file"


def test_exec_joins_the_leaders_namespaces_environment_and_directory(enroot, leader):
    pid = str(leader.pid)
    # As its owner: root of a container may not look at processes of others.
    links = [f"/proc/{pid}/ns/{kind}" for kind in ("user", "mnt")]
    namespaces = ended(enroot.person.start("readlink", *links)).stdout
    inside = [link.replace(pid, "self") for link in links]
    assert enroot.run("exec", pid, "readlink", *inside).stdout == namespaces != ""
    enroot.says("exec", pid, "touch", "/tmp/shared")
    enroot.says("exec", pid, "test", "-e", "/tmp/shared")
    lines = set(enroot.says("exec", pid, "env", HOST_ONLY="1").splitlines())
    assert {"IMAGE_ONLY=image", "LEADER=led"} <= lines
    assert not any(line.startswith("HOST_ONLY") for line in lines)
    assert enroot.says("exec", pid, "pwd") == "/opt"
    assert enroot.run("exec", pid, "sh", "-c", "exit 9").returncode == 9
    assert enroot.run("exec", pid, "cat").stdout == "a\nb\n"
    expect_same_process(enroot.start("exec", pid, "sh", "-c", "echo $$; exec cat"))
    leader.send_signal(signal.SIGCONT)
    assert leader.wait(CEILING) == 3
    enroot.refuses("Process not found", "exec", pid, "true")


def test_a_leader_may_end_before_those_that_joined(enroot, leader):
    with enroot.start("exec", str(leader.pid), "sh", "-c", "echo in; cat; pwd") as child:
        assert child.stdout.readline() == "in\n"
        leader.kill()
        leader.wait(CEILING)
        assert child.communicate("", timeout=CEILING)[0] == "/opt\n"


def test_import_makes_an_image_of_layers_and_configuration(enroot):
    layers = (
        {"etc/kept": b"kept\n", "etc/gone": b"", "opt/old": b"old\n", "dev/null": b""},
        {"etc/.wh.gone": b"", "opt/new": b"new\n", "etc/kept": b"changed\n"},
    )
    env, entry = ["IMAGE_ONLY=image", "BLANKS=a b"], ["echo", "it's"]
    output = str(enroot.folder / "imported.sqsh")
    with Registry() as registry:
        registry.push("team/it:1.0", layers, Env=env, WorkingDir="/srv/work", Entrypoint=entry)
        words = ("import", "--output", output, registry.uri("team/it:1.0"))
        enroot.says(*words, **PLAIN)
        assert registry.pulls("team/it") == 1
        enroot.refuses("File already exists", *words, **PLAIN)
        absent = (*words[:2], f"{output}.2", registry.uri("team/absent:1"))
        enroot.refuses("returned error code: 404", *absent, **PLAIN)
    assert not Path(f"{output}.2").exists()
    enroot.says("create", "--name", "imported", output)
    root = enroot.data / "imported"
    assert (root / "etc/kept").read_text() == "changed\n"
    paths = {"opt/new": True, "opt/old": True, "srv/work": True}
    paths |= {"etc/gone": False, "dev/null": False}
    assert {path: (root / path).exists() for path in paths} == paths
    assert set(env) <= set((root / "etc/environment").read_text().split("\n"))
    assert 'cd "/srv/work"' in (root / "etc/rc").read_text().replace("'", '"')
    assert list((enroot.folder / "temp").iterdir()) == []


def test_an_import_that_is_killed_leaves_half_a_file_in_the_way(enroot):
    output = enroot.folder / "killed.sqsh"
    with Registry() as registry:
        registry.push("team/big:1", [{"opt/big": os.urandom(12 << 20)}])
        words = ("import", "--output", str(output), registry.uri("team/big:1"))
        slow = {**PLAIN, "ENROOT_SQUASH_OPTIONS": "-comp gzip -throttle 99"}
        child = enroot.start(*words, **slow)
        until(output.exists, "nothing was written", pause=0.01)
        os.killpg(child.pid, signal.SIGKILL)
        ended(child)
        enroot.refuses("File already exists", *words, **PLAIN)
    looked = subprocess.run(["unsquashfs", "-s", output], capture_output=True, check=False)
    assert looked.returncode != 0


def test_credentials_come_from_the_file(enroot):
    (enroot.folder / "config").mkdir()
    file = enroot.folder / "config/.credentials"
    output = str(enroot.folder / "closed.sqsh")
    with Registry(auth="basic", account="someone:good word") as registry:
        registry.push("team/closed:1", [{"etc/mark": b"1"}])
        words = ("import", "--output", output, registry.uri("team/closed:1"))
        line = f"machine {registry.host.partition(':')[0]} login someone password"
        file.write_text(f"{line} bad\n")
        enroot.refuses("Authenticating with user: someone", *words, **PLAIN)
        file.write_text(f'{line} "good word"\n')
        enroot.says(*words, **PLAIN)
