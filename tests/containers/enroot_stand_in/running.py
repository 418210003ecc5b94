"""Running containers: start one, and join one that runs."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import sys
from pathlib import Path
from typing import NoReturn

from tests.containers.enroot_stand_in import kernel, mounts
from tests.containers.enroot_stand_in.settings import Options, Settings, fail

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_QUOTED = re.compile(r"[\"'](.*)[\"']\s*")
_NOBODY = "nobody:x:65534:65534:nobody:/:/sbin/nologin"
_SYSTEM = """\
/proc /proc none x-create=dir,rbind,rw,nosuid,nodev,noexec,rslave
/sys /sys none x-create=dir,rbind,ro,nosuid,nodev,noexec,rslave
/dev /dev none x-create=dir,rbind,rw,nosuid,noexec,rslave
tmpfs /tmp tmpfs x-create=dir,rw,nosuid,nodev,mode=755,slave
tmpfs /var/run tmpfs x-create=dir,rw,nosuid,nodev,mode=755,slave
tmpfs /var/lock tmpfs x-create=dir,rw,nosuid,nodev,mode=755,slave
/dev/shm /dev/shm none x-create=dir,bind,rw,nosuid,nodev,noexec,rslave
/etc/hosts /etc/hosts none x-create=file,bind,ro,nosuid,nodev,noexec,private
/etc/hostname /etc/hostname none x-create=file,bind,ro,nosuid,nodev,noexec,private,nofail
/etc/resolv.conf /etc/resolv.conf none x-create=file,bind,ro,nosuid,nodev,noexec,private
"""
# What a --conf file says, in the order in which enroot asks it.
_ASK = """\
set -euo pipefail
if [[ -n $1 ]]; then source "$1"; fi
cd "$ENROOT_RUNTIME_PATH"
{ cat before; if declare -F environ >/dev/null; then environ; fi; } >"$ENROOT_ENVIRON"
if declare -F hooks >/dev/null; then hooks >/dev/null; fi
if declare -F mounts >/dev/null; then mounts >fstab; fi
"""


def start(settings: Settings, options: Options, arguments: list[str]) -> NoReturn:
    """Start a container and become its command; the process stays the same."""
    name, *command = arguments
    source = settings.existing(name)
    for mount in options.get("mount", []):
        if re.search(r"\s", mount):
            fail(f"Invalid argument: {mount}")
    conf = options.get("conf", [""])[0] and str(_file(options["conf"][0]))
    rc = options.get("rc", [""])[0] and str(_file(options["rc"][0]))
    remap = "root" in options or settings.on("REMAP_ROOT")
    writable = "rw" in options or settings.on("ROOTFS_WRITABLE")
    caller = os.getpid()
    _separate(remap=remap)
    runtime = str(settings.runtime.resolve())
    kernel.mount("tmpfs", runtime, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=700")
    rootfs = str(source)
    mounts.carry_out("", [f"{_escape(rootfs)} {_escape(rootfs)} none bind,nosuid,nodev,slave"])
    with Path(rootfs, ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _ask(settings, rootfs, conf, caller, remap=remap)
        _mount_all(settings, rootfs, options.get("mount", []), remap=remap)
    if not writable:
        mounts.carry_out("", [f"none {_escape(rootfs)} none remount,bind,nosuid,nodev,ro"])
    guard = f"{_escape(rootfs)}/.lock"
    mounts.carry_out("", [f"{guard} {guard} none bind,nosuid,nodev,noexec,ro,private"])
    environment = _environment(Path(runtime, "environment"))
    script = _script(rc)
    kernel.enter_root(rootfs)
    kernel.forbid_new_privileges()
    login = settings.on("LOGIN_SHELL", "true")
    if login:
        _log_in(environment)
    _become(environment, script, command, login=login)


def join(settings: Settings, options: Options, arguments: list[str]) -> NoReturn:
    """Become a command inside a container that runs."""
    number, *command = arguments
    try:
        os.kill(int(number), 0)
    except (OSError, ValueError):
        fail(f"Process not found: {number}")
    environment = {}
    text = Path(f"/proc/{number}/environ").read_bytes().decode(errors="surrogateescape")
    for line in text.replace("\0", "\n").split("\n"):
        name, equals, value = line.partition("=")
        if equals and _NAME.fullmatch(name):
            environment[name] = value
    folder = os.open(f"/proc/{number}/cwd", os.O_PATH | os.O_DIRECTORY)
    kernel.join(number, "user", "mnt")
    os.fchdir(folder)
    _restore_signals()
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        sys.exit(f"enroot-nsenter: failed to execute: {command[0]}: {error.strerror}")


def _file(name: str) -> Path:
    path = Path(name).resolve()
    if not path.is_file():
        fail(f"No such file or directory: {path}")
    return path


def _separate(*, remap: bool) -> None:
    uid, gid = os.geteuid(), os.getegid()
    try:
        kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWUSER)
    except OSError as error:
        sys.exit(f"enroot-nsenter: failed to create user namespace: {error.strerror}")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/gid_map").write_text(f"{0 if remap else gid} {gid} 1")
    Path("/proc/self/uid_map").write_text(f"{0 if remap else uid} {uid} 1")
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_SLAVE)


def _escape(path: str) -> str:
    return re.sub(r"[\s\\#]", lambda match: f"\\{ord(match[0]):03o}", path)


def _substitute(path: Path) -> str:
    if not path.is_file():
        return ""
    text = path.read_text(errors="surrogateescape")
    return re.sub(r"\$\{([A-Za-z_]\w*)\}", lambda match: os.environ.get(match[1], ""), text)


def _ask(settings: Settings, rootfs: str, conf: str, caller: int, *, remap: bool) -> None:
    runtime = settings.runtime.resolve()
    before = [_substitute(Path(rootfs, "etc/environment")), f"TERM={os.environ.get('TERM', '')}"]
    texts = {"before": before, "fstab": [], "hooked": []}
    for name, lines in texts.items():
        text = "".join(f"{line}\n" for line in lines)
        (runtime / name).write_text(text, errors="surrogateescape")
    values = {"ROOTFS": rootfs, "RUNTIME_PATH": runtime, "ENVIRON": runtime / "environment"}
    values |= {"MOUNTS": runtime / "hooked", "PID": caller}
    environment = {**os.environ, **{f"ENROOT_{name}": str(value) for name, value in values.items()}}
    _add_user(rootfs, remap=remap)
    import subprocess

    result = subprocess.run(["bash", "-c", _ASK, "enroot", conf], env=environment, check=False)
    if result.returncode != 0:
        sys.exit(result.returncode)


def _mount_all(settings: Settings, rootfs: str, mount_options: list[str], *, remap: bool) -> None:
    runtime = settings.runtime.resolve()
    mounts.carry_out(rootfs, _SYSTEM.splitlines())
    lines = (runtime / "hooked").read_text().splitlines()
    if settings.on("MOUNT_HOME"):
        home = os.environ["HOME"]
        inside = "/root" if remap else home
        lines.append(f"{_escape(home)} {_escape(inside)} none x-create=dir,bind,rw,nosuid")
        with (runtime / "environment").open("a") as file:
            file.write(f"HOME={inside}\n")
    mounts.carry_out(rootfs, lines)
    lines = _substitute(Path(rootfs, "etc/fstab")).splitlines()
    lines += (runtime / "fstab").read_text().splitlines()
    mounts.carry_out(rootfs, [*lines, *(line.replace(":", " ") for line in mount_options)])


def _account(path: str, number: int) -> list[str]:
    """Find an account or group by its number."""
    lines = Path(path).read_text().splitlines() if Path(path).exists() else []
    fields = (line.split(":") for line in lines)
    return next((field for field in fields if len(field) > 2 and field[2] == str(number)), [])


def _add_user(rootfs: str, *, remap: bool) -> None:
    """Make the caller known inside, and give him a home directory."""
    uid, gid = (
        int(Path(f"/proc/self/{kind}_map").read_text().split()[1]) for kind in ("uid", "gid")
    )
    user = _account("/etc/passwd", uid) or [f"u{uid}", "x", str(uid), str(gid), "", "/", "/bin/sh"]
    group = _account("/etc/group", gid) or [f"g{gid}", "x", str(gid), ""]
    if not Path(f"{rootfs}{user[6]}").exists():
        user[6] = "/bin/sh"
    accounts = {
        "passwd": [f"root:x:0:0:root:/root:{user[6]}", _NOBODY, ":".join(user)],
        "group": ["root:x:0:", "nogroup:x:65534:", ":".join(group)],
    }
    for name, ours in accounts.items():
        path = Path(rootfs, "etc", name)
        path.parent.mkdir(exist_ok=True)
        words = {line.split(":")[0] for line in ours}
        old = path.read_text().splitlines() if path.exists() else []
        unchanged = [line for line in old if line.split(":")[0] not in words]
        fresh = path.with_name(f".{name}.{os.getpid()}")
        fresh.write_text(
            "".join(f"{line}\n" for line in [*dict.fromkeys(reversed(ours)), *unchanged])
        )
        fresh.replace(path)
    Path(f"{rootfs}{user[5]}").mkdir(mode=0o700, parents=True, exist_ok=True)
    if remap:
        Path(rootfs, "root").mkdir(mode=0o700, exist_ok=True)


def _environment(path: Path) -> dict[str, str]:
    variables = {}
    for line in path.read_text(errors="surrogateescape").split("\n"):
        name, equals, value = line.lstrip().partition("=")
        if not equals or not _NAME.fullmatch(name) or name.startswith("ENROOT_"):
            continue
        quoted = _QUOTED.fullmatch(value)
        variables[name] = quoted[1] if quoted else value
    return variables


def _script(path: str) -> str:
    """Keep a command script readable after its file is out of reach; return where it is."""
    if not path:
        return ""
    descriptor = os.memfd_create("rc", 0)
    os.write(descriptor, Path(path).read_bytes())
    os.lseek(descriptor, 0, os.SEEK_SET)
    return f"/proc/self/fd/{descriptor}"


def _log_in(environment: dict[str, str]) -> None:
    uid = os.geteuid()
    user = _account("/etc/passwd", uid) or ["", "", "", "", "", "/", "/bin/sh"]
    real = _account("/etc/passwd", int(Path("/proc/self/uid_map").read_text().split()[1])) or user
    path = _path_of_login("ENV_PATH" if uid else "ENV_SUPATH")
    path = path or ("/usr/bin:/bin" if uid else "/usr/bin:/bin:/usr/sbin:/sbin")
    names = {"HOME": user[5], "SHELL": user[6], "USER": user[0], "LOGNAME": real[0]}
    defaults = {"TERM": "dumb", "PATH": path, **names}
    for name, value in defaults.items():
        environment.setdefault(name, value)
    try:
        os.chdir(environment["HOME"])
    except OSError as error:
        sys.exit(f"enroot-switchroot: failed to change directory: {error}")


def _path_of_login(name: str) -> str:
    """Return the PATH that the image's settings of logins name."""
    settings = Path("/etc/login.defs")
    lines = settings.read_text().splitlines() if settings.exists() else []
    words = (line.split(None, 1) for line in lines)
    values = (word[1].strip() for word in words if len(word) > 1 and word[0] == name)
    return next(values, "").removeprefix("PATH=")


def _become(
    environment: dict[str, str], script: str, command: list[str], *, login: bool
) -> NoReturn:
    shell = environment.get("SHELL", "")
    if not os.access(shell, os.R_OK | os.X_OK):
        shell = "/bin/sh"
    name = Path(shell).name
    words = [f"-{name}" if login else name]
    rc = script or "/etc/rc"
    if Path(rc).exists():
        words.append(rc)
    elif command and " " in command[0]:
        words += ["-c", command[0], name]
        command = command[1:]
    elif command:
        words += ["-c", 'exec "$@"', name]
    if script:
        os.set_inheritable(int(Path(script).name), True)
    _restore_signals()
    try:
        os.execve(shell, [*words, *command], environment)
    except OSError as error:
        sys.exit(f"enroot-switchroot: failed to execute: {shell}: {error.strerror}")


def _restore_signals() -> None:
    """Undo what the interpreter does to signals at its start."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
