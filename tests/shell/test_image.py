"""image.sh: one import for all who ask, and nothing half done, whoever dies when.

Tried with the enroot that HPCBERT_ENROOT or PATH names, else with the stand-in; as an ordinary user.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import pytest

from hpcbert.container.cache import SCRIPT
from hpcbert.system import processes
from tests.kit.cases import cases
from tests.kit.containers import Image, Person, ended, kill_session, ordinary_person
from tests.kit.registry import Registry, serving_tiny
from tests.kit.waiting import CEILING, until

pytestmark = pytest.mark.slow

LIMIT = CEILING
STEM = "r+bert+tiny+1.0"
ELSEWHERE = "elsewhere-7-1 elsewhere another-boot/pid:[1]/0 7 1234\n"


@dataclass(frozen=True)
class Host:
    """A place where an ordinary user runs image.sh."""

    person: Person

    @property
    def root(self) -> Path:
        return self.person.root

    @property
    def images(self) -> Path:
        return self.root / "images"

    def begin(self, *words: str, **variables: str) -> subprocess.Popen[str]:
        return self.person.start("bash", str(self.root / "image.sh"), *words, **variables)

    def locked_elsewhere(self) -> Path:
        """Lock the image as a host would that is not there any more; return the lock."""
        lock = self.images / f".{STEM}~lock"
        lock.mkdir(parents=True)
        (lock / "holder").write_text(ELSEWHERE)
        self.person.own(self.images, lock, lock / "holder")
        return lock

    def lists(self) -> str:
        return finish_process(self.person.start("enroot", "list")).stdout

    def ask(
        self, uri: str, *more: str, stem: str = STEM, **variables: str
    ) -> subprocess.Popen[str]:
        return self.begin("import", uri, str(self.images), stem, *more, **variables)

    def gets(self, uri: str, *more: str, stem: str = STEM, **variables: str) -> Path:
        return Path(finish_process(self.ask(uri, *more, stem=stem, **variables)).stdout.strip())

    def hidden(self) -> list[str]:
        return sorted(path.name for path in self.images.glob(".*"))

    def temporary(self) -> list[str]:
        return sorted(path.name for path in (self.root / "temp").iterdir())


def finish_process(
    child: subprocess.Popen[str], stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    result = ended(child, stdin)
    assert result.returncode == 0, result.stderr
    return result


def read_output(*words: str | Path) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def host() -> Iterator[Host]:
    with ordinary_person() as person:
        for name in ("image.sh", "enroot.sh"):
            shutil.copy(SCRIPT.with_name(name), person.root / name)
            (person.root / name).chmod(0o644)
        person.environment["ENROOT_ALLOW_HTTP"] = "y"
        yield Host(person)


@pytest.fixture
def registry() -> Iterator[Registry]:
    with serving_tiny() as server:
        yield server


@pytest.fixture
def uri(registry: Registry) -> str:
    return registry.uri()


def wait_for_import(host: Host, child: subprocess.Popen[str]) -> None:
    """Wait until a script holds the lock and enroot is at work."""
    until(
        # By its session's number the next importer ends what a killed one left.
        lambda: child.poll() is not None or (host.images / f".{STEM}~lock/session").exists(),
        "the import never began",
    )
    assert child.poll() is None, ended(child).stderr


def test_the_image_has_its_digest_in_its_name_and_a_pointer(
    host: Host, registry: Registry, uri: str
) -> None:
    path = host.gets(uri.replace("//", "//somebody@"))
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    assert path == host.images / f"{STEM}+{sha256[:12]}.sqsh"
    pointer = json.loads((host.images / f"{STEM}.json").read_text())
    assert pointer.pop("created").endswith("Z")
    assert pointer.pop("enroot")
    assert pointer == {
        "schema": 1,
        "reference": uri,
        "file": path.name,
        "sha256": sha256,
        "bytes": path.stat().st_size,
        "provenance": None,
    }
    assert host.hidden() == host.temporary() == []
    assert "squashfs-root/etc/marker" in read_output("unsquashfs", "-l", path)
    before = len(registry.requests)
    assert host.gets(uri) == path
    assert len(registry.requests) == before


def test_thirty_two_at_once_are_one_import(host: Host, registry: Registry, uri: str) -> None:
    registry.delay = 1.0
    children = [host.ask(uri) for _ in range(32)]
    results = [finish_process(child) for child in children]
    assert {result.stdout for result in results} == {results[0].stdout}
    assert Path(results[0].stdout.strip()).is_file()
    assert registry.pulls("bert/tiny") == 1
    assert host.hidden() == host.temporary() == []


def test_an_importer_killed_half_way_is_repaired_by_the_next(
    host: Host, registry: Registry, uri: str
) -> None:
    registry.delay = LIMIT
    child = host.ask(uri)
    wait_for_import(host, child)
    os.kill(child.pid, signal.SIGKILL)
    child.wait(timeout=LIMIT)
    (host.images / f".{STEM}~{child.pid}.partial").write_bytes(b"half an image")
    assert not list(host.images.glob("[!.]*"))
    registry.delay = 0.0
    result = finish_process(host.ask(uri))
    assert Path(result.stdout.strip()).is_file()
    assert "the importer before died" in result.stderr
    assert host.hidden() == host.temporary() == []
    kill_session(child.pid)
    ended(child)


def test_two_imports_of_an_image_are_the_same_file_with_the_times_of_its_layers(
    host: Host, registry: Registry, tmp_path: Path
) -> None:
    for name, year in (("old.py", 2019), ("new.py", 2022)):
        (tmp_path / name).write_text("")
        moment = datetime(year, 6, 1, tzinfo=timezone.utc).timestamp()
        os.utime(tmp_path / name, (moment, moment))
    registry.push("bert/dated:1.0", [tmp_path])
    uri = registry.uri("bert/dated:1.0")
    first = host.gets(uri)
    path = first.rename(first.with_name("first"))
    (host.images / f"{STEM}.json").unlink()
    until(lambda: time.time() > path.stat().st_mtime + 1, "time stands still")
    second = host.gets(uri)
    assert registry.pulls("bert/dated") == 2
    assert second.name == first.name
    assert second.read_bytes() == path.read_bytes()
    lines = read_output("unsquashfs", "-UTC", "-lls", second).splitlines()
    days = {line.split()[-1].rpartition("/")[2]: line.split()[3] for line in lines if "/" in line}
    assert days["old.py"] == "2019-06-01"
    assert days["new.py"] == days["rc"] == "2022-06-01"


def push_slow_image(host: Host, registry: Registry) -> tuple[str, dict[str, str]]:
    """Push an image whose packing takes minutes; return its reference, and the tool's settings."""
    registry.push("bert/slow:1.0", [{"opt/big": os.urandom(1 << 20) * 24}])
    return registry.uri("bert/slow:1.0"), {"ENROOT_SQUASH_OPTIONS": "-comp gzip -throttle 99"}


