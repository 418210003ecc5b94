"""The release as `make dist` builds it; the wheel, installed alone in an empty environment, away from the checkout."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import hpcbert
from hpcbert.cli.help import pages

pytestmark = pytest.mark.slow


def run_program(
    *words: str | Path, cwd: Path, code: int = 0, **variables: str
) -> subprocess.CompletedProcess[str]:
    kept = {
        name: os.environ[name] for name in os.environ if name.startswith(("PIP_", "SSL_", "LANG"))
    }
    # Of what is installed here only a little is ever run. pip wants "no" for --no-compile.
    kept |= {"PIP_NO_COMPILE": "no", "HOME": str(cwd), "PATH": "/usr/bin:/bin", **variables}
    argv = [str(word) for word in words]
    result = subprocess.run(argv, cwd=cwd, env=kept, capture_output=True, text=True, check=False)
    assert result.returncode == code, result.stdout + result.stderr
    return result


@pytest.fixture(scope="module")
def make_dist(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> list[str | Path]:
    """`make dist` into a folder, with the programs of the environment that runs the tests."""
    folder = tmp_path_factory.mktemp("the release")
    programs = os.path.relpath(Path(sys.executable).parent, repository)
    # -o: what installs into the checkout's own environment counts as done.
    words = ("make", "-C", repository, "-o", ".setup/test", "dist")
    return [*words, f"BIN={programs}", f"DIST={folder}"]


@pytest.fixture(scope="module")
def wheel(make_dist: list[str | Path]) -> Path:
    folder = Path(str(make_dist[-1]).removeprefix("DIST="))
    run_program(*make_dist, cwd=folder, TAG=f"v{hpcbert.__version__}")
    (path,) = folder.glob("*.whl")
    return path


def find_pip(python: Path) -> tuple[str | Path, ...]:
    """Return the command that is pip for another environment, which has none."""
    return sys.executable, "-m", "pip", "--python", python


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    folder = tmp_path_factory.mktemp("an empty environment")
    run_program(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    run_program(*find_pip(folder / "venv/bin/python"), "install", "--quiet", wheel, cwd=folder)
    return folder / "venv/bin/hpcbert"


@pytest.mark.parametrize("tag", ["v99.0.0", "v9' $(false)"])
def test_a_release_has_the_version_of_its_tag(
    make_dist: list[str | Path], tag: str, tmp_path: Path
) -> None:
    """As the one that `wheel` builds has."""
    assert tag in run_program(*make_dist, cwd=tmp_path, code=2, TAG=tag).stderr


def test_the_wheel_carries_templates_site_and_workload_and_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for name in (
        "hpcbert/_templates/base.sbatch.j2",
        "hpcbert/_templates/pytorch/recipe.toml",
        "hpcbert/_templates/oneflow/sample.log",
        "hpcbert/_templates/site.toml",
        "hpcbert/workloads/bert_pretrain.py",
        "hpcbert/py.typed",
        "hpcbert/results/report/catalogue.toml",
        "hpcbert/results/report/page.html.j2",
        "hpcbert/results/report/page.css",
    ):
        assert name in names
    assert not [name for name in names if name.startswith(("tests", "runs", "docs"))]


def test_the_wheel_installs_a_man_page_for_each_command(wheel: Path) -> None:
    data = f"hpcbert-{hpcbert.__version__}.data/data/share/man/man1"
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if name.startswith(data)}
        assert names == {f"{data}/{name}" for name in pages()}
        submit = archive.read(f"{data}/hpcbert-submit.1").decode()
    # In a new process: a command remembers the help option of its first use, which was any test's.
    program = "from hpcbert.cli.help import pages; print(pages()['hpcbert-submit.1'], end='')"
    assert submit == subprocess.check_output([sys.executable, "-c", program], text=True)


def test_the_description_has_nothing_that_a_package_index_lacks(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        name = f"hpcbert-{hpcbert.__version__}.dist-info/METADATA"
        fields, _, text = archive.read(name).decode().partition("\n\n")
    assert "Description-Content-Type: text/markdown" in fields
    assert text.startswith("# hpcbert\n\nhpcbert measures")
    assert text.count("\n## ") >= 6
    assert not re.findall(r"\]\((?!https://)", text)
    assert "figure" not in text
    assert "in `docs`" in text


def test_upgrade_and_uninstall_do_what_their_page_says(
    wheel: Path, tmp_path: Path, repository: Path
) -> None:
    run_program(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    page = (repository / "docs" / "how-to" / "upgrade.md").read_text()
    upgrade, uninstall = re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    work = tmp_path / "work"
    work.mkdir()
    (work / "site.toml").write_text("mine")
    # Of the checkout it is the release that was built above; --version needs click only.
    run_program(*find_pip(tmp_path / "venv/bin/python"), "install", "click", cwd=tmp_path)
    assert upgrade.count("--upgrade .") == 1
    upgrade = upgrade.replace("--upgrade .", f"--upgrade --no-deps '{wheel}'")
    path = f"{tmp_path}/venv/bin:/usr/bin:/bin"
    for _ in range(2):  # Again, and over itself.
        result = run_program("bash", "-ec", upgrade, cwd=work, PATH=path)
        assert f"hpcbert {hpcbert.__version__}" in result.stdout
    assert list(tmp_path.glob("venv/share/man/man1/hpcbert-*.1"))
    run_program("bash", "-ec", uninstall, cwd=work, PATH=path)
    assert not (tmp_path / "venv/bin/hpcbert").exists()
    assert not list(tmp_path.glob("venv/share/man/man1/hpcbert*"))
    assert (work / "site.toml").read_text() == "mine"


# What an installation consists of: torch comes with the images, pyarrow with an extra.
PACKAGES = """
    click cloudpickle contourpy cycler fonttools hpcbert jinja2 kiwisolver linkify-it-py
    markdown-it-py markupsafe matplotlib mdit-py-plugins mdurl numpy packaging pandas pillow
    platformdirs pygments pyparsing python-dateutil pytz rich six submitit textual tomli
    typing-extensions tzdata uc-micro-py
