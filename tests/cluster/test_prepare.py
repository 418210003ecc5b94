"""hpcbert prepare in a lab's shell: the lab's site has a place for all that it makes."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.kit.cli import Cli
from tests.kit.logs import write_file
from tests.prepare.test_parts import PATCH, RECIPE, git, make_sources


@pytest.fixture
def tiny(work: Path) -> Path:
    """Templates of a framework whose program lies in a repository beside them, and its data."""
    make_sources(work)
    upstream, folder = work / "upstream", work / "templates" / "tiny"
    image = "docker://registry.example.org#bert/tiny:1.0"
    commit = git(upstream, "rev-parse", "HEAD")
    text = RECIPE.format(repository=upstream, commit=commit, image=image, build="")
    write_file(folder, "recipe.toml", text)
    write_file(folder, "run.sh.j2", "exec -- python3 {{ source }}/train.py\n")
    write_file(folder, "fix.patch", PATCH)
    return work


@pytest.mark.parametrize("only", [(), ("source",)], ids=["all", "source"])
def test_what_prepare_makes_in_a_lab_is_what_a_submission_uses(
    only: tuple[str, ...], hpcbert: Cli, lab: Any, tiny: Path
) -> None:
    """As in the lab's shell: the site is that of HPCBERT_SITE, and nothing else is said of it."""
    options = ("--templates", tiny / "templates", "--json")
    hpcbert = replace(hpcbert, env={"PYTHONPATH": hpcbert.env["PYTHONPATH"]})
    words = ("prepare", "--fw", "tiny", *(f"--only={part}" for part in only))
    words = words if only else (*words, "--data", str(tiny / "data"))
    # Git 2.39 and 2.47 read no repository of another user, here root's; 2.55 does.
    first = hpcbert(*words, *options)
    if first.returncode:
        assert first.returncode == 4
        assert "safe.directory" in first.error["message"]
        assert "Run the command that git names" in first.error["hint"]
    owner = f"--reference={tiny}"
    subprocess.run(["chown", "-R", owner, str(tiny / "upstream")], check=True)
    parts: dict[str, Any] = {}
    for status in ("done", "ready") if first.returncode else ("ready",):
        parts = {part["kind"]: part for part in hpcbert(*words, *options, status=0).data["parts"]}
        assert parts["source"]["status"] == status
        if not only:
            assert parts["image"]["status"] == "skipped"
            assert parts["data"]["status"] in {"done", "ready"}
    source = Path(parts["source"]["path"])
    assert source.is_relative_to(lab.layout.sources)
    assert (source / "bert" / "train.py").read_text() == 'print("right")\n'
    shape = ("--nodes", "1", "--gpus-per-node", "1", "--data", str(tiny / "data"))
    result = hpcbert("submit", "--fw", "tiny", *shape, "--dry-run", *options, status=0)
    (array,) = result.data["arrays"]
    assert str(source) in array["script_text"]
