"""Data that don't fit are found before a job is submitted, where their data.json says what they are."""

import json

from hpcbert.script.materials import find_misfits
from hpcbert.script.plan import read_options
from tests.kit.cases import cases, read_constant
from tests.kit.cli import run
from tests.kit.drafts import load, site
from tests.kit.logs import write_file


@cases
def test_what_does_not_fit_is_named_and_what_is_something_else_is_no_finding(
    tmp_path, *, name, changes, document, message
):
    recipe, fitting = load(name or "pytorch"), read_constant(__file__, "FITTING")
    write_file(tmp_path, "data/data.json", document or json.dumps({**fitting, **(changes or {})}))
    options = read_options(recipe, site(tmp_path), {})
    misfits = find_misfits(recipe, options, str(tmp_path / "data"))
    assert misfits == find_misfits(recipe, options, str(tmp_path / "data" / "training"))
    assert message in "; ".join(misfits) if message else misfits == ()
    assert find_misfits(recipe, {}, str(tmp_path / "absent")) == ()


def test_submit_and_prepare_refuse_them(empty_directory, tmp_path):
    folder = tmp_path / "made"
    words = ("data", "make", "--format", "hdf5", "--samples", "16", "--files", "2")
    assert run(*words, "--sequence-length", "64", folder).returncode == 0
    data = folder / "training"
    submit = ("submit", "--scheduler", "slurm", "--data", data, "--model", "bert-tiny", "--json")
    refused = run(*submit, status=2)
    messages = " ".join(error["message"] for error in refused.document["errors"])
    assert "64 tokens in a sample, but the program is set to 128" in messages
    assert "they have 30522 words, but the model has 8192" in messages
    result = run(*submit, "--dry-run", "--set", "sequence_length=64", "--set", "vocab_size=30522")
    assert not [warning for warning in result.document["warnings"] if "do not fit" in warning]
    site(tmp_path, f'[frameworks.pytorch]\ndata = "{data}"\n')
    prepare = ("prepare", "--fw", "pytorch", "--only", "data", "--site", tmp_path / "site.toml")
    (part,) = run(*prepare, "--json").data["parts"]
    assert part["status"] == "failed"
    assert "64 tokens in a sample" in part["detail"]
