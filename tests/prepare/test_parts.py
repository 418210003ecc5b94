"""hpcbert prepare: real repositories, real files, a real registry; enroot is the stand-in."""

import json
import shutil
import subprocess

import h5py
import numpy as np
import pytest

from hpcbert.campaign import store
from hpcbert.commands import prepare as flow
from hpcbert.config import recipe as recipes
from hpcbert.config import site as sites
from hpcbert.container import reference
from hpcbert.errors import IncompleteError
from hpcbert.model import Shape
from hpcbert.prepare import source
from hpcbert.prepare.parts import Context, without_user
from hpcbert.script import materials
from hpcbert.script.plan import Request
from hpcbert.system import runner
from tests.kit.cases import read_constant
from tests.kit.cli import Cli, run_here
from tests.kit.containers import HERE, SYSTEM_PATH, Image, folders_of_enroot, pointer
from tests.kit.drafts import MINIMAL, drafted, settled
from tests.kit.logs import write_file
from tests.kit.needs import require
from tests.kit.paths import TEMPLATES
from tests.kit.recipes import STEP_LOG
from tests.kit.registry import serving_tiny

KEYS = ["input_ids", "input_mask"]
RECIPE = read_constant(__file__, "RECIPE") + STEP_LOG
PATCH = read_constant(__file__, "PATCH")


def site_text(framework, more):
    return f'{MINIMAL}[container]\nruntime = "enroot"\n[frameworks.{framework}]\n{more}\n'


def hdf5(path, names, rows=3):
    with h5py.File(path, "w") as file:
        file.update(dict.fromkeys(names, np.zeros((rows, 4), dtype="i4")))


def git(folder, *words):
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    outcome = runner.run(["git", "-C", str(folder), *identity, *words])
    assert outcome.ok, outcome.stderr
    return outcome.stdout.strip()


def prepare(recipe, site, *only, **options):
    """Make the parts of a recipe ready in this process, and return them by their kinds."""
    usual = {"run": runner.run, "follow": runner.follow, "say": lambda _: None, "env": {}}
    context = Context(**{**usual, **options})
    return {part.kind: part for part in flow.prepare(recipe, site, context, only=only)}


def make_repository(folder):
    write_file(folder, "bert/train.py", 'print("wrong")\n')
    write_file(folder, "run.sh", "true\n").chmod(0o755)
    (folder / "link.py").symlink_to("bert/train.py")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "first")
    return folder


def make_sources(folder):
    make_repository(folder / "upstream")
    write_file(folder, "data/vocab.txt", "[PAD]\n")
    (folder / "data" / "train").mkdir()
    for number in range(3):
        hdf5(folder / "data" / "train" / f"{number}.hdf5", KEYS)


class Place:
    """A site with one recipe, and hpcbert run there: its parts, or a command line."""

    def __init__(self, folder, registry):
        self.folder, self.registry = folder, registry
        self.upstream, self.data = folder / "upstream", folder / "data"
        self.commit = git(self.upstream, "rev-parse", "HEAD")
        variables = {"PATH": f"{HERE / 'stand-in'}:{SYSTEM_PATH}", "HOME": str(folder)}
        variables |= {"ENROOT_ALLOW_HTTP": "y", "LANG": "C.UTF-8"}
        variables |= folders_of_enroot(folder / "enroot")
        variables |= dict.fromkeys(("TMPDIR", "ENROOT_TEMP_PATH"), str(folder / "temp"))
        self.cli = Cli(folder, variables, run_here)
        self.write()

    def write(self, *, more="", **fields):
        """Write site and recipe; `fields` are the recipe's: image and build."""
        write_file(self.folder, "site.toml", site_text("tiny", more or f'data = "{self.data}"'))
        usual = {"repository": self.upstream, "commit": self.commit, "build": ""}
        text = RECIPE.format(**{**usual, "image": self.registry.uri(), **fields})
        for name, data in {"recipe.toml": text, "run.sh.j2": "true\n", "fix.patch": PATCH}.items():
            write_file(self.folder / "templates" / "tiny", name, data)
        self.site = sites.load(str(self.folder / "site.toml"), env={}, cwd=self.folder)
        self.recipe = recipes.load(self.folder / "templates" / "tiny")

    def says(self, *words, status=0):
        return self.cli(*words, "--json", status=status)

    def prepares(self, *only, dry=False, repository=""):
        site = settled(self.site, "tiny", repository=repository)
        return prepare(self.recipe, site, *only, env=self.cli.environment, dry=dry)

    def drafts(self):
        options = {"folders": (self.folder / "templates", TEMPLATES)}
        request = Request(Shape(1, 1))
        return drafted(self.site, request, framework_recipe=self.recipe, options=options).campaign


