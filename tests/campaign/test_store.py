"""What is on disk survives whatever the file system does; one writer at a time."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcbert.campaign import store
from hpcbert.errors import HpcbertError, UsageError
from hpcbert.model import MANIFEST, Shape
from hpcbert.scheduler.local import backend
from hpcbert.system import lock
from hpcbert.system.runner import Outcome, run
from tests.kit import campaigns
from tests.kit.cases import cases
from tests.kit.drafts import combined, drafted
from tests.kit.needs import require
from tests.kit.paths import REPOSITORY
from tests.kit.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture
def small_folder(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    place = tmp_path / "small"
    place.mkdir()
    require("namespaces")
    assert run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(place)]).ok
    yield place
    run(["umount", str(place)])


def test_a_full_file_system_leaves_what_was_there(small_folder: Path) -> None:
    path = small_folder / "manifest.json"
    store.write_text(path, "old")
    with pytest.raises(HpcbertError, match="No space left on device") as caught:
        store.write_text(path, "x" * 200_000)
    assert "Free some space" in caught.value.hint
    assert path.read_text() == "old"
    assert list(small_folder.iterdir()) == [path]


def test_a_read_only_file_system_leaves_what_was_there(small_folder: Path) -> None:
    path = small_folder / "manifest.json"
    store.write_text(path, "old")
    assert run(["mount", "-o", "remount,ro", str(small_folder)]).ok
    with pytest.raises(HpcbertError, match="Read-only file system"):
        store.write_text(path, "new")
    with pytest.raises(HpcbertError, match="lock"), store.locked(small_folder):
        pass
    assert path.read_text() == "old"


def test_a_directory_that_vanished_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "gone"
    path.mkdir()
    shutil.rmtree(path)
    with pytest.raises(HpcbertError, match="No such file") as caught:
        store.write_text(path / "manifest.json", "x")
    assert "vanished" in caught.value.hint
    with pytest.raises(HpcbertError, match="lock"), store.locked(path):
        pass


@pytest.mark.parametrize("number", [errno.EDQUOT, errno.ESTALE, errno.EIO])
def test_a_flush_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    path = tmp_path / "manifest.json"
    store.write_text(path, "old")

    def refuse(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(HpcbertError, match=os.strerror(number)):
        store.write_text(path, "new")
    assert (path.read_text(), list(tmp_path.iterdir())) == ("old", [path])


def test_what_was_submitted_is_read_again_however_large_its_numbers(tmp_path: Path) -> None:
    campaign = drafted(tmp_path).campaign
    array = campaign.arrays[0]
    large = replace(array, point=replace(array.point, accumulation=10**20))
    store.write_manifest(tmp_path, replace(campaign, arrays=(large,)))
    assert store.read_manifest(tmp_path).arrays == (large,)


def test_of_two_campaigns_of_a_second_the_one_written_last_is_the_newest(tmp_path: Path) -> None:
    folders = [tmp_path / f"20260101T000000Z-oneflow-{token}" for token in ("bbbbbb", "aaaaaa")]
    for nanosecond, folder in enumerate(folders):
        folder.mkdir()
        manifest = folder / MANIFEST
        manifest.touch()
        os.utime(manifest, ns=(nanosecond, nanosecond))
    assert store.find_all_campaigns(tmp_path) == tuple(folders)


def test_an_array_is_a_line_of_the_manifest(tmp_path: Path) -> None:
    draft = drafted(tmp_path, combined(Shape(1, 1), ("fp32",), (1, 2)))
    changed = (("Name", 'ü "\n', "\N{LINE SEPARATOR}"),)
    arrays = tuple(replace(array, changed=changed) for array in draft.campaign.arrays)
    campaign = replace(draft.campaign, arrays=arrays)
    store.create(draft.directory)
    store.write_manifest(draft.directory, campaign)
    assert store.read_manifest(draft.directory) == campaign
    text = (draft.directory / "manifest.json").read_text()
    lines = [line for line in text.split("\n") if '"script_sha256"' in line]
    assert [json.loads(line.rstrip(","))["name"] for line in lines] == [
        array.name for array in arrays
    ]


@pytest.mark.parametrize(("umask", "folders"), [(0o002, 0o2775), (0o022, 0o2755), (0o077, 0o2700)])
def test_a_campaign_is_as_the_umask_and_its_directory_say(
    tmp_path: Path, umask: int, folders: int
) -> None:
    tmp_path.chmod(0o2775)
    before = os.umask(umask)
    try:
        store.create(tmp_path / "campaign")
        store.write_text(tmp_path / "campaign" / "manifest.json", "x")
        store.write_text(tmp_path / "table.md", "x", mode=0o644)
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert modes.pop("manifest.json") == folders & 0o666
    assert modes.pop("table.md") == 0o644 & ~umask
    assert set(modes.values()) == {folders}


def test_of_many_who_find_a_dead_holders_lock_one_at_a_time_gets_in(tmp_path: Path) -> None:
    contender = """
import os, sys, time
from pathlib import Path
from typing import Any
from hpcbert.campaign import store
from hpcbert.errors import UsageError
place = Path(sys.argv[1])
while not (place / "go").exists():
    time.sleep(0.001)
try:
    with store.locked(place):
        os.close(os.open(place / "inside", os.O_CREAT | os.O_EXCL))
        time.sleep(0.3)
        os.unlink(place / "inside")
        os.write(1, b"in ")
except UsageError:
    os.write(1, b"out ")
