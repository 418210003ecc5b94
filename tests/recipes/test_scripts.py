"""Every recipe folder: it parses, all that it says it can do renders, and the result is clean shell."""

import re
import subprocess
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import pytest

from hpcbert.errors import UsageError
from hpcbert.model import LARGEST, Shape
from hpcbert.script.plan import Request, RequestCell
from tests.kit import drafts
from tests.kit.cases import cases
from tests.kit.drafts import combined
from tests.kit.paths import REPOSITORY, TEMPLATES
from tests.kit.recipes import RUNTIMES, Case, Script, core, fringe, grammar, load, presets, render
from tests.kit.waiting import CEILING


def render_at_some_precision(case: Case, name: str, renders: Callable[[Case], Script]) -> Script:
    """Render a case; some settings are refused at all precisions but one."""
    for pair in ({}, *presets(load(name))):
        with suppress(UsageError):
            return renders({**case, **pair})
    raise AssertionError(case)


def test_a_folder_holds_facts_a_script_and_a_sample_and_no_program(name):
    recipe, folder = load(name), TEMPLATES / name
    page = (folder / "README.md").read_text()
    variants: list[Any] = [recipe, *recipe.on.values()]
    environments = [variant.environment for variant in variants if variant.environment]
    patched = [recipe.source, *variants[1:], *environments]
    patches = [patch for part in patched for patch in part.patches]
    lists = {step.requirements for environment in environments for step in environment.install} - {
        ""
    }
    names = {path.name for path in folder.iterdir()}
    assert {"recipe.toml", "run.sh.j2", "sample.log", "README.md"} <= names
    usual = {"recipe.toml", "run.sh.j2", "preflight.sh.j2", "sample.log", "README.md"}
    assert names <= {*usual, *recipe.files, *patches, *lists}
    for file in lists:
        lines = (folder / file).read_text().splitlines()
        packages = [line for line in lines if line and not line.startswith("#")]
        assert packages
        for line in packages:
            assert re.fullmatch(r"[\w.-]+(\[[\w,]+\])?==[\w.+!]+", line), f"{file}: {line}"
    for patch in patches:
        reason, diff, _ = (folder / patch).read_text().partition("diff --git ")
        assert len(reason.split()) >= 5, f"{patch} gives no reason"
        assert diff
        assert f"`{patch}`" in page
    assert grammar(name).rules
    # Where a rank script has the length written into it, the grammar has the same.
    script = (folder / "run.sh.j2").read_text()
    fixed = re.search(r"--(?:max_)?seq(?:_length|_len|-length)=(\d+)", script)
    assert grammar(name).sequence_length == int(fixed[1] if fixed else 0)
    if recipe.source.commit:
        assert re.fullmatch(r"[0-9a-f]{40}", recipe.source.commit), "a commit is named in full"
        assert recipe.source.repository.startswith("https://")
    for word in (*recipe.protocols, *recipe.options):
        assert re.fullmatch(r"[a-z][a-z0-9_-]*|", word), "files and flags carry the name"


def test_each_switch_is_honoured_both_ways_or_refused(name):
    """Of XLA under every protocol, and of the recipe's own switches; a protocol has the default."""

    def render_or_refuse(case: Case) -> str:
        try:
            return render(name, case).rank
        except UsageError as error:
            return str(error)

    recipe = load(name)
    for pair in presets(recipe):
        case = {"shape": Shape(1, 8), **pair}
        on, off, default = (render_or_refuse({**case, "xla": xla}) for xla in (True, False, None))
        assert on != off, pair
        assert "--xla" in on or recipe.xla, on
        usual = render(name, case).point
        assert default == (on if usual.xla else off) or recipe.xla not in (True, False)
        assert usual.xla == recipe.protocols[pair["preset"]].xla
    case = {"shape": Shape(1, 8), **presets(recipe)[0]}
    for option in recipe.options.values():
        if option.kind == "bool":
            texts = [
                render_or_refuse({**case, "settings": {option.name: value}})
                for value in ("true", "false")
            ]
            assert texts[0] != texts[1], option.name
    if "cpu" in recipe.devices:
        pair = presets(recipe.for_device("cpu"))[0]
        small = render(name, {"shape": Shape(1, 1), "device": "cpu", **pair})
        assert small.point.model.endswith("tiny")
        assert small.point.batch_size_per_device == 4
        assert "30 iterations, the first 10 are warm-up" in small.text


