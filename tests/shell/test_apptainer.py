"""enter.sh and image.sh with a strict stand-in for a setuid Apptainer, on the host, in no namespaces.
tests/containers/test_runtimes.py tries the real one on the lab."""

import json
import os
import shutil
from pathlib import Path

import pytest

from hpcbert.container import cache
from hpcbert.container.reference import parse_reference
from tests.kit.cases import read_constant
from tests.kit.containers import HERE
from tests.kit.scripts import run_program

pytestmark = pytest.mark.slow

WITH = ("--with", "apptainer")


class Node:
    """A node with Apptainer, an image, and the calls of Apptainer."""

    def __init__(self, root):
        self.root, self.image = root, root / "an image.sif"
        shutil.copytree(HERE / "stand-in" / "apptainer", root / "bin")
        config = json.dumps({"Env": ["IMAGE_ONLY=image", "BOTH=image"], "WorkingDir": "/usr"})
        self.image.write_text(f"#!/usr/bin/env run-singularity\n\0SIF_MAGIC\0{config}")
        name = ("--name", f"hpcbert-p{os.getpid()}", "--scratch", f"{root}/s")
        self.container = (*WITH, *name)

    def calls(self, command="exec"):
        lines = (self.root / "bin" / "calls").read_text().splitlines()
        return [call for call in map(json.loads, lines) if call["words"][0] == command]

    def words(self):
        return self.calls()[-1]["words"]

    def run(self, program, *words, **options):
        options = {"tools": self.root / "bin", "HOME": f"{self.root}/me", **options}
        return run_program(program, *words, cwd=self.root, SLURMD_NODENAME="n7", **options)

    def enter(self, *words, **options):
        image = ("--image", self.image, "--no-home", "--no-entrypoint")
        return self.run("enter.sh", "enter", *self.container, *image, *words, **options)


def test_a_command_finds_the_images_environment_then_the_hosts(tmp_path):
    node = Node(tmp_path)
    result = node.enter(
        *("--env", "LISTED", "--", "sh", "-c", 'pwd; env -0; printf "%s" "$*"; exit 7', "sh", "a  b", "$x"),
        BOTH="host", LISTED="l", LINES="one\n'two'", LANG="de_DE.UTF-8", status=7,
        APPTAINERENV_EVIL="1", SINGULARITY_BIND="/etc", APPTAINER_BINDPATH="/etc",
    )  # fmt: skip
    where, _, output = result.stdout.partition("\n")
    variables = dict(word.partition("=")[::2] for word in output.split("\0")[:-1])
    expected = {"IMAGE_ONLY": "image", "BOTH": "image", "LISTED": "l", "LINES": "one\n'two'"}
    assert where == "/usr"
    assert {name: variables[name] for name in expected} == expected
    assert not {"LANG", "PS1", "EVIL", "SINGULARITY_BIND", "APPTAINERENV_EVIL"} & set(variables)
    assert output.endswith("a  b $x")
    names = ("CACHEDIR", "TMPDIR", "CONFIGDIR", "NO_EVAL")
    places = {f"{tool}_{name}" for tool in ("APPTAINER", "SINGULARITY") for name in names}
    assert all(set(call["settings"]) <= places for call in node.calls())


def test_options_say_what_site_and_recipe_do(tmp_path):
    node = Node(tmp_path)
    node.enter("--no-writable", "--mount", "/nowhere:/x:nofail", "--", "true")
    assert node.words()[1:6] == ["--cleanenv", "--env", "LANG=", "--no-mount", "cwd,tmp"]
    assert not {"--nv", "--rocm", "--writable-tmpfs", "--fakeroot"} & set(node.words())
    options = ("--gpus", "--writable", "--remap-root", "--workdir", "/usr/bin")
    assert node.enter(*options, "--", "pwd").stdout == "/usr/bin\n"
    assert {"--writable-tmpfs", "--fakeroot"} <= set(node.words())
    assert {"--nv", "--rocm"} & set(node.words())
    killed = node.enter("--", "sh", "-c", "kill -USR1 $$", status=None)
    assert killed.returncode in {-10, 138}
    (state,) = (node.root / "s").glob("*/state/*")
    assert (state / "root").exists()
    node.run("enter.sh", "remove", *node.container)
    assert list((node.root / "s").glob("*/state/*")) == []