@pytest.fixture
def place(tmp_path):
    require("squashfs")
    (tmp_path / "temp").mkdir()
    make_sources(tmp_path)
    with serving_tiny() as registry:
        yield Place(tmp_path, registry)


def test_all_parts_are_made_once_and_a_campaign_uses_and_records_them(place):
    planned = place.prepares(dry=True)
    assert {part.status for part in planned.values()} == {"planned"}
    assert place.registry.requests == []
    assert not (place.folder / "images").exists()
    assert not (place.folder / "sources").exists()
    first = {part["kind"]: part for part in place.says("prepare", "--fw", "tiny").data["parts"]}
    assert list(first) == ["source", "image", "data"]
    assert {part["status"] for part in first.values()} == {"done"}
    requests = len(place.registry.requests)
    again = place.prepares()
    assert {part.status for part in again.values()} == {"ready"}
    digests = {kind: part["digest"] for kind, part in first.items()}
    assert {kind: part.digest for kind, part in again.items()} == digests
    assert len(place.registry.requests) == requests

    campaign = place.drafts()
    assert campaign.image == first["image"]["path"]
    recorded = {material.kind: material for material in campaign.materials}
    assert {kind: material.digest for kind, material in recorded.items()} == digests
    assert recorded["image"].name == place.registry.uri()
    assert recorded["source"].name == f"{place.upstream}@{place.commit}"
    directory = place.folder / "runs" / campaign.id
    store.create(directory)
    store.write_manifest(directory, campaign)
    assert store.read_manifest(directory) == campaign
    (image,) = place.says("images", "list").data["images"]
    assert (image["campaigns"], image["path"]) == ([campaign.id], campaign.image)


def test_the_pinned_commit_is_checked_out_with_its_patches(place):
    sources = place.folder / "sources"
    (place.upstream / "bert" / "train.py").write_text('print("newer")\n')
    git(place.upstream, "commit", "--quiet", "-a", "-m", "second")
    # What a killed run left is removed and made again.
    name = materials.source_record_path(place.site, place.recipe).name.removesuffix(".json")
    write_file(sources, f"{name}/half", "")
    part, checkout = place.prepares("source")["source"], sources / name
    assert part.status == "done"
    assert sorted(path.name for path in sources.iterdir()) == [name, f"{name}.json"]
    assert not (checkout / "half").exists()
    assert (checkout / "bert" / "train.py").read_text() == 'print("right")\n'
    assert git(checkout, "rev-parse", "HEAD") == place.commit
    assert part.digest == f"git-tree:{git(checkout, 'write-tree')}"
    (checkout / "bert" / "built.so").write_text("")
    assert place.prepares("source")["source"].status == "ready"
    (checkout / "bert" / "train.py").write_text("print(1)\n")
    assert "were changed" in place.prepares("source")["source"].detail


def test_an_earlier_record_does_not_speak_for_a_checkout_that_is_being_made(place, monkeypatch):
    record = materials.source_record_path(place.site, place.recipe)
    place.prepares("source")
    shutil.rmtree(materials.record_directory(record))
    records = []

    def fetch(*_):
        records.append(record.exists())
        raise IncompleteError("the network is down")

    monkeypatch.setattr(source, "_fetch_program", fetch)
    assert place.prepares("source")["source"].status == "failed"
    assert records == [False]


def test_what_can_not_be_checked_out_is_told_and_leaves_nothing(place):
    place.write(commit="0" * 40)
    error = place.says("prepare", "--fw", "tiny", "--only", "source", status=4).error
    assert (error["code"], "git" in error["message"]) == ("incomplete", True)
    assert "--repository" in error["hint"]
    place.write()
    patch = place.folder / "templates" / "tiny" / "fix.patch"
    patch.write_text(PATCH.replace("wrong", "other"))
    assert "git apply failed" in place.prepares("source")["source"].detail
    assert list((place.folder / "sources").iterdir()) == []
    place.write()
    mirror = place.upstream.rename(place.folder / "mirror")
    assert place.prepares("source")["source"].status == "failed"
    assert place.prepares("source", repository=str(mirror))["source"].status == "done"
    # No user of a URL is shown or kept.
    assert without_user("https://me:hunter2@example.org/me/x.git") == "https://example.org/me/x.git"
    assert without_user("git@example.org:me/x.git") == "git@example.org:me/x.git"


