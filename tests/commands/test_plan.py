"""What a submission would take, what there is for it and what it lacks; nothing is submitted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcbert.commands.plan import Outlook, find_own_campaigns, forecast, list_refusals
from hpcbert.config import campaignfile
from hpcbert.errors import CheckError, SchedulerError
from hpcbert.model import Point, Protocol, Shape
from tests.kit import cli
from tests.kit.campaigns import Built
from tests.kit.cli import Cli, CliResult
from tests.kit.drafts import combined, drafted, load, reference
from tests.kit.slurm import Answer, Programs, ScriptedAnswer, Slurm, failed

SINFO = "gpu*|up|4|1-00:00:00|1-infinite|gpu:8|n[1-4]\n"
STATES = "n1|gpu*|idle\nn2|gpu*|idle\nn3|gpu*|mixed\nn4|gpu*|down*\n"
STARTS = (
    "sbatch: Job 7 to start at 1795331940 using 16 processors on nodes n[1-2] in partition gpu\n"
)
SOON = Answer("", 0, STARTS)


class Cluster(Slurm):
    """Four nodes of eight GPUs, of which one is down."""

    def answered(self, argv: tuple[str, ...], answer: ScriptedAnswer, cwd: str = "") -> Answer:
        if argv[0] == "sinfo":
            answer = STATES if "--Node" in argv else SINFO
        return super().answered(argv, answer, cwd)


def make_outlook(where: Path, run: Slurm, framework: str = "pytorch", **request: Any) -> Outlook:
    site = reference(where, slurm={"partition": "gpu", "gres": "gpu"}, runs="/shared/runs")
    campaign_request = combined(
        **{"shape": Shape(2, 8), "precisions": ("fp32",), "device": "gpu", **request}
    )
    draft = drafted(site, campaign_request, framework_recipe=load(framework), options={"dry": True})
    return forecast(draft, find_own_campaigns(where / "runs")[0], run=run)


def test_slurm_says_when_the_very_script_would_start_and_what_the_partition_has(
    tmp_path: Path,
) -> None:
    run = Cluster(sbatch=SOON)
    outlook = make_outlook(tmp_path, run, scaling=True)
    assert [str(point.cost.point.shape) for point in outlook.points] == [
        "1n1g",
        "1n4g",
        "1n8g",
        "2n8g",
    ]
    assert {(point.start.when, point.start.nodes) for point in outlook.points if point.start} == {
        (1795331940.0, "n[1-2]")
    }
    assert run.called("sbatch") == [("sbatch", "--test-only")] * 4
    (supply,) = outlook.supplies
    assert (supply.name, supply.state, str(supply.limit)) == ("gpu", "up", "1-00:00:00")
    assert (supply.nodes, supply.fitting, supply.usable, supply.free) == (4, 4, 3, 2)
    assert supply.resources == ("gpu:8",)


@pytest.mark.parametrize(
    ("request_", "answer", "message"),
    [
        ({"shape": Shape(5, 8)}, SOON, "gpu has 4 nodes; you asked for 5"),
        (
            {},
            failed("sbatch: error: allocation failure: Invalid account"),
            "sbatch --test-only: sbatch: error: allocation failure: Invalid account",
        ),
    ],
    ids=["more nodes than there are", "refused by sbatch"],
)
def test_what_the_cluster_would_refuse_is_said(
    tmp_path: Path, request_: dict[str, Any], answer: Answer, message: str
) -> None:
    outlook = make_outlook(tmp_path, Cluster(sbatch=answer), **request_)
    assert any(message in str(error) for error in list_refusals(outlook))
    assert all(isinstance(error, CheckError) for error in list_refusals(outlook))
    assert not outlook.can_run


def test_where_slurm_does_not_answer_nobody_knows_whether_it_can_run(tmp_path: Path) -> None:
    outlook = make_outlook(tmp_path, Slurm(away={"sbatch", "sinfo"}))
    (error,) = list_refusals(outlook)
    assert isinstance(error, SchedulerError)
    assert not outlook.can_run
    assert [point.cost.hours for point in outlook.points] == [5.0]


def test_what_is_missing_has_the_command_that_gets_it(tmp_path: Path) -> None:
    outlook = make_outlook(tmp_path, Cluster(sbatch=SOON), "oneflow")
    lacks = {missing.kind: missing for missing in outlook.lacks}
    assert lacks["source"].command == "hpcbert prepare --fw oneflow --only source --device gpu"
    assert lacks["source"].blocks
    assert not outlook.can_run
    (error,) = list_refusals(outlook)
    assert "source and data are missing" in str(error)
    assert lacks["source"].command in error.hint


@pytest.fixture
def before(build: Callable[..., Built]) -> Callable[..., Built]:
    """Makes a campaign of which each repeat took so many seconds."""

    def make(name: str, *seconds: float, point: Point, code: int = 0, **changes: Any) -> Built:
        built = build(
            "2n8g", name=name, repeats=len(seconds), point=point,
            protocol=Protocol(len(seconds), 120, 20), **changes,
        )  # fmt: skip
        for repeat, took in enumerate(seconds, start=1):
            built.started("2n8g", repeat, time=1000)
            built.ended("2n8g", repeat, code=code, time=1000 + took)
        return built

    return make


def test_runs_of_the_same_point_say_what_to_expect(
    tmp_path: Path, before: Callable[..., Built]
) -> None:
    point = make_outlook(tmp_path, Cluster(sbatch=SOON)).points[0].cost.point
    before("20261101-pytorch-a", 100, 300, point=point)
    before("20261102-pytorch-b", 200, point=point)
    before("20261103-pytorch-failed", 9, 9, point=point, code=1)
    before("20261104-pytorch-rehearsed", 9, point=point, rehearse=True)
    before("20261105-pytorch-other", 9, point=replace(point, precision="fp16"))
    (point_outlook,) = make_outlook(tmp_path, Cluster(sbatch=SOON)).points
    assert point_outlook.earlier is not None
    assert sorted(point_outlook.earlier.seconds) == [100, 200, 300]
    assert point_outlook.earlier.campaigns == ("20261102-pytorch-b", "20261101-pytorch-a")
    assert point_outlook.expected_hours == pytest.approx(5 * 200 / 3600)
    (other,) = make_outlook(tmp_path, Cluster(sbatch=SOON), iters=60).points
    assert other.earlier is None
    assert other.expected_hours is None


@pytest.fixture
def torch_is_found(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan asks whether the interpreter finds PyTorch, and doesn't import it."""
    packages = tmp_path_factory.mktemp("packages")
    (packages / "torch").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(packages))


