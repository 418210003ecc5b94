"""What submit, plan and render are asked for: typed, or in a campaign.toml; what is refused by name."""

import re

import click
import pytest

from hpcbert.cli.submit import submit
from hpcbert.model import parse_precision
from tests.kit.cases import cases, read_constant
from tests.kit.cli import run

pytestmark = pytest.mark.usefixtures("empty_directory", "without_slurm")

FILE = read_constant(__file__, "FILE")
DRY = ("--scheduler", "slurm", "--dry-run", "--json")
PLAN = ("plan", "--scheduler", "local", "--device", "cpu", "--json")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "campaign.toml"
    path.write_text(FILE)
    return path


@cases
def test_what_would_be_ignored_is_refused(tmp_path, line, option, conflict, options):
    """An option that conflicts is named; with `options`, each of them typed after the line is."""
    (tmp_path / "site.toml").write_text('schema = 1\nname = "here"\nscheduler = "local"\n')
    for words in options or ("",):
        result = run(*line.split(), *words.split(), "--json")
        result.check(as_json=True)
        (error,) = result.document["errors"]
        name = option or re.split(r"[ =]", words)[0]
        assert (result.returncode, error["code"]) == (2, "usage"), (words, error)
        assert name in error["message"], (words, error)
        assert conflict in error["message"], (words, error)
        assert name in error["hint"], words
    assert {path.name for path in tmp_path.iterdir()} == {"site.toml", "programs"}
    if "--resume" in line:  # a new option of submit has to say what it does beside it
        used = {"--resume", "--wait", "--max-retries", "--runs", "--site", "--json"}
        flags = {max(p.opts, key=len) for p in submit.params if isinstance(p, click.Option)}
        listed = {re.split(r"[ =]", words)[0] for words in options}
        assert flags - used - {"--help", "--help-all"} == listed


def test_precisions_are_understood_in_every_spelling():
    for precision, words in read_constant(__file__, "SPELLINGS").items():
        assert {parse_precision(word) for word in words.split()} == {precision}
    render = ("render", "--fw", "pytorch", "--scheduler", "slurm", "--json", "--precision")
    first, other = run(*render, "FP32,amp"), run(*render, "fp32,fp16")
    assert first.data == other.data != {}
    for words in ((*render, "fp9"), (*render, "nvfp4"), ("collect", "--precision", "fp9")):
        assert words[-1] in run(*words, status=2).output


@cases
def test_what_is_typed_wrong_is_refused(words, message):
    assert message in run("submit", *words, *DRY[:-1], status=2).stderr


def test_a_file_and_the_same_words_make_the_same_campaigns_and_what_is_typed_wins(file):
    def plan(*words):
        """Return campaigns, and the scripts of each without its id."""
        campaigns = run("submit", *words, *DRY, status=0).data["campaigns"]
        texts = ["".join(array["script_text"] for array in c["arrays"]) for c in campaigns]
        pairs = zip(texts, campaigns, strict=True)
        return campaigns, [text.replace(c["campaign"], "ID") for text, c in pairs]

    typed = (
        *("--name", "two ways", "--fw", "pytorch,oneflow", "--precision", "fp32,amp"),
        *("--shapes", "1n1g,2n2g", "--repeats", "3", "--batch-size", "fp32=8,fp16=16,32"),
        *("--env", "NCCL_ALGO=Ring", "--partition", "gpu", "--nodelist", "n[1-4]"),
        *("--exclude", "n7", "--reservation", "week", "--time", "00:20:00"),
    )
    campaigns, texts = plan(file)
    assert [campaign["framework"] for campaign in campaigns] == ["pytorch", "oneflow"]
    assert [campaign["name"] for campaign in campaigns] == ["two ways"] * 2
    assert [len(campaign["arrays"]) for campaign in campaigns] == [6, 6]
    assert texts == plan(*typed)[1]
    assert file.read_text() == FILE
    for array in (array for campaign in campaigns for array in campaign["arrays"]):
        text = array["script_text"]
        assert array["env"] == {"NCCL_ALGO": "Ring"}
        assert re.search(r"environment=\(.*\bNCCL_ALGO=Ring\b.*\)", text)
        first = "n1" if array["shape"] == "1n1g" else "n1,n2"
        for option in (f"nodelist={first}", "exclude=n7", "reservation=week", "time=00:20:00"):
            assert f"#SBATCH --{option}\n" in text
    words = ("--repeats", "1", "--partition", "test", "--name", "mine", "--exclude", "n1,n2")
    (campaign, _), (text, _) = plan(file, *words)
    assert (campaign["name"], campaign["arrays"][0]["repeats"]) == ("mine", [1])
    assert "--partition=test\n" in text
    assert "--exclude=n1,n2\n" in text
    result = run("submit", file, "--fw", "pytorch", "--env", "A=1", "--json")
    assert "--fw and --env" in result.error["message"]


