"""Audit: what was changed since is named, what a campaign does by itself is no crime."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from hpcbert import store
from hpcbert.cli.audit import command
from hpcbert.flows import evidence
from hpcbert.flows.audit import audit
from hpcbert.flows.collect import Request, collect
from hpcbert.slurm.ladder import with_witness
from hpcbert.slurm.states import RepeatState, parse, witness
from tests.environment.kit import leave, node

if TYPE_CHECKING:
    from collections.abc import Callable


def sacct(directory: Path, campaign: Any) -> dict[tuple[str, int], RepeatState]:
    found = {}
    for array in campaign.arrays:
        for number in array.repeats:
            state = RepeatState("COMPLETED", parse("COMPLETED").kind, "sacct")
            seen = witness(store.read_status(directory, array, number))
            found[array.name, number] = with_witness(state, seen)
    return found


def pending(directory: Path, campaign: Any) -> dict[tuple[str, int], RepeatState]:
    return {
        (array.name, number): RepeatState("PENDING", "waiting", "squeue")
        for array in campaign.arrays
        for number in array.repeats
    }


def gathered(directory: Path, states: Any = sacct, **request: Any) -> Any:
    nothing: Any = None
    return collect([directory], Request(**request), states=states, frameworks=(), load=nothing)


def audited(directory: Path, *words: str) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(command, [str(directory), *words, "--json"], catch_exceptions=False)
    document: dict[str, Any] = json.loads(result.stdout)
    assert document["exit_code"] == result.exit_code
    return result.exit_code, document


def told(document: dict[str, Any]) -> set[tuple[str, str]]:
    return {(one["kind"], one["path"]) for one in document["data"]["findings"]}


@pytest.fixture
def finished(build: Any) -> Any:
    made = build("1n1g", "2n2g")
    for repeat, rate in enumerate((10.0, 11.0, 12.0, 13.0, 14.0), start=1):
        for shape, times, nodes in (("1n1g", 1, ("n1",)), ("2n2g", 4, ("n1", "n2"))):
            made.complete(shape, repeat, times * rate)
            leave(made.directory, made.array(shape), repeat, *map(node, nodes))
            script = made.directory / made.array(shape).script
            script.write_text("#!/bin/bash\n")
    assert gathered(made.directory).exit_code == 0
    return made


def test_an_untouched_campaign_is_intact_and_every_cell_has_its_logs(finished: Any) -> None:
    code, document = audited(finished.directory)
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
        assert (proof["log"]["bytes"], proof["log"]["sha256"]) == evidence.digest(log)
        assert run["state_source"] == "sacct"
        assert run["nodes"] == ["n1", "n2"]
        assert [one["node"] for one in proof["nodes"]] == ["n1", "n2"]
        assert all(one["file"]["sha256"] and "A100" in one["summary"] for one in proof["nodes"])
        assert proof["script"]["sha256"]
        assert proof["status"]["sha256"]
        assert proof["job"] == f"71_{run['repeat']}"


def test_people_see_the_digests_too(finished: Any) -> None:
    text = CliRunner().invoke(command, [str(finished.directory)], catch_exceptions=False).stdout
    log = finished.directory / "logs/pytorch/bert/bz4/2n2g/bert_b4_fp32_3.log"
    assert f"{evidence.digest(log)[1]}" in text
    assert "2n2g  48.00 samples/s, median of 5/5" in text
    assert "COMPLETED (sacct)" in text


def test_collecting_again_changes_nothing(finished: Any) -> None:
    path = finished.directory / "measurements.json"
    before = path.read_bytes()
    assert gathered(finished.directory).warnings == ()
    assert path.read_bytes() == before


LOG = "logs/pytorch/bert/bz4/2n2g/bert_b4_fp32_3.log"
STATUS = "status/bert-tiny_2n2g_fp32_b4.3.jsonl"
ENV = "env/bert-tiny_2n2g_fp32_b4.3.0.n2.json"
SCRIPT = "scripts/bert-tiny_2n2g_fp32_b4.sbatch"
RECORDED = (LOG, STATUS, ENV, SCRIPT, "recipe.toml", "table.json")


@pytest.mark.parametrize("name", RECORDED)
def test_a_missing_file_is_named(finished: Any, name: str) -> None:
    (finished.directory / name).unlink()
    code, document = audited(finished.directory)
    assert code == 5
    assert ("missing", name) in told(document)
    assert document["errors"][0]["code"] == "check"
    assert name in document["errors"][0]["message"]


def changed_byte(path: Path) -> None:
    """Change one byte and nothing else, not even the time."""
    times = path.stat()
    raw = bytearray(path.read_bytes())
    place = raw.index(b"2") if b"2" in raw else 3
    raw[place] ^= 1
    path.write_bytes(raw)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize("name", RECORDED)
def test_a_changed_byte_is_found(finished: Any, name: str) -> None:
    changed_byte(finished.directory / name)
    code, document = audited(finished.directory)
    assert code == 5
    assert document["data"]["status"] == "changed"
    assert ("changed", name) in told(document)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
@pytest.mark.parametrize("name", [LOG, STATUS, ENV])
def test_a_truncated_file_is_found(finished: Any, name: str, share: float) -> None:
    path = finished.directory / name
    os.truncate(path, int(path.stat().st_size * share))
    code, document = audited(finished.directory)
    assert code == 5
    assert ("changed", name) in told(document)


def test_an_editors_line_end_at_the_end_of_a_log_is_found(finished: Any) -> None:
    with (finished.directory / LOG).open("a") as file:
        file.write("\n")
    assert ("changed", LOG) in told(audited(finished.directory)[1])


def test_a_changed_manifest_is_found(finished: Any) -> None:
    finished.change(user="somebody else")
    code, document = audited(finished.directory)
    assert code == 5
    assert ("changed", "manifest.json") in told(document)


def test_a_changed_array_is_found_although_another_was_added(finished: Any) -> None:
    first, second = finished.campaign.arrays
    new = replace(second, name="x", repeats=(3,))
    finished.change(arrays=(replace(first, job_id="99"), second, new))
    assert ("changed", "manifest.json") in told(audited(finished.directory)[1])


def test_a_number_that_was_improved_in_the_table_is_found(finished: Any) -> None:
    path = finished.directory / "table.json"
    data = json.loads(path.read_text())
    data["tables"][0]["rows"][1]["median"] *= 2
    path.write_text(json.dumps(data))
    code, document = audited(finished.directory)
    assert code == 5
    details = [one["detail"] for one in document["data"]["findings"]]
    assert "tables[0].rows[1].median is not what the logs give" in details


@pytest.mark.parametrize("also", ["seal", "digest"])
def test_numbers_that_were_improved_in_the_record_are_found(finished: Any, also: str) -> None:
    """Even where whoever did it made the record's own digest anew."""
    path = finished.directory / "measurements.json"
    data = json.loads(path.read_text())
    data["runs"][7]["throughput"] *= 2
    if also == "seal":
        data["seal"] = evidence.seal(data)
    path.write_text(json.dumps(data))
    code, document = audited(finished.directory)
    assert code == 5
    kinds = {one["kind"] for one in document["data"]["findings"]}
    assert kinds == ({"changed"} if also == "seal" else {"changed", "seal"})