"""
    (tmp_path / store.LOCK).write_text(f"{socket.gethostname()} 4194999 1\n")
    script = 'for n in 1 2 3 4 5; do "$3" -c "$1" "$2" & done; sleep 1; : >"$2"/go; wait'
    argv = ["bash", "-c", script, "-", contender, str(tmp_path), sys.executable]
    outcome = run(argv, env={**os.environ, "PYTHONPATH": str(REPOSITORY)})
    assert outcome.stderr == ""
    words = outcome.stdout.split()
    assert len(words) == 5
    assert "in" in words
    assert not (tmp_path / store.LOCK).exists()


def test_a_process_id_that_was_used_again_holds_no_lock(tmp_path: Path) -> None:
    (tmp_path / store.LOCK).write_text(f"{socket.gethostname()} {os.getpid()} 1\n")
    with store.locked(tmp_path):
        assert (tmp_path / store.LOCK).read_text().split()[1] == str(os.getpid())


@pytest.mark.parametrize("text", ["elsewhere 1 1\n", ""])
def test_a_lock_of_another_host_or_of_nobody_is_respected(tmp_path: Path, text: str) -> None:
    (tmp_path / store.LOCK).write_text(text)
    with (
        pytest.raises(UsageError, match="is working on this campaign") as caught,
        store.locked(tmp_path),
    ):
        pass
    assert "remove" in caught.value.hint


def test_without_hard_links_the_lock_still_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with store.locked(tmp_path), pytest.raises(UsageError), store.locked(tmp_path):
        pass
    assert not (tmp_path / store.LOCK).exists()


def test_a_lock_names_where_its_holder_can_be_looked_for(tmp_path: Path) -> None:
    with store.locked(tmp_path):
        words = (tmp_path / store.LOCK).read_text().split()
    assert words[:2] == [socket.gethostname(), str(os.getpid())]
    assert words[3] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert words[4] == str(Path("/proc/self/ns/pid").stat().st_ino)


FIRST, DEAD = "4026531836", "4194999"


@cases
def test_who_can_not_be_seen_is_not_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], available: bool
) -> None:
    holder = lock.current_holder()._replace(namespace=FIRST, machine="mine")
    monkeypatch.setattr(lock, "current_holder", lambda: holder)
    (tmp_path / store.LOCK).write_text(" ".join(holder._replace(**changes)) + "\n")
    if available:
        with store.locked(tmp_path):
            pass
        return
    with pytest.raises(UsageError, match="is working on this campaign") as caught:
        store.locked(tmp_path).__enter__()
    assert f"remove {tmp_path / store.LOCK}" in caught.value.hint


@pytest.mark.needs("namespaces")
def test_a_holder_in_another_containers_processes_is_not_dead(tmp_path: Path) -> None:
    holder_ = """
import sys, time
from pathlib import Path
from typing import Any
from hpcbert.campaign import store
place = Path(sys.argv[1])
with store.locked(place):
    (place / "held").touch()
    while not (place / "go").exists():
        time.sleep(0.01)
"""
    inside = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen([*inside, holder_, str(tmp_path)], env=environment) as holder:
        try:
            until((tmp_path / "held").exists, "nobody holds the lock", pause=0.01)
            with pytest.raises(UsageError, match="another PID namespace"), store.locked(tmp_path):
                pass
            # And the other way round: who is in a container does not see who is outside.
            (tmp_path / store.LOCK).unlink()
            with store.locked(tmp_path):
                outcome = run([*inside, holder_, str(tmp_path)], env=environment)
            assert "another PID namespace" in outcome.stderr
        finally:
            (tmp_path / "go").touch()
    assert holder.returncode == 0


@pytest.fixture
def run_in_time_namespace() -> Callable[..., Outcome]:
    """Run a line of Python in a time namespace, whose boot time differs by a number of seconds."""
    require("namespaces")

    def run_shifted(seconds: str, line: str, *words: object) -> Outcome:
        code = (
            "import sys; from pathlib import Path; from hpcbert.campaign import store; "
            f"from hpcbert.scheduler.local import backend; place = Path(sys.argv[1]); {line}"
        )
        argv = ["unshare", "--time", "--boottime", seconds, "--fork", sys.executable, "-c", code]
        return run([*argv, *map(str, words)], env={**os.environ, "PYTHONPATH": str(REPOSITORY)})

    return run_shifted


def test_a_dead_holder_is_dead_from_another_time_namespace(
    tmp_path: Path, run_in_time_namespace: Callable[..., Outcome]
) -> None:
    (tmp_path / store.LOCK).write_text(" ".join(lock.current_holder()._replace(pid=DEAD)) + "\n")
    assert run_in_time_namespace("3600", "store.locked(place).__enter__()", tmp_path).ok


def test_a_holder_outside_a_time_namespace_is_not_dead(
    tmp_path: Path, run_in_time_namespace: Callable[..., Outcome]
) -> None:
    with store.locked(tmp_path):
        outcome = run_in_time_namespace("86400", "store.locked(place).__enter__()", tmp_path)
        assert (tmp_path / store.LOCK).exists()
    assert "is working on this campaign" in outcome.stderr


def test_a_local_queue_lives_from_another_time_namespace_too(
    run_in_time_namespace: Callable[..., Outcome],
) -> None:
    job = backend.queue_job_id(os.getpid())
    dead = f"local-{os.getpid()}-{int(job.rpartition('-')[2]) + 100}"
    line = "print([backend.is_queue_alive(job) for job in sys.argv[1:]])"
    assert run_in_time_namespace("3600", line, job, dead).stdout == "[True, False]\n"


@cases
def test_a_campaign_that_is_not_the_last_one_is_named(
    changes: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    campaigns.campaign(tmp_path, "1n1g", name="0-measured")
    store.record_submit(tmp_path)
    campaigns.campaign(tmp_path, "1n1g", name="1-later", **changes)
    newest = store.find_newest(tmp_path, measured=True)
    assert store.describe_refusal(newest).startswith(sentence)
    assert bool(store.describe_refusal(newest)) == bool(sentence)
