"""Every recipe folder: it parses, all that it says it can do renders, the result is clean shell, and
its ranks, run with programs that only record their calls, do as it says.

Every word that a script hands to a program is one that the program takes, at the pinned commit: a
table of flags has the program in its first line, its columns in the second: flag, type, default,
choices, note. A key of a JSON file is a row, too, with dots between the levels.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import nullcontext, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from hpcbert.errors import UsageError
from hpcbert.lab.files import has_pmix
from hpcbert.logs.grammar import STARTED
from hpcbert.logs.setting import Setting
from hpcbert.model import LARGEST, Shape
from hpcbert.script.plan import Request, RequestCell
from hpcbert.script.resolve import find_file
from tests.kit import drafts, recipes
from tests.kit.cases import cases, read_constant
from tests.kit.cli import start_process
from tests.kit.logs import write_file
from tests.kit.needs import SHARED, free_port, lacks, not_applicable, require
from tests.kit.paths import REPOSITORY, TEMPLATES
from tests.kit.recipes import World, core, fringe, grammar, load, presets, read, render
from tests.kit.waiting import CEILING, unqueued, until

ALL = ",".join(map(str, range(8)))


def render_at_some_precision(case, name, renders):
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


@pytest.mark.parametrize("recipe", [name for name in recipes.NAMES if load(name).on])
def test_on_cpus_a_small_model_trains_for_a_short_time(recipe):
    pair = presets(load(recipe).for_device("cpu"))[0]
    small = render(recipe, {"shape": Shape(1, 1), "device": "cpu", **pair})
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
    for runtime, place in zip(recipes.RUNTIMES, (0, -1, 1, -2), strict=True):
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
    result = start_process(argv)
    assert result.ok, result.stdout


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
    for runtime in recipes.RUNTIMES:
        texts.append(render("pytorch", case, runtime=runtime).text)
        names = list_top_level(texts[-1])
        assert {"campaign", "environment", "run_repeats", "begin_job"} <= names
    largest = drafts.combined(Shape(1, 2), batch_sizes=(LARGEST,))
    texts += drafts.drafted(tmp_path, largest).scripts.values()
    checked = drafts.combined(Shape(2, 2), scaling=True)
    options = {"preflight": True, "stop_on_failure": True}
    texts += drafts.drafted(tmp_path, checked, options=options).scripts.values()
    assert {name for text in texts for name in list_top_level(text)} <= listed


def test_a_rank_fails_with_its_program_and_has_no_number_without(name, tmp_path):
    world = World(name, tmp_path)
    cases = {case["preset"]: case for case in core(load(name))}.values()
    scripts = [world.render(case) for case in cases]
    for script in scripts:
        failed = world.run(script, code=7, prints=TEMPLATES / name / "sample.log")
        assert failed.exit != 0, str(script.case)
        assert not list((tmp_path / "tmp").iterdir())
    silent = world.run(scripts[-1])
    for rule in grammar(name).rules if not silent.exit else ():
        reading = read(name, tmp_path, silent.output.encode(), rule.name)
        assert reading.throughput is None
        assert reading.reasons or reading.missing
    for folder in ("source", "data"):
        shutil.rmtree(tmp_path / folder)
    bare = world.run(scripts[-1])
    assert bare.exit or read(name, tmp_path, bare.output.encode()).throughput is None


def test_rank_0_states_what_the_ranks_were_started_with(name, tmp_path):
    """Before its program prints anything, as the grammar reads it; not what the request says."""
    world = World(name, tmp_path)
    # Slurm started other nodes and ranks than were requested.
    ranks = {"HPCBERT_NODES": "3", "SLURM_NTASKS": "6"}
    scripts = [world.render(case) for case in core(load(name))[::5]]
    for script in scripts:
        run, point = world.run(script, env=ranks), script.point
        assert run.output.startswith(STARTED)
        facts = dict(read(name, tmp_path, run.output.encode(), settings=Setting()).facts)
        width = point.shape.gpus_per_node // load(name).tasks_per_node(point.shape)
        assert (facts["nodes"], facts["gpus"]) == (3, 6 * width)
        assert facts["batch_size_per_device"] == point.batch_size_per_device
        assert (facts["accumulation"], facts["precision"]) == (point.accumulation, point.precision)
        assert facts.get("model") == (point.model if "bert-" in point.model else None)
    assert STARTED not in world.run(scripts[0], env={**ranks, "SLURM_PROCID": "1"}).output


def test_what_divides_by_zero_or_loops_for_ever_is_not_started(name, tmp_path):
    """Adam of NVIDIA's TensorFlow 1 program, if warm-up is the training; programs on one file."""
    world, recipe = World(name, tmp_path), load(name)
    is_looping = any("loops forever" in text for text in recipe.problems)
    is_warmed = "num_warmup" in (TEMPLATES / name / "run.sh.j2").read_text()
    if not is_looping and not is_warmed:
        not_applicable(f"{name} does neither")
    for iters in (120, 10000) if is_warmed else ():
        script = world.render({"shape": Shape(4, 8), "iters": iters, **presets(recipe)[0]})
        (call,) = world.run(script, prints=TEMPLATES / name / "sample.log").calls
        options = dict(word.split("=", 1) for word in call if "=" in word)
        assert options["--num_warmup_steps"] != options["--num_train_steps"]
    script = world.render(core(recipe)[0])
    for path in (tmp_path / "data").iterdir():
        if path.name not in ("training_0.hdf5", "part-0", "vocab.txt") and path.suffix != ".pt":
            path.unlink()
    assert world.run(script).refused or not is_looping


