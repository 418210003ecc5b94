"""Pages followed word by word: what they say to write and to type, and what comes of it."""

import importlib
import json
import re
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from hpcbert.logs import grammar, scan
from hpcbert.logs.setting import Setting
from tests.docs.test_documents import codes, read, rows
from tests.kit import cli, logs
from tests.kit.paths import REPOSITORY
from tests.kit.recipes import NAMES, load
from tests.kit.scripts import SPOOL_PAGE, read_steps, type_commands, write_files


@pytest.mark.slow
def test_a_new_framework_is_measured_without_touching_hpcbert(tmp_path):
    """In a directory with a space in its name. Pages have the keys of what comes of it."""

    def read_keys(page, heading):
        """Return the keys in the tables below a heading of a page, as far as the next one."""
        text = read(f"docs/reference/{page}.md").partition(f"\n## {heading}\n")[2]
        cells = re.findall(r"(?m)^\|( `[^|]*)", text.partition("\n## ")[0])
        return {code for cell in cells for code in codes(cell)}

    place = tmp_path / "add a framework"
    for name, language, block in read_steps("add-a-framework.md", end="## Before it becomes part"):
        write_files([(name, language, block)], place)
        if not name:
            assert language == "sh"
            type_commands(block, place)
    measured, rehearsal = sorted(path.parent for path in place.glob("runs/*/manifest.json"))
    text = type_commands(f"hpcbert collect {measured.name} --json", place)
    (table,) = json.loads(text)["data"]["tables"]
    assert [row["shape"] for row in table["rows"]] == ["1n1g", "1n2g"]
    assert [row["repeats"] for row in table["rows"]] == [{"ok": 2, "asked": 2}] * 2
    assert json.loads((rehearsal / "manifest.json").read_text())["rehearse"]
    type_commands(f"hpcbert collect {rehearsal.name}", place, status=4)
    names = {path.name for path in (place / "templates" / "sleeper").iterdir()}
    assert names == {"recipe.toml", "run.sh.j2", "train.sh", "sample.log"}
    assert not (REPOSITORY / "templates" / "sleeper").exists()
    keys = {f"tables[].{key}" for key in table}
    for row in table["rows"]:
        keys |= {"repeats.ok", "repeats.asked"} | (set(row) - {"repeats"}) | set(row["metrics"])
        keys |= {key for run in row["runs"] for key in run}
    keys |= {"left_out", "beside", *(f"made.{key}" for key in ("hpcbert", "date", "command"))}
    sometimes = {"reasons", "tables[].largest", "rates"}
    assert read_keys("json", "collect") - sometimes == keys - sometimes
    text = type_commands(f"hpcbert monitor --once --json {measured.name}", place)
    *events, document = map(json.loads, text.splitlines())
    assert len(events) == 4
    keys = {key for event in events for key in event}
    assert keys <= read_keys("json", "monitor")
    data = read_keys("json", "monitor") - keys - {"rate", "unit", "flags"}
    assert {re.split(r"[\[.]", key)[0] for key in data} == set(document["data"])
    measurements = json.loads((measured / "measurements.json").read_text())
    keys = {f"runs[].{key}" for run in measurements["runs"] for key in run}
    keys |= set(measurements) - {"runs"}
    assert read_keys("campaign-directory", "measurements.json") == keys


