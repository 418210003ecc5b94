"""The table of checks: the page has what the code has, and every check that scripts tell is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import tomli

from hpcbert import scheduler
from hpcbert.commands.checks import (
    find_error_lines,
    find_missing_nodes,
    find_missing_ranks,
    find_problems,
    find_submission_obstacles,
    list_queries,
    load_checks,
)
from hpcbert.scheduler.base import SchedulerContext
from tests.kit.drafts import OPTIONS, drafted, load, reference
from tests.kit.paths import REPOSITORY
from tests.kit.slurm import Slurm

PAGE = REPOSITORY / "docs/reference/checks.md"
WORKLOADS = REPOSITORY / "hpcbert/workloads"


def format_rows(*rows: tuple[str, str, str, str]) -> str:
    return "".join("\t".join(row) + "\n" for row in rows)


def remedy(name: str, detail: str, **values: str) -> str:
    return load_checks("nodes")[name].remedy_for(detail, values)


def test_the_page_lists_every_check_with_what_to_do() -> None:
    text = PAGE.read_text()
    for name, check in load_checks("nodes").items():
        todo = f"`{check.remedy}`" if check.remedy else check.hint
        assert f"| `{name}` | {check.asks} | {todo} |" in text
    for name, advice in load_checks("containers").items():
        assert f"| `{name}` | {advice.hint} | {advice.change} |" in text


def test_every_check_that_is_told_is_known_and_every_known_one_is_told() -> None:
    shell = (REPOSITORY / "hpcbert/shell/look.sh").read_text()
    matches = set(re.findall(r"\btell ([\w-]+) ", shell))
    matches |= set(re.findall(r"look_at_room (\w+) ", shell))
    matches |= set(re.findall(r'report\("(\w+)"', (WORKLOADS / "hello.py").read_text()))
    assert matches == set(load_checks("nodes"))


def test_every_finding_about_slurm_is_on_the_page() -> None:
    folder = REPOSITORY / "hpcbert/scheduler/slurm"
    names = ("admission", "examine")
    texts = [(folder / f"{name}.py").read_text() for name in names]
    pattern = r'(?:Finding|_judge_answer)\(\s*"([^"]+)"'
    findings = {name for text in texts for name in re.findall(pattern, text)}
    table = tomli.loads((folder / "findings.toml").read_text())
    findings |= {row["check"] for row in table.values() if "{" not in row["check"]}
    section = PAGE.read_text().split("## About Slurm")[1].split("\n## ")[0]
    assert {*findings, "pyxis"} == set(re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE))


def test_hello_is_read_by_the_oldest_python_of_an_image() -> None:
    text = (WORKLOADS / "hello.py").read_text()
    tree = ast.parse(text, feature_version=(3, 6))
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.NamedExpr)]
    assert "from __future__ import annotations" not in text  # of 3.7


def test_nodes_that_found_the_same_are_one_finding() -> None:
    text = "motd\n" + format_rows(
        ("n2", "tmp", "ok", "a"), ("n1", "tmp", "ok", "a"), ("n3", "tmp", "fail", "full")
    )
    findings = {
        finding.name: (finding.status, finding.nodes) for finding in find_problems(text, {})
    }
    assert findings == {"tmp (n[1-2])": ("ok", ("n1", "n2")), "tmp (n3)": ("fail", ("n3",))}


def test_a_bad_rank_of_a_node_is_not_hidden_by_a_good_one() -> None:
    text = format_rows(("n1", "hello", "ok", "a"), ("n1", "hello", "fail", "b"))
    (finding,) = find_problems(text, {})
    assert (finding.status, finding.detail) == ("fail", "b")


REACH = "rank {} does not reach rank 0 at n1:29500: {}; there are: eth0"


@pytest.mark.parametrize(
    ("rows", "detail", "nodes"),
    [
        (
            [("n2", "hello", "fail", REACH.format(rank, "No route to host")) for rank in range(8, 16)]
            + [("n1", "hello", "fail", "rank 0 hears nothing from ranks 8, 9, 10")],
            "8 ranks do not reach rank 0 at n1:29500: No route to host; there are: eth0",
            ("n2",),
        ),
        (
            [
                ("n2", "hello", "fail", REACH.format(8, "No route to host")),
                ("n3", "hello", "fail", REACH.format(16, "timed out")),
            ],
            "2 ranks do not reach rank 0 at n1:29500: No route to host or timed out; there are: eth0",
            ("n2", "n3"),
        ),
        (
            [("n1", "hello", "fail", "rank 0 hears nothing from ranks 8")],
            "rank 0 hears nothing from ranks 8",
            ("n1",),
        ),
        (
            [("n1", "clock", "warn", "its clock is 3 s ahead"), ("n2", "clock", "warn", "its clock is 7 s ahead")],
            "its clock is 3 to 7 s ahead",
            ("n1", "n2"),
        ),
    ],
    ids=["ranks", "reasons", "only the first rank", "measured"],
)  # fmt: skip
def test_what_shares_a_cause_is_one_finding(
    rows: list[tuple[str, str, str, str]], detail: str, nodes: tuple[str, ...]
) -> None:
    (finding,) = find_problems(format_rows(*rows), {})
    assert (finding.detail, finding.nodes) == (detail, nodes)
    paths = [("n1", "files", "fail", f"there is no /data/v{number}") for number in (1, 2)]
    assert len(list(find_problems(format_rows(*paths), {}))) == 2


@pytest.mark.parametrize(
    ("home", "has_home", "typed"),
    [("ok", True, "--runs ~/runs"), ("warn", True, "--exclude n2"), ("ok", False, "--exclude n2")],
    ids=["there", "missing", "of no use"],
)
def test_a_missing_home_is_not_where_runs_should_go(
    home: str, *, has_home: bool, typed: str
) -> None:
    rows = [
        ("n1", "home", "ok", "/home/me"),
        ("n2", "home", home, "x"),
        ("n2", "runs", "fail", "x"),
    ]
    findings = find_problems(format_rows(*rows), {}, has_home=has_home)
    assert [finding.remedy for finding in findings if finding.code == "runs"] == [typed]


def test_a_node_that_says_nothing_is_missed() -> None:
    text = format_rows(("n1", "tmp", "ok", "a"))
    (missed,) = find_missing_nodes(text, 2, "srun: error: Node failure on n2")
    assert missed.detail == "1 of 2 nodes answered: srun: error: Node failure on n2"
    assert missed.remedy == "--nodes 1"
    assert not list(find_missing_nodes(text, 1, ""))


def test_what_is_typed_is_filled_in_or_left_out() -> None:
    detail = "there is no ib0; there are: eth0 eth1"
    assert remedy("interface", detail) == 'site.toml: nodes.interface = "eth0"'
    assert remedy("interface", "there is no ib0") == ""
    assert remedy("framework", "x", fw="oneflow") == "hpcbert prepare --fw oneflow"
    assert remedy("framework", "x", fw="") == ""


def test_ranks_that_did_not_start_are_named_with_what_kept_them() -> None:
    output = (
        "hpcbert: repeat 1 attempt 0 on n[1-2], log x\n"
        "hpcbert: n2: not in the container: this node has no pyxis in its plugstack.conf\n"
    )
    (lacking,) = find_missing_ranks(output, ("n1", "n2"), "pyxis")
    assert (lacking.nodes, lacking.change) == (("n2",), "plugstack.conf")
    (none,) = find_missing_ranks(format_rows(("n1", "ranks", "ok", "x")), ("n1", "n2"), "none")
    assert (none.name, none.nodes) == ("ranks (n2)", ("n2",))
    assert find_error_lines(output) == (output.splitlines()[1],)


@pytest.mark.parametrize("framework", ["pytorch", "ngc-tf1"])
@pytest.mark.parametrize("words", [(), ("--clusters=other",)], ids=["here", "another cluster"])
def test_a_submission_asks_what_was_foreseen(
    framework: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    run, recipe = Slurm(), load(framework)
    site = reference(tmp_path, slurm={"sbatch_args": words})
    backend = scheduler.create_scheduler("slurm", SchedulerContext(run))
    backend.fit(OPTIONS, site, recipe)
    draft = drafted(site, framework_recipe=recipe, options={"dry": True})
    find_submission_obstacles(draft, run=run)
    askings = {
        tuple(argv): dict(backend.query_environment) for argv in backend.list_queries(site, recipe)
    }
    askings |= {tuple(argv): {} for argv in list_queries(draft)}
    assert dict(zip(run.calls, map(dict, run.environments), strict=True)) == askings
