"""What a submission would take, what there is for it and what it lacks; nothing is submitted."""

from dataclasses import replace
from pathlib import Path

import pytest

from hpcbert.campaign import store
from hpcbert.commands import plan
from hpcbert.commands.monitor import read_campaigns
from hpcbert.config import campaignfile
from hpcbert.errors import CheckError, SchedulerError
from hpcbert.model import Protocol, Shape
from tests.kit import cli, drafts
from tests.kit.slurm import Answer, Slurm, failed

SOON = "sbatch: Job 7 to start at 1795331940 using 16 processors on nodes n[1-2] in partition gpu\n"
# A rehearsal needs no PyTorch.
LOCAL = ("--scheduler", "local", "--device", "cpu", "--rehearse")


class Cluster(Slurm):
    """Four nodes of eight GPUs, of which one is down: by partition, then by node."""

    def do_sinfo(self, argv, cwd):
        nodes = "n1|gpu*|idle\nn2|gpu*|idle\nn3|gpu*|mixed\nn4|gpu*|down*\n"
        partition = "gpu*|up|4|1-00:00:00|1-infinite|gpu:8|n[1-4]\n"
        return Answer(nodes if "--Node" in argv else partition)


def forecast(folder, slurm=None, framework="pytorch", **request):
    fields = {"shape": Shape(2, 8), "precisions": ("fp32",), "device": "gpu", **request}
    site = drafts.reference(folder, slurm={"partition": "gpu", "gres": "gpu"}, runs="/shared/runs")
    recipe = drafts.load(framework)
    draft = drafts.drafted(
        site, drafts.combined(**fields), framework_recipe=recipe, options={"dry": True}
    )
    earlier, _ = read_campaigns(reversed(store.find_campaigns(folder / "runs")))
    return plan.forecast(draft, earlier, run=slurm or Cluster(sbatch=Answer(complaint=SOON)))


def test_slurm_says_when_the_very_script_would_start_and_what_the_partition_has(tmp_path):
    slurm = Cluster(sbatch=Answer(complaint=SOON))
    outlook = forecast(tmp_path, slurm, scaling=True)
    shapes = [str(point.cost.point.shape) for point in outlook.points]
    assert shapes == ["1n1g", "1n4g", "1n8g", "2n8g"]
    starts = {(point.start.when, point.start.nodes) for point in outlook.points if point.start}
    assert starts == {(1795331940.0, "n[1-2]")}
    assert slurm.called("sbatch") == [("sbatch", "--test-only")] * 4
    (supply,) = outlook.supplies
    assert (supply.name, supply.state, str(supply.limit)) == ("gpu", "up", "1-00:00:00")
    assert (supply.nodes, supply.fitting, supply.usable, supply.free) == (4, 4, 3, 2)
    assert supply.resources == ("gpu:8",)


def test_what_prevents_a_run_is_said_with_the_command_that_helps(tmp_path):
    refusal = "sbatch: error: allocation failure: Invalid account"
    outlooks = {
        "gpu has 4 nodes; you asked for 5": forecast(tmp_path, shape=Shape(5, 8)),
        f"sbatch --test-only: {refusal}": forecast(tmp_path, Cluster(sbatch=failed(refusal))),
    }
    for message, outlook in outlooks.items():
        assert any(message in str(error) for error in outlook.refusals)
        assert all(isinstance(error, CheckError) for error in outlook.refusals)
    outlook = forecast(tmp_path, framework="oneflow")
    lacks = {missing.kind: missing for missing in outlook.lacks}
    assert lacks["source"].command == "hpcbert prepare --fw oneflow --only source --device gpu"
    assert lacks["source"].blocks
    (error,) = outlook.refusals
    assert "lacks its source and data" in str(error)
    assert lacks["source"].command in error.hint
    # Where Slurm does not answer, nobody knows whether it can run.
    outlook = forecast(tmp_path, Slurm(away={"sbatch", "sinfo"}))
    (error,) = outlook.refusals
    assert isinstance(error, SchedulerError)
    assert [point.cost.hours for point in outlook.points] == [5.0]


