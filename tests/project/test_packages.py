"""The files for other packagers agree with pyproject.toml and with each other."""

import ast
import hashlib
import re
import subprocess
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
import tomli
import yaml

import hpcbert
from tests.kit.paths import REPOSITORY

pytestmark = pytest.mark.slow

PROJECT: dict[str, Any] = tomli.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
EXTRAS = ("data", "parquet")


def list_lower_bounds(*lists: list[str]) -> dict[str, str]:
    """Return the lower bound of each requirement that holds for every Python."""
    text = "\n".join(line for lines in lists for line in lines)
    return dict(re.findall(r"(?m)^([\w-]+)>=([\w.]+)[^;\n]*$", text))


RUN = list_lower_bounds(PROJECT["dependencies"])
ALL = RUN | list_lower_bounds(*(PROJECT["optional-dependencies"][extra] for extra in EXTRAS))


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packages")
    (folder / f"hpcbert-{hpcbert.__version__}.tar.gz").write_bytes(b"archive")
    subprocess.run([REPOSITORY / "packaging/fill", folder, folder / "out"], check=True)
    return folder / "out"


def test_every_file_has_the_version_and_the_digest(filled):
    for path in filter(Path.is_file, filled.rglob("*")):
        text = path.read_text(encoding="utf-8")
        assert not {"@" + "VERSION@", "@" + "SHA256@"} & {*re.findall(r"@\w+@", text)}
        assert hpcbert.__version__ in text, path
        digest = hashlib.sha256(b"archive").hexdigest()
        assert digest in text or path.parent.name == "containers", path
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    assert str(citation["version"]) == hpcbert.__version__
    assert citation["license"] == PROJECT["license"]


def test_conda_forge_has_the_requirements(filled):
    recipe = yaml.safe_load((filled / "conda-forge/recipe.yaml").read_text())
    run, constraints = (
        dict(re.findall(r"(?m)^([\w-]+) >=([^\s,]+)", "\n".join(recipe["requirements"][name])))
        for name in ("run", "run_constraints")
    )
    assert run.pop("python") == "${{"
    run["matplotlib"] = run.pop("matplotlib-base")
    assert run == RUN
    assert constraints == {name: bound for name, bound in ALL.items() if name not in RUN}
    assert PROJECT["requires-python"] == f">={recipe['context']['python_min']}"


def test_spack_has_the_requirements(filled):
    text = (filled / "spack/package.py").read_text()
    ast.parse(text)
    bounds = dict(re.findall(r'depends_on\("py-([\w-]+)@([^:"]+):', text))
    assert bounds.pop("hatchling")
    assert bounds == ALL
    assert f'depends_on("python@{PROJECT["requires-python"][2:]}:"' in text
    assert set(re.findall(r'variant\("(\w+)"', text)) == set(EXTRAS)


def test_easybuild_s_file_is_python_and_installs_what_its_bundles_lack(filled):
    (path,) = (filled / "easybuild").iterdir()
    assert path.name == f"hpcbert-{hpcbert.__version__}-gfbf-2025b.eb"
    extensions = run_path(str(path), {"SOURCE_PY3_WHL": "a wheel"})["exts_list"]
    names = [name for name, *_ in extensions]
    assert names[-1] == "hpcbert"
    assert {"submitit", "textual", "tomli"} < set(names)