def run_rank(recipe, folder, rank, shape="2n8g", device="gpu", **lists):
    """Run a rank that sees GPUs by lists: CUDA="0,1", and so on."""
    world, chosen = World(recipe, folder), load(recipe)
    chosen = chosen.for_device("cpu") if device == "cpu" else chosen
    script = world.render({"shape": Shape.parse(shape), "device": device, **presets(chosen)[0]})
    ranks = dict.fromkeys(("SLURM_LOCALID", "SLURM_PROCID", "PMIX_RANK"), str(rank))
    visible = {f"{maker}_VISIBLE_DEVICES": lists.get(maker) for maker in ("CUDA", "ROCR", "HIP")}
    return world.run(script, env={**ranks, **visible})


@cases
def test_a_rank_takes_a_gpu_among_those_that_it_sees(rank, device, lists, hip, tmp_path):
    """`hip`: the list that HIP has to find."""
    environment = run_rank("pytorch", tmp_path, rank, **lists).environment
    assert environment["LOCAL_RANK"] == environment["HPCBERT_DEVICE"] == str(device)
    assert environment.get("HIP_VISIBLE_DEVICES") == hip


def test_every_recipe_s_program_is_told_its_gpu_and_one_that_drives_a_node_sees_all_of_it(
    name, tmp_path
):
    """Each rank sees all GPUs of its node, or its own alone."""
    for visible, device in ((ALL, "3"), ("3", "0")):
        folder = tmp_path / device
        folder.mkdir()
        if load(name).launch == "per-node":
            result = run_rank(name, folder, 0, "1n8g", CUDA=visible)
            assert (result.refused, "--gpu-bind" in result.output) == (device == "0",) * 2
            continue
        result = run_rank(name, folder, 3, CUDA=visible)
        if device == "0" and name in ("mindspore", "mindspore-models"):  # which can't be told
            assert result.refused
            assert "--gpus-per-task" in result.output
            continue
        assert result.exit == 0, result.output
        words, environment = result.calls[-1], result.environment
        # Those of the list read the variable or take the option.
        if name in read_constant(__file__, "BY_LOCAL_RANK"):
            assert environment["LOCAL_RANK"] == device
        elif name in ("mxnet", "ngc-tf1"):
            assert (Path(words[1]).name == "own_device.py") == (device == "0")
            assert environment["HPCBERT_DEVICE"] == device
        elif not name.startswith("mindspore"):
            assert name == "nccl-tests"
            assert environment.get("NCCL_TESTS_DEVICE") == ("0" if device == "0" else None)
        rank_words = [word for word in words if word.startswith("--local_rank")]
        assert rank_words in ([], [f"--local_rank={device}"])


