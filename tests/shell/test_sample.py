"""The sampler beside the measured step: started by the job script, ended by it, off where nobody wants it."""

import gzip
import json

import pytest

from hpcbert.model import Shape
from hpcbert.system.processes import read_proc_file
from tests.kit import drafts
from tests.kit.cases import read_constant
from tests.kit.scripts import only_script, records, run_script, tool, write_ranks
from tests.kit.waiting import until

SITE = {"nodes": {"sampling": 1}}


@pytest.mark.parametrize(
    ("scheduler", "shape"), [("local", "1n2g"), ("slurm", "1n2g"), ("slurm", "2n2g")]
)
def test_it_looks_at_each_node_while_the_step_runs_and_ends_with_it(scheduler, shape, tmp_path):
    """The rank ends when the sampler has looked, and nvidia-smi goes on forever."""
    for name, text in read_constant(__file__, "TOOLS").items():
        tool(tmp_path / "tools", name, text)
    rank = read_constant(__file__, "RANK")
    draft = write_ranks(tmp_path, rank, site=SITE, shape=shape, scheduler=scheduler)
    run_script(draft, tmp_path, status=0, HOSTS="n1\nn2" if shape == "2n2g" else "n1")
    (pid,) = (tmp_path / "record.smi").read_text().split()
    until(lambda: b"sleep" not in read_proc_file(pid, "cmdline"), "the sampler goes on")
    if shape == "2n2g":
        steps = records(tmp_path / "record.srun")
        (sampler,) = [step for step in steps if "--overlap" in step]
        assert {"--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--mpi=none"} <= set(sampler)
        return
    (file,) = (draft.directory / "env").glob("*.1.0.power.json")
    data = json.loads(file.read_bytes())
    assert (data["gpus"], data["samples"]) == (2, [[0, 500, 3000]])
    lines = gzip.decompress(file.with_name(f"{file.name}l.gz").read_bytes()).splitlines()
    assert json.loads(lines[-1])["count"] == 1
    assert len(list(file.parent.glob("*.power.*"))) == 2


def test_where_nobody_wants_it_or_the_tool_is_missing_nothing_of_it_is_run(tmp_path):
    for sampling, device in ((0, ""), (1, "cpu")):
        site = drafts.reference(tmp_path, nodes={"sampling": sampling})
        draft = drafts.drafted(site, drafts.combined(Shape(1, 2), device=device, repeats=1))
        assert "sample" not in only_script(draft).replace("samples per device", "")
    draft = write_ranks(tmp_path, "#!/bin/bash\n", site=SITE)
    run_script(draft, tmp_path, status=0)
    assert not [*(draft.directory / "env").glob("*.power.json")]
