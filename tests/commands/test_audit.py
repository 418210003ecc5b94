"""Audit: what was changed since is named, what a campaign does by itself is no crime."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcbert.campaign import evidence
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.commands.audit import audit
from hpcbert.logs.setting import Window
from hpcbert.slurm.states import Kind, RepeatState
from tests.kit import cli
from tests.kit.campaigns import collect_campaigns, node, report_states, report_waiting, write_nodes

pytestmark = pytest.mark.slow

LOG = "logs/pytorch/bert/bz4/2n2g/bert_b4_fp32_3.log"
STATUS = "status/bert-tiny_2n2g_fp32_b4.3.jsonl"
ENV = "env/bert-tiny_2n2g_fp32_b4.3.0.nodes.jsonl"
SCRIPT = "scripts/bert-tiny_2n2g_fp32_b4.sbatch"
RECORDED = (LOG, STATUS, ENV, SCRIPT, "recipe.toml", "table.json")


def digest(path: Path) -> tuple[int, str]:
    raw = path.read_bytes()
    return len(raw), hashlib.sha256(raw).hexdigest()


def run_audit(directory: Path, *words: str) -> tuple[int, dict[str, Any]]:
    result = cli.run("audit", directory, *words, "--json")
    return result.returncode, result.document


def list_findings(document: dict[str, Any]) -> set[tuple[str, str]]:
    return {(finding["kind"], finding["path"]) for finding in document["data"]["findings"]}


@pytest.fixture
def finished(build: Any) -> Any:
    built = build("1n1g", "2n2g")
    built.finish()
    for array in built.campaign.arrays:
        for repeat in array.repeats:
            write_nodes(
                built.directory, array, repeat, *map(node, ("n1", "n2")[: array.point.shape.nodes])
            )
        (built.directory / array.script).write_text("#!/bin/bash\n")
    assert collect_campaigns(built.directory, states=report_states()).exit_code == 0
    return built


def test_an_untouched_campaign_is_intact_and_every_cell_has_its_logs(
    finished: Any, tmp_path: Path
) -> None:
    code, document = run_audit(finished.directory)
    assert code == 0
    data = document["data"]
    assert (data["status"], data["findings"], data["history"]) == ("intact", [], [])
    (table,) = data["tables"]
    assert table["rule"]
    row = table["rows"][1]
    assert len(row["runs"]) == 5
    for run in row["runs"]:
        proof = run["evidence"]
        log = finished.directory / proof["log"]["path"]
        assert (proof["log"]["bytes"], proof["log"]["sha256"]) == digest(log)
        assert run["state_source"] == "sacct"
        assert run["nodes"] == ["n1", "n2"]
        assert [record["node"] for record in proof["nodes"]] == ["n1", "n2"]
        assert all(
            record["file"]["sha256"] and "A100" in record["summary"] for record in proof["nodes"]
        )
        assert proof["script"]["sha256"]
        assert proof["status"]["sha256"]
        assert proof["job"] == f"71_{run['repeat']}"

    text = cli.run("audit", finished.directory).stdout
    assert digest(finished.directory / LOG)[1] in text
    assert "2n2g  48.00 samples/s, median of 5/5" in text
    assert "COMPLETED (sacct)" in text
    # What a person, or the local queue, keeps there is no evidence; a copy has it all.
    (finished.directory / "report").mkdir()
    for name in ("notes.md", "report/table.html", "slurm/local.json", "slurm/local.out"):
        (finished.directory / name).write_text("x")
    path = finished.directory / "measurements.json"
    before = path.read_bytes()
    assert collect_campaigns(finished.directory, states=report_states()).warnings == ()
    assert path.read_bytes() == before
    shutil.copytree(finished.directory, tmp_path / "copy")
    assert audit(tmp_path / "copy").status == "intact"


def change_byte(path: Path) -> None:
    """Change one byte and nothing else, not even the time."""
    times = path.stat()
    raw = bytearray(path.read_bytes())
    place = raw.index(b"2") if b"2" in raw else 3
    raw[place] ^= 1
    path.write_bytes(raw)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize(
    ("damage", "kind"),
    [(Path.unlink, "missing"), (change_byte, "changed"), (make_pipe, "changed")],
    ids=["missing", "a byte", "a pipe"],
)
def test_a_damaged_file_is_named(
    finished: Any, name: str, damage: Callable[[Path], None], kind: str
) -> None:
    damage(finished.directory / name)
    code, document = run_audit(finished.directory)
    assert (code, document["data"]["status"]) == (5, "changed")
    assert (kind, name) in list_findings(document)
    assert document["errors"][0]["code"] == "check"
    assert name in document["errors"][0]["message"]


def test_a_changed_manifest_is_found_although_an_array_was_added(finished: Any) -> None:
    first, second = finished.campaign.arrays
    finished.change(user="somebody else")
    assert ("changed", "manifest.json") in list_findings(run_audit(finished.directory)[1])
    finished.change(user=finished.campaign.user)
    new = replace(second, name="x", repeats=(3,))
    finished.change(arrays=(replace(first, job_id="99"), second, new))
    assert ("changed", "manifest.json") in list_findings(run_audit(finished.directory)[1])


def improve_table(data: dict[str, Any]) -> None:
    data["tables"][0]["rows"][1]["median"] *= 2


def improve_record(data: dict[str, Any]) -> None:
    data["runs"][7]["throughput"] *= 2


def improve_and_seal(data: dict[str, Any]) -> None:
    """Improve a number, and make the record's own digest again."""
    improve_record(data)
    data["seal"] = evidence.compute_seal(data)


