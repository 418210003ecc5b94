"""Audit: what was changed since is named, what a campaign does by itself is not a change."""

import json
import os
import shutil
from dataclasses import replace
from hashlib import sha256

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcbert.campaign import evidence
from hpcbert.logs.setting import Window
from hpcbert.slurm.states import Kind, RepeatState
from tests.kit import campaigns, cli, scripts
from tests.kit.cases import ANY_JSON, cases, read_constant

pytestmark = pytest.mark.slow

LOG = "logs/pytorch/bert/bz4/2n2g/bert_b4_fp32_3.log"
STATUS = "status/bert-tiny_2n2g_fp32_b4.3.jsonl"
RECORD = "measurements.json"


def audit(built, *words):
    return cli.run("audit", built.directory, *words, "--json")


def list_findings(result):
    return {(finding["kind"], finding["path"]) for finding in result.data["findings"]}


def collect(built, states=None, **request):
    states = states or campaigns.report_states()
    return campaigns.collect_campaigns(built.directory, states=states, **request)


def map_runs(result):
    """Return the runs of 2n2g, and the codes against each, by their repeats."""
    runs = {run.repeat: run for run in result.tables[0].rows[-1].runs}
    codes = {repeat: {reason.code for reason in run.reasons} for repeat, run in runs.items()}
    return runs, codes


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    built = campaigns.campaign(tmp_path_factory.mktemp("runs"), "1n1g", "2n2g", repeats=3).finish()
    for array in built.campaign.arrays:
        (built.directory / array.script).write_text("#!/bin/bash\ntrue\n")
        for repeat in array.repeats:
            nodes = map(campaigns.node, ("n1", "n2")[: array.point.shape.nodes])
            campaigns.write_nodes(built.directory, array, repeat, *nodes)
    assert campaigns.find_exit_code(collect(built)) == 0
    return built


@pytest.fixture
def finished(recorded, tmp_path):
    """A campaign of two points and three repeats, collected when it was over."""
    name = recorded.directory.name
    return campaigns.Built(shutil.copytree(recorded.directory, tmp_path / name), recorded.campaign)


def test_an_untouched_campaign_is_intact_and_every_cell_has_its_logs(finished, tmp_path):
    result = audit(finished)
    assert (result.returncode, result.data["status"]) == (0, "intact")
    runs = result.data["tables"][0]["rows"][1]["runs"]
    assert len(runs) == 3
    for run in runs:
        proof = run["evidence"]
        assert (run["state_source"], proof["job"]) == ("sacct", f"71_{run['repeat']}")
        assert run["nodes"] == [record["node"] for record in proof["nodes"]] == ["n1", "n2"]
        assert all("A100" in record["summary"] for record in proof["nodes"])
        files = [proof["log"], proof["script"], proof["status"], proof["nodes"][1]["file"]]
        for file in files:
            content = (finished.directory / file["path"]).read_bytes()
            digest = sha256(content).hexdigest()
            assert (file["bytes"], file["sha256"]) == (len(content), digest)
    text = cli.run("audit", finished.directory).stdout
    assert sha256((finished.directory / LOG).read_bytes()).hexdigest() in text
    assert "2n2g  44.00 samples/s, median of 3/3" in text
    assert "COMPLETED (sacct)" in text
    # What a person, or the local queue, keeps there is no evidence; a copy has it all.
    (finished.directory / "report").mkdir()
    for name in ("notes.md", "report/table.html", "slurm/local.json", "slurm/local.out"):
        (finished.directory / name).write_text("x")
    # The same content at another time is the same.
    os.utime(finished.directory / LOG, (1, 1))
    before = (finished.directory / RECORD).read_bytes()
    assert collect(finished).warnings == ()
    assert (finished.directory / RECORD).read_bytes() == before
    copy = shutil.copytree(finished.directory, tmp_path / "copy")
    # A directory needs no site, whatever it says.
    (tmp_path / "site.toml").write_text("schema = 99\n")
    broken = ("--site", tmp_path / "site.toml")
    assert audit(campaigns.Built(copy, finished.campaign), *broken).data["status"] == "intact"