def test_rank_0_warns_of_ranks_that_see_one_gpu_each_and_on_cpus_a_rank_is_its_device(tmp_path):
    for rank, visible, shape, is_warned in (
        *((0, "0", "2n8g", True), (1, "1", "2n8g", False)),
        *((0, ALL, "2n8g", False), (0, "0", "1n1g", False)),
    ):
        folder = tmp_path / f"{rank} {visible} {shape}"
        folder.mkdir()
        result = run_rank("pytorch", folder, rank, shape, CUDA=visible)
        assert ("NCCL may have to copy" in result.output) == is_warned, folder
    for recipe in ("pytorch", "deepspeed", "mxnet", "oneflow-models"):
        (tmp_path / recipe).mkdir()
        environment = run_rank(recipe, tmp_path / recipe, 3, "1n8g", "cpu", CUDA="3").environment
        assert environment["HOROVOD_LOCAL_RANK" if recipe == "mxnet" else "LOCAL_RANK"] == "3"


def test_a_horovod_program_is_answered_with_its_own_gpu(tmp_path):
    basics = "class HorovodBasics:\n    def local_rank(self):\n        return 3\n"
    program = "import sys, beside\nfrom horovod.common.basics import HorovodBasics\n"
    program += "print(HorovodBasics().local_rank(), beside.value, sys.argv[1:], __name__)\n"
    for file, text in {
        "horovod/__init__.py": "", "horovod/common/__init__.py": "",
        "horovod/common/basics.py": basics,
        "program/beside.py": "value = 7\n", "program/run.py": program,
    }.items():  # fmt: skip
        write_file(tmp_path, file, text)
    starter = REPOSITORY / "hpcbert" / "workloads" / "own_device.py"
    argv = [sys.executable, str(starter), str(tmp_path / "program/run.py"), "--a"]
    result = start_process(argv, env={"PYTHONPATH": str(tmp_path), "HPCBERT_DEVICE": "0"})
    assert result.stdout == "0 7 ['--a'] __main__\n"


