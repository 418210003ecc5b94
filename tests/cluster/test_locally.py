"""hpcbert with the local scheduler: the real commands, queue, training and table, without root."""

import shutil
from dataclasses import replace

import pytest

from hpcbert.campaign import store
from tests.kit.cases import cases, read_constant
from tests.kit.cli import Cli, first_row, run, runs
from tests.kit.logs import START, WORDS, log, stand_in
from tests.kit.paths import SITE
from tests.kit.waiting import until

LOCAL = (*WORDS, "--scheduler", "local", "--precision", "fp32", "--json")
ROOM = 24
# A program for which so many samples have room.
LIMITED = read_constant(__file__, "LIMITED")


@pytest.fixture
def hpcbert(tmp_path):
    return Cli(tmp_path, {"HOME": str(tmp_path), "HPCBERT_RUNS": str(tmp_path / "runs")})


def only_campaign(tmp_path):
    (directory,) = (tmp_path / "runs").iterdir()
    return directory


@pytest.mark.torch
def test_bert_is_trained_and_reduced_to_a_speedup_table(tmp_path):
    folder = tmp_path / "with a space"
    folder.mkdir()
    shutil.copy(SITE, folder)
    hpcbert = Cli(folder, {"XDG_STATE_HOME": str(folder / "state")})
    words = ["--fw", "pytorch", "--nodes", "1", "--gpus-per-node", "2", "--scaling"]
    short = ["--repeats", "1", "--iters", "6", "--skip", "2", "--set", "vocab_size=512"]
    (table,) = hpcbert("submit", *words, *short, "--wait", "--json", status=0).data["tables"]
    assert [row["shape"] for row in table["rows"]] == ["1n1g", "1n2g"]
    for row in table["rows"]:
        assert row["repeats"] == {"ok": 1, "asked": 1}
        assert [run["state"] for run in row["runs"]] == ["COMPLETED"]
    assert (table["rows"][0]["speedup"], table["baseline"]) == (1.0, "1n1g")
    assert len(hpcbert("collect", "--format", "csv", status=0).stdout.splitlines()) == 3
    assert (only_campaign(folder) / "table.json").exists()


def test_each_environment_of_a_file_reaches_the_ranks_and_has_a_table(hpcbert, tmp_path):
    program = stand_in(tmp_path, f'echo "$NCCL_ALGO" >>{tmp_path}/seen')
    file, text = tmp_path / "campaign.toml", read_constant(__file__, "CAMPAIGN")
    file.write_text(text)
    words = ("submit", file, "--python", program, "--scheduler", "local", "--wait", "--json")
    data = hpcbert(*words, status=0).data
    assert sorted((tmp_path / "seen").read_text().split()) == ["Ring", "Tree"]
    medians = {table["variant"]: table["rows"][0]["median"] for table in data["tables"]}
    names = {f"vocab_size=8192,NCCL_ALGO={algorithm}" for algorithm in ("Ring", "Tree")}
    assert set(medians) == names
    assert all(medians.values())
    directories = sorted((tmp_path / "runs").iterdir())
    assert [(directory / "campaign.toml").read_text() for directory in directories] == [text] * 2
    assert {(directory / "note.txt").read_text() for directory in directories} == {"here\n"}


def test_a_baseline_that_lost_all_repeats_holds_the_others_back(hpcbert, tmp_path):
    def list_started():
        paths = (tmp_path / "runs").glob("*/status/*.jsonl")
        return sorted({path.name.split("_")[1] for path in paths if '"step"' in path.read_text()})

    flag = tmp_path / "flag"
    flag.touch()
    program = stand_in(tmp_path, f"if [[ -e {flag} ]]; then exit 7; fi")
    curve = ("--gpus-per-node", "2", "--scaling", "--repeats", "2", "--python", program)
    result = hpcbert(*LOCAL, *curve, "--wait", status=4)
    directory = only_campaign(tmp_path)
    assert list_started() == ["1n1g"]
    message = "held back: baseline bert-tiny_1n1g_fp32_b2 failed"
    row = next(row for row in result.data["tables"][0]["rows"] if row["shape"] == "1n2g")
    details = [reason["detail"] for run in row["runs"] for reason in run["reasons"]]
    assert [message in text for text in details if text.startswith("it is FAILED")] == [True, True]
    assert message in result.stderr
    flag.unlink()
    (tmp_path / "training.log").write_text("")
    hpcbert("retry", directory, "--wait", "--json", status=4)
    assert list_started() == ["1n1g", "1n2g"]
    arrays = store.read_manifest(directory).arrays
    assert [array.point.shape.gpus for array in arrays if array.retry][:2] == [1, 2]