@cases
def test_settings_reach_the_program_or_are_refused(
    tmp_path, *, recipe, shape, request_, cell, settings, says, refused
):
    """What a program can't do is refused before a job waits for its start."""
    cells = (RequestCell(Shape.parse(shape or "1n1g"), *(cell or ())),)
    request = Request(cells[0].shape, cells, settings=settings or {}, **(request_ or {}))

    expected = pytest.raises(UsageError, match=refused) if refused else nullcontext()
    with expected:
        site, options = drafts.reference(tmp_path), {"dry": True}
        draft = drafts.drafted(site, request, framework_recipe=load(recipe), options=options)
        text = "".join(draft.scripts.values())
        assert [words for words in says or () if words not in text] == []


@pytest.mark.parametrize("recipe", ["pytorch", "hf-trainer", "composer"])
def test_a_compiler_that_cannot_link_is_refused_before_a_job_starts(recipe):
    """PyTorch's compiler for CPUs does not quote the paths of its libraries."""
    pair = presets(load(recipe).for_device("cpu"))[0]
    case = {"shape": Shape(1, 1), "xla": True, "device": "cpu", **pair}
    assert "--compile" in render(recipe, case, python="/a/bin/python").rank
    with pytest.raises(UsageError, match="no blank"):
        render(recipe, case, python="/a b/bin/python")


@pytest.mark.needs("shellcheck")
def test_scripts_are_clean_for_shellcheck(name, tmp_path):
    recipe, texts = load(name), {}
    for runtime, place in zip(RUNTIMES, (0, -1, 1, -2), strict=True):
        script = render(name, core(recipe)[place], runtime=runtime)
        shape = script.point.shape
        assert f"#SBATCH --nodes={shape.nodes}\n" in script.text
        tasks = recipe.tasks_per_node(shape)
        assert f"#SBATCH --ntasks-per-node={tasks}\n" in script.text
        texts[runtime] = script.text
    head = "#!/bin/bash\n# shellcheck disable=SC2317,SC2329 # called by traps\nset -euo pipefail\n"
    for case in [*core(recipe)[-1:], *fringe(recipe)]:
        rank = render_at_some_precision(case, name, lambda case: render(name, case)).rank
        texts[re.sub(r"\d+", "0", rank)] = f"{head}{rank}\n"
    files = [tmp_path / f"{number}.sh" for number in range(len(texts))]
    for file, text in zip(files, texts.values(), strict=True):
        file.write_text(text)
    argv = ["shellcheck", "--shell=bash", "--norc", *map(str, files)]
    result = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=CEILING)
    assert result.returncode == 0, result.stdout


def test_the_table_of_sbatch_s_page_names_all_that_a_script_assigns_and_calls(tmp_path):
    def list_top_level(text: str) -> set[str]:
        """Return the names that a script assigns and calls before and after its functions."""
        head, _, functions = text.partition("\ntrain() {")
        text = head + "\n" + functions.rpartition("\n}\n")[2]
        text = re.sub(r"=\($.*?^\)$", "=()", text, flags=re.MULTILINE | re.DOTALL)
        text = re.sub(r"#.*|'[^']*'|\"[^\"]*\"|\$\w+", "''", text)
        text = re.sub(r"=\([^()]*\)", "=()", text)
        lines = [line for line in text.splitlines() if re.match(r"[a-z]", line)]
        calls = {line.split()[0] for line in lines if re.match(r"[a-z_]+( |$)", line)}
        return {
            name for line in lines for name in re.findall(r"(?<![-\w$\"'=/,{])([a-z_]+)=", line)
        } | calls

    page = (REPOSITORY / "sbatch/README.md").read_text()
    cells = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    listed = set(re.findall(r"`([a-z_]+)(?:=|\(\)|`)", " ".join(cells)))
    texts = [path.read_text() for path in (REPOSITORY / "sbatch").glob("*.sbatch")]
    assert texts
    case = {"shape": Shape(4, 8), **presets(load("pytorch"))[0]}
    for runtime in RUNTIMES:
        texts.append(render("pytorch", case, runtime=runtime).text)
        names = list_top_level(texts[-1])
        assert {"campaign", "environment", "run_repeats", "begin_job"} <= names
    largest = combined(Shape(1, 2), batch_sizes=(LARGEST,))
    texts += drafts.drafted(tmp_path, largest).scripts.values()
    checked = combined(Shape(2, 2), scaling=True)
    options = {"preflight": True, "stop_on_failure": True}
    texts += drafts.drafted(tmp_path, checked, options=options).scripts.values()
    assert {name for text in texts for name in list_top_level(text)} <= listed
