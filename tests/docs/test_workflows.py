"""The workflows, the pre-commit hooks and the Makefile agree with pyproject.toml."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import tomli
import yaml
from packaging.requirements import Requirement

from tests.kit.paths import REPOSITORY

WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))
HOOKS = REPOSITORY / ".pre-commit-config.yaml"
PROJECT: dict[str, Any] = tomli.loads((REPOSITORY / "pyproject.toml").read_text())
MAKEFILE = (REPOSITORY / "Makefile").read_text()


def read(path: Path) -> dict[str, Any]:
    # YAML 1.1 reads the key `on` as a truth value; nothing here looks at it.
    content = yaml.safe_load(path.read_text())
    assert isinstance(content, dict)
    return content


def steps(workflow: Path) -> list[dict[str, Any]]:
    return [step for job in read(workflow)["jobs"].values() for step in job["steps"]]


def hooks() -> list[dict[str, Any]]:
    return [hook for repository in read(HOOKS)["repos"] for hook in repository["hooks"]]


def commands() -> list[list[str]]:
    """Return each command that a workflow or a hook runs, as words."""
    runs = [step["run"] for path in WORKFLOWS for step in steps(path) if "run" in step]
    return [shlex.split(command) for command in (*runs, *(hook["entry"] for hook in hooks()))]


def list_make_targets() -> set[str]:
    return {word for words in commands() if words[0] == "make" for word in words[1:]}


def recipe(target: str) -> str:
    (body,) = re.findall(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    return str(body)


def matrix(name: str, key: str) -> list[str]:
    jobs = read(REPOSITORY / ".github" / "workflows" / "tests.yml")["jobs"]
    return list(jobs[name]["strategy"]["matrix"][key])


def test_what_they_make_are_targets_that_help_names() -> None:
    (phony,) = re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    targets = {"browser", "check", "dist", "docs", "packaging", "quick", "test"}
    assert list_make_targets() == targets
    assert list_make_targets() <= set(phony.split())
    assert list_make_targets() <= set(re.findall(r"echo 'make (\w+)", recipe("help")))


def test_the_hooks_are_the_linters_of_make_check_and_make_itself() -> None:
    """Each begins with the words of a line of `make check`, options aside."""
    linters = re.findall(r"\$\(BIN\)(/[\w-]+(?: \w+)?)", recipe("check"))
    entries = [re.split(r" -", hook["entry"])[0] for hook in hooks()]
    assert sorted(entries) == sorted([*(f".venv/bin{linter}" for linter in linters), "make quick"])


def test_the_matrix_is_the_pythons_that_the_project_promises() -> None:
    classifiers = PROJECT["project"]["classifiers"]
    promised = [
        classifier.rpartition(" ")[2]
        for classifier in classifiers
        if ":: Python :: 3." in classifier
    ]
    assert matrix("python", "python") == promised
    assert PROJECT["project"]["requires-python"] == f">={promised[0]}"
    assert PROJECT["tool"]["ruff"]["target-version"] == f"py{promised[0].replace('.', '')}"


def test_every_python_has_its_locks() -> None:
    """Each names every direct dependency that it is for, with the digests of its files."""
    folder = REPOSITORY / ".ci" / "locks"
    pythons = matrix("python", "python")
    assert {path.stem for path in folder.iterdir()} == {
        f"{use}-{python}" for use in ("demo", "test") for python in pythons
    }
    groups, extras = PROJECT["dependency-groups"], PROJECT["project"]["optional-dependencies"]
    needed = {"demo": [*PROJECT["project"]["dependencies"], *groups["demo"]]}
    added = (extras["data"], extras["parquet"], groups["test"], groups["lint"])
    needed["test"] = [*needed["demo"], *(line for lines in added for line in lines)]
    for path in folder.iterdir():
        pins = re.findall(r"^([\w.-]+)==\S+ \\\n    --hash=sha256:", path.read_text(), re.MULTILINE)
        names = {Requirement(text).name for text in needed[path.stem.partition("-")[0]]}
        assert names <= set(pins), path.name


@pytest.mark.needs("shellcheck")
def test_the_scripts_of_ci_are_clean_for_shellcheck() -> None:
    scripts = [
        str(path)
        for folder in (".ci", "packaging")
        for path in (REPOSITORY / folder).iterdir()
        if path.is_file() and path.read_bytes().startswith(b"#!/usr/bin/env bash")
    ]
    assert len(scripts) > 3
    result = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True, check=False)
    assert result.stdout == ""


def test_the_site_matrix_has_the_systems_of_ci_and_what_tests_try() -> None:
    page = (REPOSITORY / "docs" / "reference" / "site-matrix.md").read_text()
    systems, _, configurations = page.partition("## Configurations")
    releases = {f"Debian {release}" for release in matrix("debian", "debian")}
    assert releases == set(re.findall(r"^\| (Debian \w+) \|", systems, re.MULTILINE))
    assert re.search(r"^SUITES \?= bookworm trixie sid$", MAKEFILE, re.MULTILINE)
    rows = re.findall(r"^\| (.+?) \| (`tests/.+) \|$", configurations, re.MULTILINE)
    for name, paths in rows:
        for path in re.findall(r"`(.+?)`", paths):
            assert f'"{name}"' in (REPOSITORY / path).read_text(), (name, path)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_every_action_is_pinned_and_every_job_may_only_read(workflow: Path) -> None:
    # A full commit, and the release that it is.
    pinned = re.compile(r"uses: [\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    used = [line.strip().removeprefix("- ") for line in workflow.read_text().splitlines()]
    assert not [line for line in used if "uses:" in line and not pinned.fullmatch(line)]
    assert read(workflow)["permissions"] == {"contents": "read"}
    for step in steps(workflow):
        if "actions/checkout@" in step.get("uses", ""):
            assert step["with"]["persist-credentials"] is False


def test_only_the_job_that_runs_no_code_of_ours_gets_a_token() -> None:
    for workflow in WORKFLOWS:
        for job in read(workflow)["jobs"].values():
            if "id-token" in job.get("permissions", {}):
                assert not [step for step in job["steps"] if "run" in step]
                assert job["environment"]
