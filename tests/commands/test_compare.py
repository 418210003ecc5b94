"""compare and accept: what is matched, what is said of it, what is refused, and the gate."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from hpcbert.commands.compare import select_one_node
from hpcbert.model import Counted
from hpcbert.results.document import NodeFacts, ResultSet, Source, render_results
from hpcbert.results.reduce import tabulate
from tests.kit import cli
from tests.kit.cases import cases
from tests.results.test_reduce import GROUP, make_point, make_run

pytestmark = pytest.mark.usefixtures("empty_directory")

compare = partial(cli.run, "compare")


def measured(
    shape="1n1g", rate=100.0, *, spread=(1.0, 1.001, 0.999, 1.002, 0.998), node="",
    iterations=(20, 120), facts=(), **group,
):  # fmt: skip
    """Return a point with a run for each factor in `spread`, on a node if it has a name."""
    rates = [rate * factor for factor in spread]
    skip, last = iterations
    counted = Counted(skip, last, f"iterations {skip + 1} to {last}")
    texts = tuple((name, (text,)) for name, text in dict(facts).items())
    point = make_point(shape, rates, group=replace(GROUP, **group), window=counted, facts=texts)
    runs = tuple(replace(run, nodes=(node,) if node else ()) for run in point.runs)
    return replace(point, runs=runs, asked=len(runs) or 5)


def invalidate(point, *codes):
    """Return a point with an invalid run for each code."""
    nodes = point.runs[0].nodes
    runs = tuple(make_run(number, None, code, nodes=nodes) for number, code in enumerate(codes, 1))
    return replace(point, runs=runs, asked=len(runs))


def save(name, *points, **facts):
    """Write results to a file; `facts` are of their nodes."""
    nodes = tuple({node for point in points for run in point.runs for node in run.nodes})
    environments = (NodeFacts("d", nodes, facts),) if facts else ()
    source = Source("campaign", name, environments=environments)
    path = Path(f"{name}.json")
    path.write_text(render_results(ResultSet(tabulate(points), sources=(source,))))
    return path


@cases
def test_two_results_are_compared(*, base, new, words, status, points, message, text):
    """`points`: the verdict on each, by name; `message`: of the errors; `text`: of the output.

    Without `new`, BASE is compared with itself by a dimension.
    """
    files = [save("base", *(measured(**point) for point in base or [{}]))]
    files += [save("new", *(measured(**point) for point in new))] if new else []
    options = (words or "").split()
    result = compare(*files, *options, "--json")
    assert result.returncode == (status or 0), result
    assert (message or "") in str(result.document["errors"])
    if points:
        (comparison,) = result.data["comparisons"]
        assert {point["point"]: point["verdict"] for point in comparison["points"]} == points
    if text:
        assert text in compare(*files, *options).output


def test_a_verdict_has_its_interval_and_its_coverage_and_names_steer_nothing():
    base = save("base", measured())
    result = compare(base, save("new", measured(rate=95)), "--json")
    (point,) = result.data["comparisons"][0]["points"]
    assert point["ratio"] == pytest.approx(0.95)
    assert point["low"] < point["ratio"] < point["high"]
    assert point["coverage"] == pytest.approx(0.87890625)
    for word in ("97", "", "%", "-1%", "nan", "1e-1", "97,5%", "0", "0%", "1001%", "97%%"):
        result = compare(base, base, f"--fail-under={word}")
        assert result.returncode == 2
        assert "Invalid value for '--fail-under'" in result.stderr
    name = 'a|b<script>&"\x1b[31m'
    files = [save(str(rate), measured(framework=name, rate=rate)) for rate in (100, 9)]
    result = compare(*files, "--fail-under", "1", "--junit", "gate.xml")
    assert "\x1b[31ma" not in result.stdout
    (suite,) = ET.parse("gate.xml").getroot()
    assert suite[0].get("name", "").startswith("a|b<script>&")
    assert r"a\|b\<script\>" in compare(*files, "--format", "markdown").stdout


def test_a_lacking_point_shuts_the_gate_and_several_are_compared_with_the_first():
    both = measured(), measured("4n8g", 3000)
    base, new = save("base", *both), save("new", both[0])
    assert compare(base, new).returncode == 0
    result = compare(base, new, "--fail-under", "50%", "--junit", "gate.xml")
    assert result.returncode == 7
    assert "4n8g" in result.stderr
    (suite,) = ET.parse("gate.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    names = [case.get("name") for case in suite if case.find("failure") is not None]
    assert names == ["oneflow bert-base 4n8g fp32 b32"]
    # A point that only NEW has harms nobody.
    assert compare(new, base, "--fail-under", "50%").returncode == 0
    files = [save(name, measured(rate=rate)) for name, rate in (("a", 9), ("b", 9), ("c", 8))]
    result = compare(*files, "--json", "--fail-under", "97%")
    assert result.returncode == 7
    assert [comparison["new"] for comparison in result.data["comparisons"]] == ["b.json", "c.json"]
    (error,) = result.document["errors"]
    assert "c.json" in error["message"]
    # The same dimension from two places.
    other = save("other", measured(framework="mxnet", rate=8))
    (comparison,) = compare(files[0], other, "--by", "framework", "--json").data["comparisons"]
    assert [point["verdict"] for point in comparison["points"]] == ["slower"]


@cases
def test_a_point_that_still_runs_is_not_a_regression(codes, status, code):
    good, other = measured(), measured("1n2g", 200)
    invalid = invalidate(good, *codes)
    base, new = save("base", good, other), save("new", invalid, other)
    gate = ("--fail-under", "97%")
    result = compare(base, new, *gate, "--junit", "gate.xml", "--json")
    assert (result.returncode, result.error["code"]) == (status, code)
    (suite,) = ET.parse("gate.xml").getroot()
    assert suite.get("skipped") == ("1" if status == 6 else "0")
    assert compare(base, save("slow", invalid, measured("1n2g", 100)), *gate).returncode == 7
    # Nothing at all has a number in both, whatever the gate.
    good_file, alone = save("good", good), save("alone", invalid)
    assert compare(good_file, alone, *gate).returncode == status
    assert compare(good_file, alone).returncode == 4


def test_campaigns_and_logs_are_compared(build, logs):
    built = build("1n1g")
    for number in range(1, 6):
        built.complete("1n1g", number, 50.0 + number / 100)
    cli.run("collect", built.directory, "--output", "saved.json")
    (same,) = compare(built.directory, "saved.json", "--json").data["comparisons"][0]["points"]
    assert (same["verdict"], same["ratio"]) == ("equal", 1.0)
    words = ("--model", same["base"]["model"], "--skip", "2", "--iters", "12", "--json")
    result = compare(built.directory, logs, *words)
    assert result.data["comparisons"][0]["points"][0]["verdict"] == "slower"


def test_a_slow_node_and_another_driver_are_named_and_equal_nodes_are_accepted():
    files = [save("base", measured())]
    for node, rate in {"n1": 100, "n2": 97, "n3": 90, "n4": 100.1}.items():
        facts = {"GPU driver": "550" if node == "n3" else "560", "GPU ECC": "Enabled"}
        files.append(save(node, measured(rate=rate, node=node), **facts))
    words = ("accept", files[0], "--each-node", *files[1:])
    result = cli.run(*words, "--json", "--junit", "accept.xml", status=7)
    states = {entry["node"]: entry["state"] for entry in result.data["nodes"]}
    assert states == {"n1": "like", "n2": "like", "n3": "slower", "n4": "like"}
    (odd,) = result.data["differences"]
    assert odd == {"node": "n3", "fact": "GPU driver", "value": "550", "like": "560"}
    # Below the tolerance, and slower than its like.
    errors = result.document["errors"]
    assert [error["code"] for error in errors] == ["regression", "regression"]
    assert all("n3" in error["message"] for error in errors)
    assert "GPU driver is 550, not 560" in errors[1]["hint"]
    suites = ET.parse("accept.xml").getroot()
    assert suites.get("name") == "hpcbert accept"
    assert [suite.get("failures") for suite in suites] == ["0", "0", "1", "0"]
    assert "slower than its like" in cli.run(*words).stdout
    assert "| ---: |" in cli.run(*words, "--format", "markdown").stdout
    # One without a valid run has no verdict.
    save("n2", measured(rate=100.2, node="n2"))
    words = ("accept", files[0], "--each-node", *files[1:3], files[4])
    assert cli.run(*words, "--json", status=0).data["power"][0]["detectable"] == 0.03
    save("n3", invalidate(measured(node="n3"), *["exit"] * 5))
    result = cli.run(*words, files[3], "--json", status=7)
    states = {entry["node"]: (entry["state"], entry["runs"]) for entry in result.data["nodes"]}
    assert states == {"n1": ("like", 5), "n2": ("like", 5), "n3": ("unknown", 0), "n4": ("like", 5)}
    assert "n3" in result.error["message"]


def test_a_point_may_lose_the_tolerance_and_repeats_are_compared_by_node():
    base, new = save("base", measured()), save("new", measured(rate=96, node="n1"))
    for tolerance, status in (("5%", 0), ("0.02", 7)):
        result = cli.run("accept", base, new, "--tolerance", tolerance)
        assert result.returncode == status, result
        assert "oneflow bert-base 1n1g fp32 b32" in result.stdout
    points = [measured(rate=rate, node=f"n{rate}") for rate in (80, 100, 101)]
    runs = [run for point in points for run in point.runs]
    numbered = tuple(replace(run, repeat=number) for number, run in enumerate(runs, 1))
    mixed = save("mixed", replace(points[0], runs=numbered, asked=15))
    result = cli.run("accept", base, mixed, "--json", status=7)
    slow = [entry["node"] for entry in result.data["nodes"] if entry["state"] == "slower"]
    assert slow == ["n80"]
    # One shape of a curve has the variant of a point that was measured alone.
    points = [measured(shape, variant="long,gbs256") for shape in ("1n2g", "2n2g")]
    (table,) = select_one_node(tabulate(points))
    assert (table.group.variant, [str(row.shape) for row in table.rows]) == ("long,acc4", ["1n2g"])


@cases
def test_what_can_not_be_accepted_is_refused(words, keyword):
    base = save("base", measured())
    save("wide", measured(shape="2n1g"))
    text = base.read_text().replace('"median": 100.0', '"median": 1.0')
    Path("edited.json").write_text(text)
    assert keyword in cli.run("accept", *words.split(), status=2).stderr
