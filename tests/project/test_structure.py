"""How the package is put together: imports without circles, names with one meaning."""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
import tomli

from tests.kit.cases import cases
from tests.kit.logs import write_file
from tests.kit.paths import REPOSITORY

TESTS = REPOSITORY / "tests"
# Folders whose tests span rooms have a page. The others mirror the package.
SPANNING = {page.parent.name: page for page in TESTS.glob("*/README.md")}


@pytest.mark.slow
@cases
def test_the_linter_of_imports_refuses_a_circle(tmp_path, modules, between):
    tools = tomli.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    rules = tools["importlinter"]["contracts"]
    rule = next(candidate for candidate in rules if candidate["type"] == "acyclic_siblings")
    assert rule["ancestors"] == ["hpcbert"]
    (tmp_path / ".importlinter").write_text(
        "[importlinter]\nroot_package = sample\n"
        f"[importlinter:contract:1]\nname = circles\ntype = {rule['type']}\nancestors = sample\n"
    )
    for name, text in {"__init__.py": "", **modules}.items():
        path = write_file(tmp_path / "sample", name, text)
        (path.parent / "__init__.py").touch()
    linter = Path(sys.executable).with_name("lint-imports")
    argv = [str(linter), "--no-cache", "--config", ".importlinter"]
    result = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    complaint = f"No cycles are allowed in {between}."
    assert (result.returncode, complaint in result.stdout) == ((1, True) if between else (0, False))


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
