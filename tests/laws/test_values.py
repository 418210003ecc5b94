"""Whatever value a person writes: empty ones match nothing, numbers have ranges, a time limit has one
grammar, names tell points apart, and what a request says reaches the ranks or is refused."""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcbert.cli.options import split_list
from hpcbert.config import campaignfile, recipe
from hpcbert.config.options import check_node_list
from hpcbert.config.site import FrameworkSettings
from hpcbert.errors import ConfigError, UsageError
from hpcbert.model import Point, Shape
from hpcbert.script.draft import LABEL_LENGTH, label_points
from hpcbert.script.plan import Request, RequestCell, read_options
from hpcbert.slurm.commands import read_squeue
from hpcbert.system.decode import Invalid
from hpcbert.timelimit import TimeLimit
from tests.kit import drafts
from tests.kit.cases import cases, read_constant
from tests.kit.cli import run
from tests.kit.paths import TEMPLATES
from tests.kit.recipes import NAMES, rank_command

pytestmark = pytest.mark.usefixtures("empty_directory")
NAME = "20261121T100000Z-pytorch-3f9a1c"


@pytest.mark.parametrize("line", ["rm --yes", "cancel --yes", "retry", "submit --resume", "show"])
def test_the_only_campaign_is_not_meant_by_accident(line, build):
    built = build("1n1g", name=NAME, jobs=("7",))
    before = (built.directory / "manifest.json").read_bytes()
    words = [*line.split(), *["--"] * (line != "submit --resume")]
    for name in ("", "  ", "-", "*", "/", ".", "..", "--"):
        run(*words, name, status=2)
        assert (built.directory / "manifest.json").read_bytes() == before


def test_rm_takes_six_characters_of_an_id_and_a_path_may_end_with_a_slash(build, monkeypatch):
    runs = build("1n1g", name=NAME, state="refused", jobs=("",)).directory.parent
    monkeypatch.chdir(runs)
    for name in ("T", "3f9a1", "f9a1c", "3f"):
        assert "of at least 6 characters" in run("rm", "--yes", name, status=2).output
    paths = (NAME, f"{NAME}/", f"./{NAME}/", f"../{runs.name}/{NAME}")
    for name in ("3f9a1c", "pytorch-3f", *paths):
        assert run("rm", "--yes", "--runs", runs, name).returncode == 0, name
        assert not Path(NAME).exists()
        build("1n1g", name=NAME, state="refused", jobs=("",))


@cases
def test_a_file_has_no_empty_value_and_no_nul_character(tmp_path, file, text):
    path = tmp_path / "campaign.toml"
    path.write_text(f"schema = 1\n{text}")
    with pytest.raises(ConfigError, match=r"must|NUL"):
        drafts.site(tmp_path, text) if file == "site.toml" else campaignfile.read(path)


def test_a_list_has_no_empty_entry_but_a_variable_may_be_empty(tmp_path, monkeypatch):
    for text in ("n1,,n2", ",n1", "n1,", ",", "n[1,,2]"):
        with pytest.raises(Invalid, match="node names"):
            check_node_list(text)
        with pytest.raises(UsageError, match="empty entry"):
            split_list(text)
    path = tmp_path / "campaign.toml"
    path.write_text('schema = 1\n[env]\nNCCL_DEBUG = ["", "INFO"]\n')
    assert campaignfile.read(path).env[0].values == ("", "INFO")
    monkeypatch.setenv("HPCBERT_SITE", "")
    assert run("config").returncode == 0


@cases
def test_numbers_of_a_site_have_ranges(key, values, tmp_path):
    always = () if key.endswith(".lr") else read_constant(__file__, "ALWAYS_WRONG")
    table, _, name = key.rpartition(".")
    for value in (*always, *values, f"1{'0' * 400}"):
        with pytest.raises(ConfigError) as refused:
            drafts.site(tmp_path, f"[{table}]\n{name} = {value}\n")
        assert key in str(refused.value), value
        assert str(tmp_path / "site.toml") in str(refused.value)


@cases
def test_numbers_of_a_recipe_have_ranges(table, names, values, tmp_path):
    """Of another protocol, of another option, and of the sample's throughput by another rule."""
    pytorch = (TEMPLATES / "pytorch" / "recipe.toml").read_text()
    head, sample, tail = pytorch.partition("[sample.throughput]\n")
    assert tail
    for line in (f"{name} = {value}\n" for name in names for value in values):
        text = f"{pytorch}\n{table}\n{line}"
        if sample.strip() == table:
            text = f"{head}{sample}{line}{tail}"
        (tmp_path / "recipe.toml").write_text(text)
        with pytest.raises(ConfigError) as refused:
            recipe.read_recipe(tmp_path / "recipe.toml", name="t", digest="")
        key = f"{table.splitlines()[0].strip('[]')}.{line.partition(' ')[0]}"
        assert key in str(refused.value), line


