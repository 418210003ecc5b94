"""The sampler beside the measured step: started by the job script, ended by it, off where nobody wants it."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from hpcbert.campaign.fingerprint import parse_samples
from hpcbert.model import Shape
from hpcbert.script.draft import Draft
from hpcbert.script.plan import Request
from tests.kit import drafts, scripts
from tests.kit.cases import read_constant
from tests.kit.waiting import until

SHAPES = {"local": ("local", "1n2g"), "slurm": ("slurm", "1n2g"), "nodes": ("slurm", "2n2g")}


def run_sampled(folder: Path, way: str) -> Draft:
    """Run a repeat whose rank ends when the sampler has looked, and whose nvidia-smi goes on forever."""
    scheduler, shape = SHAPES[way]
    tools = folder / "tools"
    words = scripts.slurm_in(tools, "printf '%s\\n' n1 n2 | head -" + shape[0])
    for name, text in read_constant(__file__, "TOOLS").items():
        scripts.tool(tools, name, text)
    site = drafts.reference(folder, nodes={"sampling": 1})
    site = scripts.with_python(site, tools / "python")
    draft = scripts.drafted(site, shape=shape, scheduler=scheduler)
    script = scripts.run_script(draft, folder, **words)
    assert script.returncode == 0, script
    return draft


def is_sleeping(pid: str) -> bool:
    try:
        return b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("way", SHAPES)
def test_it_looks_at_each_node_while_the_step_runs_and_ends_with_it(way, tmp_path):
    draft = run_sampled(tmp_path, way)
    (pid,) = (tmp_path / "record.smi").read_text().split()
    until(lambda: not is_sleeping(pid), "the sampler goes on after the step")
    if way == "nodes":
        steps = scripts.records(tmp_path / "record.srun")
        (sampler,) = [step for step in steps if "--overlap" in step]
        assert {"--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--mpi=none"} <= set(sampler)
        return
    (file,) = (draft.directory / "env").glob("*.1.0.power.json")
    assert parse_samples(file.read_bytes()) == (2, [(0.0, 500.0, 3000.0)])
    lines = gzip.decompress(file.with_name(f"{file.name}l.gz").read_bytes()).splitlines()
    assert json.loads(lines[-1])["count"] == 1
    assert len(list(file.parent.glob("*.power.*"))) == 2


def test_where_nobody_wants_it_or_the_tool_is_missing_nothing_of_it_is_run(tmp_path):
    unwanted: tuple[tuple[int, Any], ...] = ((0, ""), (1, "cpu"))
    for sampling, device in unwanted:
        site = drafts.reference(tmp_path, nodes={"sampling": sampling})
        draft = drafts.drafted(site, Request(Shape(1, 2), device=device, repeats=1))
        assert "sample" not in scripts.only_script(draft).replace("samples per device", "")
    python = scripts.tool(tmp_path, "python", "#!/bin/bash\nexit 0\n")
    site = drafts.reference(tmp_path, nodes={"sampling": 1})
    draft = scripts.drafted(scripts.with_python(site, python))
    script = scripts.run_script(draft, tmp_path)
    assert script.returncode == 0, script
    assert not [*(draft.directory / "env").glob("*.power.json")]
