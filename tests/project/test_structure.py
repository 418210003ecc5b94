"""How code, tests and CI are put together: imports, names, folders, workflows, hooks and locks."""

import ast
import re
import shlex
import subprocess
from collections import defaultdict

import pytest
import tomli
import yaml
from packaging.requirements import Requirement

from tests.kit.paths import REPOSITORY

TESTS = REPOSITORY / "tests"
# Folders whose tests span rooms have a page. The others mirror the package.
SPANNING = {page.parent.name: page for page in TESTS.glob("*/README.md")}
FOLDER = REPOSITORY / ".github" / "workflows"
WORKFLOWS = {path.name: yaml.safe_load(path.read_text()) for path in sorted(FOLDER.glob("*.yml"))}
JOBS = WORKFLOWS["tests.yml"]["jobs"]
MAKEFILE = (REPOSITORY / "Makefile").read_text()


def test_no_import_of_the_package_may_go_in_a_circle():
    """By a rule of import-linter's without exceptions, which `make check` applies."""
    tools = tomli.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    rules = tools["importlinter"]["contracts"]
    (rule,) = (candidate for candidate in rules if candidate["type"] == "acyclic_siblings")
    assert rule == {"name": rule["name"], "type": rule["type"], "ancestors": ["hpcbert"]}


@pytest.mark.slow
def test_no_two_classes_have_one_name():
    paths_of_class = defaultdict(list)
    for path in (REPOSITORY / "hpcbert").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                paths_of_class[node.name].append(path.name)
    assert {name: paths for name, paths in paths_of_class.items() if len(paths) > 1} == {}


def test_a_file_of_tests_is_named_after_what_it_tests():
    """tests/ROOM/test_MODULE.py, or test_MODULE_SUBJECT.py, of hpcbert/ROOM/MODULE."""
    wrong = []
    for path in TESTS.rglob("test_*.py"):
        place = path.relative_to(TESTS)
        room = REPOSITORY / "hpcbert" / place.parent
        modules = {file.stem for file in room.glob("*") if file.suffix in {".py", ".sh", ".bash"}}
        words = path.stem.removeprefix("test_").split("_")
        names = {"_".join(words[:count]) for count in range(1, len(words) + 1)}
        if place.parts[0] not in SPANNING and not names & modules:
            wrong.append(str(place))
    assert wrong == []


def test_a_folder_that_spans_rooms_has_a_page_of_ten_lines_or_so():
    lengths = {name: len(page.read_text("utf-8").splitlines()) for name, page in SPANNING.items()}
    assert {name: length for name, length in lengths.items() if not 5 <= length <= 25} == {}
    script = (REPOSITORY / ".ci" / "everybody").read_text(encoding="utf-8")
    (rooms,) = re.findall(r"^readonly ROOMS=\((.*)\)$", script, re.MULTILINE)
    assert [room for room in rooms.split() if not (TESTS / room).is_dir()] == []


def test_each_table_of_cases_is_of_a_test_next_to_it():
    for path in TESTS.rglob("test_*.toml"):
        text = path.with_suffix(".py").read_text(encoding="utf-8")
        read = re.findall(r"^@cases\n(?:@.*\n)*def (\w+)|__file__, \"(\w+)\"", text, re.MULTILINE)
        names = {name for pair in read for name in pair if name}
        assert set(tomli.loads(path.read_text(encoding="utf-8"))) == names, path.name


