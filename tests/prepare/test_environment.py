"""Virtual environments that prepare makes: with a scripted pip, and one really made from a wheel."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from hpcbert.commands import prepare as flow
from hpcbert.commands.checks import find_framework_obstacles
from hpcbert.config import recipe as recipes
from hpcbert.config.recipe import Recipe
from hpcbert.config.site import Site
from hpcbert.errors import ConfigError, UsageError
from hpcbert.model import Shape
from hpcbert.prepare.parts import Context, Part
from hpcbert.script import materials
from hpcbert.script.materials import environment_record_path, packages_path, record_directory
from hpcbert.script.plan import Request
from hpcbert.system import runner
from hpcbert.system.lock import hold_lock
from hpcbert.system.runner import Outcome
from tests.kit import drafts
from tests.kit.cases import cases, read_constant
from tests.kit.cli import Cli
from tests.kit.drafts import drafted, settled
from tests.kit.logs import write_file
from tests.kit.paths import TEMPLATES
from tests.kit.recipes import STEP_LOG
from tests.kit.waiting import until

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"
RECIPE = read_constant(__file__, "RECIPE")
RECIPE += STEP_LOG
PATCH = read_constant(__file__, "PATCH")


@dataclass
class Pip:
    """Answers for python and pip, which writes down what it is asked.

    Attributes:
        releases: What interpreters are, by the ends of their paths.
        fails: What a command prints that fails, by a word of it.
    """

    releases: Mapping[str, str] = field(default_factory=lambda: {"python3.9": "3.9.18"})
    held: tuple[str, ...] = ("pip==23.0", "tiny==1.0")
    fails: Mapping[str, str] = field(default_factory=dict)
    asked: list[tuple[tuple[str, ...], Mapping[str, str]]] = field(default_factory=list)

    @property
    def calls(self) -> list[tuple[str, ...]]:
        return [words for words, _ in self.asked]

    def __call__(
        self, argv: Sequence[str], *, stdin: str = "", env: Mapping[str, str] | None = None,
        cwd: Path | None = None, timeout: float = 60.0,
    ) -> Outcome:  # fmt: skip
        words = tuple(argv)
        if words[1] == "-c":
            version = next((v for end, v in self.releases.items() if words[0].endswith(end)), "")
            release = version.rpartition(".")[0]
            return Outcome(
                words, 0 if version else 127, f"{release} {version}\n" if version else ""
            )
        self.asked.append((words, env or {}))
        for word, printed in self.fails.items():
            if word in words:
                return Outcome(words, 1, "", printed)
        if words[2] == "venv":
            write_file(Path(words[3]), "bin/python", "")
        named = [package.partition("==") for package in self.held]
        listing = json.dumps([{"name": name, "version": version} for name, _, version in named])
        return Outcome(words, 0, listing if "list" in words else "")


@dataclass
class Preparation:
    """A site with a recipe that wants an environment."""

    site: Site
    recipe: Recipe
    pip: Pip

    @property
    def directory(self) -> Path:
        return record_directory(environment_record_path(self.site, self.recipe))

    def prepares(self, *, run: Any = None, **context: Any) -> Part:
        defaults = {"env": {"PATH": str(Path(self.site.where).parent / "bin"), "HOME": "/nowhere"}}
        flow_context = Context(
            run=run or self.pip, follow=runner.follow, say=lambda _: None, **{**defaults, **context}
        )
        (part,) = flow.prepare(self.recipe, self.site, flow_context, only=["environment"])
        return part


def written(folder: Path, release: str, text: str = RECIPE) -> Recipe:
    write_file(folder, "templates/tiny/recipe.toml", text.replace("RELEASE", release))
    write_file(folder, "templates/tiny/run.sh.j2", "exec {{ python }} {{ source }}/train.py\n")
    write_file(folder, "templates/tiny/requirements.txt", "tiny==1.0\n")
    write_file(folder, "templates/tiny/packages.patch", PATCH)
    return recipes.load(folder / "templates" / "tiny").for_device("cpu")


@pytest.fixture
def preparation(tmp_path: Path) -> Preparation:
    python = write_file(tmp_path, "bin/python3.9", "#!/bin/sh\n")
    python.chmod(0o755)
    return Preparation(drafts.site(tmp_path), written(tmp_path, "3.9"), Pip())


def test_an_environment_is_made_once_and_recorded(preparation: Preparation) -> None:
    planned = preparation.prepares(dry=True)
    assert (planned.status, "requirements.txt" in planned.detail) == ("planned", True)
    assert not Path(preparation.site.sources).exists()
    part = preparation.prepares()
    assert (part.status, part.path) == ("done", str(preparation.directory))
    assert part.detail == "Python 3.9.18, 2 packages"
    record = json.loads(environment_record_path(preparation.site, preparation.recipe).read_text())
    assert record["packages"] == ["pip==23.0", "tiny==1.0"]
    assert record["digest"] == part.digest
    assert part.digest.startswith("packages:")
    names = [words[2:4] if words[1] == "-m" else words[:2] for words in preparation.pip.calls]
    install = ("pip", "install")
    assert names == [
        ("venv", str(preparation.directory)),
        install,
        ("git", "apply"),
        ("pip", "list"),
    ]
    words, env = preparation.pip.asked[1]
    assert words[4:] == ("--no-deps", "-r", f"{preparation.recipe.folder}/requirements.txt")
    assert env["TINY_BUILD"] == "1"
    preparation.pip.asked.clear()
    again = preparation.prepares()
    assert (again.status, again.digest) == ("ready", part.digest)
    assert [words[2:4] for words in preparation.pip.calls] == [("pip", "list")]


def test_what_it_is_made_of_is_its_name(preparation: Preparation, tmp_path: Path) -> None:
    before = preparation.directory
    assert before.name.startswith("tiny-py3.9-")
    write_file(tmp_path, "templates/tiny/requirements.txt", "tiny==1.1\n")
    assert preparation.directory != before
    write_file(tmp_path, "templates/tiny/requirements.txt", "tiny==1.0\n")
    assert preparation.directory == before
    write_file(tmp_path, "templates/tiny/packages.patch", PATCH.replace("cpu", "none"))
    assert preparation.directory != before


def test_an_environment_without_its_record_is_made_again(preparation: Preparation) -> None:
    write_file(preparation.directory, "half", "")
    write_file(preparation.directory, "bin/python", "")
    assert preparation.prepares().status == "done"
    assert not (preparation.directory / "half").exists()


def test_packages_that_were_changed_are_refused(preparation: Preparation) -> None:
    preparation.prepares()
    preparation.pip.held = ("pip==23.0", "tiny==1.2")
    part = preparation.prepares()
    assert part.status == "failed"
    assert "tiny==1.0, tiny==1.2" in part.detail
    assert str(preparation.directory) in part.hint


@cases
def test_what_fails_is_told_and_leaves_nothing(
    preparation: Preparation, word: str, printed: str, detail: str, hint: str
) -> None:
    preparation.pip.fails = {word: printed}
    part = preparation.prepares()
    assert part.status == "failed"
    assert detail in part.detail
    assert hint in part.hint
    assert not preparation.directory.exists()
    assert not environment_record_path(preparation.site, preparation.recipe).exists()
    preparation.pip.fails = {}
    assert preparation.prepares().status == "done"


def test_a_python_that_is_not_there_is_told_with_where_it_was_looked_for(
    preparation: Preparation,
) -> None:
    preparation.pip.releases = {"python3.9": "3.8.2", "python": "3.11.2"}
    part = preparation.prepares()
    assert part.status == "failed"
    assert "no Python 3.9 here" in part.detail
    assert "python3.9 is 3.8.2" in part.detail
    assert "--python /path/to/python3.9" in part.hint
    assert "frameworks.NAME.python" in part.hint
    named = preparation.prepares(python="/opt/python")
    assert "looked at --python: /opt/python is 3.11.2" in named.detail
    assert preparation.pip.calls == []


def test_a_python_below_the_home_directory_is_found(
    preparation: Preparation, tmp_path: Path
) -> None:
    path = write_file(tmp_path, ".pyenv/versions/3.9.18/bin/python3.9", "")
    write_file(tmp_path, ".pyenv/versions/3.10.1/bin/python3.10", "")
    env = {"PATH": "/nowhere", "HOME": str(tmp_path)}
    assert preparation.prepares(env=env).status == "done"
    assert preparation.pip.calls[0][0] == str(path)


def test_pip_is_led_nowhere_else(preparation: Preparation) -> None:
    env = {"PYTHONPATH": "/x", "PIP_TARGET": "/x", "PIP_INDEX_URL": "u", "PIP_RETRIES": "9"}
    preparation.prepares(env={"PATH": str(Path(preparation.site.where).parent / "bin"), **env})
    (_, variables) = preparation.pip.asked[1]
    assert "PYTHONPATH" not in variables
    assert "PIP_TARGET" not in variables
    assert (variables["PIP_INDEX_URL"], variables["PIP_RETRIES"]) == ("u", "9")


def test_two_do_not_make_one_environment(preparation: Preparation) -> None:
    guard = preparation.directory.with_name(f".{preparation.directory.name}.lock")
    guard.mkdir(parents=True)
    with hold_lock(guard), pytest.raises(UsageError, match="working on this virtual environment"):
        preparation.prepares()
    assert preparation.prepares().status == "done"


def test_the_program_can_be_installed_from_its_checkout(
    preparation: Preparation, tmp_path: Path
) -> None:
    text = RECIPE.replace("program = true\n", "").replace(
        'requirements = "requirements.txt"', "source = true"
    )
    preparation.recipe = written(tmp_path, "3.9", text)
    assert "checkout, which does not exist" in preparation.prepares().detail
    write_file(tmp_path, "own/tiny/train.py", "")
    preparation.site = settled(preparation.site, "tiny", source=str(tmp_path / "own" / "tiny"))
    presence: list[bool] = []

    def run(argv: Sequence[str], **more: Any) -> Outcome:
        if "install" in argv:
            presence.append((Path(argv[-1]) / "tiny" / "train.py").is_file())
        return preparation.pip(argv, **more)

    assert preparation.prepares(run=run).status == "done"
    assert presence == [True]
    assert not (preparation.directory / "src").exists()


def test_ranks_use_what_was_made_unless_the_site_names_another(
    preparation: Preparation, tmp_path: Path
) -> None:
    folders = {"folders": (tmp_path / "templates", TEMPLATES)}
    request = Request(Shape(1, 1), device="cpu")

    def draft(site: Site, **options: Any) -> Any:
        recipe = recipes.load(tmp_path / "templates" / "tiny")
        return drafted(site, request, framework_recipe=recipe, options={**folders, **options})

    with pytest.raises(UsageError, match="needs source and python") as refused:
        draft(preparation.site)
    assert "hpcbert prepare --fw tiny --device cpu;" in refused.value.hint
    assert "/path/to/tiny/python" in "".join(draft(preparation.site, dry=True).scripts.values())
    (finding,) = find_framework_obstacles(
        preparation.site,
        preparation.recipe,
        materials.find_inputs(preparation.site, preparation.recipe, {}),
    )
    assert finding.detail == "Its virtual environment is not made."
    digest = preparation.prepares().digest
    new_draft = draft(preparation.site)
    assert new_draft.resolved.inputs.python == f"{preparation.directory}/bin/python"
    assert new_draft.resolved.inputs.source == f"{packages_path(preparation.directory, '3.9')}/tiny"
    (material,) = new_draft.campaign.materials
    assert (material.kind, material.name) == ("environment", "Python 3.9.18")
    assert (material.path, material.digest) == (str(preparation.directory), digest)
    own_site = settled(preparation.site, "tiny", python="/own/python", source="/own")
    other = draft(own_site).resolved.inputs
    assert (other.python, other.source, other.materials) == ("/own/python", "/own", ())
    preparation.site = own_site
    assert "the site names an interpreter" in preparation.prepares().detail


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('python = "3.9"', 'python = "3"', "a release of Python"),
        ('python = "3.9"', "", "python is missing"),
        ('requirements = "requirements.txt"', "", "must name a file"),
    ],
)
def test_an_environment_that_is_wrong_is_refused(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        written(tmp_path, "3.9", RECIPE.replace("RELEASE", "3.9").replace(old, new))


def test_a_file_that_the_recipe_lacks_is_told(preparation: Preparation, tmp_path: Path) -> None:
    (tmp_path / "templates" / "tiny" / "requirements.txt").unlink()
    with pytest.raises(UsageError, match=r"file 'requirements\.txt' can't be read"):
        preparation.prepares()


@pytest.mark.slow
def test_a_real_environment_from_prepare_to_the_script(tmp_path: Path) -> None:
    """A folder with a space, a wheel from a folder, a patch in its packages."""
    place = tmp_path / "a b"
    written(place, HERE)
    drafts.site(place, start='schema = 1\nname = "x"\nscheduler = "local"\n')
    (place / "wheels").mkdir()
    info = "tiny-1.0.dist-info"
    with zipfile.ZipFile(place / "wheels" / "tiny-1.0-py3-none-any.whl", "w") as file:
        file.writestr("tiny/train.py", 'print("gpu")\n')
        file.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        tags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        file.writestr(f"{info}/WHEEL", tags)
        file.writestr(f"{info}/RECORD", "")
    offline = {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": (place / "wheels").as_uri(),
        "HOME": str(place),
    }
    cli = Cli(place, offline)
    words = ("prepare", "--fw", "tiny", "--device", "cpu", "--json")
    away = replace(cli, env={**offline, "PIP_FIND_LINKS": place.as_uri()})
    refused = away(*words, "--python", sys.executable, status=4)
    assert "tiny==1.0" in refused.error["message"]
    result = cli(*words, "--python", sys.executable, status=0)
    parts = {part["kind"]: part for part in result.data["parts"]}
    assert {kind: part["status"] for kind, part in parts.items()} == {
        "source": "skipped", "environment": "done", "image": "skipped", "data": "skipped",
    }  # fmt: skip
    again = cli(*words, status=0).data["parts"]
    assert [part["status"] for part in again if part["kind"] == "environment"] == ["ready"]
    ran = cli("submit", "--fw", "tiny", "--device", "cpu", "--repeats", "1", "--wait", "--json")
    assert ran.returncode == 4  # the program prints no rate
    (log,) = place.rglob("*.log")
    assert log.read_text().splitlines()[1:] == ["cpu"]
    manifest = json.loads(next(place.rglob("manifest.json")).read_text())
    assert manifest["materials"][0]["digest"] == parts["environment"]["digest"]


# Stands in for an interpreter and its pip, which waits in the middle as long as a file is there.
FAKE = read_constant(__file__, "FAKE")


@pytest.mark.slow
def test_a_killed_run_leaves_nothing_that_is_taken_for_whole(tmp_path: Path) -> None:
    written(tmp_path, "3.9", RECIPE.replace('patches = ["packages.patch"]\n', ""))
    site = drafts.site(tmp_path)
    write_file(tmp_path, "bin/python3.9", FAKE).chmod(0o755)
    wait = write_file(tmp_path, "wait", "")
    path = f"{tmp_path / 'bin'}:/usr/bin:/bin"
    cli = Cli(tmp_path, {"PATH": path, "HOME": str(tmp_path), "PLACE": str(tmp_path)})
    words = ("prepare", "--fw", "tiny", "--device", "cpu", "--only", "environment", "--json")
    argv = [sys.executable, "-m", "hpcbert", *words]
    child = subprocess.Popen(argv, cwd=tmp_path, env=cli.environment, stdout=subprocess.DEVNULL)
    until((tmp_path / "installing").exists, "pip never began")
    busy = cli(*words, status=2)
    assert "is working on this virtual environment" in busy.error["message"]
    child.kill()
    child.wait()
    wait.unlink()
    sources = Path(site.sources)
    assert list(sources.glob("*.json")) == []
    assert list(sources.glob("tiny-py3.9-*/bin/python")) != []
    refused = cli("submit", "--fw", "tiny", "--device", "cpu", "--json", status=2)
    assert "needs source and python" in refused.error["message"]
    result = cli(*words, status=0)
    assert [part["status"] for part in result.data["parts"]] == ["done"]