def test_singularity_is_run_where_there_is_no_apptainer(tmp_path):
    node = Node(tmp_path)
    # This machine's programs, but its own Apptainer.
    programs = node.root / "programs"
    programs.mkdir()
    for path in Path("/usr/bin").iterdir():
        if path.name not in {"apptainer", "singularity"}:
            (programs / path.name).symlink_to(path)
    (node.root / "bin" / "apptainer").rename(node.root / "bin" / "singularity")
    result = node.enter("--", "sh", "-c", "echo $IMAGE_ONLY", PATH=f"{node.root}/bin:{programs}")
    assert result.stdout == "image\n"
    result = node.enter("--", "true", PATH=str(programs), status=125)
    assert "n7: there is neither apptainer nor singularity on PATH" in result.stderr


def test_mounts_arrive_as_they_are_and_one_that_can_not_be_made_ends_the_rank(tmp_path):
    node = Node(tmp_path)
    odd = node.root / 'a "b" c'
    odd.mkdir()
    mounts = ("--mount", f"{odd}:/x y:ro+nosuid", "--mount", "./an image.sif:/i")
    node.enter(*mounts, "--", "true")
    quoted = str(odd).replace('"', '""')
    assert f'type=bind,"source={quoted}",destination=/x y,ro' in node.words()
    assert f"type=bind,source={node.root}/./an image.sif,destination=/i" in node.words()
    for mount, reason in read_constant(__file__, "REFUSED_MOUNTS").items():
        refused = node.enter("--mount", mount, "--", "true", status=125).stderr
        assert f"hpcbert: n7: mount {mount}: " in refused
        assert reason in refused


def test_an_image_is_pulled_once_and_named_by_its_digest_or_leaves_nothing(tmp_path):
    node = Node(tmp_path)
    uri = "docker://r.io:5000/bert/tiny:1.0"
    reference = parse_reference(uri)

    def import_image(uri=uri, **options):
        words = (*WITH, "import", uri, f"{node.root}/images", f"sif@{reference.stem}")
        return node.run("image.sh", *words, **options)

    refused = import_image("docker://r.io/refuse:1", status=1).stderr
    assert "manifest unknown" in refused
    assert "apptainer pull docker://r.io/refuse:1 ended with status" in refused
    (failure,) = (node.root / "images").iterdir()
    assert failure.name == ".sif@r.io_5000+bert+tiny+1.0~failed"
    first = import_image().stdout
    assert import_image().stdout == first
    _, pull = node.calls("pull")
    assert "--disable-cache" in pull["words"]
    image = cache.find_image(node.root / "images", reference, "sif@")
    assert image is not None
    assert image.path + "\n" == first
    assert (image.reference, image.apptainer) == (uri, "1.4.5")
    assert image.path.endswith(f"+{image.sha256[:12]}.sif")
    # Layers are kept only where somebody says where.
    shutil.rmtree(node.root / "images")
    variables = {"APPTAINERENV_X": "1", "APPTAINER_DOCKER_USERNAME": "me"}
    import_image(APPTAINER_CACHEDIR=f"{node.root}/c", **variables)
    pull = node.calls("pull")[-1]
    assert "--disable-cache" not in pull["words"]
    assert pull["settings"]["APPTAINER_DOCKER_USERNAME"] == "me"
    assert "APPTAINERENV_X" not in pull["settings"]
    assert pull["settings"]["APPTAINER_TMPDIR"] == pull["settings"]["SINGULARITY_TMPDIR"] != ""


def test_an_image_is_built_in_a_tree_of_its_own(tmp_path):
    node = Node(tmp_path)
    (node.root / "source").mkdir()
    start = ("image.sh", *WITH, "build", "build:x", f"{node.root}/images")
    end = (node.image, f"{node.root}/source:/opt/source")
    result = node.run(*start, "sif@x+built+1", *end, stdin="echo at $PWD\n")
    assert "at /" in result.stderr
    assert result.stdout.startswith(f"{node.root}/images/sif@x+built+1+")
    assert {"--fakeroot", "--writable", "--no-home"} <= set(node.words())
    assert f"type=bind,source={node.root}/source,destination=/opt/source,ro" in node.words()
    failed = node.run(*start, "sif@x+built+2", *end, stdin="false\necho after\n", status=1)
    assert "an install command ended with status 1" in failed.stderr
    assert "after" not in failed.stderr