@pytest.mark.parametrize(
    ("name", "improve", "kinds"),
    [
        ("table.json", improve_table, {"changed"}),
        ("measurements.json", improve_record, {"changed", "seal"}),
        ("measurements.json", improve_and_seal, {"changed"}),
    ],
    ids=["table", "record", "record and seal"],
)
def test_a_number_that_was_improved_is_found(
    finished: Any, name: str, improve: Callable[[dict[str, Any]], None], kinds: set[str]
) -> None:
    data = json.loads((finished.directory / name).read_text())
    improve(data)
    (finished.directory / name).write_text(json.dumps(data))
    code, document = run_audit(finished.directory)
    findings = document["data"]["findings"]
    assert (code, {finding["kind"] for finding in findings}) == (5, kinds)
    if name == "table.json":
        details = [finding["detail"] for finding in findings]
        assert "tables[0].rows[1].median differs from what the logs give" in details


def test_a_seal_that_was_noted_elsewhere_finds_a_record_that_was_made_anew(finished: Any) -> None:
    noted = run_audit(finished.directory)[1]["data"]["seal"]
    assert run_audit(finished.directory, "--expect", noted[:12])[0] == 0
    finished.log("2n2g", 3, finished.text("2n2g", 4000.0))
    (finished.directory / "measurements.json").unlink()
    collect_campaigns(finished.directory, states=report_states())
    assert run_audit(finished.directory)[0] == 0
    code, document = run_audit(finished.directory, "--expect", noted)
    assert code == 5
    assert ("seal", "measurements.json") in list_findings(document)


@pytest.mark.parametrize("seal", ["00", "5f2c1e9", "5f2c1e9z", "f" * 65])
def test_words_that_identify_no_seal_are_refused(finished: Any, seal: str) -> None:
    code, document = run_audit(finished.directory, "--expect", seal)
    assert (code, document["errors"][0]["code"]) == (2, "usage")
    assert "8 of its 64" in document["errors"][0]["hint"]


def test_a_requeue_makes_the_record_stale_and_collect_renews_it_with_a_history(
    finished: Any,
) -> None:
    finished.started("2n2g", 3, attempt=1)
    finished.log("2n2g", 3, finished.text("2n2g", 60.0), attempt=1)
    code, document = run_audit(finished.directory)
    assert code == 5
    assert document["data"]["status"] == "stale"
    attempt = LOG.replace(".log", ".r1.log")
    assert list_findings(document) == {("grew", STATUS), ("added", attempt)}
    # While it waits, the attempt that completed counts, and nothing is sealed.
    collect_campaigns(finished.directory, states=report_waiting)
    assert run_audit(finished.directory)[1]["data"]["status"] == "stale"
    finished.ended("2n2g", 3, attempt=1)
    result = collect_campaigns(finished.directory, states=report_states())
    assert result.warnings == ()
    code, document = run_audit(finished.directory)
    assert code == 0
    (entry,) = document["data"]["history"]
    assert len(entry["seal"]) == 64
    assert any(STATUS in change for change in entry["changes"])
    assert document["data"]["tables"][0]["rows"][1]["runs"][2]["attempt"] == 1


