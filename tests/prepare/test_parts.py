"""hpcbert prepare: real repositories, real files, a real registry; enroot is the stand-in."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hpcbert.campaign import store
from hpcbert.commands import prepare as flow
from hpcbert.config import recipe as recipes
from hpcbert.config import site as sites
from hpcbert.config.recipe import Recipe
from hpcbert.config.site import Site
from hpcbert.container import reference
from hpcbert.model import Campaign, Shape
from hpcbert.prepare import parts
from hpcbert.prepare.parts import Context, Part
from hpcbert.script import materials
from hpcbert.script.materials import built_image_stem
from hpcbert.script.plan import Request
from hpcbert.system import runner
from tests.kit.cases import read_constant
from tests.kit.cli import Cli
from tests.kit.containers import (
    HERE,
    SYSTEM_PATH,
    Image,
    folders_of_enroot,
    kill_session,
    pointer,
)
from tests.kit.drafts import MINIMAL, drafted, settled
from tests.kit.logs import write_file
from tests.kit.needs import require
from tests.kit.paths import TEMPLATES
from tests.kit.recipes import STEP_LOG
from tests.kit.registry import Registry, serving_tiny
from tests.kit.waiting import CEILING, until

KEYS = ["input_ids", "input_mask"]

RECIPE = read_constant(__file__, "RECIPE")
RECIPE += STEP_LOG
PATCH = """\
--- a/bert/train.py
+++ b/bert/train.py
@@ -1 +1 @@
-print("wrong")
+print("right")
"""


def site_text(framework: str, more: str) -> str:
    return f'{MINIMAL}[container]\nruntime = "enroot"\n[frameworks.{framework}]\n{more}\n'


@dataclass(frozen=True)
class Place:
    """A site with one recipe, and hpcbert run there as a person would."""

    folder: Path
    registry: Registry

    def write(self, *, build: str = "", more: str = "", commit: str = "", image: str = "") -> None:
        more = more or f'data = "{self.data}"'
        (self.folder / "site.toml").write_text(site_text("tiny", more))
        target = self.folder / "templates" / "tiny"
        text = RECIPE.format(
            repository=self.folder / "upstream", commit=commit or self.commit,
            image=image or self.registry.uri(), build=build,
        )  # fmt: skip
        for name, data in {"recipe.toml": text, "run.sh.j2": "true\n", "fix.patch": PATCH}.items():
            write_file(target, name, data)

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def commit(self) -> str:
        return git(self.folder / "upstream", "rev-parse", "HEAD")

    @property
    def checkout(self) -> Path:
        (path,) = (self.folder / "sources").glob("upstream-*+????????")
        return path

    @property
    def site(self) -> Site:
        return sites.load(str(self.folder / "site.toml"), env={}, cwd=self.folder)

    @property
    def recipe(self) -> Recipe:
        return recipes.load(self.folder / "templates" / "tiny")

    @property
    def cli(self) -> Cli:
        variables = {"PATH": f"{HERE / 'stand-in'}:{SYSTEM_PATH}", "HOME": str(self.folder)}
        variables |= {
            "TMPDIR": str(self.folder / "temp"),
            "ENROOT_ALLOW_HTTP": "y",
            "LANG": "C.UTF-8",
        }
        variables |= folders_of_enroot(self.folder / "enroot")
        return Cli(self.folder, {**variables, "ENROOT_TEMP_PATH": variables["TMPDIR"]})

    def says(self, *words: str, status: int = 0) -> dict[str, Any]:
        """Run hpcbert as a person would."""
        return self.cli(*words, "--json", status=status).document

    def prepares(self, *only: str, dry: bool = False, repository: str = "") -> dict[str, Part]:
        """Do the same in this process, which is quicker."""
        printed: list[str] = []
        context = Context(
            run=runner.run, follow=runner.follow, say=printed.append, env=self.cli.environment,
            dry=dry,
        )  # fmt: skip
        site = settled(self.site, "tiny", repository=repository)
        return {part.kind: part for part in flow.prepare(self.recipe, site, context, only=only)}

    def drafts(self) -> Campaign:
        folders = (self.folder / "templates", TEMPLATES)
        request, options = Request(Shape(1, 1)), {"folders": folders}
        return drafted(self.site, request, framework_recipe=self.recipe, options=options).campaign


def hdf5(path: Path, names: list[str], rows: int = 3) -> None:
    with h5py.File(path, "w") as file:
        for name in names:
            file[name] = np.zeros((rows, 4), dtype="i4")


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    outcome = runner.run(["git", "-C", str(folder), *identity, *words])
    assert outcome.ok, outcome.stderr
    return outcome.stdout.strip()


def make_sources(folder: Path) -> None:
    """Make the repository of a program, and its data."""
    upstream = folder / "upstream"
    write_file(upstream, "bert/train.py", 'print("wrong")\n')
    git(upstream, "init", "--quiet")
    git(upstream, "add", ".")
    git(upstream, "commit", "--quiet", "-m", "first")
    data = write_file(folder, "data/vocab.txt", "[PAD]\n").parent / "train"
    data.mkdir()
    for number in range(3):
        hdf5(data / f"{number}.hdf5", KEYS)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    require("squashfs")
    (tmp_path / "temp").mkdir()
    make_sources(tmp_path)
    with serving_tiny() as registry:
        new_place = Place(tmp_path, registry)
        new_place.write()
        yield new_place


def test_all_parts_are_made_ready_and_are_ready_after(place: Place) -> None:
    document = place.says("prepare", "--fw", "tiny")
    first = {part["kind"]: part for part in document["data"]["parts"]}
    assert list(first) == ["source", "image", "data"]
    assert {part["status"] for part in first.values()} == {"done"}
    requests = len(place.registry.requests)
    again = place.prepares()
    assert {part.status for part in again.values()} == {"ready"}
    assert {part.digest for part in again.values()} == {part["digest"] for part in first.values()}
    assert len(place.registry.requests) == requests


def test_a_dry_run_makes_nothing(place: Place) -> None:
    prepared = place.prepares(dry=True)
    assert {part.status for part in prepared.values()} == {"planned"}
    assert place.registry.requests == []
    assert not (place.folder / "images").exists()
    assert not (place.folder / "sources").exists()


def test_a_campaign_uses_what_was_prepared_and_records_it(place: Place) -> None:
    prepared = place.prepares()
    campaign = place.drafts()
    assert campaign.image == prepared["image"].path
    recorded = {material.kind: material for material in campaign.materials}
    assert {kind: material.digest for kind, material in recorded.items()} == {
        kind: part.digest for kind, part in prepared.items()
    }
    assert recorded["image"].name == place.registry.uri()
    assert recorded["source"].name == f"{place.folder / 'upstream'}@{place.commit}"
    directory = place.folder / "runs" / campaign.id
    store.create(directory)
    store.write_manifest(directory, campaign)
    assert store.read_manifest(directory) == campaign
    (listed,) = place.says("images", "list")["data"]["images"]
    assert listed["campaigns"] == [campaign.id]


def test_the_pinned_commit_is_checked_out_with_its_patches(place: Place) -> None:
    pinned = place.commit
    (place.folder / "upstream" / "bert" / "train.py").write_text('print("newer")\n')
    git(place.folder / "upstream", "commit", "--quiet", "-a", "-m", "second")
    place.write(commit=pinned)
    part = place.prepares("source")["source"]
    assert (place.checkout / "bert" / "train.py").read_text() == 'print("right")\n'
    assert git(place.checkout, "rev-parse", "HEAD") == pinned
    assert part.digest == f"git-tree:{git(place.checkout, 'write-tree')}"


def test_a_commit_that_is_not_there_is_told(place: Place) -> None:
    place.write(commit="0" * 40)
    document = place.says("prepare", "--fw", "tiny", "--only", "source", status=4)
    (error,) = document["errors"]
    assert error["code"] == "incomplete"
    assert "git" in error["message"]
    assert "--repository" in error["hint"]
    assert list((place.folder / "sources").iterdir()) == []


def test_a_patch_that_does_not_fit_leaves_no_checkout(place: Place) -> None:
    (place.folder / "templates" / "tiny" / "fix.patch").write_text(PATCH.replace("wrong", "other"))
    part = place.prepares("source")["source"]
    assert "git apply failed" in part.detail
    assert list((place.folder / "sources").iterdir()) == []


def test_what_a_death_left_is_cleared_and_made_anew(place: Place) -> None:
    name = materials.source_record_path(place.site, place.recipe).name.removesuffix(".json")
    sources = place.folder / "sources"
    (sources / name).mkdir(parents=True)
    (sources / name / "half").write_text("")
    dead = sources / f".{name}~{os.uname().nodename}~999999999~0123abcd"
    dead.mkdir()
    assert place.prepares("source")["source"].status == "done"
    assert sorted(path.name for path in sources.iterdir()) == [name, f"{name}.json"]
    assert not (place.checkout / "half").exists()


def test_a_checkout_that_was_changed_is_refused(place: Place) -> None:
    place.prepares("source")
    (place.checkout / "bert" / "built.so").write_text("")
    assert place.prepares("source")["source"].status == "ready"
    (place.checkout / "bert" / "train.py").write_text("print(1)\n")
    part = place.prepares("source")["source"]
    assert "were changed" in part.detail


def test_a_mirror_stands_in_for_the_repository(place: Place, tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    (place.folder / "upstream").rename(mirror)
    commit = git(mirror, "rev-parse", "HEAD")
    place.write(commit=commit)
    assert place.prepares("source")["source"].status == "failed"
    part = place.prepares("source", repository=str(mirror))["source"]
    assert part.status == "done"


def test_no_user_of_a_url_is_shown_or_kept() -> None:
    url = "https://me:hunter2@example.org/me/x.git"
    assert parts.without_user(url) == "https://example.org/me/x.git"
    assert parts.without_user("git@example.org:me/x.git") == "git@example.org:me/x.git"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda data: (data / "vocab.txt").unlink(), "vocab.txt are missing"),
        (lambda data: (data / "train" / "0.hdf5").write_bytes(b"<html>"), "no HDF5 signature"),
        (lambda data: hdf5(data / "train" / "2.hdf5", ["input_ids"]), "has no input_mask"),
        (lambda data: [path.unlink() for path in data.glob("train/[01].hdf5")], "1 files match"),
    ],
)
def test_data_that_the_program_could_not_read_are_refused(
    place: Place, change: Any, says: str
) -> None:
    change(place.data)
    part = place.prepares("data")["data"]
    assert part.status == "failed"
    assert says in part.detail
    assert "A directory of HDF5 files." in part.hint


def test_data_that_changed_have_another_digest(place: Place) -> None:
    before = place.prepares("data")["data"]
    assert place.prepares("data")["data"].status == "ready"
    hdf5(place.data / "train" / "1.hdf5", KEYS, rows=9)
    after = place.prepares("data")["data"]
    assert after.status == "done"
    assert after.digest != before.digest


def test_a_site_that_names_no_data_is_told_which_key(place: Place) -> None:
    place.write(more="python = 'python3'")
    (error,) = place.says("prepare", "--fw", "tiny", "--only", "data", status=5)["errors"]
    assert error["code"] == "check"
    assert "frameworks.tiny.data" in error["hint"]


def test_a_refused_login_is_told_with_where_to_look(place: Place) -> None:
    place.registry.trouble = {"/manifests/": 401}
    (error,) = place.says("prepare", "--fw", "tiny", "--only", "image", status=4)["errors"]
    assert error["message"].startswith("tiny image: ")
    assert ".credentials" in error["hint"]


def test_a_tag_that_is_not_there_is_told(place: Place) -> None:
    place.write(image=place.registry.uri("bert/tiny:none"))
    (error,) = place.says("prepare", "--fw", "tiny", "--only", "image", status=4)["errors"]
    assert "no such image" in error["message"]


def test_prepare_killed_half_way_is_taken_up_by_the_next(place: Place) -> None:
    place.registry.delay = CEILING
    child = place.cli.start("prepare", "--fw", "tiny", "--only", "image", start_new_session=True)
    folder = place.folder / "images"
    (holder,) = until(lambda: list(folder.glob(".*~lock/holder")), "nobody took the lock")
    until(holder.read_text, "the lock's holder wrote nothing")
    script = int(holder.read_text().split()[3])
    for pid in (child.pid, script):
        with suppress(ProcessLookupError):  # The script dies with who started it.
            os.kill(pid, signal.SIGKILL)
    child.wait()
    place.registry.delay = 0.0
    part = place.prepares("image")["image"]
    assert part.status == "done"
    assert list((place.folder / "images").glob(".*")) == []
    kill_session(script)
    child.communicate()


def test_an_image_is_built_where_commands_are_wanted(place: Place) -> None:
    # As if imported: a registry's images begin without the mounts that make this one run.
    uri = place.registry.uri("bert/base:1.0")
    images = place.folder / "images"
    images.mkdir()
    stem = reference.parse_reference(uri).stem
    base = Image().write(images / f"{stem}+0.sqsh")
    (images / f"{stem}.json").write_text(json.dumps(pointer(base, uri, "1" * 64)))
    build = f'base = "{uri}"\ncopy = "/opt/program"\ninstall = ["cat train.py > /opt/made"]'
    place.write(build=build)
    part = place.prepares()["image"]
    assert part.status == "done", part
    result = subprocess.run(
        ["unsquashfs", "-cat", part.path, "opt/made"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == 'print("right")\n'
    written = json.loads((images / f"{built_image_stem(place.recipe)}.json").read_text())
    assert written["provenance"]["base"] == {"reference": uri, "sha256": "1" * 64}
    assert written["provenance"]["install"] == ["cat train.py > /opt/made"]
    assert place.prepares()["image"].status == "ready"
    assert place.drafts().image == part.path
    # Another command is another image.
    place.write(build=build.replace("/opt/made", "/opt/other"))
    assert place.prepares("image", dry=True)["image"].status == "planned"


def test_images_are_removed_by_name(place: Place) -> None:
    path = place.prepares("image")["image"].path
    (image,) = place.says("images", "list")["data"]["images"]
    assert image["path"] == path
    removed = place.says("images", "remove", image["sha256"][:8])["data"]
    assert removed == {"removed": [path], "bytes": image["bytes"]}
    assert place.says("images", "list")["data"]["images"] == []
    document = place.says("images", "remove", "nothing", status=2)
    assert "does not exist" in document["errors"][0]["message"]


def test_a_job_on_a_node_needs_slurm(place: Place) -> None:
    site = place.folder / "site.toml"
    site.write_text(site.read_text().replace('"slurm"', '"local"'))
    document = place.says("prepare", "--fw", "tiny", "--on-node", status=2)
    assert "scheduler is local" in document["errors"][0]["message"]


def test_one_image_for_two_frameworks_is_refused(place: Place) -> None:
    words = ("prepare", "--fw", "tiny", "--fw", "pytorch", "--image", "./x.sqsh")
    document = place.says(*words, status=2)
    assert "single framework" in document["errors"][0]["message"]
