"""Containers: the enroot to try, its user, and images made by the tests.

An image does not contain a system: its /etc/fstab binds the host's /usr, so that it is made in a
moment, takes 4 KiB and runs every program of the host.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.kit.needs import lacks, require
from tests.kit.paths import REPOSITORY
from tests.kit.waiting import CEILING

HERE = REPOSITORY / "tests" / "containers"
# An account of every Debian. It is not nobody, because containers have their own.
ACCOUNT = "backup"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The /etc/rc that `enroot import` writes from the image's configuration.
_RC = """\
cd {workdir} && unset OLDPWD || exit 1
if [ -s /etc/rc.local ]; then . /etc/rc.local; fi
if [ $# -gt 0 ]; then exec {entrypoint} "$@"; else exec {entrypoint} /bin/sh; fi
"""
_FOLDERS = ("usr", "etc", "proc", "sys", "dev", "tmp", "root", "var", "run", "opt")


@dataclass(frozen=True)
class Image:
    """The contents of a container image."""

    environment: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "/work"
    entrypoint: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    rc: bool = True

    def write(self, path: Path) -> Path:
        """Make a squashfs file of it that everybody may read."""
        tree = self.lay_out(path.with_suffix(".tree"))
        words = ["mksquashfs", str(tree), str(path), "-all-root", "-noappend", "-no-progress"]
        subprocess.run(words, check=True, capture_output=True)
        shutil.rmtree(tree)
        path.chmod(0o644)
        return path

    def lay_out(self, tree: Path) -> Path:
        for folder in (*_FOLDERS, self.workdir.lstrip("/")):
            (tree / folder).mkdir(parents=True, exist_ok=True)
        for name in ("bin", "sbin", "lib", "lib64"):
            (tree / name).symlink_to(f"usr/{name}")
        script = _RC.format(workdir=self.workdir, entrypoint=self.entrypoint)
        files = {
            "etc/environment": "".join(f"{key}={text}\n" for key, text in self.environment.items()),
            "etc/fstab": "/usr /usr none rbind,ro,nosuid\n",
            "etc/rc.local": "# nothing\n",
            "etc/login.defs": "ENV_PATH PATH=/usr/local/bin:/usr/bin:/bin\n",
            **({"etc/rc": script} if self.rc else {}),
            **self.files,
        }
        for name, text in files.items():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_text(text)
            (tree / name).chmod(0o755)
        return tree


def _find_program(variable: str, *names: str) -> str:
    """Return the folder of the program that a variable or PATH names; empty without one."""
    path = os.environ.get(variable) or next(filter(None, map(shutil.which, names)), "")
    return str(Path(path).parent) if path else ""


# Found now: the tests' environment has none of hpcbert's variables. A plugin is its file.
REAL_ENROOT = _find_program("HPCBERT_ENROOT", "enroot")
REAL_APPTAINER = _find_program("HPCBERT_APPTAINER", "apptainer", "singularity")
REAL_PYXIS = os.environ.get("HPCBERT_PYXIS", "")


def open_stand_ins(folder: Path) -> Path:
    """Copy the stand-ins to where every user can run them; return the folder for PATH."""
    copy = folder / "stand-in"
    shutil.copytree(HERE / "stand-in", copy)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755)
    return copy


def folders_of_enroot(folder: Path) -> dict[str, str]:
    """Return the variables that keep all that enroot writes below a folder."""
    names = ("RUNTIME", "DATA", "CACHE", "TEMP", "CONFIG")
    return {f"ENROOT_{name}_PATH": str(folder / name.lower()) for name in names}


@dataclass(frozen=True)
class Person:
    """An ordinary user who has enroot, with words that run a command as them."""

    root: Path
    environment: dict[str, str]
    become: tuple[str, ...]

    def start(self, *words: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.become, *words], env={**self.environment, **variables}, cwd=self.root, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip

    def own(self, *paths: Path) -> None:
        for path in paths if self.become else ():
            shutil.chown(path, ACCOUNT, ACCOUNT)

    def need_namespaces(self) -> None:
        allowed = ended(self.start("unshare", "-Urm", "true"))
        if allowed.returncode != 0:
            lacks("root", "user namespaces of ordinary users", allowed.stderr.strip())


@contextmanager
def ordinary_person() -> Iterator[Person]:
    """Make a person and their directory, which is not in /tmp: containers have their own."""
    require("squashfs")
    folder = Path(tempfile.mkdtemp(prefix="hpcbert-person-", dir="/var/tmp"))
    folder.chmod(0o755)
    root = folder / "person"
    bins = REAL_ENROOT or str(open_stand_ins(folder / "bin"))
    environment = {"PATH": f"{bins}:{SYSTEM_PATH}", "HOME": str(root), "LANG": "C.UTF-8"}
    words = ("setpriv", f"--reuid={ACCOUNT}", f"--regid={ACCOUNT}", "--clear-groups", "--")
    become = words if os.geteuid() == 0 else ()
    person = Person(root, {**environment, **folders_of_enroot(root)}, become)
    for path in (root, root / "temp"):
        path.mkdir()
        person.own(path)
    yield person
    shutil.rmtree(folder)


def ended(child: subprocess.Popen[str], stdin: str = "") -> subprocess.CompletedProcess[str]:
    with child:
        out, err = child.communicate(stdin, timeout=CEILING)
    return subprocess.CompletedProcess(child.args, child.returncode, out, err)


def pointer(image: Path, reference: str, sha256: str, **more: object) -> dict[str, object]:
    """Return the text that image.sh writes next to an image."""
    named = {"schema": 1, "reference": reference, "file": image.name, "sha256": sha256}
    size = image.stat().st_size
    return {**named, "bytes": size, "created": "2026-11-21T12:00:00Z", **more}
