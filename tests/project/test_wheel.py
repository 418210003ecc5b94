"""The release as `make dist` builds it; the wheel, installed alone in an environment of its own."""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

import hpcbert
from hpcbert.cli.help import pages
from tests.kit.cases import read_constant

pytestmark = pytest.mark.slow

Word = str | Path
# What a wheel has, and what an installation consists of: torch comes with the images, pyarrow with
# an extra.
NAMES, PACKAGES = read_constant(__file__, "NAMES"), read_constant(__file__, "PACKAGES")
LARGEST = 300e6  # bytes


def run_program(*words: Word, cwd: Path, code: int = 0, **variables: str) -> str:
    """Run a program and return what it prints."""
    names = [name for name in os.environ if name.startswith(("PIP_", "SSL_", "LANG"))]
    kept = {name: os.environ[name] for name in names}
    # Of what is installed here only a little is ever run. pip wants "no" for --no-compile.
    kept |= {"PIP_NO_COMPILE": "no", "HOME": str(cwd), "PATH": "/usr/bin:/bin", **variables}
    argv = [str(word) for word in words]
    result = subprocess.run(argv, cwd=cwd, env=kept, capture_output=True, text=True, check=False)
    assert result.returncode == code, result.stdout + result.stderr
    return result.stderr if code else result.stdout


def make_dist(folder: Path, repository: Path, tag: str, *, code: int = 0) -> str:
    """Run `make dist` into a folder, with the programs of the environment that runs the tests."""
    programs = os.path.relpath(Path(sys.executable).parent, repository)
    # -o: what installs into the checkout's own environment counts as done.
    words = ("make", "-C", repository, "-o", ".setup/test", "dist", f"BIN={programs}")
    return run_program(*words, f"DIST={folder}", cwd=folder, code=code, TAG=tag)


def pip(python: Path, *words: Word) -> str:
    """Run pip for another environment, which has none."""
    return run_program(sys.executable, "-m", "pip", "--python", python, *words, cwd=python.parent)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory, repository):
    folder = tmp_path_factory.mktemp("the release")
    make_dist(folder, repository, f"v{hpcbert.__version__}")
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def program(tmp_path_factory, wheel):
    folder = tmp_path_factory.mktemp("an empty environment")
    run_program(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    pip(folder / "venv/bin/python", "install", "--quiet", wheel)
    return folder / "venv/bin/hpcbert"


@pytest.mark.parametrize("tag", ["v99.0.0", "v9' $(false)"])
def test_a_release_has_the_version_of_its_tag(repository, tag, tmp_path):
    """As the one that `wheel` builds has."""
    assert tag in make_dist(tmp_path, repository, tag, code=2)


def test_the_wheel_has_what_runs_a_man_page_a_command_and_a_description(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        assert names >= set(NAMES)
        assert not [name for name in names if name.startswith(("tests", "runs", "docs"))]
        data = f"hpcbert-{hpcbert.__version__}.data/data/share/man/man1"
        manual = {name for name in names if name.startswith(data)}
        assert manual == {f"{data}/{name}" for name in pages()}
        submit = archive.read(f"{data}/hpcbert-submit.1").decode()
        metadata = archive.read(f"hpcbert-{hpcbert.__version__}.dist-info/METADATA").decode()
    # In a new process: a command remembers the help option of its first use, which was any test's.
    code = "from hpcbert.cli.help import pages; print(pages()['hpcbert-submit.1'], end='')"
    assert submit == subprocess.check_output([sys.executable, "-c", code], text=True)
    fields, _, text = metadata.partition("\n\n")
    assert "Description-Content-Type: text/markdown" in fields
    assert text.startswith("# hpcbert\n\nhpcbert measures")
    assert text.count("\n## ") >= 6
    # Nothing that a package index lacks.
    assert not re.findall(r"\]\((?!https://)", text)
    assert "figure" not in text
    assert "in `docs`" in text


def test_upgrade_and_uninstall_do_what_their_page_says(wheel, tmp_path, repository):
    run_program(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    page = (repository / "docs" / "how-to" / "upgrade.md").read_text()
    upgrade, uninstall = re.findall(r"(?ms)^```sh\n(.*?)^```", page)
    work, manual = tmp_path / "work", tmp_path / "venv/share/man/man1"
    work.mkdir()
    (work / "site.toml").write_text("mine")
    # Of the checkout it is the release that was built above; --version needs click only.
    pip(tmp_path / "venv/bin/python", "install", "click")
    assert upgrade.count("--upgrade .") == 1
    upgrade = upgrade.replace("--upgrade .", f"--upgrade --no-deps '{wheel}'")
    path = f"{tmp_path}/venv/bin:/usr/bin:/bin"
    for _ in range(2):  # Again, and over itself.
        output = run_program("bash", "-ec", upgrade, cwd=work, PATH=path)
        assert f"hpcbert {hpcbert.__version__}" in output
    assert list(manual.glob("hpcbert-*.1"))
    run_program("bash", "-ec", uninstall, cwd=work, PATH=path)
    assert not (tmp_path / "venv/bin/hpcbert").exists()
    assert not list(manual.glob("hpcbert*"))
    assert (work / "site.toml").read_text() == "mine"


def test_an_installation_is_light(program):
    python, folder = program.with_name("python"), program.parent.parent / "lib"
    listing = json.loads(pip(python, "list", "--format=json"))
    assert {entry["name"].lower().replace("_", "-") for entry in listing} <= set(PACKAGES.split())
    # Bytecode is about as large as its source.
    factors = ((path, 2 if path.suffix == ".py" else 1) for path in folder.rglob("*"))
    size = sum(factor * path.lstat().st_size for path, factor in factors)
    assert size <= LARGEST, f"{size / 1e6:.0f} MB"


def test_the_installed_program_renders_collects_and_submits(program, tmp_path, repository):
    words: tuple[Word, ...] = ("submit", "--nodes", "4", "--gpus-per-node", "8", "--fw", "oneflow")
    assert "#SBATCH --nodes=4" in run_program(program, *words, "--dry-run", cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []
    folder = tmp_path / "logs/oneflow/bert/bz32/4n8g"
    folder.mkdir(parents=True)
    sample = repository / "templates" / "oneflow" / "sample.log"
    (folder / "bert_b32_fp32_1.log").write_bytes(sample.read_bytes())
    table = json.loads(run_program(program, "collect", tmp_path, "--json", cwd=tmp_path))
    (row,) = table["data"]["tables"][0]["rows"]
    # 4 x 8 x 32 samples, 100 iterations, 25 seconds between the stamps of steps 19 and 119.
    assert row["median"] == pytest.approx(4 * 8 * 32 * 100 / 25.0)
    words = ("collect", tmp_path / "logs", "--output", "rows.parquet")
    assert "hpcbert[parquet]" in run_program(program, *words, cwd=tmp_path, code=2)
    assert not (tmp_path / "rows.parquet").exists()
    words = ("submit", "--fw", "oneflow", "--rehearse", "--repeats", "1", "--wait")
    variables: dict[str, Any] = {
        "PATH": os.environ["PATH"],
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }
    assert "nothing was trained" in run_program(program, *words, cwd=tmp_path, **variables)
    (log,) = tmp_path.glob("runs/*/logs/oneflow/bert/bz32/1n1g/bert_b32_fp32_1.log")
    assert log.read_text().startswith("HPCBERT REHEARSAL rank=0/1")