def test_ranks_have_typed_variables_under_every_runtime_and_before_the_site_s(tmp_path):
    """A rendered script's header has them too."""
    site = tmp_path / "site.toml"
    words = ("--fw", "oneflow", "--env", "NCCL_ALGO=Ring", "--env", "X=a b'c,d", "--site", site)
    for runtime in ("none", "enroot", "apptainer", "pyxis"):
        site.write_text(
            'schema = 1\nname = "x"\nscheduler = "slurm"\n[env]\nNCCL_ALGO = "Tree"\nKEPT = "1"\n'
            f'[container]\nruntime = "{runtime}"\n'
        )
        text = run("submit", *words, "--dry-run", "--json").data["arrays"][0]["script_text"]
        (line,) = [line for line in text.splitlines() if "environment=(" in line]
        for part in ("NCCL_ALGO=Ring ", "KEPT=1", """ 'X=a b'"'"'c,d'"""):
            assert part in line, runtime
        assert "Tree" not in text, runtime
    site.unlink()
    options = ("--env", "NCCL_ALGO=Ring", "--env", "B=x y", "--output", tmp_path / "out")
    run("render", *options, status=0)
    (path,) = (tmp_path / "out").glob("*.sbatch")
    assert "--env 'B=x y' --env NCCL_ALGO=Ring" in path.read_text()
    run("render", "--check", tmp_path / "out", status=0)


def test_faults_of_a_file_are_named_at_once_and_nothing_is_written(file, tmp_path):
    file.write_text(FILE.replace('"oneflow"]', '"onflow"]').replace('"fp16"]', '"fp17"]'))
    result = run("submit", file, "--runs", tmp_path / "runs", "--json", status=2)
    errors = result.document["errors"]
    assert {error["code"] for error in errors} == {"config"}
    for error, word in zip(errors, ("batch_sizes.fp16", "'fp17'", "'onflow'"), strict=True):
        assert word in error["message"]
    assert not (tmp_path / "runs").exists()
    file.write_text('schema = 1\nframeworks = "pytorch"\n[slurm]\npartition = "gpu"\n')
    result = run("submit", file, "--scheduler", "local", "--dry-run", "--json")
    (warning,) = [text for text in result.document["warnings"] if "no effect" in text]
    assert "partition" in warning


def test_a_plan_goes_from_five_repeats_to_the_most_of_a_file_or_of_what_is_typed(file):
    result = run(*PLAN, "--repeats", "auto", "--max-repeats", "20", "--time", "60")
    (point,) = result.data["campaigns"][0]["points"]
    assert (point["least_repeats"], point["repeats"], point["jobs"]) == (5, 20, 20)
    assert (point["least_node_hours"], point["node_hours"]) == (5, 20)
    assert "5 to 20" in run(*PLAN[:-1], "--repeats", "auto", "--max-repeats", "20").output
    limits = ("--time", "60", "--max-gpu-hours", "14")
    costly = run(*PLAN, "--repeats", "auto", *limits, status=5)
    # Where PyTorch is not installed, that is an error too.
    messages = [error["message"] for error in costly.document["errors"]]
    assert any("up to 15 rank-hours" in message for message in messages), messages
    fixed = run(*PLAN, "--repeats", "7").data["total"]
    assert fixed["least_repeats"] == fixed["repeats"] == 7
    head = 'schema = 1\nframeworks = "pytorch"\n'
    file.write_text(f'{head}repeats = "auto"\nmax_repeats = 9\nprecision_of_median = "2 %"\n')
    for words, repeats in (((), 9), (("--repeats", "3"), 3), (("--max-repeats", "12"), 12)):
        assert run(*PLAN, file, *words).data["total"]["repeats"] == repeats
    file.write_text(f"{head}max_repeats = 9\n")
    text = run("submit", file, status=2).stderr
    assert str(file) in text
    assert 'max_repeats has no effect without repeats = "auto"' in text
