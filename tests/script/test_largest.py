"""The largest batch: the search in a rendered script, with a program that has room for so much."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hpcbert.commands.submit import write_campaign
from hpcbert.errors import UsageError
from hpcbert.logs import failures, grammar
from hpcbert.model import LARGEST, LARGEST_IN_COMMON, Shape
from hpcbert.script.draft import Draft
from hpcbert.script.largest import Multiple
from tests.kit import drafts
from tests.kit.cases import cases, read_constant
from tests.kit.drafts import changed, combined, reference
from tests.kit.needs import not_applicable
from tests.kit.paths import TEMPLATES
from tests.kit.recipes import NAMES
from tests.kit.scripts import events, only_script, run_script, run_written, tool, with_python

pytestmark = pytest.mark.slow

# Room for so many samples; a full run of so many iterations needs more. It says what BATCHES says.
PROGRAM = read_constant(__file__, "PROGRAM")


@pytest.fixture
def draft(tmp_path: Path) -> Draft:
    return draft_search(tmp_path)


def draft_search(
    tmp_path: Path, start: int = 32, device: str = "gpu", samples: int = 0, **options: object
) -> Draft:
    """Draft two repeats of the largest batch; the search begins with a size."""
    program = tool(tmp_path, "python", PROGRAM)
    site = with_python(reference(tmp_path), program, batch_sizes={"fp32": start})
    request = combined(
        Shape(1, 1), ("fp32",), (LARGEST,), repeats=2, device=device, global_batch_size=samples
    )
    return drafts.drafted(site, request, options={"scheduler": "local", **options})


def run_search(
    draft: Draft, tmp_path: Path, *, again: bool = False, **extra: Any
) -> subprocess.CompletedProcess[str]:
    start = run_written if again else run_script
    return start(draft, tmp_path, TRIED=str(tmp_path / "tried"), **extra)


def read_sizes(tmp_path: Path, *, probes: bool = False) -> list[int]:
    """The sizes of probes, or of measured runs, in their order."""
    lines = (tmp_path / "tried").read_text().splitlines()
    return [int(line.split()[0]) for line in lines if line.endswith(" 10") == probes]


def read_search(draft: Draft) -> list[dict[str, object]]:
    (array,) = draft.campaign.arrays
    path = draft.directory / array.point.search
    return [json.loads(line) for line in path.read_text().splitlines()]


@cases
def test_it_doubles_and_then_halves_the_gap(
    tmp_path: Path, start: int, room: int, sizes: list[int], largest: int
) -> None:
    draft = draft_search(tmp_path, start)
    result = run_search(draft, tmp_path, ROOM=str(room))
    assert result.returncode == 0, result.stderr
    assert read_sizes(tmp_path, probes=True) == sizes
    assert read_sizes(tmp_path) == [largest]
    assert (read_search(draft)[-1]["event"], read_search(draft)[-1]["size"]) == ("found", largest)
    (step,) = [event for event in events(draft) if event["event"] == "step"]
    assert step["batch"] == largest


def test_a_repeat_after_it_reads_what_was_found(tmp_path: Path, draft: Draft) -> None:
    run_search(draft, tmp_path, ROOM="40")
    first = read_sizes(tmp_path, probes=True)
    result = run_search(draft, tmp_path, again=True, ROOM="40", SLURM_ARRAY_TASK_ID="2")
    assert result.returncode == 0, result.stderr
    assert read_sizes(tmp_path, probes=True) == first
    assert read_sizes(tmp_path) == [40, 40]
    assert sum(event["event"] == "found" for event in read_search(draft)) == 1


def test_what_was_found_with_few_iterations_may_be_too_much_for_all(
    tmp_path: Path, draft: Draft
) -> None:
    """The repeat fails, and the next one measures a smaller size that was found to fit."""
    failed = run_search(draft, tmp_path, ROOM="40", MORE="8")
    assert failed.returncode == 1
    result = run_search(draft, tmp_path, again=True, ROOM="40", MORE="8", SLURM_ARRAY_TASK_ID="2")
    assert result.returncode == 0, result.stderr
    assert read_sizes(tmp_path) == [40, 32]
    assert [event["size"] for event in read_search(draft) if event["event"] == "found"] == [40, 32]


def test_a_search_that_was_cut_off_goes_on(tmp_path: Path, draft: Draft) -> None:
    write_campaign(draft)
    (array,) = draft.campaign.arrays
    lines = [
        {"event": "probe", "size": 32, "fits": True},
        {"event": "probe", "size": 64, "fits": False},
    ]
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    (draft.directory / array.point.search).write_text(text + '{"event":"pro')
    result = run_search(draft, tmp_path, again=True, ROOM="40")
    assert result.returncode == 0, result.stderr
    assert read_sizes(tmp_path, probes=True) == [48, 40]


def test_a_probe_that_hangs_is_ended_and_its_log_decides(tmp_path: Path, draft: Draft) -> None:
    words = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    result = run_search(
        draft, tmp_path, WORDS=words, ROOM="9999", HANGS="40", HPCBERT_PROBE_SECONDS="1"
    )
    assert result.returncode == 0, result.stderr
    assert read_sizes(tmp_path) == [40]


@cases
def test_anything_else_stops_it_with_its_reason(
    tmp_path: Path, draft: Draft, extra: dict[str, Any], reason: str
) -> None:
    result = run_search(draft, tmp_path, **extra)
    assert result.returncode == 1
    assert f"hpcbert: {reason}" in result.stderr
    assert read_search(draft)[-1]["reason"] == reason
    assert read_sizes(tmp_path) == []
    assert [event["event"] for event in events(draft)] == ["start", "end"]


def test_all_repeats_of_one_job_have_one_size(tmp_path: Path) -> None:
    draft = draft_search(tmp_path, together=True)
    assert run_search(draft, tmp_path, ROOM="40").returncode == 0
    assert read_sizes(tmp_path) == [40, 40]


@pytest.mark.parametrize(("room", "largest"), [("", 176), ("90", 88)])
def test_a_rehearsal_searches_with_a_stand_in(tmp_path: Path, room: str, largest: int) -> None:
    draft = draft_search(tmp_path, rehearse=True)
    told_room = {"HPCBERT_REHEARSAL_ROOM": room} if room else {}
    result = run_search(draft, tmp_path, again=False, **told_room)
    assert result.returncode == 0, result.stderr
    assert read_search(draft)[-1]["size"] == largest


def test_the_kernels_word_counts_on_the_cpu(tmp_path: Path) -> None:
    draft = draft_search(tmp_path, device="cpu")
    result = run_search(draft, tmp_path, ROOM="40", WORDS="slain", STATUS="137")
    assert result.returncode == 0, result.stderr
    assert read_search(draft)[-1]["size"] == 40


def test_marks_are_multiplied_and_nothing_else() -> None:
    size = Multiple()
    assert str(2 * size * 8) == "$((16 * batch))"
    for method in ("__add__", "__gt__", "__floordiv__", "__eq__", "__sub__"):
        with pytest.raises(UsageError, match="needs to know the batch size"):
            getattr(size, method)(2)


# Those whose commands have no batch size in them.
_WITHOUT = {"nccl-tests"}


@pytest.mark.parametrize("name", NAMES)
def test_a_rank_script_with_the_marks_filled_in_is_that_of_the_number(
    tmp_path: Path, name: str
) -> None:
    recipe = drafts.load(name)
    site = reference(tmp_path, slurm={"mpi": "pmi2"}) if recipe.mpi else reference(tmp_path)
    options = {"scheduler": "slurm", "dry": True}

    def text(size: int) -> str:
        shape = Shape(1, 1)
        request = combined(
            shape, (recipe.precisions[0],), (size,), accumulation=1 if recipe.accumulation else 0
        )
        return only_script(drafts.drafted(site, request, framework_recipe=recipe, options=options))

    def rank(text: str) -> str:
        return text.partition("train() {")[2].partition("\n}\n")[0]

    if name in _WITHOUT:
        with pytest.raises(UsageError, match="--batch-size has no effect"):
            text(LARGEST)
        return
    sums = re.compile(r'"?\$\(\((\d+) \* batch\)\)"?')
    filled = sums.sub(lambda match: str(24 * int(match[1])), rank(text(LARGEST)))
    assert filled == rank(text(24))


@pytest.mark.parametrize("name", NAMES)
def test_the_nodes_grep_sees_iterations_where_the_reader_does(name: str) -> None:
    """What a probe is taken to have trained by, against each recipe's sample."""
    values = drafts.load(name).log
    log_grammar = grammar.parse(values, where=name)
    patterns = [
        record.match
        for record in log_grammar.records
        if "iteration" in record.match.groupindex and record.lines == 1
    ]
    if not patterns:
        not_applicable("its records take several lines, or count nothing")
    result = subprocess.run(
        ["grep", "-aiPc", "-e", failures.join_patterns(patterns), str(TEMPLATES / name / "sample.log")],
        capture_output=True, text=True, check=False, env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert int(result.stdout) > 0, result.stderr


@cases
def test_under_a_global_batch_the_accumulation_follows_from_the_size(
    tmp_path: Path, samples: int, room: int, measured: list[int]
) -> None:
    draft = draft_search(tmp_path, samples=samples)
    result = run_search(draft, tmp_path, ROOM=str(room))
    assert read_sizes(tmp_path) == measured
    (array,) = draft.campaign.arrays
    assert f'--accumulation "$(({samples} / batch))"' in only_script(draft)
    if measured:
        assert result.returncode == 0, result.stderr
        point = array.point.sized(measured[0])
        assert (point.global_batch_size, point.samples_per_step) == (samples, 0)
    else:
        assert f"give --batch-size {samples}" in result.stderr


def test_one_size_divides_the_steps_of_all_shapes(tmp_path: Path) -> None:
    """Of 192 samples a device of 1n1g has 192, one of 1n8g 24: the size is a divisor of both."""
    sizes = (LARGEST_IN_COMMON,)
    request = combined(Shape(1, 8), ("fp32",), sizes, scaling=True, global_batch_size=192)
    draft = drafts.drafted(changed(reference(tmp_path)), request)
    settings = [
        set(re.findall(r"^samples=(\d+)$", text, re.MULTILINE)) for text in draft.scripts.values()
    ]
    assert settings == [{"24"}] * 3
    leaders = [re.findall(r"^leader=(\S+)$", text, re.MULTILINE) for text in draft.scripts.values()]
    assert sorted(map(len, leaders)) == [0, 1, 1]