@pytest.mark.parametrize("addition", ["array", "log", "requeue and a change"])
def test_what_was_added_is_named(finished: Any, addition: str) -> None:
    log = LOG.replace("_3.log", "_6.log")
    expected = {"array": {("grew", "manifest.json"), ("added", "scripts/again.sbatch")}}
    expected |= {"log": {("added", log)}}
    if addition == "array":
        array = finished.array("2n2g")
        new = replace(array, name=f"{array.name}-again", job_id="99")
        finished.change(arrays=(*finished.campaign.arrays, new))
        (finished.directory / "scripts" / "again.sbatch").write_text("")
    elif addition == "log":
        shutil.copy(finished.directory / LOG, finished.directory / log)
    else:
        finished.started("2n2g", 4, attempt=1)
        change_byte(finished.directory / LOG)
    code, document = run_audit(finished.directory)
    status = "stale" if addition == "array" else "changed"
    assert (code, document["data"]["status"]) == (5, status)
    assert list_findings(document) == expected.get(addition, list_findings(document))


def map_runs(result: Any, shape: str = "2n2g") -> dict[int, Any]:
    (table,) = result.tables
    row = next(row for row in table.rows if str(row.shape) == shape)
    return {run.repeat: run for run in row.runs}


def list_codes(run: Any) -> set[str]:
    return {reason.code for reason in run.reasons}


def edit_digits(path: Path) -> None:
    path.write_text(path.read_text().replace("1", "2"))


def repeat_last_line(path: Path) -> None:
    """Add a line that this file could have had."""
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines, lines[-1]]))


def compress_file(path: Path) -> None:
    with gzip.open(f"{path}.gz", "wb") as file:
        file.write(path.read_bytes())
    path.unlink()