@pytest.mark.usefixtures("torch_is_found")
def test_on_this_machine_a_plan_speaks_of_ranks_and_submits_nothing(
    tmp_path: Path, empty_directory: None
) -> None:
    words = ("plan", "--scheduler", "local", "--device", "cpu", "--gpus-per-node", 2, "--scaling")
    result = cli.run(*words)
    assert result.returncode == 0, result
    assert "rank-hours" in result.stdout
    for word in ("(one row each)", "(runs of a point)", "A rank is one process"):  # explained
        assert word in result.stdout
    assert "GPU" not in result.output
    result = cli.run(*words, "--repeats", 2, "--time", "0:30:00", "--json", "--max-gpu-hours", 2.9)
    assert result.returncode == 5
    assert "up to 3 rank-hours" in result.document["errors"][0]["message"]
    data = result.document["data"]
    assert (data["total"]["rank_hours"], data["total"]["gpu_hours"]) == (3.0, 0.0)
    assert not data["can_run"]
    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("torch_is_found")
def test_a_file_is_planned_whole_and_what_is_typed_beside_it_wins(
    tmp_path: Path, empty_directory: None
) -> None:
    assert cli.run("plan", "--init").returncode == 0
    file = tmp_path / "campaign.toml"
    text = file.read_text().replace('precisions = ["fp32"]', 'precisions = ["fp32", "bf16"]')
    text = text.replace('shapes = ["1n1g"]', 'shapes = ["1n1g", "1n2g"]').replace(
        "#repeats = 5", "repeats = 4"
    )
    file.write_text(text.replace("#max_gpu_hours = 500.0", "max_gpu_hours = 20.0"))
    words = ("plan", file, "--scheduler", "local", "--device", "cpu", "--json")
    result = cli.run(*words)
    assert result.returncode == 5
    assert "up to 24 rank-hours, more than 20" in result.document["errors"][0]["message"]
    assert result.document["data"]["total"]["points"] == 4
    result = cli.run(*words, "--repeats", 3)
    assert result.returncode == 0, result
    assert result.document["data"]["total"]["rank_hours"] == 18.0
    file.write_text(file.read_text() + "\n[env]\nA = ['1', '2']\n")
    result = cli.run(*words[:-1], "--repeats", 3, "--max-gpu-hours", 40)
    assert result.returncode == 0, result
    assert (
        "2 campaigns: 8 points, 24 repeats, 24 jobs; 24 node-hours, 36 rank-hours at most."
        in result.stdout
    )


def test_the_same_again_is_planned_as_it_would_be_submitted(
    empty_directory: None, build: Callable[..., Built]
) -> None:
    built = build("1n2g", repeats=3, framework="pytorch")
    built.lock()
    words = ("plan", "--scheduler", "local", "--like", built.directory)
    data = cli.run(*words, "--json").document["data"]
    assert (data["total"]["points"], data["total"]["repeats"]) == (1, 3)
    result = cli.run(*words, "--nodes", 2)
    assert result.returncode == 2
    assert "--nodes" in result.stderr


def test_an_example_is_written_once(tmp_path: Path, empty_directory: None) -> None:
    result = cli.run("plan", "--init", "study.toml", "--json")
    assert result.document["data"] == {"path": "study.toml"}
    assert (tmp_path / "study.toml").read_bytes() == campaignfile.EXAMPLE.read_bytes()
    result = cli.run("plan", "--init", "study.toml")
    assert result.returncode == 2
    assert "already" in result.stderr


def check_refusal(result: CliResult, sum_: str) -> None:
    assert result.returncode == 2, result
    assert sum_ in result.document["errors"][0]["message"]


@pytest.mark.slow
def test_submit_refuses_what_may_cost_more(slurm: Programs, hpcbert: Cli) -> None:
    words = ("submit", "--device", "gpu", "--nodes", 2, "--gpus-per-node", 8, "--json")
    check_refusal(hpcbert(*words, "--max-gpu-hours", 79), "up to 80 GPU-hours, more than 79")
    retried = (*words, "--wait", "--max-retries", 1)
    check_refusal(hpcbert(*retried, "--max-gpu-hours", 159), "up to 160 GPU-hours")
    assert not slurm.calls("sbatch")