def test_data_that_the_program_could_not_read_are_refused(place):
    def refuse(says):
        part = place.prepares("data")["data"]
        assert (part.status, says in part.detail) == ("failed", True), part
        assert "A directory of HDF5 files." in part.hint

    first, middle, last = sorted((place.data / "train").iterdir())
    first.write_bytes(b"<html>")
    refuse("can't be read as hdf5")
    hdf5(first, KEYS)
    hdf5(last, ["input_ids"])
    refuse("has no input_mask")
    middle.unlink()
    last.unlink()
    refuse("1 files match")
    (place.data / "vocab.txt").unlink()
    refuse("vocab.txt are missing")


def test_data_that_changed_have_another_digest(place):
    before = place.prepares("data")["data"]
    assert place.prepares("data")["data"].status == "ready"
    hdf5(place.data / "train" / "1.hdf5", KEYS, rows=9)
    after = place.prepares("data")["data"]
    assert (after.status, after.digest != before.digest) == ("done", True)
    place.write(more="python = 'python3'")
    error = place.says("prepare", "--fw", "tiny", "--only", "data", status=5).error
    assert (error["code"], "frameworks.tiny.data" in error["hint"]) == ("check", True)


def test_an_image_that_can_not_be_had_is_told_with_where_to_look(place):
    words = ("prepare", "--fw", "tiny", "--only", "image")
    place.registry.auth = "basic"
    error = place.says(*words, status=4).error
    assert error["message"].startswith("tiny image: ")
    assert ".credentials" in error["hint"]
    place.registry.auth = ""
    place.write(image=place.registry.uri("bert/tiny:none"))
    assert "no such image" in place.says(*words, status=4).error["message"]
    two = ("prepare", "--fw", "tiny", "--fw", "pytorch", "--image", "./x.sqsh")
    assert "single framework" in place.says(*two, status=2).error["message"]
    site = place.folder / "site.toml"
    site.write_text(site.read_text().replace('"slurm"', '"local"'))
    error = place.says("prepare", "--fw", "tiny", "--on-node", status=2).error
    assert "scheduler is local" in error["message"]


def test_images_are_listed_and_removed_by_name(place):
    part = place.prepares("image")["image"]
    (image,) = place.says("images", "list").data["images"]
    removed = place.says("images", "remove", image["sha256"][:8]).data
    assert removed == {"removed": [part.path], "bytes": image["bytes"]}
    assert place.says("images", "list").data["images"] == []
    error = place.says("images", "remove", "nothing", status=2).error
    assert "does not exist" in error["message"]


def test_an_image_is_built_where_commands_are_wanted(place):
    # As if imported: a registry's images begin without the mounts that make this one run.
    uri, images = place.registry.uri("bert/base:1.0"), place.folder / "images"
    images.mkdir()
    stem = reference.parse_reference(uri).stem
    base = Image().write(images / f"{stem}+0.sqsh")
    (images / f"{stem}.json").write_text(json.dumps(pointer(base, uri, "1" * 64)))
    command = "cat train.py > /opt/made"
    build = f'base = "{uri}"\ncopy = "/opt/program"\ninstall = ["{command}"]'
    place.write(build=build)
    part = place.prepares()["image"]
    assert part.status == "done", part
    argv = ["unsquashfs", "-cat", part.path, "opt/made"]
    result = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert result.stdout == 'print("right")\n'
    written = json.loads((images / f"{materials.built_image_stem(place.recipe)}.json").read_text())
    assert written["provenance"]["base"] == {"reference": uri, "sha256": "1" * 64}
    assert written["provenance"]["install"] == [command]
    assert place.prepares()["image"].status == "ready"
    assert place.drafts().image == part.path
    # Another command is another image.
    place.write(build=build.replace("/opt/made", "/opt/other"))
    assert place.prepares("image", dry=True)["image"].status == "planned"


@pytest.mark.slurm
def test_prepare_runs_in_a_job_where_it_is_to(as_user, checkout, work):
    (work / "data").mkdir()
    for number in range(2):
        hdf5(work / "data" / f"training_{number}.hdf5", [*KEYS, "segment_ids"])
    (work / "site.toml").write_text(site_text("pytorch", f'data = "{work / "data"}"'))
    words = ("prepare", "--fw", "pytorch", "--only", "data", "--on-node", "--json")
    (part,) = checkout.cli(work, as_user)(*words, "--site", "site.toml", status=5).data["parts"]
    assert "has no masked_lm_positions, masked_lm_ids, next_sentence_labels" in part["detail"]
