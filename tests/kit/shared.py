"""Real logs of other projects, with published results: the folder that HPCBERT_SHARED names."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from pathlib import Path, PosixPath
from typing import NamedTuple

from tests.kit.paths import REPOSITORY

# A folder that somebody named, one beside the checkout, or what `make logs` has fetched.
SHARED = Path(
    os.environ.get("HPCBERT_SHARED")
    or next(filter(Path.is_dir, (REPOSITORY.parent / "shared", REPOSITORY / ".shared")), "shared")
)


class Folder(PosixPath):
    """A folder of which some files may be missing: a test that wants one of those is skipped."""

    def __truediv__(self, name: str | os.PathLike[str]) -> Folder:
        path = type(self)(super().__truediv__(name))
        if not path.exists():
            from tests.kit.needs import lacks

            lacks("logs", "the public logs", f"no {path}")
        return path


class Log(NamedTuple):
    """A log of the index; a number is 0 if it is not stated."""

    path: Path
    name: str
    framework: str
    nodes: int
    gpus: int
    batch_size: int
    published: float
    note: str


def index(shared: Path = SHARED) -> Iterator[Log]:
    with (shared / "logs" / "INDEX.tsv").open(newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            yield Log(
                path=shared / "logs" / row["local_path"],
                name=row["local_path"],
                framework=row["framework"],
                nodes=int(row["nodes"] or 0),
                gpus=int(row["gpus"] or 0),
                batch_size=int(row["batch_per_gpu"] or 0),
                published=float(row["published_value"] or 0),
                note=row["note"],
            )