@cases
def test_what_was_changed_is_named_and_nothing_is_recorded_over_it(
    finished, name, damage, spoilt, kind
):
    path = finished.directory / name
    scripts.bash("-c", damage, "damage", path, cwd=finished.directory)
    contents = {path: path.read_bytes() for path in finished.directory.glob("*.json")}
    result = audit(finished)
    assert (result.returncode, result.data["status"]) == (5, "changed")
    assert (kind, name) in list_findings(result)
    assert name in result.error["message"]
    collected = collect(finished)
    assert campaigns.find_exit_code(collected) == 4
    assert any(name in reason and "--accept" in reason for reason in collected.refused)
    runs, codes = map_runs(collected)
    assert tuple(number for number, run in runs.items() if not run.valid) == spoilt
    for number in spoilt:
        assert "changed" in codes[number]
        assert runs[number].throughput is None
    assert {path: path.read_bytes() for path in contents} == contents


def test_a_number_that_was_improved_is_found(finished):
    path = finished.directory / "table.json"
    text = path.read_text()
    data = json.loads(text)
    data["tables"][0]["rows"][1]["median"] *= 2
    path.write_text(json.dumps(data))
    result = audit(finished)
    assert (result.returncode, list_findings(result)) == (5, {("changed", "table.json")})
    details = [finding["detail"] for finding in result.data["findings"]]
    assert "tables[0].rows[1].median differs from what the logs give" in details
    path.unlink()
    assert ("missing", "table.json") in list_findings(audit(finished))
    path.write_text(text)
    record = finished.directory / RECORD
    data = json.loads(record.read_text())
    data["runs"][4]["throughput"] *= 2
    record.write_text(json.dumps(data))
    assert {kind for kind, _ in list_findings(audit(finished))} == {"changed", "seal"}
    collected = collect(finished)
    assert campaigns.find_exit_code(collected) == 4
    assert all("changed" in codes for codes in map_runs(collected)[1].values())
    # It does not hide what else was changed.
    log = finished.directory / LOG
    content = log.read_bytes()
    log.write_bytes(content + b"more")
    assert {("seal", RECORD), ("changed", LOG)} <= list_findings(audit(finished))
    log.write_bytes(content)
    # The record's own digest may be made again; the number doesn't follow from its log.
    record.write_text(json.dumps({**data, "seal": evidence.compute_seal(data)}))
    assert list_findings(audit(finished)) == {("changed", LOG.replace("_3", "_2"))}


def test_a_seal_that_was_noted_elsewhere_finds_a_record_that_was_made_again(finished):
    seal = audit(finished).data["seal"]
    assert audit(finished, "--expect", seal[:12]).returncode == 0
    finished.log("2n2g", 3, finished.text("2n2g", 4000.0))
    (finished.directory / RECORD).unlink()
    collect(finished)
    assert audit(finished).returncode == 0
    result = audit(finished, "--expect", seal)
    assert result.returncode == 5
    assert ("seal", RECORD) in list_findings(result)
    for word in ("00", "5f2c1e9", "5f2c1e9z", "f" * 65):
        result = audit(finished, "--expect", word)
        assert (result.returncode, result.error["code"]) == (2, "usage")
        assert "8 of its 64" in result.error["hint"]


def test_a_requeue_makes_the_record_stale_and_collect_renews_it_with_a_history(finished):
    finished.started("2n2g", 3, attempt=1)
    finished.log("2n2g", 3, finished.text("2n2g", 60.0), attempt=1)
    result = audit(finished)
    assert (result.returncode, result.data["status"]) == (5, "stale")
    log = LOG.replace(".log", ".r1.log")
    assert list_findings(result) == {("grew", STATUS), ("added", log)}
    # It does not hide a change.
    other = finished.log_path("2n2g", 2)
    text = other.read_text()
    other.write_text(text.replace("1", "2"))
    assert audit(finished).data["status"] == "changed"
    other.write_text(text)
    # While it waits, the attempt that completed counts, and nothing is sealed.
    collect(finished, campaigns.report_states(default="PENDING", source="squeue"))
    assert audit(finished).data["status"] == "stale"
    finished.ended("2n2g", 3, attempt=1)
    assert collect(finished).warnings == ()
    result = audit(finished)
    assert result.returncode == 0
    (entry,) = result.data["history"]
    assert len(entry["seal"]) == 64
    assert any(STATUS in change for change in entry["changes"])
    assert result.data["tables"][0]["rows"][1]["runs"][2]["attempt"] == 1
    # Only what was missing may come late; what was there and short stays what it was.
    (finished.directory / RECORD).unlink()
    finished.log("2n2g", 3, finished.text("2n2g", 4.0, last=11), attempt=1)
    assert campaigns.find_exit_code(collect(finished)) == 4
    finished.log("2n2g", 3, finished.text("2n2g", 4.0), attempt=1)
    assert "changed" in map_runs(collect(finished))[1][3]


