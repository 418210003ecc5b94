"""Containers at rest: create, list, remove, export."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.containers.enroot_stand_in.settings import (
    Options,
    Settings,
    fail,
    log,
    open_up,
    remove_all,
)


def is_image(path: Path) -> bool:
    """Tell whether a file has a squashfs superblock."""
    if not path.is_file():
        return False
    import subprocess  # To join a container needs none: 32 ranks of a node do so at once.

    looked = subprocess.run(["unsquashfs", "-s", path], capture_output=True, check=False)
    return looked.returncode == 0


def _call(*words: object) -> None:
    import subprocess

    result = subprocess.run(list(map(str, words)), stdout=sys.stderr, check=False)
    if result.returncode:
        sys.exit(result.returncode)


def unpack(settings: Settings, image: Path, rootfs: Path) -> None:
    words = ["-no-progress", "-processors", settings.processors, "-user-xattrs"]
    _call("unsquashfs", *words, "-d", rootfs, image)
    open_up(rootfs)


def squash(settings: Settings, tree: Path, output: Path, excluded: list[Path]) -> None:
    """Make an image straight under its final name: whoever is killed here leaves a part of one."""
    words = ["-all-root", "-no-progress", "-processors", settings.processors]
    more = ["-e", *excluded] if excluded else []
    log("Creating squashfs filesystem...")
    _call("mksquashfs", tree, output, *words, *settings.squash_options, *more)


def create(settings: Settings, options: Options, arguments: list[str]) -> None:
    image = Path(arguments[0]).resolve()
    if not image.is_file():
        fail(f"No such file or directory: {image}")
    if not is_image(image):
        fail(f"Invalid image format: {image}")
    rootfs = settings.rootfs(options.get("name", [image.name.removesuffix(".sqsh")])[0])
    settings.free(rootfs)
    log("Extracting squashfs filesystem...")
    unpack(settings, image, rootfs)


def export(settings: Settings, options: Options, arguments: list[str]) -> None:
    rootfs = settings.existing(arguments[0])
    output = Path(options.get("output", [f"{rootfs.name}.sqsh"])[0]).resolve()
    settings.free(output)
    squash(settings, rootfs, output, [*rootfs.glob(".lock"), *(rootfs / "dev").glob("*")])


def remove(settings: Settings, options: Options, arguments: list[str]) -> None:
    for name in arguments:
        remove_all(settings.existing(name))


def show(settings: Settings, options: Options, arguments: list[str]) -> None:
    names = sorted(path.name for path in settings.data.iterdir())
    if not options:
        sys.stdout.write("".join(f"{name}\n" for name in names))
        return
    running = _running(settings.data.resolve())
    sys.stdout.write("NAME  PID\n")
    for name in names:
        # A container's name stands before the first of its processes only.
        for place, pid in enumerate(running.get(name, [""])):
            sys.stdout.write(f"{'' if place else name}  {pid}\n")


def _mounted(mountinfo: Path, place: str) -> str:
    """Return which folder of its file system is mounted at a place."""
    lines = mountinfo.read_text().splitlines()
    return next((fields[3] for line in lines if (fields := line.split())[4] == place), "")


def _running(data: Path) -> dict[str, list[str]]:
    """Find a process of each namespace inside containers: their root has enroot's lock file."""
    device = data
    while not device.is_mount():
        device = device.parent
    # What is mounted there may itself be a folder of its file system.
    above = _mounted(Path("/proc/self/mountinfo"), str(device)).rstrip("/")
    processes: dict[str, list[str]] = {}
    paths = set()
    for folder in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        try:
            if not (folder / "root/.lock").exists():
                continue
            root = Path(_mounted(folder / "mountinfo", "/"))
            space = (folder / "ns/mnt").readlink()
        except OSError:
            continue
        if space not in paths and str(root.parent) == f"{above}/{data.relative_to(device)}":
            paths.add(space)
            processes.setdefault(root.name, []).append(folder.name)
    return processes