@pytest.mark.usefixtures("empty_directory", "without_slurm")
@cases
def test_a_curve_is_held_back_by_default(words, holds):
    gpus = () if "--shapes" in words else ("--gpus-per-node", "2")
    result = run("submit", "--dry-run", "--json", *gpus, *words)
    first, *later_arrays = result.data["arrays"]
    assert "\nbaseline=" not in first["script_text"]
    assert {"\nbaseline=" in array["script_text"] for array in later_arrays} == {holds}


def limited_program(folder, bad=""):
    path = stand_in(folder, f"{bad}\n{LIMITED}")
    # Of the size that it has room for; a probe's is not looked at.
    (folder / "training.log").write_text(log("1n1g", 5.0 * ROOM, batch=ROOM, start=START))
    return path


def test_the_table_shows_the_largest_size(hpcbert, tmp_path):
    words = ("--python", limited_program(tmp_path), "--batch-size", "max", "--repeats", "2")
    (table,) = hpcbert(*LOCAL, *words, "--wait", status=0).data["tables"]
    directory = only_campaign(tmp_path)
    assert (table["batch_size_per_device"], table["largest"]) == (ROOM, True)
    assert [entry["valid"] for entry in table["rows"][0]["runs"]] == [True, True]
    assert f"batch size max ({ROOM}) per device" in hpcbert("collect", directory).stdout
    saved = tmp_path / "saved.json"
    saved.write_text(hpcbert("collect", directory, "--format", "json").stdout)
    assert f"bmax ({ROOM})" in hpcbert("compare", saved, directory).output
    again = hpcbert("submit", "--like", directory, "--scheduler", "local", "--dry-run", "--json")
    assert again.data["arrays"][0]["name"].endswith("bmax"), again.output
    assert again.data["arrays"][0]["batch_size_per_device"] is None
    hpcbert("audit", directory, status=0)
    search = directory / store.read_manifest(directory).arrays[0].point.search
    search.write_text(search.read_text().replace(f'"size":{ROOM}}}', f'"size":{ROOM + 8}}}'))
    spoilt = hpcbert("collect", directory, "--json", status=4)
    assert f"it ran with {ROOM} samples per device" in spoilt.output
    hpcbert("audit", directory, status=5)


def test_a_curves_common_size_is_that_of_its_largest_shape(hpcbert, tmp_path):
    """Two ranks have room for 16, one has room for 24: both rows are in one table at 16."""
    for gpus in (1, 2):
        text = log(f"1n{gpus}g", 80.0 * gpus, batch=16, start=START)
        (tmp_path / f"log.{gpus}").write_text(text)
    common = read_constant(__file__, "COMMON").replace("FOLDER", str(tmp_path))
    words = ("--shapes", "1n1g,1n2g", "--batch-size", "max-common", "--repeats", "1")
    python = limited_program(tmp_path, common)
    (table,) = hpcbert(*LOCAL, "--python", python, *words, "--wait", status=0).data["tables"]
    assert (table["batch_size_per_device"], table["largest"]) == (16, True)
    assert [row["shape"] for row in table["rows"]] == ["1n1g", "1n2g"]
    assert table["rows"][1]["speedup"] == pytest.approx(2)
    directory = only_campaign(tmp_path)
    again = hpcbert("submit", "--like", directory, "--scheduler", "local", "--dry-run", "--json")
    shapes = [str(array.point.shape) for array in store.read_manifest(directory).arrays]
    assert shapes == [array["shape"] for array in again.data["arrays"]] == ["1n2g", "1n1g"]