def test_what_was_added_is_named_and_hides_no_changed_manifest(finished):
    log = LOG.replace("_3.log", "_4.log")
    shutil.copy(finished.directory / LOG, finished.directory / log)
    result = audit(finished)
    assert (result.data["status"], list_findings(result)) == ("changed", {("added", log)})
    (finished.directory / log).unlink()
    array = finished.array("2n2g")
    again = replace(array, name=f"{array.name}-again", job_id="99")
    finished.change(arrays=(*finished.campaign.arrays, again))
    (finished.directory / "scripts" / "again.sbatch").write_text("")
    result = audit(finished)
    findings = {("grew", "manifest.json"), ("added", "scripts/again.sbatch")}
    assert (result.data["status"], list_findings(result)) == ("stale", findings)
    first, second = finished.campaign.arrays
    finished.change(user="somebody else")
    assert ("changed", "manifest.json") in list_findings(audit(finished))
    new = replace(second, name="x", repeats=(3,))
    finished.change(arrays=(replace(first, job_id="99"), second, new))
    assert ("changed", "manifest.json") in list_findings(audit(finished))
    (finished.directory / "recipe.toml").unlink()
    assert ("missing", "recipe.toml") in list_findings(audit(finished))


def test_a_change_is_accepted_with_a_reason_that_stays_on_record(finished):
    reason = "a test of the reader"
    record = finished.directory / RECORD
    before = record.read_bytes()
    assert audit(finished, "--accept", reason).returncode == 2  # there is no change
    finished.log("2n2g", 3, finished.text("2n2g", 4000.0))
    for blank in ("", "  "):
        assert audit(finished, "--accept", blank).returncode == 2
    assert campaigns.find_exit_code(collect(finished)) == 4
    assert record.read_bytes() == before
    result = audit(finished, "--accept", reason)
    assert (result.returncode, result.data["status"]) == (0, "intact")
    for _ in range(2):
        collected = collect(finished)
        assert campaigns.find_exit_code(collected) == 0
        assert map_runs(collected)[0][3].throughput == pytest.approx(4000, rel=1e-3)
        assert any(reason in warning and LOG in warning for warning in collected.warnings)
        (entry,) = audit(finished).data["history"]
        assert entry["accepted"] == reason
        assert any(LOG in change for change in entry["changes"])
    assert reason in cli.run("audit", finished.directory).stdout
    # What is changed after that is a change again.
    finished.log("2n2g", 3, finished.text("2n2g", 5000.0))
    assert campaigns.find_exit_code(collect(finished)) == 4


def test_the_record_is_of_the_default_rule_and_the_protocols_window(finished):
    path = finished.directory / RECORD
    before = path.read_bytes()
    for request in ({"rule": "rate"}, {"window": Window(4, 8)}):
        collected = collect(finished, **request)
        assert collected.tables[0].group.rule == request.get("rule", "clock")
        assert path.read_bytes() == before
        path.unlink()
        collect(finished, **request)
        result = audit(finished)
        assert (result.returncode, result.data["tables"][0]["rule"]) == (0, "clock")
        assert result.data["history"] == []
        path.write_bytes(before)


