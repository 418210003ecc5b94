"""The files for other packagers agree with pyproject.toml and with each other."""

from __future__ import annotations

import ast
import hashlib
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import tomli
import yaml
from packaging.requirements import Requirement

import hpcbert
from tests.kit.paths import REPOSITORY

pytestmark = pytest.mark.slow

DIGEST = hashlib.sha256(b"archive").hexdigest()
PROJECT: Mapping[str, Any] = tomli.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
EXTRAS = ("data", "parquet")


def list_lower_bounds(texts: list[str]) -> dict[str, str]:
    """Return the bound of each requirement that holds for every Python."""
    requirements = [Requirement(text) for text in texts if ";" not in text]
    return {
        requirement.name: clause.version
        for requirement in requirements
        for clause in requirement.specifier
        if clause.operator == ">="
    }


RUN = list_lower_bounds(PROJECT["dependencies"])
ALL = RUN | list_lower_bounds(
    [text for extra in EXTRAS for text in PROJECT["optional-dependencies"][extra]]
)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packages")
    (folder / f"hpcbert-{hpcbert.__version__}.tar.gz").write_bytes(b"archive")
    subprocess.run([REPOSITORY / "packaging/fill", folder, folder / "out"], check=True)
    return folder / "out"


def test_every_file_has_the_version_and_the_digest(filled: Path) -> None:
    for path in filter(Path.is_file, filled.rglob("*")):
        text = path.read_text(encoding="utf-8")
        assert "@" + "VERSION@" not in text
        assert "@" + "SHA256@" not in text
        assert hpcbert.__version__ in text, path
        assert DIGEST in text or path.parent.name == "containers", path
    (easyconfig,) = (filled / "easybuild").iterdir()
    assert easyconfig.name == f"hpcbert-{hpcbert.__version__}-gfbf-2025b.eb"


def test_conda_forge_has_the_requirements(filled: Path) -> None:
    recipe = yaml.safe_load((filled / "conda-forge/recipe.yaml").read_text())
    names = {"matplotlib-base": "matplotlib"}
    sections = {name: dict(map(read_conda, recipe["requirements"][name])) for name in ("run",)}
    run = {names.get(name, name): bound for name, bound in sections["run"].items()}
    assert run.pop("python") == "${{"
    assert run == RUN
    constraints = dict(map(read_conda, recipe["requirements"]["run_constraints"]))
    assert constraints == {name: bound for name, bound in ALL.items() if name not in RUN}
    assert PROJECT["requires-python"] == f">={recipe['context']['python_min']}"


def read_conda(text: str) -> tuple[str, str]:
    match = re.fullmatch(r"([\w-]+) >=([^\s,]+).*", text)
    assert match, text
    return match[1], match[2]


def test_spack_has_the_requirements(filled: Path) -> None:
    text = (filled / "spack/package.py").read_text()
    ast.parse(text)
    bounds = dict(re.findall(r'depends_on\("py-([\w-]+)@([^:"]+):', text))
    assert bounds.pop("hatchling")
    assert bounds == ALL
    assert f'depends_on("python@{PROJECT["requires-python"][2:]}:"' in text
    assert set(re.findall(r'variant\("(\w+)"', text)) == set(EXTRAS)


def test_easybuild_s_file_is_python_and_installs_what_its_bundles_lack(filled: Path) -> None:
    (path,) = (filled / "easybuild").iterdir()
    assignments = {
        node.targets[0].id: node.value
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    extensions = assignments["exts_list"]
    assert isinstance(extensions, ast.List)
    names = [
        ast.unparse(entry.elts[0]) for entry in extensions.elts if isinstance(entry, ast.Tuple)
    ]
    assert names[-1] == "name"
    assert {"'submitit'", "'textual'", "'tomli'"} < set(names)


def test_the_citation_names_this_version() -> None:
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    assert str(citation["version"]) == hpcbert.__version__
    assert citation["license"] == PROJECT["license"]
