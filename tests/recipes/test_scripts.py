"""Every recipe folder: it parses, all that it says it can do renders, and the result is clean shell."""

from __future__ import annotations

import re
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from hpcbert.config.recipe import Recipe, VirtualEnvironment
from hpcbert.errors import UsageError
from hpcbert.model import Shape
from tests.kit.paths import TEMPLATES
from tests.kit.recipes import (
    RUNTIMES,
    Case,
    core,
    fringe,
    grammar,
    load,
    presets,
    render,
)
from tests.kit.waiting import CEILING


def test_a_folder_holds_facts_a_script_and_a_sample_and_no_program(name: str) -> None:
    recipe = load(name)
    names = {path.name for path in (TEMPLATES / name).iterdir()}
    assert {"recipe.toml", "run.sh.j2", "sample.log"} <= names
    usual = {"recipe.toml", "run.sh.j2", "preflight.sh.j2", "sample.log", "README.md"}
    assert names <= {*usual, *recipe.files, *_list_patches(recipe), *_list_requirements(recipe)}


def _list_environments(recipe: Recipe) -> list[VirtualEnvironment]:
    virtual_environments = (
        recipe.environment,
        *(other.environment for other in recipe.on.values()),
    )
    return [environment for environment in virtual_environments if environment is not None]


def _list_patches(recipe: Recipe) -> list[str]:
    patches = [
        *recipe.source.patches,
        *(patch for on in recipe.on.values() for patch in on.patches),
    ]
    return [
        *patches,
        *(patch for environment in _list_environments(recipe) for patch in environment.patches),
    ]


def _list_requirements(recipe: Recipe) -> set[str]:
    return {
        step.requirements
        for environment in _list_environments(recipe)
        for step in environment.install
    } - {""}


def test_an_environment_has_a_version_for_each_package(name: str) -> None:
    for file in _list_requirements(load(name)):
        lines = (TEMPLATES / name / file).read_text().splitlines()
        packages = [line for line in lines if line and not line.startswith("#")]
        assert packages
        for line in packages:
            assert re.fullmatch(r"[\w.-]+(\[[\w,]+\])?==[\w.+!]+", line), f"{file}: {line}"


def test_a_patch_says_why_and_is_listed_in_the_readme(name: str) -> None:
    for patch in _list_patches(load(name)):
        reason, diff, _ = (TEMPLATES / name / patch).read_text().partition("diff --git ")
        assert len(reason.split()) >= 5, f"{patch} gives no reason"
        assert diff
        assert f"`{patch}`" in (TEMPLATES / name / "README.md").read_text()


def test_recipe_and_grammar_are_read_strictly(name: str) -> None:
    recipe = load(name)
    assert grammar(name).rules
    if recipe.source.commit:
        assert re.fullmatch(r"[0-9a-f]{40}", recipe.source.commit), "a commit is named in full"
        assert recipe.source.repository.startswith("https://")


def test_protocols_and_options_have_names_that_files_and_flags_can_carry(name: str) -> None:
    recipe = load(name)
    for word in (*recipe.protocols, *recipe.options):
        assert re.fullmatch(r"[a-z][a-z0-9_-]*|", word)


def _parse_scripts(texts: list[str]) -> None:
    for text in texts:
        result = subprocess.run(
            ["bash", "-n"], input=text, capture_output=True, text=True, check=False, timeout=CEILING
        )
        assert result.returncode == 0, f"{result.stderr}\n{text}"
        assert not result.stderr, result.stderr


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_every_shape_precision_and_protocol_renders_for_bash(name: str, runtime: str) -> None:
    scripts = [render(name, case, runtime=runtime) for case in core(load(name))]
    for script in scripts:
        tasks = load(name).tasks_per_node(script.case.shape)
        assert f"#SBATCH --nodes={script.case.shape.nodes}\n" in script.text
        assert f"#SBATCH --ntasks-per-node={tasks}\n" in script.text
        assert "None" not in script.rank
    _parse_scripts(
        _select_unlike([text for script in scripts for text in (script.text, script.rank)])
    )