def test_after_a_cancelled_retry_nothing_was_changed(finished):
    """The attempt that counts is not the newest then, whoever says how that one ended."""
    first, second = finished.campaign.arrays
    name = f"{second.name}.t1"
    again = replace(second, name=name, job_id="99", retry=1, first_attempt=1, repeats=(2, 3))
    built = finished.change(arrays=(first, second, again))

    def cancelled(watched):
        return {
            **campaigns.report_states()(watched),
            (name, 2): RepeatState("CANCELLED", Kind.FAILED, "sacct", attempt=1),
            (name, 3): RepeatState("UNKNOWN", Kind.UNKNOWN, "none", attempt=1),
        }

    for _ in range(2):
        assert campaigns.find_exit_code(collect(built, cancelled)) == 0
        assert audit(built).data["status"] == "intact"


@pytest.mark.parametrize("visible", ["nothing", "start", "log", "log, with an old record"])
def test_a_status_file_that_comes_late_heals(finished, visible):
    """`visible`: of it, and of the log, when it was first collected."""
    record = finished.directory / RECORD
    record.unlink()
    assert audit(finished).error["code"] == "incomplete"
    paths = [finished.directory / name for name in (STATUS, LOG)]
    contents = [path.read_bytes() for path in paths]
    for path in paths if visible == "nothing" else paths[:1]:
        path.unlink()
    if visible == "start":
        paths[0].write_bytes(b"".join(contents[0].splitlines(keepends=True)[:2]))
    result = collect(finished)
    assert campaigns.find_exit_code(result) == 4
    assert "exit" in map_runs(result)[1][3]
    if "old" in visible:  # One state of each repeat was remembered.
        data = json.loads(record.read_text())
        for run in data["runs"]:
            del run["verdicts"]
        record.write_text(json.dumps({**data, "seal": evidence.compute_seal(data)}))
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    late = audit(finished)
    assert (late.returncode, late.data["status"]) == (5, "stale")
    assert {kind for kind, _ in list_findings(late)} <= {"late", "grew"}
    result = collect(finished)
    assert (campaigns.find_exit_code(result), result.refused) == (0, ())
    assert map_runs(result)[0][3].throughput == pytest.approx(48)
    assert audit(finished).data["status"] == "intact"


def test_text_folds_hundreds_of_nodes(build):
    built = build("300n1g", repeats=1).finish()
    facts = [
        campaigns.node(f"n{number:03}", host__cuda_driver="12.4" if number == 7 else "12.2")
        for number in range(1, 301)
    ]
    campaigns.write_nodes(built.directory, built.array("300n1g"), 1, *facts)
    collect(built)
    text = cli.run("audit", built.directory).stdout
    assert all(text.count(f"({group})") == 1 for group in ("n007", "n[001-006,008-300]"))
    assert len(text.splitlines()) < 30
    cli.run("report", built.directory, "--output", built.directory / "page")
    assert (built.directory / "page" / "report.md").stat().st_size < 20_000


def test_a_damaged_record_is_answered(finished):
    path = finished.directory / RECORD
    text = path.read_text()
    for keys, value in read_constant(__file__, "DAMAGES"):
        place = data = json.loads(text)
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = json.loads(value)
        path.write_text(json.dumps(data))
        assert audit(finished).returncode == 5, keys
    for text in ("", "[]", "{", '{"evidence": 3}', '{"evidence": {}}'):
        path.write_text(text)
        assert audit(finished).returncode in {2, 4}


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(data=st.data(), sealed=st.booleans())
def test_any_change_of_the_record_is_answered(recorded, finished, data, sealed):
    text = (recorded.directory / RECORD).read_text()
    before, after = json.loads(text), json.loads(text)
    inner, key = after, data.draw(st.sampled_from(sorted(after)))
    while inner[key] and isinstance(inner[key], (dict, list)) and data.draw(st.integers(0, 3)):
        inner = inner[key]
        keys = sorted(inner) if isinstance(inner, dict) else range(len(inner))
        key = data.draw(st.sampled_from(keys))
    inner[key] = data.draw(ANY_JSON)
    if sealed:
        after["seal"] = evidence.compute_seal(after)
    (finished.directory / RECORD).write_text(json.dumps(after))
    result = cli.run("audit", finished.directory)
    same = evidence.encode_canonical(after) == evidence.encode_canonical(before)
    assert result.returncode in ({0} if same else {0, 4, 5} if sealed else {4, 5})
    assert result.returncode == 0 or "error: " in result.stderr
