"""Virtual environments that prepare makes: with a scripted pip, and one really made from a wheel."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hpcbert.commands.checks import find_framework_obstacles
from hpcbert.config import recipe as recipes
from hpcbert.errors import ConfigError, UsageError
from hpcbert.script import materials
from hpcbert.system.runner import Outcome
from tests.kit import drafts
from tests.kit.cases import cases, read_constant
from tests.kit.cli import Cli
from tests.kit.logs import write_file
from tests.kit.recipes import STEP_LOG
from tests.kit.waiting import until
from tests.prepare.test_parts import prepare

RECIPE = read_constant(__file__, "RECIPE") + STEP_LOG
PATCH = read_constant(__file__, "PATCH")
WORDS = ("--fw", "tiny", "--device", "cpu", "--json")


class Preparation:
    """A site with a recipe that wants an environment; answers for python and pip, and their calls.

    Attributes:
        releases: What interpreters are, by the ends of their paths.
        fails: What a command prints that fails, by a word of it.
    """

    def __init__(self, folder):
        write_file(folder, "bin/python3.9", "#!/bin/sh\n").chmod(0o755)
        self.env = {"PATH": str(folder / "bin"), "HOME": "/nowhere"}
        self.site, self.recipe = drafts.site(folder), written(folder)
        self.releases, self.fails = {"python3.9": "3.9.18"}, dict[str, str]()
        self.packages, self.calls = ["pip==23.0", "tiny==1.0"], list[tuple[str, ...]]()
        self.pip_variables = dict[str, str]()

    @property
    def directory(self):
        return materials.record_directory(materials.environment_record_path(self.site, self.recipe))

    def prepares(self, **context):
        options = {"run": self.answer, "env": self.env, **context}
        return prepare(self.recipe, self.site, "environment", **options)["environment"]

    def answer(self, argv, *, env=None, **_):
        words = tuple(argv)
        if words[1] == "-c":
            version = next((v for end, v in self.releases.items() if words[0].endswith(end)), "")
            shown = f"{version.rpartition('.')[0]} {version}\n" if version else ""
            return Outcome(words, 0 if version else 127, shown)
        self.calls.append(words)
        for word, printed in self.fails.items():
            if word in words:
                return Outcome(words, 1, "", printed)
        if words[2] == "venv":
            write_file(Path(words[3]), "bin/python", "")
        if "install" in words:
            self.pip_variables = env
        pairs = [package.split("==") for package in self.packages]
        listing = json.dumps([{"name": name, "version": version} for name, version in pairs])
        return Outcome(words, 0, listing if "list" in words else "")


def written(folder, release="3.9", text=RECIPE):
    templates = folder / "templates" / "tiny"
    write_file(templates, "recipe.toml", text.replace("RELEASE", release))
    write_file(templates, "requirements.txt", "tiny==1.0\n")
    write_file(templates, "run.sh.j2", "exec {{ python }} {{ source }}/train.py\n")
    write_file(templates, "packages.patch", PATCH)
    return recipes.load(templates).for_device("cpu")


@pytest.fixture
def preparation(tmp_path):
    return Preparation(tmp_path)


def test_an_environment_is_made_once_and_recorded(preparation):
    planned = preparation.prepares(dry=True)
    assert (planned.status, "requirements.txt" in planned.detail) == ("planned", True)
    assert not Path(preparation.site.sources).exists()
    # Half an environment, without its record, is made again.
    write_file(preparation.directory, "half", "")
    write_file(preparation.directory, "bin/python", "")
    part = preparation.prepares()
    assert (part.status, part.path) == ("done", str(preparation.directory))
    assert not (preparation.directory / "half").exists()
    assert part.detail == "Python 3.9.18, 2 packages"
    record = json.loads(
        materials.environment_record_path(preparation.site, preparation.recipe).read_text()
    )
    assert (record["packages"], record["digest"]) == (["pip==23.0", "tiny==1.0"], part.digest)
    assert part.digest.startswith("packages:")
    venv, install, patch, listing = preparation.calls
    assert venv[2:4] == ("venv", str(preparation.directory))
    assert install[2:6] == ("pip", "install", "--no-deps", "-r")
    assert install[6:] == (f"{preparation.recipe.folder}/requirements.txt",)
    assert preparation.pip_variables["TINY_BUILD"] == "1"
    assert patch[:2] == ("git", "apply")
    again = preparation.prepares()
    assert (again.status, again.digest) == ("ready", part.digest)
    assert preparation.calls[4:] == [listing]
    preparation.packages = ["pip==23.0", "tiny==1.2"]
    changed = preparation.prepares()
    assert (changed.status, "tiny==1.0, tiny==1.2" in changed.detail) == ("failed", True)
    assert str(preparation.directory) in changed.hint


def test_what_it_is_made_of_is_its_name(preparation, tmp_path):
    before = preparation.directory
    assert before.name.startswith("tiny-py3.9-")
    write_file(tmp_path, "templates/tiny/requirements.txt", "tiny==1.1\n")
    assert preparation.directory != before
    write_file(tmp_path, "templates/tiny/requirements.txt", "tiny==1.0\n")
    assert preparation.directory == before
    write_file(tmp_path, "templates/tiny/packages.patch", PATCH.replace("cpu", "none"))
    assert preparation.directory != before
    (tmp_path / "templates" / "tiny" / "requirements.txt").unlink()
    with pytest.raises(UsageError, match=r"file 'requirements\.txt' can't be read"):
        preparation.prepares()


@cases
def test_what_fails_is_told_and_leaves_nothing(preparation, word, printed, detail, hint):
    preparation.fails = {word: printed}
    part = preparation.prepares()
    assert part.status == "failed"
    assert detail in part.detail
    assert hint in part.hint
    assert not preparation.directory.exists()
    assert not materials.environment_record_path(preparation.site, preparation.recipe).exists()
    preparation.fails = {}
    assert preparation.prepares().status == "done"


def test_a_python_is_looked_for_on_path_and_below_the_home_directory(preparation, tmp_path):
    preparation.releases = {"python3.9": "3.8.2", "python": "3.11.2"}
    part = preparation.prepares()
    assert part.status == "failed"
    for words in ("no Python 3.9 here", "python3.9 is 3.8.2"):
        assert words in part.detail
    for words in ("--python /path/to/python3.9", "frameworks.NAME.python"):
        assert words in part.hint
    named = preparation.prepares(python="/opt/python")
    assert "looked at --python: /opt/python is 3.11.2" in named.detail
    assert preparation.calls == []
    preparation.releases = {"python3.9": "3.9.18"}
    path = write_file(tmp_path, ".pyenv/versions/3.9.18/bin/python3.9", "")
    write_file(tmp_path, ".pyenv/versions/3.10.1/bin/python3.10", "")
    env = {"PATH": "/nowhere", "HOME": str(tmp_path)}
    assert preparation.prepares(env=env).status == "done"
    assert preparation.calls[0][0] == str(path)


def test_pip_is_led_nowhere_else(preparation):
    settings = {"PIP_INDEX_URL": "u", "PIP_RETRIES": "9"}
    preparation.env |= {"PYTHONPATH": "/x", "PIP_TARGET": "/x", **settings}
    assert preparation.prepares().status == "done"
    assert not {"PYTHONPATH", "PIP_TARGET"} & set(preparation.pip_variables)
    assert settings.items() <= preparation.pip_variables.items()


def test_the_program_can_be_installed_from_its_checkout(preparation, tmp_path):
    text = RECIPE.replace("program = true\n", "")
    text = text.replace('requirements = "requirements.txt"', "source = true")
    preparation.recipe = written(tmp_path, "3.9", text)
    assert "checkout, which does not exist" in preparation.prepares().detail
    checkout = write_file(tmp_path, "own/tiny/train.py", "").parent
    preparation.site = drafts.settled(preparation.site, "tiny", source=str(checkout))
    presence = []

    def run(argv, **more):
        if "install" in argv:
            presence.append((Path(argv[-1]) / "tiny" / "train.py").is_file())
        return preparation.answer(argv, **more)

    assert preparation.prepares(run=run).status == "done"
    assert presence == [True]
    assert not (preparation.directory / "src").exists()


def test_an_environment_is_missed_unless_the_site_names_an_interpreter(preparation):
    site, recipe = preparation.site, preparation.recipe
    inputs = materials.find_inputs(site, recipe, {})
    (finding,) = find_framework_obstacles(site, recipe, inputs)
    assert finding.detail == "Its virtual environment is not made."
    preparation.site = drafts.settled(site, "tiny", python="/own/python", source="/own")
    other = materials.find_inputs(preparation.site, recipe, {})
    assert (other.python, other.source, other.materials) == ("/own/python", "/own", ())
    assert "the site names an interpreter" in preparation.prepares().detail


@cases
def test_an_environment_that_is_wrong_is_refused(tmp_path, old, new, message):
    with pytest.raises(ConfigError, match=message):
        written(tmp_path, "3.9", RECIPE.replace(old, new))


def test_a_real_environment_from_prepare_to_the_script(tmp_path):
    """A folder with a space, a wheel from a folder, a patch in its packages."""
    place = tmp_path / "a b"
    written(place, f"{sys.version_info[0]}.{sys.version_info[1]}")
    drafts.site(place, start='schema = 1\nname = "x"\nscheduler = "local"\n')
    (place / "wheels").mkdir()
    with zipfile.ZipFile(place / "wheels" / "tiny-1.0-py3-none-any.whl", "w") as file:
        for name, text in read_constant(__file__, "WHEEL").items():
            file.writestr(name, text)
    wheels = (place / "wheels").as_uri()
    cli = Cli(place, {"PIP_NO_INDEX": "1", "HOME": str(place), "PIP_FIND_LINKS": wheels})
    result = cli("prepare", *WORDS, "--python", sys.executable, status=0)
    parts = {part["kind"]: part for part in result.data["parts"]}
    assert {kind: part["status"] for kind, part in parts.items()} == {
        "source": "skipped", "environment": "done", "image": "skipped", "data": "skipped",
    }  # fmt: skip
    again = cli("prepare", *WORDS, status=0).data["parts"]
    assert [part["status"] for part in again if part["kind"] == "environment"] == ["ready"]
    # The program prints no rate.
    cli("submit", *WORDS, "--repeats", "1", "--wait", status=4)
    (log,) = place.rglob("*.log")
    assert log.read_text().splitlines()[1:] == ["cpu"]
    manifest = json.loads(next(place.rglob("manifest.json")).read_text())
    (material,) = manifest["materials"]
    assert (material["kind"], material["digest"]) == ("environment", parts["environment"]["digest"])
    assert material["name"].startswith("Python 3.")


def test_a_killed_run_leaves_nothing_that_is_taken_for_whole(tmp_path):
    """With an interpreter and a pip which waits in the middle as long as a file is there."""
    written(tmp_path, "3.9", RECIPE.replace('patches = ["packages.patch"]\n', ""))
    sources = Path(drafts.site(tmp_path).sources)
    write_file(tmp_path, "bin/python3.9", read_constant(__file__, "FAKE")).chmod(0o755)
    wait = write_file(tmp_path, "wait", "")
    path = f"{tmp_path / 'bin'}:/usr/bin:/bin"
    cli = Cli(tmp_path, {"PATH": path, "HOME": str(tmp_path), "PLACE": str(tmp_path)})
    words = ("prepare", *WORDS, "--only", "environment")
    child = cli.start(*words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until((tmp_path / "installing").exists, "pip never began")
    busy = cli(*words, status=2)
    assert "is working on this virtual environment" in busy.error["message"]
    child.kill()
    child.wait()
    wait.unlink()
    assert list(sources.glob("*.json")) == []
    assert list(sources.glob("tiny-py3.9-*/bin/python")) != []
    missing = cli("submit", *WORDS, status=2).error
    assert "needs source and python" in missing["message"]
    assert "hpcbert prepare --fw tiny --device cpu;" in missing["hint"]
    assert [part["status"] for part in cli(*words, status=0).data["parts"]] == ["done"]
