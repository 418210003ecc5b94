"""A lock file holds all that was decided, is read again, and says what is otherwise elsewhere."""

import re
from dataclasses import replace

import pytest
import tomli
from hypothesis import given
from hypothesis import strategies as st

from hpcbert import model
from hpcbert.commands.submit import write_campaign
from hpcbert.config import toml
from hpcbert.errors import ConfigError, UsageError
from hpcbert.results.reduce import Curves, make_group, tabulate
from hpcbert.script import rerun
from hpcbert.script.plan import plan
from hpcbert.timelimit import TimeLimit
from tests.kit.cases import cases
from tests.kit.cli import run
from tests.kit.drafts import changed, combined, drafted, load, reference

REQUEST = combined(
    model.Shape(1, 2), ("fp32", "bf16"), scaling=True, repeats=3,
    settings={"sequence_length": "64", "seed": "7"},
    env=(("NCCL_ALGO", "Ring"), ("OTHER", 'a "b" \\ \x7f ü')),
)  # fmt: skip
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
VALUES = st.recursive(
    TEXTS | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False),
    lambda part: st.lists(part, max_size=3) | st.dictionaries(TEXTS, part, max_size=3),
    max_leaves=8,
)


@pytest.fixture
def draft(tmp_path):
    draft = drafted(reference(tmp_path, env={"TZ": "UTC", "API_TOKEN": "abcdef"}), REQUEST)
    write_campaign(draft)
    return draft


@given(st.dictionaries(TEXTS, VALUES, max_size=5))
def test_what_is_written_as_toml_is_read_again(values):
    assert tomli.loads(toml.format_toml(values)) == values


def test_it_is_written_into_the_campaign_and_read_again(draft):
    path = draft.directory / "campaign.lock.toml"
    lock = rerun.load_lock(path)
    assert lock == draft.lock
    assert lock.env["API_TOKEN"] == "<redacted>"
    assert lock.files.keys() >= {"describe.sh", "bert_pretrain.py"}
    assert "abcdef" not in path.read_text()
    # So are variables, and digests of what was prepared.
    variables = {"slurm.account": "SBATCH_ACCOUNT"}
    site = replace(draft.resolved.site, variables={"runs": "HPCBERT_RUNS", **variables})
    materials = (
        model.Material("image", "docker://x", "/i.sqsh", "sha256:1"),
        model.Material("source", "https://x/y@abc", "/s", "git-tree:2"),
        model.Material("data", "npz", "/d", "listing:3"),
    )
    campaign = replace(draft.campaign, materials=materials)
    lock = rerun.make_lock(replace(draft.resolved, site=site), campaign)
    assert lock.variables == variables
    inputs = {"source_repository": "https://x/y", "source_commit": "abc"}
    inputs |= {"image_digest": "sha256:1", "source_digest": "git-tree:2"}
    inputs["data_digest"] = "listing:3"
    assert lock.inputs.items() >= inputs.items()


def test_what_is_otherwise_is_said_by_its_key(draft, tmp_path):
    assert rerun.compare_locks(draft.lock, draft.lock) == ()
    slurm = {"partition": "gpu", "time_limit": TimeLimit.parse("2-0"), "srun_args": ("-v",)}
    other = changed(reference(tmp_path, env={"TZ": "CET"}), slurm=slurm, name="there")
    messages = rerun.compare_locks(draft.lock, drafted(other, REQUEST).lock)
    assert {re.sub("^Differs from [^:]*: ", "", message) for message in messages} == {
        "site was local, and is there here.",
        "env.TZ was UTC, and is CET here.",
        "settings.slurm.partition was none, and is gpu here.",
        "settings.slurm.srun_args was none, and is -v here.",
        "settings.slurm.time_limit was 01:00:00, and is 2-0 here.",
    }
    first, second, *_ = sorted(draft.lock.files)
    files = {**draft.lock.files, first: "0" * 64, second: "0" * 64}
    (message,) = rerun.compare_locks(draft.lock, replace(draft.lock, files=files))
    assert message.endswith(f"these files of the job: {first}, {second}.")


