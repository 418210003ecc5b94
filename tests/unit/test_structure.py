"""How the package is put together: imports without circles, names with one meaning."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
import tomli

from tests.kit.paths import REPOSITORY

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
@pytest.mark.parametrize(
    ("modules", "between"),
    [
        pytest.param(
            {
                "one.py": "def act():\n    from sample import two\n    return two",
                "two.py": "import sample.one",
            },
            "sample",
            id="two modules, one by an import in a function",
        ),
        pytest.param(
            {
                "hall/one.py": "import sample.hall.two",
                "hall/two.py": "import sample.hall.three",
                "hall/three.py": "from sample.hall import one",
            },
            "sample.hall",
            id="three modules of a room",
        ),
        pytest.param(
            {
                "upper/one.py": "import sample.lower.one",
                "upper/two.py": "",
                "lower/one.py": "",
                "lower/two.py": "import sample.upper.two",
            },
            "sample",
            id="two rooms, none of their modules",
        ),
    ],
)
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
