"""What `submit --here` reads of an allocation, refuses, and hands to srun."""

from contextlib import nullcontext
from dataclasses import replace

import pytest

from hpcbert.config import schedulers
from hpcbert.errors import UsageError
from hpcbert.model import JobRequest, Shape
from hpcbert.scheduler import allocation
from hpcbert.scheduler.local import worker
from hpcbert.system.decode import Invalid
from tests.kit.cases import cases, read_constant
from tests.kit.drafts import combined, drafted
from tests.kit.scripts import run_functions
from tests.kit.slurm import Slurm, failed

ALLOCATION = allocation.Allocation("17", ("n1", "n2", "n3"), read_constant(__file__, "ROOM"))


def test_an_allocation_is_read_with_the_gpus_of_each_node():
    # scontrol 22.05: two kinds of nodes, and the jobs of an array whose first has the array's id.
    shown = read_constant(__file__, "SHOWN")
    assert allocation.read_allocation(shown, "17", uid=1000) == ALLOCATION
    for text, uid, keyword in (
        ("", 1000, "unknown"),
        (shown.replace("JobId=17 ", "JobId=177 "), 1000, "unknown"),
        (shown.replace("RUNNING", "COMPLETING"), 1000, "COMPLETING"),
        (shown, 1001, "its user me"),
    ):
        with pytest.raises(UsageError, match=keyword):
            allocation.read_allocation(text, "17", uid=uid)


@cases
def test_the_shell_decides_whether_there_is_an_allocation(environ, keyword):
    with pytest.raises(UsageError, match=keyword) if keyword else nullcontext():
        assert allocation.read_job_id(environ) == "17"


@cases
def test_what_is_larger_is_refused_with_both_numbers(nodes, tasks, gres, numbers):
    request = replace(JobRequest(), nodes=nodes, tasks_per_node=tasks, gres=gres)
    with pytest.raises(UsageError, match=numbers) if numbers else nullcontext():
        allocation.refuse_larger([request], ALLOCATION)


def test_the_script_is_that_of_a_job_and_runs_on_the_first_of_its_nodes(tmp_path):
    request = combined(Shape(2, 2), ("fp32",))
    own_job, here = (
        drafted(tmp_path, request, options={"scheduler": name}) for name in ("slurm", "allocation")
    )
    assert list(here.scripts.values()) == list(own_job.scripts.values())
    words = allocation.launch_words(ALLOCATION, here.campaign.arrays[0])
    assert {"HPCBERT_NODELIST=n[1-2]", "--overlap", "--nodelist=n1", "--jobid=17"} <= set(words)
    assert schedulers.find_traits(schedulers.ALLOCATION).in_allocation
    with pytest.raises(Invalid, match="local"):
        schedulers.check_scheduler(schedulers.ALLOCATION)


def test_the_steps_of_a_script_take_only_the_nodes_of_the_point():
    program = 'printf "%s\\n" "${part[@]}" "${!SLURM_@}"; echo $SLURM_JOB_NODELIST'
    job = {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "n[1-3]"}
    step = {**job, "SLURM_NTASKS": "1", "SLURM_RESTART_COUNT": "2"}
    shown = run_functions(program, "slurm.bash", **step, HPCBERT_NODELIST="n[1-2]")
    assert shown == ["--nodelist=n[1-2]", *job, "n[1-2]"]
    assert run_functions(program, "slurm.bash", **step) == [*sorted(step), "n[1-3]"]


@cases
def test_an_allocation_is_over_only_if_slurm_says_so(stdout, stderr, *, over):
    slurm = Slurm(squeue=failed(stderr) if stderr else stdout or "")
    assert worker.has_ended("17", slurm, {}) is over
