"""The largest batch: the search in a rendered script, with a program that has room for so much."""

import re

import pytest

from hpcbert.campaign.record import read_record
from hpcbert.commands.submit import write_campaign
from hpcbert.errors import UsageError
from hpcbert.logs import failures, grammar
from hpcbert.model import LARGEST, LARGEST_IN_COMMON, Shape
from hpcbert.script.largest import Multiple
from tests.kit.cases import cases, read_constant
from tests.kit.cli import start_process
from tests.kit.drafts import combined, drafted, load, reference, settled
from tests.kit.needs import not_applicable
from tests.kit.paths import TEMPLATES
from tests.kit.recipes import NAMES
from tests.kit.scripts import events, kinds, only_script, run_script, tool

pytestmark = pytest.mark.slow


class Search:
    """Two repeats of the largest batch, whose search begins with 32."""

    def __init__(self, folder, device="gpu", samples=0, **options):
        self.folder = folder
        # Room for so many samples; a full run of so many iterations needs more. It says what WORDS says.
        program = tool(folder, "python", read_constant(__file__, "PROGRAM"))
        site = settled(reference(folder), python=str(program), batch_sizes={"fp32": 32})
        fields = {"repeats": 2, "device": device, "global_batch_size": samples}
        request = combined(Shape(1, 1), ("fp32",), (LARGEST,), **fields)
        self.draft = drafted(site, request, options={"scheduler": "local", **options})
        write_campaign(self.draft)
        self.point = self.draft.campaign.arrays[0].point
        self.path = self.draft.directory / self.point.search

    def run(self, status=0, **variables):
        variables["TRIED"] = str(self.folder / "tried")
        return run_script(self.draft, self.folder, status=status, **variables).stderr

    def sizes(self, *, probes=False):
        """Return the sizes of probes, or of measured runs, in their order."""
        lines = (self.folder / "tried").read_text().splitlines()
        return [int(line.split()[0]) for line in lines if line.endswith(" 10") == probes]


@cases
def test_a_search_ends_with_the_largest_size_that_fits(
    tmp_path, *, options, record, runs, probes, measured, results
):
    """A run that fails has status 1."""
    search = Search(tmp_path, **(options or {}))
    if record:
        search.path.write_text(record)
    for variables in runs:
        search.run(**variables)
    record_events = read_record(search.path).events
    assert [event["size"] for event in record_events if event["event"] == "found"] == list(results)
    if "rehearse" not in (options or {}):
        assert (search.sizes(probes=True), search.sizes()) == (list(probes), list(measured))
        (step, *_) = [event for event in events(search.draft) if event["event"] == "step"]
        assert step["batch"] == measured[0]


@cases
def test_anything_else_stops_it_with_its_reason(tmp_path, extra, reason):
    search = Search(tmp_path)
    assert f"hpcbert: {reason}" in search.run(1, **extra)
    assert read_record(search.path).events[-1]["reason"] == reason
    assert search.sizes() == []
    assert kinds(search.draft) == ["start", "end"]


@cases
def test_under_a_global_batch_the_accumulation_follows_from_the_size(
    tmp_path, samples, room, measured
):
    search = Search(tmp_path, samples=samples)
    text = search.run(0 if measured else 1, ROOM=str(room))
    assert search.sizes() == list(measured)
    assert f'--accumulation "$(({samples} / batch))"' in only_script(search.draft)
    assert (f"give --batch-size {samples}" in text) == (not measured)
    for size in measured:
        point = search.point.sized(size)
        assert (point.global_batch_size, point.samples_per_step) == (samples, 0)


def test_one_size_divides_the_steps_of_all_shapes(tmp_path):
    """Of 192 samples a device of 1n1g has 192, one of 1n8g 24: the size is a divisor of both."""
    sizes = (LARGEST_IN_COMMON,)
    request = combined(Shape(1, 8), ("fp32",), sizes, scaling=True, global_batch_size=192)
    texts = drafted(reference(tmp_path), request).scripts.values()
    settings = [set(re.findall(r"^samples=(\d+)$", text, re.MULTILINE)) for text in texts]
    assert settings == [{"24"}] * 3
    leaders = [re.findall(r"^leader=(\S+)$", text, re.MULTILINE) for text in texts]
    assert sorted(map(len, leaders)) == [0, 1, 1]


def test_marks_are_multiplied_and_nothing_else():
    size = Multiple()
    assert str(2 * size * 8) == "$((16 * batch))"
    for method in ("__add__", "__gt__", "__floordiv__", "__eq__", "__sub__"):
        with pytest.raises(UsageError, match="needs to know the batch size"):
            getattr(size, method)(2)


@pytest.mark.parametrize("name", NAMES)
def test_a_rank_script_with_the_marks_filled_in_is_that_of_the_number(tmp_path, name):
    recipe = load(name)
    site = reference(tmp_path, slurm={"mpi": "pmi2"}) if recipe.mpi else reference(tmp_path)
    accumulation = int(recipe.accumulation)

    def rank(size):
        request = combined(Shape(1, 1), recipe.precisions[:1], (size,), accumulation=accumulation)
        draft = drafted(site, request, framework_recipe=recipe, options={"dry": True})
        return only_script(draft).partition("train() {")[2].partition("\n}\n")[0]

    if name == "nccl-tests":  # its command has no batch size
        with pytest.raises(UsageError, match="--batch-size has no effect"):
            rank(LARGEST)
        return
    sums = re.compile(r'"?\$\(\((\d+) \* batch\)\)"?')
    assert sums.sub(lambda match: str(24 * int(match[1])), rank(LARGEST)) == rank(24)


@pytest.mark.parametrize("name", NAMES)
def test_the_nodes_grep_sees_iterations_where_the_reader_does(name):
    """What a probe is taken to have trained by, against each recipe's sample."""
    records = grammar.parse(load(name).log, where=name).records
    patterns = [r.match for r in records if "iteration" in r.match.groupindex and r.lines == 1]
    if not patterns:
        not_applicable("its records take several lines, or count nothing")
    sample = str(TEMPLATES / name / "sample.log")
    argv = ["grep", "-aiPc", "-e", failures.join_patterns(patterns), sample]
    result = start_process(argv, env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"})
    assert int(result.stdout) > 0, result.stderr