def test_a_search_that_stops_says_why_in_the_table(hpcbert, tmp_path):
    bad = "echo \"ModuleNotFoundError: No module named 'torch'\"; exit 1"
    words = ("--python", limited_program(tmp_path, bad), "--batch-size", "max", "--repeats", "1")
    (table,) = hpcbert(*LOCAL, *words, "--wait", status=4).data["tables"]
    assert (table["batch_size_per_device"], table["largest"]) == (0, True)
    (run,) = table["rows"][0]["runs"]
    reasons = {reason["code"]: reason["detail"] for reason in run["reasons"]}
    assert "No module named 'torch'" in reasons["search"]
    assert "batch size max per device" in hpcbert("collect", only_campaign(tmp_path)).stdout


@pytest.mark.usefixtures("empty_directory", "without_slurm")
@cases
def test_a_size_that_is_none_or_unclear_is_refused(words, keyword):
    assert keyword in run("submit", "--dry-run", *words, status=2).output


@pytest.mark.parametrize("together", [False, True])
def test_only_what_failed_runs_again_and_every_attempt_stays(hpcbert, tmp_path, together):
    flag = tmp_path / "flag"
    flag.touch()
    second = "" if together else "$SLURM_ARRAY_TASK_ID == 2 && "
    program = stand_in(tmp_path, f"if [[ {second}-e {flag} ]]; then exit 7; fi")
    words = ["--python", program, "--repeats", "2"]
    words += ["--repeats-in", "one-job"] if together else ["--wait", "--max-retries", "1"]
    result = hpcbert(*LOCAL, *words)
    directory = only_campaign(tmp_path)
    hpcbert("monitor", directory, status=0)
    if not together:
        # submit retries by itself until the limit.
        assert "submitted again as job local-" in result.stderr
        assert [attempt["attempt"] for attempt in runs(result.document)[2]["attempts"]] == [0, 1]
        spent = hpcbert("retry", directory, "--max-retries", "1", "--json", status=4)
        assert spent.data["campaigns"][0]["spent"][0]["repeat"] == 2
    planned, bad = hpcbert("retry", directory, "--dry-run", "--json"), [1, 2] if together else [2]
    (array,) = planned.data["campaigns"][0]["arrays"]
    states = {repeat["repeat"]: repeat["state"] for repeat in array["repeats"]}
    assert states == dict.fromkeys(bad, "FAILED")
    assert array["job_id"] is None
    flag.unlink()
    result = hpcbert("retry", directory, "--wait", "--json", status=0)
    repeats = runs(result.document)
    # A busy machine may spoil an attempt's clock: then there is another.
    assert [number for number, run in repeats.items() if run["attempt"]] == bad
    first, *_, last = repeats[2]["attempts"]
    assert (first["attempt"], first["state"], last["state"]) == (0, "FAILED", "COMPLETED")
    assert "exit status 7" in first["detail"]
    assert first["log"] != last["log"]
    assert "repeat 2 attempt 0" in hpcbert("collect", directory).stdout
    assert "has nothing to retry" in hpcbert("retry", directory, status=0).stdout


def test_what_runs_is_not_retried_nor_what_was_moved(hpcbert, tmp_path):
    """And a submission that was interrupted is taken up."""
    wait = f"while [[ ! -e {tmp_path}/go ]]; do sleep 0.1; done"
    program = stand_in(tmp_path, f"if [[ $SLURM_ARRAY_TASK_ID == 1 ]]; then exit 7; fi; {wait}")
    hpcbert(*LOCAL, "--python", program, "--repeats", "2", status=0)
    directory = only_campaign(tmp_path)
    campaign = store.read_manifest(directory)
    (array,) = campaign.arrays
    status = directory / array.status(1)
    until(lambda: status.exists() and "finished" in status.read_text(), "it never finished")
    assert "1 repeat still waits or runs" in hpcbert("retry", directory, status=2).stderr
    (tmp_path / "go").touch()
    hpcbert("monitor", directory, status=0)
    lost = replace(array, state="intended", job_id="", submitted="")
    store.write_manifest(directory, replace(campaign, arrays=(lost,)))
    hpcbert("submit", "--resume", directory, status=0)
    (resumed,) = store.read_manifest(directory).arrays
    assert resumed.job_id == array.job_id
    moved = directory.rename(tmp_path / "elsewhere")
    assert "was moved or copied" in hpcbert("retry", moved, status=2).stderr
    assert first_row(hpcbert("collect", moved, "--json").document)["repeats"]["ok"] == 1