def halve_file(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


DAMAGES: dict[str, tuple[Callable[[Path], None], str, set[int]]] = {
    "log edited": (edit_digits, LOG, {3}),
    "log deleted": (Path.unlink, LOG, {3}),
    "log truncated": (halve_file, LOG, {3}),
    "log replaced by its gz": (compress_file, LOG, {3}),
    "a line after the end of the log": (repeat_last_line, LOG, {3}),
    "one byte of the log, its time as before": (change_byte, LOG, {3}),
    "status edited": (edit_digits, STATUS, {3}),
    "status deleted": (Path.unlink, STATUS, {3}),
    "a line after the end of the status": (repeat_last_line, STATUS, {3}),
    "fingerprint edited": (edit_digits, ENV, {3}),
    "fingerprint deleted": (Path.unlink, ENV, {3}),
    "script edited": (repeat_last_line, SCRIPT, {1, 2, 3, 4, 5}),
    "script deleted": (Path.unlink, SCRIPT, {1, 2, 3, 4, 5}),
    "recipe edited": (repeat_last_line, "recipe.toml", {1, 2, 3, 4, 5}),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_collect_refuses_what_was_changed_and_records_nothing_over_it(
    finished: Any, damage: str
) -> None:
    (finished.directory / SCRIPT).write_text("#!/bin/bash\ntrue\n")
    recipe = finished.directory / "recipe.toml"
    recipe.write_text(recipe.read_text() + "# end\n")
    (finished.directory / "measurements.json").unlink()
    assert collect_campaigns(finished.directory, states=report_states()).exit_code == 0
    change, name, spoilt = DAMAGES[damage]
    change(finished.directory / name)
    contents = {path: path.read_bytes() for path in finished.directory.glob("*.json")}
    for _ in range(2):
        result = collect_campaigns(finished.directory, states=report_states())
        assert result.exit_code == 4
        assert any(name in reason and "--accept" in reason for reason in result.refused)
        by_repeat = map_runs(result)
        assert {
            number for number, run in by_repeat.items() if "changed" in list_codes(run)
        } == spoilt
        assert {number for number, run in by_repeat.items() if not run.valid} == spoilt
        assert all(run.throughput is None for run in by_repeat.values() if not run.valid)
        assert {path: path.read_bytes() for path in contents} == contents
        assert run_audit(finished.directory)[1]["data"]["status"] == "changed"


def test_a_file_of_the_same_content_is_the_same_whatever_its_time(finished: Any) -> None:
    path = finished.directory / LOG
    text = path.read_text()
    path.unlink()
    path.write_text(text)
    os.utime(path, (1, 1))
    assert collect_campaigns(finished.directory, states=report_states()).exit_code == 0
    assert run_audit(finished.directory)[1]["data"]["status"] == "intact"


def test_an_edited_record_refuses_every_run(finished: Any) -> None:
    path = finished.directory / "measurements.json"
    path.write_text(path.read_text().replace('"COMPLETED"', '"FAILED"', 1))
    result = collect_campaigns(finished.directory, states=report_states())
    assert result.exit_code == 4
    assert all("changed" in list_codes(run) for run in map_runs(result).values())


def test_a_change_is_accepted_with_a_reason_that_stays_on_record(finished: Any) -> None:
    finished.log("2n2g", 3, finished.text("2n2g", 4000.0))
    assert collect_campaigns(finished.directory, states=report_states()).exit_code == 4
    code, document = run_audit(finished.directory, "--accept", "a test of the reader")
    assert (code, document["data"]["status"]) == (0, "intact")
    for _ in range(2):
        result = collect_campaigns(finished.directory, states=report_states())
        assert result.exit_code == 0
        assert map_runs(result)[3].throughput == pytest.approx(4000, rel=1e-3)
        assert any(
            "a test of the reader" in warning and LOG in warning for warning in result.warnings
        )
        code, document = run_audit(finished.directory)
        (entry,) = document["data"]["history"]
        assert (code, entry["accepted"]) == (0, "a test of the reader")
        assert any(LOG in change for change in entry["changes"])
    text = cli.run("audit", finished.directory).stdout
    assert "a test of the reader" in text
    # What is changed after that is a change again.
    finished.log("2n2g", 3, finished.text("2n2g", 5000.0))
    assert collect_campaigns(finished.directory, states=report_states()).exit_code == 4


@pytest.mark.parametrize(("reason", "changed"), [("", True), ("  ", True), ("for nothing", False)])
def test_what_can_not_be_accepted_is_said(finished: Any, reason: str, *, changed: bool) -> None:
    if changed:
        finished.log("2n2g", 3, finished.text("2n2g", 4000.0))
    before = (finished.directory / "measurements.json").read_bytes()
    assert cli.run("audit", finished.directory, "--accept", reason).returncode == 2
    assert (finished.directory / "measurements.json").read_bytes() == before


OTHERWISE: dict[str, dict[str, Any]] = {
    "rule": {"rule": "rate"},
    "window": {"window": Window(4, 8)},
    "iterations": {"window": Window(None, 9)},
    "both": {"rule": "rate", "window": Window(4, 8)},
}


@pytest.mark.parametrize("first", [True, False], ids=["collected-before", "first-collect"])
@pytest.mark.parametrize("case", OTHERWISE)
def test_the_record_is_of_the_default_rule_and_the_protocols_window(
    finished: Any, case: str, *, first: bool
) -> None:
    path = finished.directory / "measurements.json"
    before = path.read_bytes()
    if not first:
        path.unlink()
    result = collect_campaigns(finished.directory, states=report_states(), **OTHERWISE[case])
    assert (result.tables[0].group.rule == "rate") is ("rule" in OTHERWISE[case])
    if first:
        assert path.read_bytes() == before
    code, document = run_audit(finished.directory)
    assert (code, document["data"]["tables"][0]["rule"]) == (0, "clock")
    assert document["data"]["history"] == []


def test_after_a_cancelled_retry_nothing_was_changed(finished: Any) -> None:
    """The attempt that counts is not the newest then, whoever says how that one ended."""
    first, second = finished.campaign.arrays
    again = replace(
        second, name=f"{second.name}.t1", job_id="99", retry=1, first_attempt=1, repeats=(3, 4),
        why=((3, "COMPLETED", "incomplete: …"), (4, "COMPLETED", "incomplete: …")),
    )  # fmt: skip
    built = finished.change(arrays=(first, second, again))

    def cancelled(watched: TrackedCampaign) -> dict[tuple[str, int], RepeatState]:
        repeat_states = dict(report_states()(watched))
        repeat_states[again.name, 3] = RepeatState("CANCELLED", Kind.FAILED, "sacct", attempt=1)
        repeat_states[again.name, 4] = RepeatState("UNKNOWN", Kind.UNKNOWN, "none", attempt=1)
        return repeat_states

    for _ in range(2):
        assert collect_campaigns(built.directory, states=cancelled).exit_code == 0
        code, document = run_audit(built.directory)
        assert (code, document["data"]["status"]) == (0, "intact")


@pytest.mark.parametrize("version", ["now", "old"])
@pytest.mark.parametrize("visible", ["nothing", "start", "log"])
def test_a_status_file_that_comes_late_heals(finished: Any, visible: str, version: str) -> None:
    """Whatever of it, and of the log, was visible when it was first collected."""
    status, log = finished.directory / STATUS, finished.directory / LOG
    (finished.directory / "measurements.json").unlink()
    assert run_audit(finished.directory)[1]["errors"][0]["code"] == "incomplete"
    content = status.read_bytes()
    status.write_bytes(b"".join(content.splitlines(keepends=True)[:2])) if visible == "start" else (
        status.unlink()
    )
    text = log.read_bytes()
    if visible == "nothing":
        log.unlink()
    result = collect_campaigns(finished.directory, states=report_states())
    assert result.exit_code == 4
    assert "exit" in list_codes(map_runs(result)[3])
    if version == "old":
        # One state of each repeat was remembered.
        path = finished.directory / "measurements.json"
        data = json.loads(path.read_text())
        for run in data["runs"]:
            del run["verdicts"]
        path.write_text(json.dumps({**data, "seal": evidence.compute_seal(data)}))
    status.write_bytes(content)
    log.write_bytes(text)
    code, document = run_audit(finished.directory)
    assert (code, document["data"]["status"]) == (5, "stale")
    assert {finding["kind"] for finding in document["data"]["findings"]} <= {"late", "grew"}
    result = collect_campaigns(finished.directory, states=report_states())
    assert (result.exit_code, result.refused) == (0, ())
    assert map_runs(result)[3].throughput == pytest.approx(48)
    assert run_audit(finished.directory)[1]["data"]["status"] == "intact"


def test_a_log_that_was_whole_does_not_come_late(finished: Any) -> None:
    """Only what was missing may come; what was there and short stays what it was."""
    (finished.directory / "measurements.json").unlink()
    finished.log("2n2g", 3, finished.text("2n2g", 4.0, last=11))
    assert collect_campaigns(finished.directory, states=report_states()).exit_code == 4
    finished.log("2n2g", 3, finished.text("2n2g", 4.0))
    result = collect_campaigns(finished.directory, states=report_states())
    assert "changed" in list_codes(map_runs(result)[3])


@pytest.mark.parametrize(
    ("drivers", "groups"),
    [({}, ["n[001-300]"]), ({7: "12.4"}, ["n007", "n[001-006,008-300]"])],
    ids=["equal", "one differs"],
)
def test_text_folds_hundreds_of_nodes(
    build: Any, drivers: dict[int, str], groups: list[str]
) -> None:
    built = build("300n1g", repeats=2)
    built.finish()
    names = [f"n{number:03}" for number in range(1, 301)]
    for repeat in (1, 2):
        facts = [
            node(name, host__cuda_driver=drivers.get(number, "12.2"))
            for number, name in enumerate(names, start=1)
        ]
        write_nodes(built.directory, built.array("300n1g"), repeat, *facts)
    collect_campaigns(built.directory, states=report_states())
    assert len(list((built.directory / "env").iterdir())) == 2
    text = cli.run("audit", built.directory).stdout
    assert all(text.count(f"({group})") == 2 for group in groups)
    assert len(text.splitlines()) < 30
    report = built.directory / "page"
    cli.run("report", built.directory, "--output", report)
    assert (report / "report.md").stat().st_size < 20_000


def test_control_characters_from_anywhere_do_not_reach_the_terminal(finished: Any) -> None:
    escape = "\x1b]0;x\x07"
    write_nodes(finished.directory, finished.array("2n2g"), 3, node("n1", host__cpu=escape))
    (finished.directory / "logs" / f"a{escape}.log").write_text("")
    result = cli.run("audit", finished.directory)
    assert result.returncode == 5
    assert "\x1b" not in result.output
    assert "\x07" not in result.output
