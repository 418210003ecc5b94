"""The sampler beside the measured step: started by the job script, ended by it, off where nobody wants it."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcbert.campaign.fingerprint import parse_samples
from hpcbert.model import Shape
from hpcbert.script.draft import Draft
from hpcbert.script.plan import Request
from tests.kit import drafts, scripts
from tests.kit.waiting import until

# nvidia-smi as far as the sampler asks it: it prints a look and goes on forever.
SMI = """#!/bin/bash
if [[ $* != *--loop=* ]]; then exit 6; fi
printf '2026/11/22 03:00:00.000, %d, 250.00, 3000\\n' 0 1
echo "$$" >>"$RECORD.smi"
exec sleep 600
"""
# A rank that ends when the sampler has looked.
RANK = """#!/bin/bash
for ((n = 0; n < 3000; n++)); do
  if [[ -s $RECORD.smi ]]; then exit 0; fi
  sleep 0.1
done
exit 9
"""


def draft_sampling(
    tmp_path: Path, *, sampling: int = 1, **options: Any
) -> tuple[Draft, dict[str, str]]:
    rank = scripts.tool(tmp_path / "tools", "python", RANK)
    scripts.tool(tmp_path / "tools", "nvidia-smi", SMI)
    site = scripts.with_python(drafts.reference(tmp_path, nodes={"sampling": sampling}), rank)
    draft = scripts.drafted(site, **options)
    words = scripts.slurm_in(tmp_path / "tools")
    return draft, {**words, "SAMPLES": str(draft.directory)}


@pytest.mark.parametrize("scheduler", ["local", "slurm"])
def test_it_looks_while_the_step_runs_and_ends_with_it(scheduler: str, tmp_path: Path) -> None:
    draft, words = draft_sampling(tmp_path, scheduler=scheduler)
    script = scripts.run_script(draft, tmp_path, **words)
    assert script.returncode == 0, script
    (file,) = (draft.directory / "env").glob("*.1.0.power.json")
    assert parse_samples(file.read_bytes()) == (2, [(0.0, 500.0, 3000.0)])
    lines = gzip.decompress(file.with_name(f"{file.name}l.gz").read_bytes()).splitlines()
    assert json.loads(lines[-1])["count"] == 1
    assert len(list(file.parent.glob("*.power.*"))) == 2
    (pid,) = (tmp_path / "record.smi").read_text().split()
    until(lambda: not is_sleeping(pid), "the sampler goes on after the step")


def is_sleeping(pid: str) -> bool:
    try:
        return b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_of_several_nodes_each_is_looked_at_in_a_step_beside_the_ranks(tmp_path: Path) -> None:
    draft, words = draft_sampling(tmp_path, scheduler="slurm", shape="2n2g")
    hostnames = "printf '%s\\n' n1 n2"
    scripts.slurm_in(tmp_path / "tools", scontrol=hostnames)
    scripts.tool(tmp_path / "tools", "getent", "#!/bin/bash\necho 10.0.0.1 STREAM x\n")
    script = scripts.run_script(draft, tmp_path, **words)
    assert script.returncode == 0, script
    steps = scripts.records(tmp_path / "record.srun")
    (sampler,) = [step for step in steps if "--overlap" in step]
    assert {"--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--mpi=none"} <= set(sampler)


@pytest.mark.parametrize(
    "changes", [{"sampling": 0}, {"device": "cpu"}], ids=["switched off", "on the CPU"]
)
def test_where_nobody_wants_it_the_script_has_nothing_of_it(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    site = drafts.reference(tmp_path, nodes={"sampling": changes.get("sampling", 1)})
    request = Request(Shape(1, 2), device=changes.get("device", ""))
    draft = drafts.drafted(site, replace(request, repeats=1))
    assert "sample" not in scripts.only_script(draft).replace("samples per device", "")


def test_without_the_tool_nothing_is_started(tmp_path: Path) -> None:
    draft, words = draft_sampling(tmp_path, scheduler="local")
    (tmp_path / "tools" / "nvidia-smi").unlink()
    scripts.tool(tmp_path / "tools", "python", "#!/bin/bash\nexit 0\n")
    script = scripts.run_script(draft, tmp_path, **words)
    assert script.returncode == 0, script
    assert not [*(draft.directory / "env").glob("*.power.json")]