def test_ranks_of_mxnet_find_each_other_by_the_store_of_rank_0(tmp_path):
    """Without horovodrun and without MPI; the program runs as itself, in its folder."""
    # What gloo.py takes of Horovod 0.28.1, and a program of which rank 0 lives until the other has
    # been served, as it does under Horovod.
    http_server, program = read_constant(__file__, "HOROVOD"), read_constant(__file__, "PROGRAM")
    write_file(tmp_path, "lib/horovod/runner/http/http_server.py", http_server)
    folder = write_file(tmp_path, "a program/train.py", program).parent
    write_file(folder, "neighbour.py", "")
    argv = [sys.executable, str(TEMPLATES / "mxnet" / "gloo.py"), "train.py", "--gpus="]
    store = {"ADDR": "127.0.0.1", "PORT": str(free_port())}
    variables = {f"HOROVOD_GLOO_RENDEZVOUS_{key}": value for key, value in store.items()}
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "lib"), **variables}
    ranks = [
        subprocess.Popen(
            argv, env={**env, "HOROVOD_RANK": rank}, cwd=folder, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in ("1", "0")
    ]  # fmt: skip
    outputs = [rank.communicate(timeout=CEILING) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    assert (folder / "seen").read_text() == "200"
    assert [out for out, _ in outputs] == ["__main__ ['train.py', '--gpus=']\n"] * 2


def read_tables(name):
    """Return type, default, choices and note of the flags of each program, or keys of its files."""
    source, commits = load(name).source, set()
    tables: dict[str, dict[str, list[str]]] = {}
    for file in source.flags:
        folders = (recipes.HERE / "flags", SHARED / "upstream-flags")
        path = next(filter(Path.is_file, (folder / file for folder in folders)), None)
        if path is None:
            lacks("logs", "tables of flags", f"{file} is not here")
        first, _, *rows = path.read_text().splitlines()
        program, *_, commit = first.removeprefix("# program: ").split(" · ")
        columns = [[*row.split("\t"), "", "", "", ""] for row in rows]
        flags = {flag: fields[:4] for flag, *fields in columns}
        tables[program] = {**flags, **tables.get(program, {})}
        commits.add(commit.removeprefix("commit "))
    # Composer's recipe imports a model of the checkout, and starts no program of it.
    assert bool(tables) == bool(source.repository) or name == "composer"
    assert not tables or source.commit in commits
    return tables


def parse_words(program, words, tables):
    """Parse words as a program does; of a flag that two of its tables have, the first one counts."""
    last = program if program.endswith(".py") else program.rpartition(".")[2]
    named = [table for table in tables if last in table]
    shared = [table for table in tables if table.startswith("absl.")]
    chosen = [*named, *shared] if named else [*tables]
    forms = read_constant(__file__, "FORMS")
    unused = re.compile(r"(?i)ignored|not used|unused|no effect|removed before")
    flags = {flag: row for table in reversed(chosen) for flag, row in tables[table].items()}
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for flag, (kind, _, choices, note) in flags.items():
        if not flag.startswith("-") or unused.search(note):
            continue
        options: dict[str, Any] = {"action": "store_true"}
        if kind != "flag":
            form = forms.get(kind.split()[0], r"(?s:.*)")
            if "anything" not in choices and re.fullmatch(r"[\w|.-]+", choices):
                form = "|".join(map(re.escape, choices.split("|")))
            # re.fullmatch returns None for what the program would refuse.
            options = {"type": partial(re.fullmatch, form), "default": True}
            if kind in ("absl-bool", "optional-value") or "value optional" in note:
                options |= {"nargs": "?", "const": True}
        parser.add_argument(flag, **options)
        if kind == "absl-bool":
            parser.add_argument(f"--no{flag.lstrip('-')}", action="store_true")
    parsed, unknown = parser.parse_known_args(words)
    assert unknown == [], f"{program} takes no {unknown}"
    assert None not in vars(parsed).values(), f"{program}: a value of another type in {words}"


def split_programs(argv):
    """Return the programs of a command line and the words of each.

    `python -m torch.distributed.launch --nnodes 2 train.py --lr 1` calls two programs.
    """
    programs: list[tuple[str, list[str]]] = []
    words = iter(argv)
    for word in words:
        is_script = word.endswith(".py") and not word.startswith("-")
        if is_script or not programs:
            programs.append((Path(word).name, []))
        elif word == "-m" and programs[-1][0].startswith("python"):
            programs.append((next(words), []))
        else:
            programs[-1][1].append(word)
    return programs


def test_a_rank_calls_its_program_itself_with_words_that_it_takes(name, tmp_path):
    """For all that a recipe can do; a case that it can't do says so before it calls a program."""

    def list_keys(document, prefix=""):
        """Return the dotted names of a JSON document's values."""
        if not isinstance(document, dict) or not document:
            return [re.sub(r"(?<=\.)(128|512)(?=\.|$)", "<seq>", prefix)]
        inner = ((f"{prefix}.{key}" if prefix else key, value) for key, value in document.items())
        return [key for name, value in inner for key in list_keys(value, name)]

    world, files, tried = World(name, tmp_path), 0, set()
    forms: dict[tuple[str, str], Any] = {}
    tables = read_tables(name)
    settings = {table for table in tables if "JSON" in table or ".json" in table}
    commands = {table: tables[table] for table in tables if table not in settings}
    for case in [*core(load(name)), *fringe(load(name))]:
        script = render_at_some_precision(case, name, world.render)
        assert "None" not in script.rank
        forms.setdefault((case["preset"], re.sub(r"\d+", "0", script.rank)), script)
    for script in forms.values():
        run = world.run(script, prints=TEMPLATES / name / "sample.log")
        for file, text in run.files.items() if settings else ():
            keys = {*list_keys(json.loads(text))}
            unknown = min((keys - {*tables[table]} for table in settings), key=len)
            assert not unknown, f"{script.case}: {file} has keys that its program does not know"
            files += 1
        assert not list((tmp_path / "tmp").iterdir())
        if run.refused:
            continue
        tried.add(script.case["preset"])
        assert run.exit == 0, f"{script.case}: {run.output}"
        assert run.calls, f"{script.case}: no program was called"
        for program, words in chain.from_iterable(map(split_programs, run.calls)):
            assert program not in read_constant(__file__, "LAUNCHERS")
            if program == "python":
                assert words in ([], ["-u"]), f"{script.case}: {words}"
            elif commands:
                parse_words(program, words, commands)
    assert tried == set(load(name).protocols)
    assert files or not settings, "no configuration was seen"


def test_a_program_of_our_own_takes_every_word(name, tmp_path):
    recipe = load(name)
    scripts = [find_file(recipe, file) for file in recipe.files if file.endswith(".py")]
    if recipe.source.repository or not scripts:
        not_applicable(f"{name} runs a program of others")
    for module in recipe.modules:
        require(module)
    world = World(name, tmp_path)
    call = world.run(world.render({**core(recipe)[-1], **presets(recipe)[0]})).calls[0]
    words = split_programs(call)[-1][1]
    # With --help at the end, argparse has read every value before it prints its flags and ends.
    # As in a campaign, the files that it imports lie next to it; coverage knows this folder's name.
    folder = tmp_path / "hpcbert" / "workloads"
    folder.mkdir(parents=True)
    program, *_ = [Path(shutil.copy(script, folder)) for script in scripts]
    argv = [sys.executable, str(program), *words, "--help"]
    result = start_process(argv)
    assert result.ok, result.stderr
    matches = set(re.findall(r"--[a-z][\w-]*", result.stdout))
    assert {word.partition("=")[0] for word in words if word.startswith("--")} <= matches


def test_rehearsals_have_the_ranks_and_addresses_that_each_launch_wants(as_user, checkout, lab):
    """All recipes at 4n2g, one repeat each, queued at once."""
    rank_line = re.compile(
        r"REHEARSAL rank=(\d+)/(\d+) local_rank=(\d+) node=(\d+)/(\d+) host=(\w+) gpus=([\d,]+) "
        r"master=([\d.]+):\d+ nodes=([\d.,]+) reached=(\d+)/(\d+)"
    )
    runs, fields = lab.layout.runs / "rehearsals", {"PYTHONPATH": str(checkout.path)}
    # Without mpi_pmix.so in this release's Slurm, pmix alone is not enough.
    names = [name for name in recipes.NAMES if has_pmix() or set(load(name).mpi) != {"pmix"}]
    shape = ["--nodes", "4", "--gpus-per-node", "2", "--repeats", "1", "--rehearse", "--json"]
    lines = [["submit", "--fw", name, *shape] for name in names]
    # A process forks for each of them: most of a submission's time is its start.
    code = "import json, os, sys; from hpcbert.cli.main import root\n"
    code += "for words in json.loads(sys.argv[1]): (os.fork() or root(words)) and os.wait()"
    argv = [checkout.python, "-c", code, json.dumps(lines)]
    submission = as_user(argv, env={**fields, "HPCBERT_RUNS": str(runs)})
    assert submission.ok, submission.stdout + submission.stderr
    documents = map(json.loads, submission.stdout.splitlines())
    directories = [Path(document["data"]["directory"]) for document in documents]
    folders = dict(zip(names, directories, strict=True))
    assert folders
    for name, directory in folders.items():
        until(partial(unqueued, as_user, directory.name), f"{name} is queued", pause=0.5)
        (status,) = (directory / "status").glob("*.jsonl")
        last = json.loads(status.read_text().splitlines()[-1])
        (log,) = (directory / "logs").rglob("*.log")
        assert (last["event"], last["exit"]) == ("end", 0), log.read_text()
        ranks = [match.groups() for match in rank_line.finditer(log.read_text())]
        numbers, worlds, local, _, _, hosts, gpus, masters, addresses, *reached = zip(
            *ranks, strict=True
        )
        per_node = load(name).launch == "per-node"
        world = 4 if per_node else 8
        assert sorted(map(int, numbers)) == list(range(world)), name
        assert {*worlds} == {str(world)}
        assert {*map(int, local)} == ({0} if per_node else {0, 1})
        assert {*hosts} == {"n1", "n2", "n3", "n4"}
        assert {len(visible.split(",")) for visible in gpus} == {2}
        (nodes,) = {*addresses}
        assert len({*nodes.split(",")}) == 4
        assert {*zip(*reached, strict=True)} == {("4", "4")}
        assert {*masters} == {nodes.split(",")[0]}
