"""How the package is put together: imports without circles, names with one meaning."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
import tomli

from tests.kit.cases import cases
from tests.kit.paths import REPOSITORY

# Folders whose tests span rooms. The others mirror the package.
SPANNING = {"cluster", "containers", "contract", "docs", "faults"} | {
    *("laws", "project", "recipes", "security"),
}
LINTER = Path(sys.executable).with_name("lint-imports")


def find_circles(directory: Path, modules: dict[str, str]) -> str:
    """Return what import-linter says of a package under this project's rule about circles."""
    tools = tomli.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    rules = tools["importlinter"]["contracts"]
    rule = next(candidate for candidate in rules if candidate["type"] == "acyclic_siblings")
    assert rule["ancestors"] == ["hpcbert"]
    (directory / ".importlinter").write_text(
        "[importlinter]\nroot_package = sample\n"
        f"[importlinter:contract:1]\nname = circles\ntype = {rule['type']}\nancestors = sample\n"
    )
    for name, text in {"__init__.py": "", **modules}.items():
        path = directory / "sample" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        (path.parent / "__init__.py").touch()
    argv = [str(LINTER), "--no-cache", "--config", ".importlinter"]
    result = subprocess.run(argv, cwd=directory, capture_output=True, text=True, check=False)
    return "" if result.returncode == 0 else result.stdout


@pytest.mark.slow
@cases
def test_a_circle_of_imports_breaks_the_check(
    tmp_path: Path, modules: dict[str, str], between: str
):
    assert f"No cycles are allowed in {between}." in find_circles(tmp_path, modules)


def test_imports_one_way_pass_the_check(tmp_path: Path):
    modules = {"one.py": "import sample.room.two", "room/two.py": "import sample.room.three"}
    assert not find_circles(tmp_path, {**modules, "room/three.py": ""})


@pytest.mark.slow
def test_no_two_classes_have_one_name():
    paths_of_class = defaultdict(list)
    for path in (REPOSITORY / "hpcbert").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                paths_of_class[node.name].append(path.name)
    assert {name: paths for name, paths in paths_of_class.items() if len(paths) > 1} == {}


def test_the_rooms_that_ci_repeats_as_docker_s_root_are_there() -> None:
    (line,) = (
        line
        for line in (REPOSITORY / ".ci" / "everybody").read_text(encoding="utf-8").splitlines()
        if line.startswith("readonly ROOMS=(")
    )
    rooms = line.partition("(")[2].rstrip(")").split()
    assert [room for room in rooms if not (REPOSITORY / "tests" / room).is_dir()] == []


def is_named_after_a_module(path: Path) -> bool:
    """Return whether tests/ROOM/test_MODULE.py, or test_MODULE_SUBJECT.py, has its hpcbert/ROOM/MODULE."""
    room = REPOSITORY / "hpcbert" / path.parent.relative_to(REPOSITORY / "tests")
    modules = {module.stem for module in room.glob("*") if module.suffix in {".py", ".sh", ".bash"}}
    words = path.stem.removeprefix("test_").split("_")
    return any("_".join(words[:count]) in modules for count in range(1, len(words) + 1))


def test_a_file_of_tests_is_named_after_what_it_tests() -> None:
    folder = REPOSITORY / "tests"
    paths = [
        path
        for path in folder.rglob("test_*.py")
        if path.relative_to(folder).parts[0] not in SPANNING
    ]
    assert [str(path) for path in paths if not is_named_after_a_module(path)] == []


def test_a_folder_that_spans_rooms_has_a_page_of_ten_lines_or_so() -> None:
    pages = [REPOSITORY / "tests" / name / "README.md" for name in SPANNING]
    lengths = {page.parent.name: len(page.read_text("utf-8").splitlines()) for page in pages}
    assert {name: length for name, length in lengths.items() if not 5 <= length <= 25} == {}


def test_each_table_of_cases_is_of_a_test_next_to_it() -> None:
    for path in (REPOSITORY / "tests").rglob("test_*.toml"):
        text = path.with_suffix(".py").read_text(encoding="utf-8")
        read = re.findall(r"^@cases\n(?:@.*\n)*def (\w+)|__file__, \"(\w+)\"", text, re.MULTILINE)
        names = {name for pair in read for name in pair if name}
        assert set(tomli.loads(path.read_text(encoding="utf-8"))) == names, path.name