def test_numbers_of_a_command_line_have_ranges(finished, tmp_path, run_commands):
    words = ["monitor", str(finished), "--json"]
    for result in run_commands([[*words, f"--interval={value}"] for value in ("nan", "0", "1e9")]):
        result.check(as_json=True)
        assert result.returncode == 2
    pytorch, site = drafts.load("pytorch"), drafts.site(tmp_path)
    name = next(option.name for option in pytorch.options.values() if option.kind == "float")
    for value in ("inf", "nan", "-inf", "1e999"):
        with pytest.raises(UsageError, match="finite"):
            read_options(pytorch, site, {name: value})


@cases
def test_the_first_eight_characters_say_which_point_it_is(shapes, precisions, sizes):
    points = [
        Point("oneflow", "bert-base", Shape.parse(shape), precision, size)
        for shape in shapes for precision in precisions for size in sizes
    ]  # fmt: skip
    labels = label_points(points)
    shown = [f"{label}-hpcbert-20261121T100000Z"[:LABEL_LENGTH] for label in labels]
    assert len(set(shown)) == len(points)
    assert all(str(source.shape)[:4] in label for source, label in zip(points, shown, strict=True))


@cases
def test_every_form_of_sbatch_means_the_same_everywhere(text, seconds, tmp_path):
    assert TimeLimit.parse(text).seconds == seconds
    assert drafts.site(tmp_path, f'[slurm]\ntime_limit = "{text}"\n').slurm.time_limit.text == text
    (row,) = read_squeue(f"7_1|me|RUNNING|1|2|3|0:10|{text}|n1|name|None\n").rows
    assert row.limit == seconds
    if seconds:
        assert TimeLimit.parse(str(TimeLimit(seconds))).seconds == seconds


@cases
def test_what_is_no_time_limit_is_refused_everywhere(text, tmp_path):
    with pytest.raises(ValueError, match=r"time limit|ten years"):
        TimeLimit.parse(text)
    with pytest.raises(ConfigError, match="time_limit"):
        drafts.site(tmp_path, f'[slurm]\ntime_limit = "{text}"\n')


@pytest.mark.slow
def test_every_command_with_a_time_takes_and_refuses_the_same(run_commands):
    commands = [line.split() for line in read_constant(__file__, "WITH_A_TIME")]
    times = ("1-12", "12 hours")
    results = run_commands(
        [[*words, f"--time={time}", "--json"] for words in commands for time in times]
    )
    for good, bad in zip(results[::2], results[1::2], strict=True):
        assert "time limit" in bad.document["errors"][0]["message"]
        assert bad.returncode == 2
        assert "time limit" not in json.dumps(good.document["errors"])
    assert "#SBATCH --time=1-12\n" in next(iter(results[0].data.values()))


def render_ranks(name, request, data="/d"):
    """Return the commands of a rank, at a site that names everything that the recipe needs."""
    settings = FrameworkSettings(data=data, source="/s", image="/i.sqsh")
    site = drafts.reference(Path("/runs"), runs="/runs", frameworks={name: settings})
    draft = drafts.drafted(site, request, framework_recipe=drafts.load(name), options={"dry": True})
    return rank_command(*draft.scripts.values()).rpartition("\nexec bash ")[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_value_changes_the_commands_of_the_ranks_or_is_refused(name):
    def change_value(option):
        """Return a value of an option that is not its default."""
        if option.kind == "bool":
            return not option.default
        if option.kind == "str":
            return next((choice for choice in option.choices if choice != option.default), "wiki")
        doubled = option.default * 2 or 2
        is_too_large = option.at_most is not None and doubled > option.at_most
        return type(option.default)(option.default / 2 if is_too_large else doubled)

    for device in drafts.load(name).devices:
        recipe = drafts.load(name).for_device(device)
        shape = Shape(1, 1) if recipe.alone else Shape(1, 8)
        for protocol in recipe.protocols:
            preset = recipe.preset(protocol)
            precisions = preset.precisions or recipe.precisions
            changes: list[dict[str, Any]] = [
                {"cells": (RequestCell(shape, "", 6),)},
                *({"cells": (RequestCell(shape, word, 0),)} for word in precisions[1:]),
                *({"model": model} for model in recipe.models[1:]),
                *({"settings": {key: change_value(recipe.options[key])}} for key in recipe.options),
                {"accumulation": (preset.accumulation or 1) + 2},
                {"iters": preset.iters + 20},
                {"window_seconds": 7},
                {"xla": not preset.xla},
            ]
            cells = (RequestCell(shape, "", 0),)
            request = Request(shape, cells=cells, preset=protocol, device=device)
            commands = render_ranks(name, request)
            for change in changes:
                # A compiler that the recipe does not have is off in any case.
                is_without = not recipe.xla and change == {"xla": False}
                with suppress(UsageError):
                    changed_commands = render_ranks(name, replace(request, **change))
                    assert changed_commands != commands or is_without, (device, protocol, change)


def test_a_compiler_can_be_turned_off_and_synthetic_data_have_a_fill():
    assert "--compile false" in render_ranks("pytorch", Request(Shape(1, 8), xla=False))
    request = Request(Shape(1, 1), settings={"fill": "wiki"})
    assert "--fill wiki" in render_ranks("pytorch", request, data="")
