"""image.sh, run by an ordinary user: one import for all who ask, and nothing half done, whoever dies
when. Tried with the enroot that HPCBERT_ENROOT or PATH names, else with the stand-in."""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

import pytest

from hpcbert.container.cache import SCRIPT
from hpcbert.system import processes
from tests.kit.cases import read_constant
from tests.kit.containers import Image, ended, ordinary_person
from tests.kit.registry import serving_tiny
from tests.kit.scripts import tool
from tests.kit.waiting import CEILING, until

pytestmark = pytest.mark.slow

STEM = "r+bert+tiny+1.0"
# Command lines begin so: enroot's with an interpreter and its program, which may be enroot-import.
PACKING, IMPORTING = r"\S*mksquashfs ", r"\S+ (\S+ )?\S*/enroot"


class Host:
    """A place where an ordinary user runs image.sh, and a registry."""

    def __init__(self, person, registry):
        self.person, self.registry, self.uri = person, registry, registry.uri()
        self.root, self.images = person.root, person.root / "images"
        for name in ("image.sh", "enroot.sh"):
            shutil.copy(SCRIPT.with_name(name), self.root / name)
            (self.root / name).chmod(0o644)
        person.environment["ENROOT_ALLOW_HTTP"] = "y"

    def ask(self, uri="", stem=STEM, *words, verb="import", **variables):
        argv = ("bash", f"{self.root}/image.sh", verb, uri or self.uri, f"{self.images}", stem)
        return self.person.start(*argv, *words, **variables)

    def ask_slowly(self, **variables):
        """Import what takes minutes to pack; return the script, and its mksquashfs."""
        self.registry.push("bert/slow:1.0", [{"opt/big": os.urandom(12 << 20)}])
        variables["ENROOT_SQUASH_OPTIONS"] = "-comp gzip -throttle 99"
        child = self.ask(self.registry.uri("bert/slow:1.0"), **variables)
        return child, until(lambda: self.processes(PACKING), "no mksquashfs")

    def processes(self, program):
        pids = [process.pid for process in processes.list_processes()]
        words = {pid: processes.read_proc_file(pid, "cmdline").replace(b"\0", b" ") for pid in pids}
        pattern = re.compile(f"{program}.*{self.root}".encode())
        return [pid for pid in pids if pattern.match(words[pid])]

    def lock_elsewhere(self):
        """Lock the image as a host would that is not there any more; return the lock."""
        lock = self.images / f".{STEM}~lock"
        lock.mkdir(parents=True)
        (lock / "holder").write_text("elsewhere-7-1 elsewhere another-boot/pid:[1]/0 7 1234\n")
        self.person.own(self.images, lock, lock / "holder")
        return lock

    def expect_nothing_half_done(self, *hidden):
        assert sorted(path.name for path in self.images.glob(".*")) == list(hidden)
        assert list((self.root / "temp").iterdir()) == []
        assert self.processes(PACKING) == []


def finish(child, stdin="", status=0):
    """Wait for a script; return the path that it prints, and what it says."""
    result = ended(child, stdin)
    assert result.returncode == status, result.stderr
    assert status == 0 or result.stdout == ""
    return Path(result.stdout.strip()), result.stderr