def list_packers(host: Host) -> list[int]:
    """Return the processes that write an image of this host's."""
    pids = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (path / "cmdline").read_bytes().split(b"\0")
            if b"mksquashfs" in words[0] and str(host.root).encode() in b" ".join(words):
                pids.append(int(path.name))
    return pids


def test_when_enroot_alone_is_killed_nothing_of_it_goes_on_and_those_that_wait_import(
    host: Host, registry: Registry
) -> None:
    uri, slow = push_slow_image(host, registry)
    child = host.ask(uri, **slow)
    until(lambda: list_packers(host), "no mksquashfs")
    waiting = host.ask(uri)
    assert waiting.stderr is not None
    assert "waiting for" in waiting.stderr.readline()
    killed = [process.pid for process in processes.list_processes() if is_import(process.pid, host)]
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    result = ended(child)
    assert result.returncode == 1
    assert "enroot import" in result.stderr
    assert "status 137" in result.stderr
    path = Path(finish_process(waiting).stdout.strip())
    assert "Found a valid" in read_output("unsquashfs", "-s", path)
    assert list_packers(host) == []
    assert host.hidden() == host.temporary() == []


def is_import(pid: int, host: Host) -> bool:
    """Return whether a process is `enroot import`, and not one that it started."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    # An interpreter and its program: /bin/bash …/enroot import, or …/enroot-import.
    return b"mksquashfs" not in words[0] and any(b"/enroot" in word for word in words[1:3])


def test_when_the_importer_is_killed_the_next_ends_what_it_started(
    host: Host, registry: Registry
) -> None:
    uri, slow = push_slow_image(host, registry)
    child = host.ask(uri, **slow)
    until(lambda: list_packers(host), "no mksquashfs")
    orphans = list_packers(host)
    os.kill(child.pid, signal.SIGKILL)
    child.wait(timeout=LIMIT)
    result = finish_process(host.ask(uri))
    assert "the importer before died" in result.stderr
    assert not set(orphans) & set(list_packers(host))
    assert host.hidden() == host.temporary() == []
    ended(child)


def test_without_a_next_one_the_orphans_end_as_well(host: Host, registry: Registry) -> None:
    uri, slow = push_slow_image(host, registry)
    child = host.ask(uri, HPCBERT_STALE_AFTER="2", **slow)
    until(lambda: list_packers(host), "no mksquashfs")
    os.kill(child.pid, signal.SIGKILL)
    until(lambda: not list_packers(host), "the orphans go on")
    ended(child)
    (partial,) = host.images.glob(".*.partial")
    result = subprocess.run(["unsquashfs", "-s", partial], capture_output=True, check=False)
    assert result.returncode != 0  # they were ended, and did not end


def test_one_killed_on_another_host_is_told_by_its_silence(
    host: Host, registry: Registry, uri: str
) -> None:
    host.locked_elsewhere()
    result = finish_process(host.ask(uri, HPCBERT_STALE_AFTER="2"))
    assert "waiting for" in result.stderr
    assert "on elsewhere" in result.stderr or "elsewhere is importing" in result.stderr
    assert "the importer before died" in result.stderr
    assert registry.pulls("bert/tiny") == 1


def test_one_that_takes_long_is_not_thought_dead(host: Host, registry: Registry, uri: str) -> None:
    registry.delay = 4.5
    children = [host.ask(uri, HPCBERT_STALE_AFTER="4") for _ in range(2)]
    assert len({finish_process(child).stdout for child in children}) == 1
    assert registry.pulls("bert/tiny") == 1


def test_termination_leaves_nothing(host: Host, registry: Registry, uri: str) -> None:
    registry.delay = LIMIT
    child = host.ask(uri)
    wait_for_import(host, child)
    child.terminate()
    assert ended(child).returncode == 143
    assert not list(host.images.iterdir())
    assert host.temporary() == []


def test_a_failure_is_told_and_leaves_no_image(host: Host, registry: Registry) -> None:
    result = ended(host.ask(registry.uri("bert/none:1.0")))
    assert result.returncode == 1
    assert "404" in result.stderr
    assert result.stdout == ""
    assert not list(host.images.glob("[!.]*"))
    assert host.temporary() == []


def test_who_waits_for_one_that_fails_does_not_try_the_same_again(
    host: Host, registry: Registry, uri: str
) -> None:
    lock = host.locked_elsewhere()
    child = host.ask(uri)
    assert child.stderr is not None
    assert "waiting for" in child.stderr.readline()
    (host.images / f".{STEM}~failed").write_text("elsewhere-7-1\n1\nhpcbert: no such tag\n")
    shutil.rmtree(lock)
    result = ended(child)
    assert result.returncode == 1
    assert "hpcbert: no such tag" in result.stderr
    assert registry.requests == []


def test_a_damaged_image_is_imported_again(host: Host, registry: Registry, uri: str) -> None:
    path = host.gets(uri)
    os.truncate(path, 100)
    again = host.gets(uri)
    assert "Found a valid" in read_output("unsquashfs", "-s", again)
    assert registry.pulls("bert/tiny") == 2


def test_a_directory_that_can_not_be_locked_is_told(
    host: Host, registry: Registry, uri: str
) -> None:
    host.images.mkdir(mode=0o555)
    result = ended(host.ask(uri))
    assert result.returncode == 1
    assert "can't be locked" in result.stderr
    assert "Permission denied" in result.stderr
    assert registry.requests == []


@cases
def test_wrong_arguments_are_refused(host: Host, uri: str, stem: str) -> None:
    result = ended(host.ask(uri, stem=stem))
    assert result.returncode == 64
    assert "hunter2" not in result.stdout + result.stderr
    assert not host.images.exists()


def test_no_credential_that_enroot_prints_is_passed_on(host: Host, tmp_path: Path) -> None:
    fake = host.root / "enroot"
    fake.write_text(
        "#!/bin/bash\n[[ $1 == import ]] || exit 1\n"
        'echo "[INFO] GET http://me:hunter2@r.io/v2/?token=hunter2&x=1" >&2\n'
        "echo 'header \"Authorization: Basic hunter2\"' >&2\nexit 22\n"
    )
    fake.chmod(0o755)
    path = f"{host.root}:{host.person.environment['PATH']}"
    result = ended(host.ask("docker://r.io#a:1", PATH=path))
    assert result.returncode == 1
    assert "GET http://***@r.io/v2/?token=***&x=1" in result.stderr
    assert "hunter2" not in result.stderr
    texts = [path.read_text() for path in host.images.glob(".*") if path.is_file()]
    assert texts
    assert "hunter2" not in "".join(texts)


@pytest.fixture
def base(host: Host) -> Path:
    host.person.need_namespaces()
    return Image().write(host.root.parent / "base.sqsh")


def test_an_image_is_built_by_commands_on_a_base(host: Host, base: Path) -> None:
    words = ("build", "build:tiny", str(host.images), "tiny+built", str(base))
    provenance = {"base": {"sha256": "1" * 64}, "install": ['echo "x" > /opt/made']}
    commands = 'echo "made by $(id -u)" > /opt/made\ncd /opt\n'
    result = finish_process(host.begin(*words, HPCBERT_PROVENANCE=json.dumps(provenance)), commands)
    path = Path(result.stdout.strip())
    assert read_output("unsquashfs", "-cat", path, "opt/made") == "made by 0\n"
    pointer = json.loads((host.images / "tiny+built.json").read_text())
    assert pointer["provenance"] == provenance
    assert pointer["reference"] == "build:tiny"
    assert host.lists() == ""
    assert host.hidden() == host.temporary() == []


def test_a_command_that_fails_ends_the_build(host: Host, base: Path) -> None:
    words = ("build", "build:tiny", str(host.images), "tiny+built", str(base))
    result = ended(host.begin(*words), "echo begun\nfalse\necho never\n")
    assert result.returncode == 1
    assert "begun" in result.stderr
    assert "never" not in result.stderr
    assert "an install command ended with status 1" in result.stderr
    assert not list(host.images.glob("[!.]*"))
    assert host.lists() == ""
