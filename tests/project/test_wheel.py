"""The release as `make dist` builds it, the wheel in an environment of its own, and other packagers' files."""

import hashlib
import json
import os
import re
import sys
import zipfile
from pathlib import Path
from runpy import run_path

import pytest
import tomli
import yaml

import hpcbert
from hpcbert.cli.help import pages
from tests.kit.cases import read_constant
from tests.kit.cli import start_process
from tests.kit.logs import write_file
from tests.kit.paths import REPOSITORY
from tests.kit.scripts import tool

pytestmark = pytest.mark.slow

PROJECT = tomli.loads((REPOSITORY / "pyproject.toml").read_text())["project"]


def run_program(*words: object, cwd: Path, code: int = 0, **variables: str) -> str:
    names = ("PIP_", "SSL_", "LANG")
    env = {name: text for name, text in os.environ.items() if name.startswith(names)}
    # Of what is installed here only a little is ever run. pip wants "no" for --no-compile.
    env |= {"PIP_NO_COMPILE": "no", "HOME": str(cwd), "PATH": "/usr/bin:/bin", **variables}
    result = start_process(list(map(str, words)), cwd=cwd, env=env)
    assert result.returncode == code, result
    return result.stderr if code else result.stdout


def make_dist(folder: Path, tag: str, *, code: int = 0) -> str:
    """Run `make dist` into a folder, with the programs of the environment that runs the tests."""
    programs = os.path.relpath(Path(sys.executable).parent, REPOSITORY)
    # -o: what installs into the checkout's own environment counts as done.
    words = ("make", "-C", REPOSITORY, "-o", ".setup/test", "dist", f"BIN={programs}")
    return run_program(*words, f"DIST={folder}", cwd=folder, code=code, TAG=tag)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("the release")
    make_dist(folder, f"v{hpcbert.__version__}")
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def program(tmp_path_factory, wheel):
    """hpcbert, installed alone in an environment whose pip is that of the tests."""
    folder = tmp_path_factory.mktemp("an empty environment")
    run_program(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    line = f'"{sys.executable}" -m pip --python "{folder}/venv/bin/python" "$@"'
    pip = tool(folder / "venv/bin", "pip", f"#!/bin/bash\nexec {line}\n")
    run_program(pip, "install", "--quiet", wheel, cwd=folder)
    return folder / "venv/bin/hpcbert"


def test_a_release_has_the_version_of_its_tag(tmp_path):
    """As the one that `wheel` builds has."""
    for tag in ("v99.0.0", "v9' $(false)"):
        assert tag in make_dist(tmp_path, tag, code=2)


def test_the_wheel_has_what_runs_a_man_page_a_command_and_a_description(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        assert names >= set(read_constant(__file__, "NAMES"))
        assert not [name for name in names if name.startswith(("tests", "runs", "docs"))]
        data = f"hpcbert-{hpcbert.__version__}.data/data/share/man/man1"
        manual = {name for name in names if name.startswith(data)}
        assert manual == {f"{data}/{name}" for name in pages()}
        submit = archive.read(f"{data}/hpcbert-submit.1").decode()
        metadata = archive.read(f"hpcbert-{hpcbert.__version__}.dist-info/METADATA").decode()
    # In a new process: a command remembers the help option of its first use, which was any test's.
    code = "from hpcbert.cli.help import pages; print(pages()['hpcbert-submit.1'], end='')"
    assert submit == run_program(sys.executable, "-c", code, cwd=REPOSITORY)
    fields, _, text = metadata.partition("\n\n")
    assert "Description-Content-Type: text/markdown" in fields
    assert text.startswith("# hpcbert\n\nhpcbert measures")
    assert text.count("\n## ") >= 6
    # Nothing that a package index lacks.
    assert not re.findall(r"\]\((?!https://)", text)
    assert "figure" not in text
    assert "in `docs`" in text


def test_an_installation_is_light(program):
    """torch comes with the images, pyarrow with an extra."""
    words = (program.with_name("pip"), "list", "--format=json")
    listing = json.loads(run_program(*words, cwd=program.parent))
    names = {entry["name"].lower().replace("_", "-") for entry in listing}
    assert names <= set(read_constant(__file__, "PACKAGES").split())
    # Bytecode is about as large as its source.
    paths = (program.parent.parent / "lib").rglob("*")
    size = sum((2 if path.suffix == ".py" else 1) * path.lstat().st_size for path in paths)
    assert size <= 300e6, f"{size / 1e6:.0f} MB"


def test_the_installed_program_renders_collects_and_submits(program, tmp_path):
    line = "submit --nodes 4 --gpus-per-node 8 --fw oneflow --dry-run"
    assert "#SBATCH --nodes=4" in run_program(program, *line.split(), cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []
    sample = REPOSITORY / "templates" / "oneflow" / "sample.log"
    log_name = "logs/oneflow/bert/bz32/4n8g/bert_b32_fp32_1.log"
    write_file(tmp_path, log_name, sample.read_bytes())
    table = json.loads(run_program(program, "collect", tmp_path, "--json", cwd=tmp_path))
    (row,) = table["data"]["tables"][0]["rows"]
    # 4 x 8 x 32 samples, 100 iterations, 25 seconds between the stamps of steps 19 and 119.
    assert row["median"] == pytest.approx(4 * 8 * 32 * 100 / 25.0)
    parquet = ("collect", tmp_path / "logs", "--output", "rows.parquet")
    assert "hpcbert[parquet]" in run_program(program, *parquet, cwd=tmp_path, code=2)
    assert not (tmp_path / "rows.parquet").exists()
    words = ["submit", "--fw", "oneflow", "--rehearse", "--repeats", "1", "--wait"]
    output = run_program(
        program, *words, cwd=tmp_path, PATH=os.environ["PATH"], XDG_STATE_HOME=f"{tmp_path}/state"
    )
    assert "nothing was trained" in output
    (log,) = tmp_path.glob("runs/*/logs/oneflow/bert/bz32/1n1g/bert_b32_fp32_1.log")
    assert log.read_text().startswith("HPCBERT REHEARSAL rank=0/1")


def test_files_for_other_packagers_have_the_release_and_its_requirements(tmp_path):
    def list_lower_bounds(lines):
        """Return the lower bound of each requirement that holds for every Python."""
        return dict(re.findall(r"(?m)^([\w-]+)>=([\w.]+)[^;\n]*$", "\n".join(lines)))

    (tmp_path / f"hpcbert-{hpcbert.__version__}.tar.gz").write_bytes(b"archive")
    filled = tmp_path / "out"
    run_program(REPOSITORY / "packaging/fill", tmp_path, filled, cwd=tmp_path)
    for path in filter(Path.is_file, filled.rglob("*")):
        text = path.read_text(encoding="utf-8")
        assert not {"@" + "VERSION@", "@" + "SHA256@"} & {*re.findall(r"@\w+@", text)}
        assert hpcbert.__version__ in text, path
        digest = hashlib.sha256(b"archive").hexdigest()
        assert digest in text or path.parent.name == "containers", path
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    assert str(citation["version"]) == hpcbert.__version__
    assert citation["license"] == PROJECT["license"]
    # EasyBuild's lists what its bundles lack.
    (path,) = (filled / "easybuild").iterdir()
    assert path.name == f"hpcbert-{hpcbert.__version__}-gfbf-2025b.eb"
    extensions = run_path(str(path), {"SOURCE_PY3_WHL": "a wheel"})["exts_list"]
    names = [name for name, *_ in extensions]
    assert names[-1] == "hpcbert"
    assert {"submitit", "textual", "tomli"} < set(names)
    # Those of conda-forge and of Spack have all.
    needed = list_lower_bounds(PROJECT["dependencies"])
    extras = [PROJECT["optional-dependencies"][name] for name in ("data", "parquet")]
    optional = list_lower_bounds(line for lines in extras for line in lines)
    recipe = yaml.safe_load((filled / "conda-forge/recipe.yaml").read_text())
    run, constraints = (
        dict(re.findall(r"(?m)^([\w-]+) >=([^\s,]+)", "\n".join(recipe["requirements"][name])))
        for name in ("run", "run_constraints")
    )
    assert run.pop("python") == "${{"
    run["matplotlib"] = run.pop("matplotlib-base")
    assert (run, constraints) == (needed, optional)
    assert PROJECT["requires-python"] == f">={recipe['context']['python_min']}"
    text = (filled / "spack/package.py").read_text()
    compile(text, "package.py", "exec")
    bounds = dict(re.findall(r'depends_on\("py-([\w-]+)@([^:"]+):', text))
    assert bounds.pop("hatchling")
    assert bounds == needed | optional
    assert f'depends_on("python@{PROJECT["requires-python"][2:]}:"' in text
    assert set(re.findall(r'variant\("(\w+)"', text)) == {"data", "parquet"}


def test_upgrade_and_uninstall_do_what_their_page_says(program, wheel, tmp_path):
    """The last test, because it takes hpcbert away."""
    page = (REPOSITORY / "docs" / "how-to" / "upgrade.md").read_text()
    upgrade, uninstall = re.findall(r"(?ms)^```sh\n(.*?)^```", page)
    manual = program.parent.parent / "share/man/man1"
    (tmp_path / "site.toml").write_text("mine")
    # Of the checkout it is the release that was built above.
    assert upgrade.count("--upgrade .") == 1
    upgrade = upgrade.replace("--upgrade .", f"--upgrade --no-deps '{wheel}'")
    path = f"{program.parent}:/usr/bin:/bin"
    output = run_program("bash", "-ec", upgrade, cwd=tmp_path, PATH=path)
    assert f"hpcbert {hpcbert.__version__}" in output
    assert list(manual.glob("hpcbert-*.1"))
    run_program("bash", "-ec", uninstall, cwd=tmp_path, PATH=path)
    assert not program.exists()
    assert not list(manual.glob("hpcbert*"))
    assert (tmp_path / "site.toml").read_text() == "mine"