def test_every_model_option_and_compiler_setting_renders_for_bash(name: str) -> None:
    ranks = [_render_at_some_precision(name, case) for case in fringe(load(name))]
    _parse_scripts(_select_unlike(ranks))


def _render_at_some_precision(name: str, case: Case) -> str:
    """Return the commands of a rank; some settings are refused at all precisions but one."""
    for preset, precision in ((case.preset, case.precision), *presets(load(name))):
        with suppress(UsageError):
            return render(name, case._replace(preset=preset, precision=precision)).rank
    raise AssertionError(case)


def _render_or_refuse(name: str, case: Case) -> str:
    try:
        return render(name, case).rank
    except UsageError as error:
        return str(error)


def test_each_switch_is_honoured_both_ways_or_refused(name: str) -> None:
    """Of XLA under every protocol, and of the recipe's own switches; a protocol has the default."""
    recipe, shape = load(name), Shape(1, 8)
    for preset, precision in presets(recipe):
        on, off, default = (
            _render_or_refuse(name, Case(shape, preset, precision, xla=xla))
            for xla in (True, False, None)
        )
        assert on != off, preset.name
        assert "--xla" in on or recipe.xla, on
        usual = render(name, Case(shape, preset, precision)).point
        assert default == (on if usual.xla else off) or recipe.xla not in (True, False)
        assert usual.xla == preset.xla
    switches = [option for option in recipe.options.values() if option.kind == "bool"]
    for option in switches:
        texts = {
            _render_or_refuse(name, Case(shape, *pair, settings=((option.name, value),)))
            for value in ("true", "false")
            for pair in presets(recipe)[:1]
        }
        assert len(texts) == 2, option.name


def test_on_the_cpu_the_default_is_small_and_short(name: str) -> None:
    recipe = load(name)
    if "cpu" not in recipe.devices:
        return
    script = render(name, Case(Shape(1, 1), *presets(recipe.for_device("cpu"))[0], device="cpu"))
    assert script.point.model.endswith("tiny")
    assert script.point.batch_size_per_device == 4
    assert "30 iterations, the first 10 are warm-up" in script.text


@pytest.mark.parametrize("recipe", ["pytorch", "hf-trainer", "composer"])
def test_a_compiler_that_cannot_link_is_refused_before_a_job_starts(recipe: str) -> None:
    """PyTorch's compiler for CPUs does not quote the paths of its libraries."""
    case = Case(Shape(1, 1), *presets(load(recipe).for_device("cpu"))[0], xla=True, device="cpu")
    assert "--compile" in render(recipe, case, python="/a/bin/python").rank
    with pytest.raises(UsageError, match="no blank"):
        render(recipe, case, python="/a b/bin/python")


def _select_unlike(texts: list[str]) -> list[str]:
    """Return texts that differ in more than numbers."""
    return list({re.sub(r"\d+", "0", text): text for text in texts}.values())


@pytest.mark.needs("shellcheck")
def test_scripts_are_clean_for_shellcheck(name: str, tmp_path: Path) -> None:
    recipe = load(name)
    scripts = [
        render(name, Case(shape, *presets(recipe)[0]), runtime=runtime)
        for shape, runtime in ((Shape(1, 1), "none"), (Shape(4, 8), "pyxis"))
    ]
    cases = [*core(recipe), *fringe(recipe)]
    head = "#!/bin/bash\n# shellcheck disable=SC2317,SC2329 # called by traps\nset -euo pipefail\n"
    texts = [_render_at_some_precision(name, case) for case in cases]
    ranks = _select_unlike([f"{head}{text}\n" for text in texts])
    files = []
    for number, text in enumerate([*(script.text for script in scripts), *ranks]):
        files.append(tmp_path / f"{number}.sh")
        files[-1].write_text(text)
    result = subprocess.run(
        ["shellcheck", "--shell=bash", "--norc", *map(str, files)],
        capture_output=True,
        text=True,
        check=False,
        timeout=CEILING,
    )
    assert result.returncode == 0, result.stdout