"""
LARGEST = 300e6  # bytes


def test_an_installation_is_light(program: Path, tmp_path: Path) -> None:
    python = program.with_name("python")
    listing = run_program(*find_pip(python), "list", "--format=json", cwd=tmp_path).stdout
    names = {entry["name"].lower().replace("_", "-") for entry in json.loads(listing)}
    assert names <= set(PACKAGES.split())
    folder = program.parent.parent / "lib"
    run_program(python, "-m", "compileall", "-q", "-j", "0", folder, cwd=tmp_path)
    size = sum(path.lstat().st_size for path in folder.rglob("*"))
    assert size <= LARGEST, f"{size / 1e6:.0f} MB"


def test_the_installed_program_renders_collects_and_submits(
    program: Path, tmp_path: Path, repository: Path
) -> None:
    words: tuple[str | Path, ...]
    words = ("submit", "--nodes", "4", "--gpus-per-node", "8", "--fw", "oneflow", "--dry-run")
    assert "#SBATCH --nodes=4" in run_program(program, *words, cwd=tmp_path).stdout
    assert list(tmp_path.iterdir()) == []
    folder = tmp_path / "logs/oneflow/bert/bz32/4n8g"
    folder.mkdir(parents=True)
    sample = repository / "templates" / "oneflow" / "sample.log"
    (folder / "bert_b32_fp32_1.log").write_bytes(sample.read_bytes())
    table = json.loads(run_program(program, "collect", tmp_path, "--json", cwd=tmp_path).stdout)
    (row,) = table["data"]["tables"][0]["rows"]
    # 4 x 8 x 32 samples, 100 iterations, 25 seconds between the stamps of steps 19 and 119.
    assert row["median"] == pytest.approx(4 * 8 * 32 * 100 / 25.0)
    words = ("collect", tmp_path / "logs", "--output", "rows.parquet")
    assert "hpcbert[parquet]" in run_program(program, *words, cwd=tmp_path, code=2).stderr
    assert not (tmp_path / "rows.parquet").exists()
    words = ("submit", "--fw", "oneflow", "--rehearse", "--repeats", "1", "--wait")
    path, state = os.environ["PATH"], str(tmp_path / "state")
    result = run_program(program, *words, cwd=tmp_path, PATH=path, XDG_STATE_HOME=state)
    assert "nothing was trained" in result.stdout
    (log,) = tmp_path.glob("runs/*/logs/oneflow/bert/bz32/1n1g/bert_b32_fp32_1.log")
    assert log.read_text().startswith("HPCBERT REHEARSAL rank=0/1")