def test_a_seal_that_was_noted_elsewhere_finds_a_record_that_was_made_anew(finished: Any) -> None:
    noted = audited(finished.directory)[1]["data"]["seal"]
    assert audited(finished.directory, "--expect", noted[:12])[0] == 0
    finished.log("2n2g", 3, finished.text("2n2g", 4000.0))
    (finished.directory / "measurements.json").unlink()
    gathered(finished.directory)
    assert audited(finished.directory)[0] == 0
    code, document = audited(finished.directory, "--expect", noted)
    assert code == 5
    assert ("seal", "measurements.json") in told(document)


def test_an_added_log_is_named(finished: Any) -> None:
    name = LOG.replace("_3.log", "_6.log")
    shutil.copy(finished.directory / LOG, finished.directory / name)
    code, document = audited(finished.directory)
    assert code == 5
    assert told(document) == {("added", name)}


def test_what_a_person_keeps_beside_it_is_theirs(finished: Any) -> None:
    (finished.directory / "notes.md").write_text("x")
    (finished.directory / "report").mkdir()
    (finished.directory / "report" / "table.html").write_text("x")
    assert audited(finished.directory)[0] == 0


@pytest.mark.parametrize("place", [LOG, ENV, STATUS, "recipe.toml", "table.json"])
def test_a_pipe_in_a_files_place_is_answered(finished: Any, place: str) -> None:
    path = finished.directory / place
    path.unlink()
    os.mkfifo(path)
    code, document = audited(finished.directory)
    assert code == 5
    assert ("changed", place) in told(document)


