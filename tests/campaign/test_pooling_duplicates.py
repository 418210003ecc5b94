"""Repeats are repeats of one experiment, and each is a run of its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.campaigns import node, write_nodes
from tests.kit.cases import read_constant
from tests.kit.cli import CollectJson
from tests.kit.logs import log

pytestmark = pytest.mark.slow

WINDOW = ("--fw", "stated", "--skip", "2", "--iters", "12")
RECIPE = read_constant(__file__, "RECIPE")
FACTS = ("sequence_length", "global_batch_size", "accumulation", "optimizer")


@pytest.fixture
def write_log(tmp_path: Path) -> Callable[..., None]:
    """Writes logs of a framework that states facts: `name = value` lines above its steps."""
    folder = tmp_path / "templates" / "stated"
    folder.mkdir(parents=True)
    facts = "".join(
        f"[[log.facts]]\ncontains = '{name} ='\nmatch = '{name} = (?P<{name}>\\S+)'\n"
        for name in FACTS
    )
    (folder / "recipe.toml").write_text(RECIPE + facts)
    (tmp_path / "site.toml").write_text("schema = 1\n")

    def write(name: str, rate: float, **facts: object) -> None:
        path = tmp_path / "logs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        header = "".join(f"{key} = {value}\n" for key, value in facts.items())
        path.write_text(header + log("1n1g", rate))

    return write


def collect_logs(collect_json: CollectJson, root: Path, *words: object) -> dict[str, Any]:
    templates = ("--templates", root / "templates")
    return collect_json(root / "logs", *WINDOW, *templates, *words)


def rows_by_shape(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["shape"]: row for table in document["data"]["tables"] for row in table["rows"]}


def list_reasons(row: dict[str, Any]) -> dict[int, str]:
    return {
        run["repeat"]: ", ".join(
            f"{reason['code']}: {reason['detail']}" for reason in run["reasons"]
        )
        for run in row["runs"]
        if not run["valid"]
    }


@pytest.mark.parametrize(
    "differing",
    [("sequence_length", 128, 512), ("global_batch_size", 4, 8), ("accumulation", 1, 4)],
    ids=lambda differing: differing[0],
)
@pytest.mark.parametrize("runs", [2, 5])
def test_different_experiments_have_no_median(
    tmp_path: Path, collect_json: CollectJson, write_log: Any, differing: Any, runs: int
) -> None:
    fact, *values = differing
    for number in range(1, runs + 1):
        value = values[1] if number == runs else values[0]
        write_log(f"1n1g/bert_b4_fp32_{number}.log", 100.0 + number, **{fact: value})
    document = collect_logs(collect_json, tmp_path)
    (row,) = rows_by_shape(document).values()
    assert document["exit_code"] == 4
    assert (row["median"], row["repeats"]) == (None, {"ok": 0, "asked": runs})
    for reason in list_reasons(row).values():
        assert reason.startswith("incomparable: ")
        assert any(f"{name} differs" in reason for name in (fact, "accumulation"))


def test_what_a_log_does_not_state_differs_from_nothing(
    tmp_path: Path, collect_json: CollectJson, write_log: Any
) -> None:
    write_log("1n1g/bert_b4_fp32_1.log", 100.0, sequence_length=128)
    write_log("1n1g/bert_b4_fp32_2.log", 101.0)
    (row,) = rows_by_shape(collect_logs(collect_json, tmp_path)).values()
    assert row["repeats"] == {"ok": 2, "asked": 2}


def test_points_of_other_experiments_have_no_speedup(
    tmp_path: Path, collect_json: CollectJson, write_log: Any
) -> None:
    for number in (1, 2):
        write_log(f"1n1g/bert_b4_fp32_{number}.log", 100.0 + number, optimizer="adam")
        write_log(f"1n2g/bert_b4_fp32_{number}.log", 200.0 + number, optimizer="adam")
        write_log(f"1n8g/bert_b4_fp32_{number}.log", 300.0 + number, optimizer="lamb")
    points = rows_by_shape(collect_logs(collect_json, tmp_path))
    assert points["1n2g"]["speedup"] == pytest.approx(2, rel=0.01)
    assert points["1n8g"]["speedup"] is None
    assert {"mixed-environment", "no-baseline"} <= set(points["1n8g"]["flags"])
    (difference,) = points["1n8g"]["differences"]
    assert (difference["fact"], difference["scope"]) == ("optimizer", "points")


def test_accumulations_under_names_of_their_own_are_tables_of_their_own(
    tmp_path: Path, collect_json: CollectJson, write_log: Any
) -> None:
    for steps in (1, 4):
        write_log(f"acc{steps}/1n1g/bert_b4_fp32_1.log", 100.0, accumulation=steps)
    tables = collect_logs(collect_json, tmp_path)["data"]["tables"]
    assert [table["variant"] for table in tables] == ["", "acc4"]
    assert all(table["rows"][0]["repeats"] == {"ok": 1, "asked": 1} for table in tables)


def test_copies_of_a_log_are_one_run(
    tmp_path: Path, collect_json: CollectJson, write_log: Any
) -> None:
    for number in (1, 2):
        write_log(f"1n1g/bert_b4_fp32_{number}.log", 100.0 + number)
    folder = tmp_path / "logs" / "1n1g"
    for number in (3, 4):
        shutil.copy(folder / "bert_b4_fp32_1.log", folder / f"bert_b4_fp32_{number}.log")
    (row,) = rows_by_shape(collect_logs(collect_json, tmp_path)).values()
    assert row["repeats"] == {"ok": 2, "asked": 4}
    assert {number: reason[:10] for number, reason in list_reasons(row).items()} == {
        3: "duplicate:",
        4: "duplicate:",
    }
    assert "1n1g repeat 1" in list_reasons(row)[3]
    assert "bert_b4_fp32_1.log" in list_reasons(row)[3]


def test_a_log_under_two_points_is_neither(
    tmp_path: Path, collect_json: CollectJson, write_log: Any
) -> None:
    for number in (1, 2):
        write_log(f"1n1g/bert_b4_fp32_{number}.log", 100.0 + number)
    (tmp_path / "logs" / "1n4g").mkdir()
    shutil.copy(
        tmp_path / "logs/1n1g/bert_b4_fp32_2.log", tmp_path / "logs/1n4g/bert_b4_fp32_1.log"
    )
    points = rows_by_shape(collect_logs(collect_json, tmp_path))
    assert points["1n1g"]["repeats"] == {"ok": 1, "asked": 2}
    assert points["1n4g"]["repeats"] == {"ok": 0, "asked": 1}
    assert list_reasons(points["1n4g"])[1].startswith("duplicate: ")


def test_logs_that_differ_only_at_their_end_are_no_copies(
    tmp_path: Path, collect_json: CollectJson, write_log: Any
) -> None:
    for number in (1, 2):
        write_log(f"1n1g/bert_b4_fp32_{number}.log", 100.0)
        path = tmp_path / f"logs/1n1g/bert_b4_fp32_{number}.log"
        path.write_text("x\n" * 10_000 + path.read_text() + f"{number}\n")
    (row,) = rows_by_shape(collect_logs(collect_json, tmp_path)).values()
    assert row["repeats"] == {"ok": 2, "asked": 2}


def test_a_copied_log_counts_nowhere_in_a_campaign(build: Any, collect_json: CollectJson) -> None:
    built = build("1n1g", repeats=3, scheduler="local")
    for number in (1, 2, 3):
        built.complete("1n1g", number, 10.0 + number)
    folder = (built.directory / built.array("1n1g").log).parent
    shutil.copy(folder / "bert_b4_fp32_3.log", folder / "bert_b4_fp32_1.log")
    row = rows_by_shape(collect_json(built.directory))["1n1g"]
    assert row["repeats"] == {"ok": 1, "asked": 3}
    assert {number: reason[:10] for number, reason in list_reasons(row).items()} == {
        1: "duplicate:",
        3: "duplicate:",
    }


CARDS = {"A100": "NVIDIA A100-SXM4-80GB", "V100": "Tesla V100-SXM2-32GB"}


def make_gpus(card: str) -> list[str]:
    return [f"{n}, {CARDS[card]}, 535.104.05, 81920, 400.00, 1410, 1593" for n in range(8)]


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"host__gpus": make_gpus("V100")}, "GPU"),
        ({"image__packages": ["torch-2.6.0", "numpy-1.26.4"]}, "package torch"),
        ({"host__machine": "aarch64"}, "machine"),
    ],
    ids=["another GPU", "another framework version", "another architecture"],
)
def test_repeats_on_other_hardware_or_software_have_no_median(
    build: Any, collect_json: CollectJson, changes: dict[str, Any], fact: str
) -> None:
    built = build("1n1g", repeats=3, scheduler="local")
    for number in (1, 2, 3):
        built.complete("1n1g", number, 10.0 + number)
        write_nodes(
            built.directory, built.array("1n1g"), number, node(**(changes if number == 2 else {}))
        )
    document = collect_json(built.directory)
    row = rows_by_shape(document)["1n1g"]
    assert (document["exit_code"], row["median"], row["repeats"]["ok"]) == (4, None, 0)
    assert all(f"{fact} differs between repeats" in reason for reason in list_reasons(row).values())


def test_repeats_on_the_same_mixture_of_nodes_are_repeats(
    build: Any, collect_json: CollectJson
) -> None:
    built = build("2n2g", repeats=2, scheduler="local")
    for number in (1, 2):
        built.complete("2n2g", number, 10.0 + number)
        nodes = (node("n1"), node("n2", host__gpus=make_gpus("V100")))
        write_nodes(built.directory, built.array("2n2g"), number, *nodes)
    row = rows_by_shape(collect_json(built.directory))["2n2g"]
    assert row["repeats"]["ok"] == 2
    assert "mixed-environment" in row["flags"]


def test_a_point_on_other_gpus_than_the_baseline_has_no_speedup(
    build: Any, collect_json: CollectJson
) -> None:
    built = build("1n1g", "1n2g", repeats=2, scheduler="local")
    for shape, card in (("1n1g", "A100"), ("1n2g", "V100")):
        for number in (1, 2):
            built.complete(shape, number, 10.0 + number)
            write_nodes(
                built.directory, built.array(shape), number, node(host__gpus=make_gpus(card))
            )
    row = rows_by_shape(collect_json(built.directory))["1n2g"]
    assert (row["repeats"]["ok"], row["speedup"]) == (2, None)
    assert {"mixed-environment", "no-baseline"} <= set(row["flags"])


def test_another_cpu_matters_where_there_is_no_gpu(build: Any, collect_json: CollectJson) -> None:
    counts = {}
    for name, cards in (("with", make_gpus("A100")), ("without", [])):
        built = build("1n1g", name=f"20261121-{name}", repeats=2, scheduler="local")
        for number, cpu in ((1, "AMD EPYC 7742"), (2, "Intel Xeon 8480")):
            built.complete("1n1g", number, 10.0 + number)
            node_facts = node(host__gpus=cards, host__cpu=cpu)
            write_nodes(built.directory, built.array("1n1g"), number, node_facts)
        counts[name] = rows_by_shape(collect_json(built.directory))["1n1g"]["repeats"]["ok"]
    assert counts == {"with": 2, "without": 0}
