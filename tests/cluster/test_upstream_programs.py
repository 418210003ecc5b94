"""Upstream programs train on the CPU of the lab's nodes: from the package index to a table.

What lies in a repository has to be named, as a checkout of the test's user or an archive:
HPCBERT_REPOSITORY_DEEPSPEED=/an/archive.tar.gz. hf-trainer needs nothing but the package index: its
program is in the recipe. `make real` runs all others.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace

import pytest

from tests.kit.cli import Cli
from tests.kit.needs import lacks

# Tests run without hpcbert's variables, so this is read before them.
REPOSITORIES = {
    "deepspeed": os.environ.get("HPCBERT_REPOSITORY_DEEPSPEED", ""),
    "hf-trainer": None,
    "composer": os.environ.get("HPCBERT_REPOSITORY_COMPOSER", ""),
}
# Loading data in processes of their own takes longer than the training here.
SETTINGS = {"deepspeed": ("--set", "num_workers=0")}
RULES = {"hf-trainer": "elapsed", "composer": "rate"}
# How this machine reaches an index of packages.
_INDEX = re.compile(r"PIP_\w+|SSL_CERT_\w+|REQUESTS_CA_BUNDLE|\w+_proxy", re.IGNORECASE)
_AWAY = re.compile(r"package index does not answer|there is no Python [\d.]+ here")


@pytest.mark.parametrize("framework", REPOSITORIES)
def test_a_program_trains_on_one_and_two_ranks_from_prepare_to_collect(
    framework: str, hpcbert: Cli
) -> None:
    repository = REPOSITORIES[framework]
    if repository == "":
        lacks("extras", "an archive", f"HPCBERT_REPOSITORY_{framework.upper()} is not set")
    index = {name: value for name, value in os.environ.items() if _INDEX.fullmatch(name)}
    # What is imported is compiled then, most is not; pip wants "no" for --no-compile.
    hpcbert = replace(hpcbert, env={**index, **hpcbert.env, "PIP_NO_COMPILE": "no"})
    about = ("--fw", framework, "--device", "cpu", "--data", "synthetic", "--json")
    prepared = hpcbert("prepare", *about, *(("--repository", repository) if repository else ()))
    if prepared.returncode and _AWAY.search(prepared.output):
        lacks("extras", f"an index with {framework}", prepared.output[-300:])
    assert prepared.returncode == 0, prepared.output
    parts = {part["kind"]: part for part in prepared.data["parts"]}
    assert {"done"} >= {parts[name]["status"] for name in ("environment", "data")}

    # DeepSpeed's first line is that of the third step.
    shape = ("--gpus-per-node", "2", "--scaling", "--repeats", "1", "--iters", "10", "--skip", "4")
    small = ("--model", "bert-tiny", "--batch-size", "2", *SETTINGS.get(framework, ()))
    (table,) = hpcbert("submit", *about, *shape, *small, "--wait", status=0).data["tables"]
    rule = RULES.get(framework, "dlperf-time")
    assert (table["framework"], table["device"], table["rule"]) == (framework, "cpu", rule)
    assert [(row["shape"], row["repeats"]["ok"]) for row in table["rows"]] == [
        ("1n1g", 1),
        ("1n2g", 1),
    ]
    campaign = table["rows"][0]["origin"]["name"]
    assert hpcbert("collect", campaign, "--json", status=0).data["tables"] == [table]