@pytest.mark.torch
def test_a_new_scheduler_runs_cancels_and_retries(tmp_path):
    place, steps = tmp_path / "add a scheduler", read_steps(SPOOL_PAGE)
    write_files(steps, place)
    # An environment that has all of this one. pip needs no network: what it builds with is there.
    home = place / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    (packages,) = home.glob("lib/python*/site-packages")
    path = sysconfig.get_path("purelib")
    (packages / "tests.pth").write_text(f"import site; site.addsitedir({path!r})\n")
    python, outer = shlex.quote(str(home / "bin" / "python")), shlex.quote(sys.executable)
    tools = {
        "python": f'#!/bin/bash\nexec {python} "$@"\n',
        "hpcbert": f'#!/bin/bash\nexec {python} -m hpcbert "$@"\n',
        "pip": f'#!/bin/bash\nexec {outer} -m pip --python {python} "$@" --quiet --no-index --no-deps '
        "--no-build-isolation\n",
    }
    commands = [block for name, _, block in steps if not name]
    assert len(commands) == 2
    for block in commands:
        output = type_commands(f"export SPOOL=$PWD/queue\n{block}", place, tools=tools)
        assert re.search(r"^nodes .*\n(?:.*\n)*.* 1/1 *", output, re.MULTILINE), output
    assert sorted(path.name for path in place.glob("queue/*")) == ["0001", "0002", "0003"]
    manifests = [json.loads(path.read_text()) for path in place.glob("runs/2*/manifest.json")]
    assert [manifest["scheduler"] for manifest in manifests] == ["spool", "spool"]


@pytest.mark.slow
def test_the_page_about_notebooks_runs_from_its_first_line_to_its_last(build, empty_directory):
    build("1n1g", "1n2g", repeats=3, scheduler="local").finish()
    place: dict[str, Any] = {}
    for cell in re.findall(r"(?ms)^```python\n(.*?)^```$", read("docs/how-to/notebook.md")):
        exec(compile(cell, "notebook.md", "exec"), place)
    assert list(place["result"].rows["median"]) == pytest.approx([11.0, 22.0])
    assert {path.name for path in Path().glob("*.png")} == {"scaling.png"}
    assert len(list(Path("frames").glob("*.parquet"))) == 4


@pytest.mark.slow
def test_every_command_of_a_recipe_s_page_works_as_typed(empty_directory, without_slurm):
    """Without submitting; what prepare needs is for another place."""
    for name in NAMES:
        text = read(f"templates/{name}/README.md")
        typed = re.findall(r"(?m)^ {4}hpcbert ((?:prepare|submit|render) .+)$", text)
        commands = [shlex.split(line, comments=True) for line in typed]
        assert all(words[1:3] == ["--fw", name] for words in commands)
        kinds = {(words[0], "cpu" in words) for words in commands}
        on_cpu = load(name).environment or load(name).on.get("cpu") or name == "pytorch"
        assert ("submit", True) in kinds if on_cpu else kinds, name
        for words in commands:
            if words[0] != "prepare":
                result = cli.run(*words, *(["--dry-run"] if words[0] == "submit" else []))
                assert result.returncode == 0, (words, result.stderr)


def test_the_log_grammar_s_examples_give_the_numbers_that_they_say(tmp_path):
    examples = re.findall(
        r"(?ms)^`([a-z-]+)`: (?:[^\n]+\n)+\n```text\n(.*?)```\n\n```toml\n(.*?)```\n\n([^\n]+)",
        read("docs/reference/log-grammar-examples.md"),
    )
    assert {kind for kind, *_ in examples} == set(grammar._KEYS) - {"custom"}
    setting = Setting(nodes=1, gpus_per_node=2, batch_size_per_device=32, skip=1, iters=4)
    for kind, log, table, sentence in examples:
        log_grammar = logs.parse(table)
        (rule,) = log_grammar.rules
        path = logs.write_file(tmp_path, f"{kind}.log", log)
        reading = scan.read(path, log_grammar, rule, setting)
        (number,) = re.findall(r"\*\*([\d.]+)\*\* samples/s", sentence)
        assert (rule.kind, reading.reasons) == (kind, ())
        assert f"{reading.throughput:.2f}" == number, kind


def test_the_example_of_write_a_test_passes_and_its_builders_exist(build):
    page = read("CONTRIBUTING.md")
    (text,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names = {**vars(logs), **vars(cli)}
    exec(text, names)
    (test,) = (value for name, value in names.items() if name.startswith("test_"))
    test(build)
    builders = [codes(row[0])[0].partition("(")[0] for row in rows(page, "builder")]
    assert len(builders) == 6
    for builder in builders:
        module, name = builder.split(".")
        assert getattr(importlib.import_module(f"tests.kit.{module}"), name).__doc__