def test_workflows_and_hooks_make_targets_that_help_names_and_run_its_linters():
    repositories = yaml.safe_load((REPOSITORY / ".pre-commit-config.yaml").read_text())["repos"]
    entries = [hook["entry"] for repository in repositories for hook in repository["hooks"]]
    jobs = [job for workflow in WORKFLOWS.values() for job in workflow["jobs"].values()]
    steps = [step for job in jobs for step in job["steps"]]
    commands = [shlex.split(text) for text in (*(s["run"] for s in steps if "run" in s), *entries)]
    targets = {word for words in commands if words[0] == "make" for word in words[1:]}
    assert targets == {"browser", "check", "dist", "docs", "packaging", "quick", "test"}
    (phony,) = re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    assert targets <= set(phony.split())
    texts = dict(re.findall(r"^(help|check):.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE))
    assert targets <= set(re.findall(r"echo 'make (\w+)", texts["help"]))
    # Each hook begins with the words of a line of `make check`, options aside.
    linters = re.findall(r"\$\(BIN\)(/[\w-]+(?: \w+)?)", texts["check"])
    expected = [*(f".venv/bin{linter}" for linter in linters), "make quick"]
    assert sorted(entry.split(" -")[0] for entry in entries) == sorted(expected)


def test_every_python_that_the_project_promises_is_tried_and_has_its_locks():
    """Each lock names every direct dependency that it is for, with the digests of its files."""
    text = tomli.loads((REPOSITORY / "pyproject.toml").read_text())
    project, groups = text["project"], text["dependency-groups"]
    promised = re.findall(r":: Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert JOBS["python"]["strategy"]["matrix"]["python"] == promised
    assert project["requires-python"] == f">={promised[0]}"
    assert text["tool"]["ruff"]["target-version"] == f"py{promised[0].replace('.', '')}"
    locks = {path.stem: path.read_text() for path in (REPOSITORY / ".ci" / "locks").iterdir()}
    assert locks.keys() == {f"{use}-{python}" for use in ("demo", "test") for python in promised}
    extras = project["optional-dependencies"]
    needed = {"demo": [*project["dependencies"], *groups["demo"]]}
    added = (extras["data"], extras["parquet"], groups["test"], groups["lint"])
    needed["test"] = [*needed["demo"], *(line for lines in added for line in lines)]
    for name, lock in locks.items():
        pins = set(re.findall(r"^([\w.-]+)==\S+ \\\n    --hash=sha256:", lock, re.MULTILINE))
        assert {Requirement(line).name for line in needed[name.partition("-")[0]]} <= pins, name


@pytest.mark.needs("shellcheck")
def test_the_scripts_of_ci_are_clean_for_shellcheck():
    paths = [*(REPOSITORY / ".ci").iterdir(), *(REPOSITORY / "packaging").iterdir()]
    files = [path for path in paths if path.is_file()]
    scripts = [path for path in files if path.read_bytes().startswith(b"#!/usr/bin/env bash")]
    assert len(scripts) > 3
    result = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True, check=False)
    assert result.stdout == ""


def test_the_site_matrix_has_the_systems_of_ci_and_what_tests_try():
    page = (REPOSITORY / "docs" / "reference" / "site-matrix.md").read_text()
    systems, _, configurations = page.partition("## Configurations")
    releases = set(re.findall(r"^\| Debian (\w+) \|", systems, re.MULTILINE))
    assert releases == {*JOBS["debian"]["strategy"]["matrix"]["debian"]}
    assert re.search(r"^SUITES \?= bookworm trixie sid$", MAKEFILE, re.MULTILINE)
    rows = re.findall(r"^\| (.+?) \| (`tests/.+) \|$", configurations, re.MULTILINE)
    for name, paths in rows:
        for path in re.findall(r"`(.+?)`", paths):
            assert f'"{name}"' in (REPOSITORY / path).read_text(), (name, path)


@pytest.mark.parametrize("name", WORKFLOWS)
def test_actions_are_pinned_and_only_a_job_without_our_code_gets_a_token(name):
    # A full commit, and the release that it is.
    pinned = re.compile(r"uses: [\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    lines = [line.strip().removeprefix("- ") for line in (FOLDER / name).read_text().splitlines()]
    assert not [line for line in lines if "uses:" in line and not pinned.fullmatch(line)]
    assert WORKFLOWS[name]["permissions"] == {"contents": "read"}
    for job in WORKFLOWS[name]["jobs"].values():
        for step in job["steps"]:
            if "actions/checkout@" in step.get("uses", ""):
                assert step["with"]["persist-credentials"] is False
        if "id-token" in job.get("permissions", {}):
            assert not [step for step in job["steps"] if "run" in step]
            assert job["environment"]