def test_runs_of_the_same_point_say_what_to_expect(tmp_path, build):
    point = forecast(tmp_path).points[0].cost.point
    fields = {"point": point, "protocol": Protocol(5, 120, 20)}
    for name, seconds, code, changes in (
        ("20261101-pytorch-a", (100, 300), 0, {}),
        ("20261102-pytorch-b", (200,), 0, {}),
        ("20261103-pytorch-failed", (9, 9), 1, {}),
        ("20261104-pytorch-rehearsed", (9,), 0, {"rehearse": True}),
        ("20261105-pytorch-other", (9,), 0, {"point": replace(point, precision="fp16")}),
    ):
        built = build("2n8g", name=name, repeats=len(seconds), **{**fields, **changes})
        for repeat, duration in enumerate(seconds, start=1):
            built.started("2n8g", repeat, time=1000)
            built.ended("2n8g", repeat, code=code, time=1000 + duration)
    (outlook,) = forecast(tmp_path).points
    assert outlook.earlier is not None
    assert sorted(outlook.earlier.seconds) == [100, 200, 300]
    assert outlook.earlier.campaigns == ("20261102-pytorch-b", "20261101-pytorch-a")
    assert outlook.expected_hours == pytest.approx(5 * 200 / 3600)
    (outlook,) = forecast(tmp_path, iters=60).points
    assert (outlook.earlier, outlook.expected_hours) == (None, None)


def test_on_this_machine_a_plan_speaks_of_ranks_and_submits_nothing(empty_directory, build):
    result = cli.run("plan", *LOCAL, "--gpus-per-node", 2, "--scaling", status=0)
    # Words of the field are explained.
    for text in ("rank-hours", "(one row each)", "(runs of a point)", "A rank is one process"):
        assert text in result.stdout
    assert "GPU" not in result.output
    assert not Path("runs").exists()
    # The same again is planned as it would be submitted.
    built = build("1n2g", repeats=3)
    built.lock()
    again = ("plan", "--scheduler", "local", "--like", built.directory)
    total = cli.run(*again, "--json").data["total"]
    assert (total["points"], total["repeats"]) == (1, 3)
    assert "--nodes" in cli.run(*again, "--nodes", 2, status=2).stderr


def test_a_file_is_planned_whole_and_what_is_typed_next_to_it_wins(empty_directory):
    assert cli.run("plan", "--init", "--json").data == {"path": "campaign.toml"}
    file = Path("campaign.toml")
    assert file.read_text() == campaignfile.EXAMPLE.read_text()
    assert "already" in cli.run("plan", "--init", status=2).stderr
    points = 'frameworks = "pytorch"\nprecisions = ["fp32", "bf16"]\nshapes = ["1n1g", "1n2g"]\n'
    text = f"schema = 1\n{points}repeats = 4\nmax_gpu_hours = 20.0\n"
    file.write_text(text)
    result = cli.run("plan", file, *LOCAL, "--json", status=5)
    assert "up to 24 rank-hours, more than 20" in result.error["message"]
    assert result.data["total"]["points"] == 4
    result = cli.run("plan", file, *LOCAL, "--json", "--repeats", 3)
    assert (result.returncode, result.data["total"]["rank_hours"]) == (0, 18.0)
    file.write_text(f"{text}\n[env]\nA = ['1', '2']\n")
    result = cli.run("plan", file, *LOCAL, "--repeats", 3, "--max-gpu-hours", 40)
    summary = "2 campaigns: 8 points, 24 repeats, 24 jobs; 24 node-hours, 36 rank-hours at most."
    assert (result.returncode, summary in result.stdout) == (0, True), result


def test_submit_refuses_what_may_cost_more(empty_directory, without_slurm):
    words = ("--scheduler", "slurm", "--device", "gpu", "--shapes", "2n8g", "--json")
    result = cli.run("submit", *words, "--max-gpu-hours", 79)
    assert "up to 80 GPU-hours, more than 79" in result.error["message"]
    result = cli.run("submit", *words, "--wait", "--max-retries", 1, "--max-gpu-hours", 159)
    assert "up to 160 GPU-hours" in result.error["message"]
    assert not Path("runs").exists()