@cases
def test_what_is_no_lock_file_is_refused(text, change, message, hint, draft):
    path = draft.directory / "campaign.lock.toml"
    good = path.read_text()
    path.write_text(re.sub(change[0], change[1], good, flags=re.DOTALL) if change else text or "")
    with pytest.raises(ConfigError) as refused:
        rerun.load_lock(path)
    assert refused.value.where == str(path)
    assert message in refused.value.message
    assert (hint or "") in refused.value.hint


@pytest.mark.slow
def test_the_same_is_made_of_it_wherever_the_options_came_from(draft, empty_directory):
    """Also options that no point has: a file does not stand in the command line."""
    dry = ("--scheduler", "slurm", "--dry-run", "--json")
    for path in (draft.directory / "campaign.lock.toml", draft.directory):
        result = run("submit", "--like", path, *dry, "--time", "00:07:00", status=0)
        arrays = result.data["arrays"]
        assert [array["env"] for array in arrays] == [dict(REQUEST.env)] * 4
        assert [array["repeats"] for array in arrays] == [[1, 2, 3]] * 4
        options = re.compile(r"\n  --[^\n]*")
        texts = [options.findall(text) for text in draft.scripts.values()]
        assert [options.findall(array["script_text"]) for array in arrays] == texts
        assert "--seed" in "".join(array["script_text"] for array in arrays)
        warnings = " ".join(result.document["warnings"])
        assert "settings.slurm.time_limit was 01:00:00, and is 00:07:00 here." in warnings
        assert "API_TOKEN" not in warnings
    missing = run("submit", "--like", "campaign.lock.toml", *dry, status=2)
    assert "campaign.lock.toml: Can't read" in missing.error["message"]


@cases
def test_the_points_of_a_table_are_planned_again(framework, shape, fields, tmp_path):
    site, recipe = reference(tmp_path), load(framework)
    first = plan(recipe, site, combined(model.Shape.parse(shape), **fields))
    protocol, curves = first.protocol, Curves(first.points)
    last = None if protocol.window_seconds else protocol.iters
    counted, origin = model.Counted(protocol.skip, last, ""), model.Origin("campaign", "c")
    groups = [(make_group(point, curves, ""), point.shape) for point in first.points]
    (table,) = tabulate(
        model.Measured(group, shape, protocol.repeats, window=counted, origin=origin)
        for group, shape in groups
    )
    # The device of a table is the one that its logs state.
    points = {replace(point, device=table.group.device) for point in first.points}
    for own_protocol in (protocol, None):
        if last is None and own_protocol is None:
            with pytest.raises(UsageError, match="how long"):
                rerun.plan_table(table, {"c": own_protocol}, recipe, site)
            continue
        again = rerun.plan_table(table, {"c": own_protocol}, recipe, site)
        assert {replace(point, device=table.group.device) for point in again.points} == points
        assert again.protocol == protocol


@cases
def test_a_table_that_a_campaign_would_not_give_is_refused(changes, window, keyword, tmp_path):
    labels = {"rule": "clock", **(changes or {})}
    group = model.Group("pytorch", "bert-tiny", "fp32", 8, **labels)
    first, last = (*window, None)[:2] if window else (0, None)
    counted = model.Counted(first, last, "") if window else None
    origin = model.Origin("campaign", "c") if window else None
    row = model.Row(model.Shape(1, 1), None, model.RepeatCount(0, 5), window=counted, origin=origin)
    protocols = {"c": model.Protocol(5, 120, 20)} if window else {}
    table = model.SpeedupTable(group, None, (row,))
    with pytest.raises(UsageError, match=keyword):
        rerun.plan_table(table, protocols, load(), reference(tmp_path))