def test_a_requeue_makes_the_record_stale_and_collect_renews_it_with_a_history(
    finished: Any,
) -> None:
    finished.started("2n2g", 3, attempt=1)
    finished.log("2n2g", 3, finished.text("2n2g", 60.0), attempt=1)
    code, document = audited(finished.directory)
    assert code == 5
    assert document["data"]["status"] == "stale"
    attempt = LOG.replace(".log", ".r1.log")
    assert told(document) == {("grew", STATUS), ("added", attempt)}
    # While it waits, the attempt that completed counts, and nothing is sealed.
    gathered(finished.directory, pending)
    assert audited(finished.directory)[1]["data"]["status"] == "stale"
    finished.ended("2n2g", 3, attempt=1)
    made = gathered(finished.directory)
    assert made.warnings == ()
    code, document = audited(finished.directory)
    assert code == 0
    (entry,) = document["data"]["history"]
    assert len(entry["seal"]) == 64
    assert any(STATUS in one for one in entry["changes"])
    assert document["data"]["tables"][0]["rows"][1]["runs"][2]["attempt"] == 1


def test_an_array_that_was_added_makes_the_record_stale(finished: Any) -> None:
    array = finished.array("2n2g")
    new = replace(array, name=f"{array.name}-again", job_id="99")
    again = finished.change(arrays=(*finished.campaign.arrays, new))
    (again.directory / "scripts" / "again.sbatch").write_text("")
    code, document = audited(finished.directory)
    assert code == 5
    assert document["data"]["status"] == "stale"
    assert told(document) == {("grew", "manifest.json"), ("added", "scripts/again.sbatch")}


def test_the_local_queues_own_files_are_no_evidence(finished: Any) -> None:
    for name in ("local.json", "local.out"):
        (finished.directory / "slurm" / name).write_text("x")
    assert audited(finished.directory)[0] == 0


def test_a_changed_log_stays_a_change_beside_a_requeue(finished: Any) -> None:
    finished.started("2n2g", 4, attempt=1)
    changed_byte(finished.directory / LOG)
    assert audited(finished.directory)[1]["data"]["status"] == "changed"


def test_recording_anew_over_a_changed_log_is_said_and_stays_on_record(finished: Any) -> None:
    finished.log("2n2g", 3, finished.text("2n2g", 4000.0))
    made = gathered(finished.directory)
    assert any(LOG in warning and "changed since" in warning for warning in made.warnings)
    code, document = audited(finished.directory)
    assert code == 0
    assert any(LOG in one for one in document["data"]["history"][0]["changes"])


def test_another_rule_is_recorded_and_audited_by(finished: Any) -> None:
    gathered(finished.directory, rule="rate")
    code, document = audited(finished.directory)
    assert code == 0
    assert document["data"]["tables"][0]["rule"] == "rate"
    assert len(document["data"]["history"]) == 1


def test_a_copy_elsewhere_is_audited_too(finished: Any, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(finished.directory, copy)
    assert audit(copy).status == "intact"


def test_a_campaign_that_still_runs_has_no_evidence(build: Any) -> None:
    made = build("1n1g")
    gathered(made.directory, pending)
    code, document = audited(made.directory)
    assert code == 4
    assert document["errors"][0]["code"] == "incomplete"


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data.update(runs=3),
        lambda data: data.update(runs=[{}]),
        lambda data: data.update(rule=["x"]),
        lambda data: data["evidence"].update(window=[]),
        lambda data: data["evidence"].update(history=3),
        lambda data: data["evidence"].update(manifest=None),
        lambda data: data["evidence"]["files"].update({LOG: None}),
        lambda data: data["evidence"]["files"].update({"../../etc/passwd": {"bytes": 1}}),
        lambda data: data["runs"][0].update(scheduler={"nodes": [1], "x": 2}),
    ],
)
def test_a_damaged_record_is_answered(finished: Any, damage: Callable[[Any], None]) -> None:
    path = finished.directory / "measurements.json"
    data = json.loads(path.read_text())
    damage(data)
    path.write_text(json.dumps(data))
    assert audited(finished.directory)[0] == 5


@pytest.mark.parametrize("text", ["", "[]", "{", '{"evidence": 3}', '{"evidence": {}}'])
def test_a_record_that_is_none_is_refused(finished: Any, text: str) -> None:
    (finished.directory / "measurements.json").write_text(text)
    assert audited(finished.directory)[0] in {2, 4}


def test_control_characters_from_anywhere_do_not_reach_the_terminal(finished: Any) -> None:
    escape = "\x1b]0;x\x07"
    leave(finished.directory, finished.array("2n2g"), 3, node("n1", host__cpu=escape))
    (finished.directory / "logs" / f"a{escape}.log").write_text("")
    result = CliRunner().invoke(command, [str(finished.directory)], catch_exceptions=False)
    assert result.exit_code == 5
    assert "\x1b" not in result.output
    assert "\x07" not in result.output
