"""What happens on a node: one container for all tasks of a step, entered by each of them."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from tests.containers.enroot_stand_in import kernel

# Of the job's variables, those that enroot itself does not get (pyxis_slurmstepd.c).
_DENIED = {
    *("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_TASK_PID"),
    *("PMIX_RANK", "PMI_FD", "ENROOT_LIBRARY_PATH", "ENROOT_SYSCONF_PATH", "ENROOT_ZSTD_OPTIONS"),
    *("ENROOT_TRANSFER_RETRIES", "ENROOT_CONNECT_TIMEOUT", "ENROOT_MAX_CONNECTIONS"),
    *("ENROOT_ALLOW_HTTP", "ENROOT_RUNTIME_PATH", "ENROOT_CACHE_PATH", "ENROOT_DATA_PATH"),
    "ENROOT_TEMP_PATH",
}
_LOCALE = ("LANG", "LANGUAGE", "LC_ALL")
_SWITCHES = {"mount_home": "MOUNT_HOME", "remap_root": "REMAP_ROOT", "writable": "ROOTFS_WRITABLE"}
_HOLD = "kill -STOP $$ ; exit 0"


class Node:
    """One step on one node: what its tasks know of each other, in files that they lock."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        base = Path("/tmp", f"pyxis-stand-in-{os.getuid()}")
        self.job = environment["SLURM_JOB_ID"]
        self.step = f"{self.job}.{environment['SLURM_STEP_ID']}"
        self.host = environment["SLURMD_NODENAME"]
        self.state = base / f"{self.step}.{self.host}"
        # As an administrator's enroot.conf: on the node's own disk.
        self.paths = {
            f"ENROOT_{name}_PATH": str(base / self.host / name.lower())
            for name in ("RUNTIME", "DATA", "CACHE", "TEMP")
        }
        Path(self.paths["ENROOT_TEMP_PATH"]).mkdir(parents=True, exist_ok=True)
        self.state.mkdir(parents=True, exist_ok=True)
        self.tasks = _tasks_here(environment)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        with (self.state / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def count(self, name: str) -> int:
        """Count this task; return how many there are."""
        with (self.state / name).open("a") as file:
            file.write("x")
        return (self.state / name).stat().st_size


def task_init(argv: list[str]) -> NoReturn:
    """Enter the step's container and become the task's command."""
    text, *command = argv
    container = json.loads(text)
    environment = environment_of("self")
    node = Node(environment)
    with node.alone():
        if node.count("initialized") == 1:
            _start(node, container, environment)
    try:
        leader, spaces = (node.state / "leader").read_text().split()
    except OSError:
        _fail("container was not started successfully by another task")
    environment = _merged(environment, environment_of(leader), container["env"])
    folder = container["workdir"] or str(Path(f"/proc/{leader}/cwd").readlink())
    state = os.open(node.state, os.O_PATH | os.O_DIRECTORY)
    kernel.join(spaces, "user", "cgroup", "mnt")
    try:
        os.chdir(folder)
    except OSError as error:
        _fail(f"couldn't chdir to {folder}: {error.strerror}")
    started = os.open("started", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600, dir_fd=state)
    os.write(started, b"x")
    if os.fstat(started).st_size == node.tasks:
        os.kill(int(leader), signal.SIGCONT)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        sys.stderr.write(f"slurmstepd: error: execve(): {command[0]}: {error.strerror}\n")
        sys.exit(2)


def task_exit(argv: list[str]) -> None:
    """Forget the step when the last task of the node ends."""
    node = Node(os.environ)
    with node.alone():
        last = node.count("completed") == node.tasks
    if last:
        shutil.rmtree(node.state)


def _start(node: Node, container: dict[str, Any], environment: Mapping[str, str]) -> None:
    """Create the container unless it is there, and start a process that holds it open."""
    variables = {name: value for name, value in environment.items() if name not in _DENIED}
    variables |= {**node.paths, "PATH": _path_of_enroot(environment)}
    for field, setting in _SWITCHES.items():
        if field in container:
            variables[f"ENROOT_{setting}"] = "y" if container[field] else "n"
    name = f"pyxis_{node.job}_{container['name']}"
    running = _running(name, variables)
    if running < 0:
        text = f"failed to create container filesystem for image: {container['image']}"
        _enroot(["create", "--name", name, container["image"]], variables, text)
    if running > 0:
        container["mounts"] = []
    leader = _hold(node, name, container, variables)
    (node.state / "leader").write_text(f"{leader} {running if running > 0 else leader}")


def _hold(node: Node, name: str, container: dict[str, Any], variables: dict[str, str]) -> int:
    for source, _, _ in container["mounts"]:
        if source[0] == "/" and not Path(source).exists():
            _fail(f"--container-mounts: source path does not exist: {source}")
    conf = node.state / "conf"
    conf.write_text(_configuration(container))
    log = node.state / "log"
    with log.open("w") as output:
        leader = subprocess.Popen(
            ["enroot", "start", "--conf", str(conf), name, "sh", "-c", _HOLD],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    _, status = os.waitpid(leader.pid, os.WUNTRACED)
    if not os.WIFSTOPPED(status):
        sys.stderr.write(log.read_text(errors="replace"))
        _fail(f"container start failed with error code: {os.waitstatus_to_exitcode(status)}")
    leader.returncode = 0  # Whoever this process becomes has nothing to wait for.
    return leader.pid


def _configuration(container: dict[str, Any]) -> str:
    """Write what `enroot start --conf` reads; what stands in double quotes is expanded there."""
    text = ""
    if container["mounts"]:
        lines = (f'echo "{_escaped(s)} {_escaped(t)} {f}"' for s, t, f in container["mounts"])
        text += "mounts() {\n" + "\n".join(lines) + "\n}\n"
    if not container.get("entrypoint"):
        text += "hooks() {\necho 'exec \"$@\"' > ${ENROOT_ROOTFS}/etc/rc.local\n}\n"
    if container["env"]:
        lines = (f'[ -n "${{{n}-}}" ] && echo "{n}=${{{n}}}" || :' for n in container["env"])
        text += "environ() {\n" + "\n".join(lines) + "\n}\n"
    return text


def _escaped(path: str) -> str:
    return re.sub(r"[ \t\n\\]", lambda match: f"\\{ord(match[0]):03o}", path)


def _merged(job: dict[str, str], inside: dict[str, str], listed: list[str]) -> dict[str, str]:
    """Put the container's variables over the job's, except those that are listed."""
    merged = {n: v for n, v in job.items() if n not in _LOCALE or n in listed}
    for name, value in inside.items():
        if name not in listed or name not in merged:
            merged[name] = value
    return merged


def environment_of(pid: str) -> dict[str, str]:
    entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return dict(os.fsdecode(entry).split("=", 1) for entry in entries if b"=" in entry)


def _running(name: str, variables: dict[str, str]) -> int:
    """Return the PID of who runs in a container, 0 if nobody does, -1 if there is none."""
    result = subprocess.run(
        ["enroot", "list", "-f"], env=variables, capture_output=True, text=True, check=False
    )
    for line in result.stdout.splitlines()[1:]:
        words = line.split()
        if words and words[0] == name:
            return int(words[1]) if len(words) > 1 else 0
    return -1


def _enroot(words: list[str], variables: dict[str, str], complaint: str) -> None:
    result = subprocess.run(
        ["enroot", *words],
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        sys.stderr.write(result.stdout + result.stderr)
        _fail(complaint)


def _path_of_enroot(environment: Mapping[str, str]) -> str:
    """Return a PATH with enroot's folder; slurmd has one of its own."""
    program = shutil.which("enroot", path=environment.get("PATH", ""))
    text = str(Path(program).parent if program else Path(sys.argv[0]).resolve().parents[1])
    return f"{text}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def _tasks_here(environment: Mapping[str, str]) -> int:
    """Read this node's part of `8(x3),4`."""
    counts: list[int] = []
    for part in environment["SLURM_STEP_TASKS_PER_NODE"].split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            _fail(f"can't read {part!r}")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts[int(environment["SLURM_NODEID"])]


def _fail(text: str) -> NoReturn:
    sys.stderr.write(f"slurmstepd: error: pyxis: {text}\n")
    sys.exit(1)
