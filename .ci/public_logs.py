"""`make logs`: fetch the public logs that tests read, each from its repository at its commit.

    python .ci/public_logs.py DIRECTORY

makes DIRECTORY/logs as HPCBERT_SHARED needs it: the files, and INDEX.tsv, whose columns come from
the files' paths. Published values are not in these repositories' logs; the tests that compare with
them (published.tsv, published-runs.tsv, and the index's column published_value) are skipped then.
It needs git, and a network that reaches github.com.
"""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

COLUMNS = (
    *("local_path", "repo", "repo_path", "commit", "framework", "precision", "batch_per_gpu"),
    *("nodes", "gpus", "run", "published_value", "note"),
)
PERF = r"Bert/(?:OtherReports/(?P<rival>PyTorch|TensorFlow)/)?logs/(?:[AV]100_LOG/)?"
PERF_NAME = (
    r"(?=[^/]*bs(?P<batch_per_gpu>\d+))(?=[^/]*(?P<precision>fp\d+))"
    r"(?=[^/]*(?:gpu|N1C)(?P<gpus>\d+))[^/]*log"
)
MLPERF = r"{}/results/{}/bert/result_(?P<run>\d+)\.txt"


class Source(NamedTuple):
    """Files of a repository at a commit.

    Attributes:
        folder: Where they lie below `logs`.
        paths: Matches their paths; its groups are columns of the index.
        columns: Columns that all of them share.
    """

    repository: str
    commit: str
    folder: str
    paths: str
    columns: dict[str, str] = {}  # noqa: RUF012  never changed


def mlperf(version: str, commit: str, vendor: str, system: str, **columns: str) -> Source:
    repository = f"mlcommons/training_results_{version}"
    folder = f"mlcommons+training_results_{version}/{commit[:7]}"
    return Source(repository, commit, folder, MLPERF.format(vendor, system), columns)


def perf(commit: str, folder: str) -> Source:
    return Source(
        "PaddlePaddle/Perf", commit, f"PaddlePaddle+Perf/{folder}", PERF + PERF_NAME, {"run": "1"}
    )


SOURCES = (
    perf("ee2e639c4552f8349019fc38ff02f783024f40f7", "v2.0-ee2e639"),
    perf("0abb1f6a63bcf9f67d8611fbc10cfff8b7c69145", "v2.2-0abb1f6"),
    perf("e7a07c4d39e04de5e24652daaf02d204f0209acb", "v2.5-e7a07c4"),
    Source(
        "Oneflow-Inc/DLPerf", "e36df2eadc2e998afcdf64dda73e0071eb5aee5f",
        "Oneflow-Inc+DLPerf/e36df2e",
        r"Tensorflow/resnet50v1\.5/(?:result/resnet50_result\.json|logs/tensorflow/resnet50/"
        r"(?P<nodes>\d+)n(?P<gpus_per_node>\d+)g/rn50_b(?P<batch_per_gpu>\d+)_(?P<precision>fp\d+)"
        r"_(?P<run>\d+)\.log)",
        {
            "framework": "tf2_official(ResNet50, not BERT)", "precision": "fp32",
            "batch_per_gpu": "128",
        },
    ),
    mlperf(
        "v0.7", "0a8a85a209c8e45b661596c382cc20f4e32fd2fe", "Google", r"gpu-v100-8-TF2\.0",
        framework="tf2_official/PerfZero", precision="fp16", batch_per_gpu="55",
        nodes="1", gpus="8",
    ),
    mlperf(
        "v1.0", "50619b5df63f1d646715a82c1fb8c35f271e25fa", "NVIDIA", r"dgxa100_ngc21\.05_pytorch",
        framework="ngc_pytorch", precision="fp16", batch_per_gpu="56", nodes="1", gpus="8",
    ),
    mlperf(
        "v2.0", "8437fbb78349aa3c3054aeccb1d47d2a315a80e7", "Azure",
        r"ND96amsr_A100_v4_n8_pytorch",
        framework="ngc_pytorch", precision="fp16", batch_per_gpu="48", nodes="8", gpus="64",
    ),
    mlperf(
        "v3.0", "63e326c400f5d8bb8c6070a9ab08332d4931152e", "NVIDIA",
        r"dgxh100_n8_ngc23\.04_pytorch",
        framework="ngc_pytorch", precision="fp16", nodes="8", gpus="64",
    ),
)  # fmt: skip
_FRAMEWORKS = {"PyTorch": "ngc_pytorch", "TensorFlow": "ngc_tf1", None: "paddle"}


def git(directory: Path, *words: str) -> str:
    result = subprocess.run(["git", *words], cwd=directory, stdout=subprocess.PIPE, check=True)
    return result.stdout.decode()


def fetch(source: Source, logs: Path) -> Iterator[dict[str, str]]:
    """Fetch the files of a source; yield their rows of the index."""
    tree = logs / source.folder
    tree.mkdir(parents=True, exist_ok=True)
    git(tree, "init", "--quiet")
    url = f"https://github.com/{source.repository}"
    git(tree, "fetch", "--quiet", "--depth=1", "--filter=blob:none", url, source.commit)
    names = git(tree, "ls-tree", "-r", "-z", "--name-only", "FETCH_HEAD").split("\0")
    matches = {name: match for name in names if (match := re.fullmatch(source.paths, name))}
    git(tree, "config", "remote.origin.url", url)
    git(tree, "config", "remote.origin.promisor", "true")
    git(tree, "checkout", "--quiet", "FETCH_HEAD", "--", *matches)
    for name, match in matches.items():
        yield index_row(source, name, match.groupdict())


def index_row(source: Source, name: str, groups: dict[str, str | None]) -> dict[str, str]:
    """Return a row of the index: what the path says, completed."""
    columns = {key: value for key, value in groups.items() if value and key in COLUMNS}
    if "rival" in groups:
        gpus = int(columns["gpus"])
        columns |= {"framework": _FRAMEWORKS[groups["rival"]], "nodes": str(max(1, gpus // 8))}
    if groups.get("gpus_per_node"):
        columns["gpus"] = str(int(columns["nodes"]) * int(groups["gpus_per_node"] or 0))
    return {
        **dict.fromkeys(COLUMNS, ""),
        "local_path": f"{source.folder}/{name}",
        "repo": source.repository,
        "repo_path": name,
        "commit": source.commit,
        **source.columns,
        **columns,
    }


def main(directory: Path) -> None:
    logs = directory / "logs"
    rows = [row for source in SOURCES for row in fetch(source, logs)]
    with (logs / "INDEX.tsv").open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, COLUMNS, delimiter="\t", lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    print(f"{len(rows)} files in {logs}. HPCBERT_SHARED={directory} make test")  # noqa: T201  the result


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