def unsquash(*words):
    return subprocess.run(["unsquashfs", *words], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def host():
    with ordinary_person() as person, serving_tiny() as registry:
        yield Host(person, registry)


def test_the_image_has_its_digest_in_its_name_and_a_pointer(host):
    path, _ = finish(host.ask(host.uri.replace("//", "//somebody@")))
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    assert path == host.images / f"{STEM}+{sha256[:12]}.sqsh"
    pointer = json.loads((host.images / f"{STEM}.json").read_text())
    assert pointer.pop("created").endswith("Z")
    assert pointer.pop("enroot")
    expected = {"schema": 1, "reference": host.uri, "file": path.name, "sha256": sha256}
    assert pointer == {**expected, "bytes": path.stat().st_size, "provenance": None}
    assert "squashfs-root/etc/marker" in unsquash("-l", path)
    before = len(host.registry.requests)
    assert finish(host.ask())[0] == path
    assert len(host.registry.requests) == before
    os.truncate(path, 100)
    assert "Found a valid" in unsquash("-s", finish(host.ask())[0])
    assert host.registry.pulls("bert/tiny") == 2
    host.expect_nothing_half_done()


def test_eight_at_once_are_one_import_which_is_not_thought_dead_when_it_takes_long(host):
    host.registry.delay = 3.0
    children = [host.ask(HPCBERT_STALE_AFTER="4") for _ in range(8)]
    (path,) = {finish(child)[0] for child in children}
    assert path.is_file()
    assert host.registry.pulls("bert/tiny") == 1
    host.expect_nothing_half_done()


def test_two_imports_of_an_image_are_the_same_file_with_the_times_of_its_layers(host, tmp_path):
    for name, year in (("old.py", 2019), ("new.py", 2022)):
        (tmp_path / name).write_text("")
        moment = datetime(year, 6, 1, tzinfo=timezone.utc).timestamp()
        os.utime(tmp_path / name, (moment, moment))
    host.registry.push("bert/dated:1.0", [tmp_path])
    uri = host.registry.uri("bert/dated:1.0")
    first, _ = finish(host.ask(uri))
    path = first.rename(first.with_name("first"))
    (host.images / f"{STEM}.json").unlink()
    until(lambda: time.time() > path.stat().st_mtime + 1, "time stands still")
    second, _ = finish(host.ask(uri))
    assert host.registry.pulls("bert/dated") == 2
    assert second.name == first.name
    assert second.read_bytes() == path.read_bytes()
    lines = unsquash("-UTC", "-lls", second).splitlines()
    days = {line.split()[-1].rpartition("/")[2]: line.split()[3] for line in lines if "/" in line}
    expected = {"old.py": "2019-06-01", "new.py": "2022-06-01", "rc": "2022-06-01"}
    assert {name: days[name] for name in expected} == expected


def test_what_a_killed_importer_started_ends_by_the_next_one_which_imports_or_alone(host):
    child, orphans = host.ask_slowly()
    os.kill(child.pid, signal.SIGKILL)
    child.wait(timeout=CEILING)
    (host.images / f".{STEM}~{child.pid}.partial").write_bytes(b"half an image")
    assert not list(host.images.glob("[!.]*"))
    path, text = finish(host.ask())
    assert path.is_file()
    assert "the importer before died" in text
    assert not set(orphans) & set(host.processes(PACKING))
    host.expect_nothing_half_done()
    ended(child)
    shutil.rmtree(host.images)
    child, _ = host.ask_slowly(HPCBERT_STALE_AFTER="2")
    os.kill(child.pid, signal.SIGKILL)
    until(lambda: not host.processes(PACKING), "the orphans go on")
    ended(child)
    (partial,) = host.images.glob(".*.partial")
    result = subprocess.run(["unsquashfs", "-s", partial], capture_output=True, check=False)
    assert result.returncode != 0  # they were ended, and did not end


def test_when_enroot_alone_is_killed_nothing_of_it_goes_on_and_those_that_wait_import(host):
    child, _ = host.ask_slowly()
    waiting = host.ask()
    assert "waiting for" in waiting.stderr.readline()
    for pid in host.processes(IMPORTING):
        with suppress(ProcessLookupError):  # It ends with its parent.
            os.kill(pid, signal.SIGKILL)
    _, text = finish(child, status=1)
    assert "enroot import" in text
    assert "status 137" in text
    path, _ = finish(waiting)
    assert "Found a valid" in unsquash("-s", path)
    host.expect_nothing_half_done()


def test_one_killed_on_another_host_is_known_by_its_silence_and_many_import_once(host):
    host.lock_elsewhere()
    children = [host.ask(HPCBERT_STALE_AFTER="4") for _ in range(8)]
    paths, texts = zip(*map(finish, children), strict=True)
    assert paths[0].is_file()
    assert set(paths) == {paths[0]}
    assert "which elsewhere is importing" in "".join(texts)
    assert "the importer before died" in "".join(texts)
    assert host.registry.pulls("bert/tiny") == 1
    # Who takes the lock for the dead one's when another has just made it again puts it back.
    shutil.rmtree(host.images)
    again = '[[ $4 != *.dead || -e used ]] || echo another-8-1 | tee used >"$3/holder"'
    host.lock_elsewhere()
    tool(host.root / "tools", "mv", f'#!/bin/bash\n{again}\nexec /bin/mv "$@"\n')
    path = f"{host.root}/tools:{host.person.environment['PATH']}"
    _, text = finish(host.ask(HPCBERT_STALE_AFTER="1", PATH=path))
    assert "the importer before died (another-8-1" in text
    host.expect_nothing_half_done()


def test_who_waits_for_one_that_fails_does_not_try_the_same_again(host):
    lock = host.lock_elsewhere()
    child = host.ask()
    assert "waiting for" in child.stderr.readline()
    (host.images / f".{STEM}~failed").write_text("elsewhere-7-1\n1\nhpcbert: no such tag\n")
    shutil.rmtree(lock)
    assert "hpcbert: no such tag" in finish(child, status=1)[1]
    assert host.registry.requests == []


def test_what_is_refused_fails_or_is_terminated_leaves_no_image(host):
    for uri, stem in read_constant(__file__, "WRONG"):
        assert "hunter2" not in finish(host.ask(uri, stem), status=64)[1]
        assert not host.images.exists(), (uri, stem)
    host.images.mkdir(mode=0o555)
    _, text = finish(host.ask(), status=1)
    assert "can't be locked" in text
    assert "Permission denied" in text
    assert host.registry.requests == []
    host.images.rmdir()
    assert "404" in finish(host.ask(host.registry.uri("bert/none:1.0")), status=1)[1]
    host.expect_nothing_half_done(f".{STEM}~failed")
    host.registry.delay = CEILING
    child = host.ask(stem="other")
    until((host.images / ".other~lock/session").exists, "the import never began")
    child.terminate()
    finish(child, status=143)
    host.expect_nothing_half_done(f".{STEM}~failed")
    assert not list(host.images.glob("[!.]*"))


def test_no_credential_that_enroot_prints_is_passed_on(host):
    tool(host.root, "enroot", read_constant(__file__, "TALKATIVE_ENROOT"))
    path = f"{host.root}:{host.person.environment['PATH']}"
    _, text = finish(host.ask("docker://r.io#a:1", PATH=path), status=1)
    assert "GET http://***@r.io/v2/?token=***&x=1" in text
    texts = [path.read_text() for path in host.images.glob(".*") if path.is_file()]
    assert texts
    assert "hunter2" not in text + "".join(texts)


def test_an_image_is_built_by_commands_on_a_base_up_to_the_first_that_fails(host):
    host.person.need_namespaces()
    base = str(Image().write(host.root.parent / "base.sqsh"))
    words = ("build:tiny", "tiny+built", base)
    _, text = finish(host.ask(*words, verb="build"), "echo begun\nfalse\necho never\n", status=1)
    assert "begun" in text
    assert "never" not in text
    assert "an install command ended with status 1" in text
    assert not list(host.images.glob("[!.]*"))
    provenance = {"base": {"sha256": "1" * 64}, "install": ['echo "x" > /opt/made']}
    commands = 'echo "made by $(id -u)" > /opt/made\ncd /opt\n'
    child = host.ask(*words, verb="build", HPCBERT_PROVENANCE=json.dumps(provenance))
    path, _ = finish(child, commands)
    assert unsquash("-cat", path, "opt/made") == "made by 0\n"
    pointer = json.loads((host.images / "tiny+built.json").read_text())
    assert (pointer["provenance"], pointer["reference"]) == (provenance, "build:tiny")
    assert finish(host.person.start("enroot", "list"))[0] == Path()
    host.expect_nothing_half_done()
