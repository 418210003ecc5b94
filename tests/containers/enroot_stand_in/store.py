"""Containers at rest: create, list, remove, export."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.containers.enroot_stand_in.settings import Settings, fail, log, remove_all

Options = dict[str, list[str]]
_HEADER = "NAME\tPID\tCOMM\tSTATE\tSTARTED\tTIME\tMNTNS\tUSERNS\tCOMMAND"


def is_image(path: Path) -> bool:
    """Tell whether a file has a squashfs superblock."""
    if not path.is_file() or shutil.which("unsquashfs") is None:
        return False
    return (
        subprocess.run(["unsquashfs", "-s", path], capture_output=True, check=False).returncode == 0
    )


def unpack(settings: Settings, image: Path, rootfs: Path) -> None:
    words = ["unsquashfs", "-no-progress", "-processors", settings.processors, "-user-xattrs"]
    done = subprocess.run([*words, "-d", rootfs, image], stdout=sys.stderr, check=False)
    if done.returncode != 0:
        sys.exit(done.returncode)
    for folder, _, _ in os.walk(rootfs):
        path = Path(folder)
        path.chmod(path.stat().st_mode | 0o700)


def create_(settings: Settings, options: Options, arguments: list[str]) -> None:
    image = Path(arguments[0]).resolve()
    if not image.is_file():
        fail(f"No such file or directory: {image}")
    if not is_image(image):
        fail(f"Invalid image format: {image}")
    name = options.get("name", [image.name.removesuffix(".sqsh")])[0]
    rootfs = settings.rootfs(name)
    settings.free(rootfs)
    log("Extracting squashfs filesystem...")
    unpack(settings, image, rootfs)


def export_(settings: Settings, options: Options, arguments: list[str]) -> None:
    rootfs = settings.existing(arguments[0])
    output = Path(options.get("output", [f"{rootfs.name}.sqsh"])[0]).resolve()
    settings.free(output)
    excluded = [str(rootfs / ".lock")] if (rootfs / ".lock").exists() else []
    excluded += [str(each) for each in (rootfs / "dev").glob("*")]
    log("Creating squashfs filesystem...")
    squash(settings, rootfs, output, excluded)


def squash(settings: Settings, tree: Path, output: Path, excluded: list[str]) -> None:
    """Make an image straight under its final name: whoever is killed here leaves a part of one."""
    words = ["mksquashfs", str(tree), str(output), "-all-root", "-no-progress"]
    words += ["-processors", settings.processors, *settings.squash_options]
    words += ["-e", *excluded] if excluded else []
    done = subprocess.run(words, stdout=sys.stderr, check=False)
    if done.returncode != 0:
        sys.exit(done.returncode)


def remove_(settings: Settings, options: Options, arguments: list[str]) -> None:
    for name in arguments:
        rootfs = settings.existing(name)
        if not settings.on("FORCE_OVERRIDE"):
            sys.stderr.write(f"Do you really want to delete {rootfs}? [y/N] ")
            if sys.stdin.readline().strip() not in ("y", "Y"):
                continue
        remove_all(rootfs)


def list_(settings: Settings, options: Options, arguments: list[str]) -> None:
    names = sorted(path.name for path in settings.data.iterdir())
    if "fancy" not in options:
        sys.stdout.write("".join(f"{name}\n" for name in names))
        return
    running = _running(settings.data.resolve())
    rows = [_HEADER.split("\t")]
    for name in [*names, *(["<unknown>"] if running.get("<unknown>") else [])]:
        first = name
        for pid in running.get(name, []):
            rows.append([first, *_process(pid)])
            first = ""
        if first:
            rows.append([name])
    widths = [max(len(row[n]) if n < len(row) else 0 for row in rows) for n in range(9)]
    for row in rows:
        cells = (f"{cell:{width}}" for cell, width in zip(row, widths, strict=False))
        sys.stdout.write("  ".join(cells).rstrip() + "\n")


def _mounted(mountinfo: Path, place: str) -> str:
    """Return which folder of its file system is mounted at a place."""
    lines = mountinfo.read_text().splitlines()
    return next((fields[3] for line in lines if (fields := line.split())[4] == place), "")


def _running(data: Path) -> dict[str, list[int]]:
    """Find the processes inside containers: their root has enroot's lock file."""
    device = data
    while not device.is_mount():
        device = device.parent
    # What is mounted there may itself be a folder of its file system.
    above = _mounted(Path("/proc/self/mountinfo"), str(device)).rstrip("/")
    prefix = f"{above}/{data.relative_to(device)}/"
    names = {path.name for path in data.iterdir()}
    found: dict[str, list[int]] = {}
    for pid in sorted(int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()):
        try:
            if not Path(f"/proc/{pid}/root/.lock").exists():
                continue
            root = _mounted(Path(f"/proc/{pid}/mountinfo"), "/")
        except OSError:
            continue
        name = root.removeprefix(prefix)
        key = name if name in names else "<unknown>"
        if not _same_namespace(pid, found.get(key, [])):
            found.setdefault(key, []).append(pid)
    return found


def _same_namespace(pid: int, others: list[int]) -> bool:
    link = Path(f"/proc/{pid}/ns/mnt").readlink()
    return any(Path(f"/proc/{other}/ns/mnt").readlink() == link for other in others)


def _process(pid: int) -> list[str]:
    folder = Path(f"/proc/{pid}")
    state = folder.joinpath("stat").read_text().rpartition(")")[2].split()[0]
    spaces = [
        str((folder / "ns" / kind).readlink()).strip("mntuser:[]") for kind in ("mnt", "user")
    ]
    words = folder.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    comm = folder.joinpath("comm").read_text().strip()
    return [str(pid), comm, state, "-", "-", *spaces, words.strip()]
