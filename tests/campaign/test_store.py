"""What is on disk survives whatever the file system does; one writer at a time."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from hpcbert.campaign import store
from hpcbert.errors import HpcbertError, UsageError
from hpcbert.model import MANIFEST, Shape
from hpcbert.scheduler.local import worker
from hpcbert.system import lock
from hpcbert.system.runner import run
from tests.kit.cases import cases, read_constant
from tests.kit.drafts import combined, drafted
from tests.kit.lab import mounted
from tests.kit.paths import REPOSITORY
from tests.kit.waiting import until

pytestmark = pytest.mark.slow

BUSY = "is working on this campaign"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(REPOSITORY)}


@pytest.mark.needs("namespaces")
def test_a_full_or_read_only_file_system_leaves_what_was_there(tmp_path):
    path = tmp_path / "manifest.json"
    with mounted(tmp_path, "-t", "tmpfs", "-o", "size=64k", "none"):
        store.write_text(path, "old")
        with pytest.raises(HpcbertError, match="No space left on device") as refusal:
            store.write_text(path, "x" * 200_000)
        assert "Free some space" in refusal.value.hint
        assert (path.read_text(), list(tmp_path.iterdir())) == ("old", [path])
        assert run(["mount", "-o", "remount,ro", str(tmp_path)]).ok
        with pytest.raises(HpcbertError, match="Read-only file system"):
            store.write_text(path, "new")
        with pytest.raises(HpcbertError, match="lock"), store.locked(tmp_path):
            pass
        assert path.read_text() == "old"


def test_a_directory_that_vanished_or_a_flush_that_fails_is_an_error(tmp_path, monkeypatch):
    with pytest.raises(HpcbertError, match="No such file") as refusal:
        store.write_text(tmp_path / "gone" / "manifest.json", "x")
    assert "vanished" in refusal.value.hint
    with pytest.raises(HpcbertError, match="lock"), store.locked(tmp_path / "gone"):
        pass
    path = tmp_path / "manifest.json"
    store.write_text(path, "old")
    for number in (errno.EDQUOT, errno.ESTALE, errno.EIO):
        error = OSError(number, os.strerror(number))
        monkeypatch.setattr(os, "fsync", Mock(side_effect=error))
        with pytest.raises(HpcbertError, match=os.strerror(number)):
            store.write_text(path, "new")
        assert (path.read_text(), list(tmp_path.iterdir())) == ("old", [path])


def test_an_array_is_a_line_of_the_manifest_however_large_its_numbers(tmp_path):
    draft = drafted(tmp_path, combined(Shape(1, 1), ("fp32",), (1, 2)))
    first, second = draft.campaign.arrays
    large = replace(first, point=replace(first.point, accumulation=2**63 - 1))
    named = replace(second, changed=(("Name", 'ü "\n', "\N{LINE SEPARATOR}"),))
    campaign = replace(draft.campaign, arrays=(large, named))
    store.create(draft.directory)
    store.write_manifest(draft.directory, campaign)
    assert store.read_manifest(draft.directory) == campaign
    text = (draft.directory / "manifest.json").read_text()
    lines = [line for line in text.split("\n") if '"script_sha256"' in line]
    names = [json.loads(line.rstrip(","))["name"] for line in lines]
    assert names == [first.name, second.name]
    # Of two campaigns of a second, the one written last is the newest.
    folders = [tmp_path / f"x/20260101T000000Z-oneflow-{token}" for token in ("bbbbbb", "aaaaaa")]
    for nanosecond, folder in enumerate(folders):
        folder.mkdir(parents=True)
        (folder / MANIFEST).touch()
        os.utime(folder / MANIFEST, ns=(nanosecond, nanosecond))
    assert store.find_all_campaigns(tmp_path / "x") == tuple(folders)


def assert_locked(place, message=BUSY):
    """Assert that somebody else holds a lock; return the hint."""
    with pytest.raises(UsageError, match=message) as refusal, store.locked(place):
        pass
    return refusal.value.hint


def test_a_dead_holders_lock_is_taken_by_one_at_a_time_and_names_its_holder(tmp_path, monkeypatch):
    (tmp_path / store.LOCK).write_text(f"{socket.gethostname()} 4194999 1\n")
    script, contender = read_constant(__file__, "SCRIPT"), read_constant(__file__, "CONTENDER")
    argv = ["bash", "-c", script, "-", contender, str(tmp_path), sys.executable]
    outcome = run(argv, env=ENVIRONMENT)
    words = outcome.stdout.split()
    assert (outcome.stderr, len(words), "in" in words) == ("", 4, True)
    assert not (tmp_path / store.LOCK).exists()
    # A process id that was used again holds no lock.
    (tmp_path / store.LOCK).write_text(f"{socket.gethostname()} {os.getpid()} 1\n")
    with store.locked(tmp_path):
        words = (tmp_path / store.LOCK).read_text().split()
    assert words[:2] == [socket.gethostname(), str(os.getpid())]
    assert words[3] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert words[4] == str(Path("/proc/self/ns/pid").stat().st_ino)
    for text in ("elsewhere 1 1\n", ""):
        (tmp_path / store.LOCK).write_text(text)
        assert "remove" in assert_locked(tmp_path)
    (tmp_path / store.LOCK).unlink()
    # It works without hard links too.
    error = OSError(errno.EPERM, "Operation not permitted")
    monkeypatch.setattr(os, "link", Mock(side_effect=error))
    with store.locked(tmp_path):
        assert_locked(tmp_path)
    assert not (tmp_path / store.LOCK).exists()


def test_a_process_killed_while_it_takes_a_lock_leaves_none(tmp_path):
    argv = [sys.executable, "-c", read_constant(__file__, "KILLED"), str(tmp_path)]
    outcome = run(argv, env=ENVIRONMENT)
    assert (outcome.stdout, outcome.returncode) == ("", -signal.SIGKILL)
    with store.locked(tmp_path):
        assert_locked(tmp_path)


@cases
def test_who_can_not_be_seen_is_not_dead(tmp_path, monkeypatch, changes, available):
    holder = lock.current_holder()._replace(namespace="4026531836", machine="mine")
    monkeypatch.setattr(lock, "current_holder", lambda: holder)
    (tmp_path / store.LOCK).write_text(" ".join(holder._replace(**changes)) + "\n")
    if available:
        with store.locked(tmp_path):
            pass
    else:
        assert f"remove {tmp_path / store.LOCK}" in assert_locked(tmp_path)


@pytest.mark.needs("namespaces")
def test_a_holder_in_another_namespace_is_not_dead(tmp_path):
    holder = read_constant(__file__, "HOLDER")
    program = [sys.executable, "-c", holder, str(tmp_path)]
    argv = ["unshare", "--pid", "--fork", "--mount-proc", *program]
    with subprocess.Popen(argv, env=ENVIRONMENT) as process:
        try:
            until((tmp_path / "held").exists, "nobody holds the lock", pause=0.01)
            assert_locked(tmp_path, "another PID namespace")
            # And the other way round: who is in a container does not see who is outside.
            (tmp_path / store.LOCK).unlink()
            with store.locked(tmp_path):
                assert "another PID namespace" in run(argv, env=ENVIRONMENT).stderr
        finally:
            (tmp_path / "go").touch()
    assert process.returncode == 0
    # Holders and local queues live in another time namespace too, whose boot was an hour ago.
    code = read_constant(__file__, "QUEUES")
    job = worker.queue_job_id(os.getpid())
    ended = f"local-{os.getpid()}-{int(job.rpartition('-')[2]) + 100}"
    argv = ["unshare", "--time", "--boottime", "3600", "--fork", sys.executable, "-c", code]
    argv += [str(tmp_path), job, ended]
    dead = lock.current_holder()._replace(pid="4194999")
    (tmp_path / store.LOCK).write_text(" ".join(dead) + "\n")
    assert run(argv, env=ENVIRONMENT).stdout == "True False\n"
    (tmp_path / store.LOCK).unlink(missing_ok=True)
    with store.locked(tmp_path):
        assert BUSY in run(argv, env=ENVIRONMENT).stderr
