"""enter.sh and image.sh with Apptainer: a strict stand-in on the host, in no namespaces.

It looks as a setuid Apptainer does. test_runtimes.py tries the real one on the lab.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpcbert.container import cache
from hpcbert.container.reference import parse_reference
from tests.kit.cases import cases
from tests.kit.containers import HERE, SYSTEM_PATH
from tests.kit.waiting import CEILING

pytestmark = pytest.mark.slow

ENTER = cache.SCRIPT.with_name("enter.sh")
HEADER = b"#!/usr/bin/env run-singularity\n\0SIF_MAGIC\0"
CONFIG = {"Env": ["IMAGE_ONLY=image", "BOTH=image"], "WorkingDir": "/usr"}
URI = "docker://r.io:5000/bert/tiny:1.0"


@dataclass(frozen=True)
class Node:
    """A node with Apptainer, or what a test calls it."""

    root: Path

    @property
    def calls(self) -> list[dict[str, object]]:
        lines = (self.root / "bin" / "calls").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def words(self, command: str) -> list[str]:
        """The words of the last call of a command."""
        commands = [call["words"] for call in self.calls]
        matches = [argv for argv in commands if isinstance(argv, list) and argv[0] == command]
        return [str(word) for word in matches[-1]]

    def run(
        self, *words: str | Path, stdin: str = "", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        env = {"PATH": f"{self.root}/bin:{SYSTEM_PATH}", "HOME": str(self.root / "me"), **variables}
        argv = ["bash", "-p", *map(str, words)]
        return subprocess.run(
            argv, env=env, input=stdin, capture_output=True, text=True, check=False, timeout=CEILING,
            cwd=self.root,
        )  # fmt: skip

    def enter(
        self, *words: str, verb: str = "enter", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        options = ["--with", "apptainer", "--name", f"hpcbert-p{os.getpid()}"]
        options += ["--scratch", str(self.root / "s"), "--image", str(self.root / "an image.sif")]
        environment = {"SLURMD_NODENAME": "n7", **variables}
        return self.run(
            ENTER, verb, *options, "--no-home", "--no-entrypoint", *words, **environment
        )

    def image(
        self, *words: str, stdin: str = "", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        return self.run(cache.SCRIPT, "--with", "apptainer", *words, stdin=stdin, **variables)

    def asks(self, uri: str = URI, **variables: str) -> subprocess.CompletedProcess[str]:
        stem = "sif@" + parse_reference(URI).stem
        return self.image("import", uri, str(self.root / "images"), stem, **variables)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    shutil.copytree(HERE / "stand-in" / "apptainer", tmp_path / "bin")
    (tmp_path / "an image.sif").write_bytes(HEADER + json.dumps(CONFIG).encode())
    node = Node(tmp_path)
    yield node
    node.run(ENTER, "remove", "--with", "apptainer", "--name", f"hpcbert-p{os.getpid()}")


def test_a_command_finds_the_images_environment_then_the_hosts(node: Node) -> None:
    result = node.enter(
        *("--env", "LISTED", "--", "sh", "-c", 'pwd; env -0; printf "%s" "$*"; exit 7', "sh", "a  b", "$x"),
        BOTH="host", LISTED="l", LINES="one\n'two'", LANG="de_DE.UTF-8",
        APPTAINERENV_EVIL="1", SINGULARITY_BIND="/etc", APPTAINER_BINDPATH="/etc",
    )  # fmt: skip
    assert result.returncode == 7, result.stderr
    where, _, output = result.stdout.partition("\n")
    variables = dict(word.partition("=")[::2] for word in output.split("\0")[:-1])
    assert where == "/usr"
    assert (variables["IMAGE_ONLY"], variables["BOTH"]) == ("image", "image")
    assert variables["LISTED"] == "l"
    assert variables["LINES"] == "one\n'two'"
    assert not {"LANG", "PS1", "EVIL", "SINGULARITY_BIND", "APPTAINERENV_EVIL"} & set(variables)
    assert output.endswith("a  b $x")
    for call in node.calls:
        assert set(call["settings"]) <= {  # type: ignore[call-overload]
            f"{tool}_{name}"
            for tool in ("APPTAINER", "SINGULARITY")
            for name in ("CACHEDIR", "TMPDIR", "CONFIGDIR", "NO_EVAL")
        }


def test_options_say_what_site_and_recipe_do(node: Node) -> None:
    missing = ("--mount", "/nowhere:/x:nofail")
    assert node.enter("--no-writable", *missing, "--", "true").returncode == 0
    plain = node.words("exec")
    assert plain[1:6] == ["--cleanenv", "--env", "LANG=", "--no-mount", "cwd,tmp"]
    assert not {"--nv", "--rocm", "--writable-tmpfs", "--fakeroot"} & set(plain)
    result = node.enter(
        "--gpus", "--writable", "--remap-root", "--workdir", "/usr/bin", "--", "pwd"
    )
    assert result.stdout == "/usr/bin\n"
    assert {"--writable-tmpfs", "--fakeroot"} <= set(node.words("exec"))
    assert {"--nv", "--rocm"} & set(node.words("exec"))
    assert node.enter("--", "sh", "-c", "kill -USR1 $$").returncode in {-10, 138}
    (state,) = (node.root / "s").glob("*/state/*")
    assert (state / "root").exists()
    assert node.enter(verb="remove").returncode == 0
    assert list((node.root / "s").glob("*/state/*")) == []


def test_singularity_is_run_where_there_is_no_apptainer(node: Node) -> None:
    # This machine's programs, but its own Apptainer.
    programs = node.root / "programs"
    programs.mkdir()
    for path in Path("/usr/bin").iterdir():
        if path.name not in {"apptainer", "singularity"}:
            (programs / path.name).symlink_to(path)
    (node.root / "bin" / "apptainer").rename(node.root / "bin" / "singularity")
    result = node.enter("--", "sh", "-c", "echo $IMAGE_ONLY", PATH=f"{node.root}/bin:{programs}")
    assert result.stdout == "image\n", result.stderr
    result = node.enter("--", "true", PATH=str(programs))
    assert result.returncode == 125
    assert "n7: there is neither apptainer nor singularity on PATH" in result.stderr


def test_mounts_with_blanks_and_quotes_arrive_as_they_are(node: Node) -> None:
    odd = node.root / 'a "b" c'
    odd.mkdir()
    result = node.enter(
        "--mount", f"{odd}:/x y:ro+nosuid", "--mount", "./an image.sif:/i", "--", "true"
    )
    assert result.returncode == 0, result.stderr
    words = node.words("exec")
    quoted = str(odd).replace('"', '""')
    assert f'type=bind,"source={quoted}",destination=/x y,ro' in words
    assert f"type=bind,source={node.root}/./an image.sif,destination=/i" in words


@cases
def test_what_it_can_not_mount_ends_the_rank_with_the_reason(
    node: Node, mount: str, says: str
) -> None:
    result = node.enter("--mount", mount, "--", "true")
    assert result.returncode == 125
    assert f"hpcbert: n7: mount {mount}: " in result.stderr
    assert says in result.stderr


def test_an_image_is_pulled_once_and_named_by_its_digest(node: Node) -> None:
    first, again = node.asks(), node.asks()
    assert first.returncode == again.returncode == 0, first.stderr
    assert first.stdout == again.stdout
    pulls = [call for call in node.calls if call["words"][0] == "pull"]  # type: ignore[index]
    assert len(pulls) == 1
    cached_image = cache.find_image(node.root / "images", parse_reference(URI), "sif@")
    assert cached_image is not None
    assert cached_image.path + "\n" == first.stdout
    assert (cached_image.reference, cached_image.apptainer) == (URI, "1.4.5")
    assert cached_image.path.endswith(f"+{cached_image.sha256[:12]}.sif")


def test_layers_are_kept_only_where_somebody_says_where(node: Node) -> None:
    node.asks()
    assert "--disable-cache" in node.words("pull")
    shutil.rmtree(node.root / "images")
    node.asks(
        APPTAINER_CACHEDIR=str(node.root / "c"), APPTAINERENV_X="1", APPTAINER_DOCKER_USERNAME="me"
    )
    assert "--disable-cache" not in node.words("pull")
    settings = (
        node.calls[-2]["settings"]
        if node.calls[-1]["words"] == ["version"]
        else node.calls[-1]["settings"]
    )
    assert isinstance(settings, dict)
    assert settings["APPTAINER_DOCKER_USERNAME"] == "me"
    assert "APPTAINERENV_X" not in settings
    assert settings["APPTAINER_TMPDIR"] == settings["SINGULARITY_TMPDIR"] != ""


def test_an_image_that_is_not_to_be_had_leaves_nothing(node: Node) -> None:
    result = node.asks("docker://r.io/refuse:1")
    assert result.returncode == 1
    assert "manifest unknown" in result.stderr
    assert "apptainer pull docker://r.io/refuse:1 ended with status" in result.stderr
    assert [path.name for path in (node.root / "images").iterdir()] == [
        ".sif@r.io_5000+bert+tiny+1.0~failed"
    ]


def test_an_image_is_built_in_a_tree_of_its_own(node: Node) -> None:
    (node.root / "source").mkdir()
    images, base = node.root / "images", node.root / "an image.sif"
    words = ["build", "build:x", str(images), "sif@x+built+1", str(base)]
    result = node.image(*words, f"{node.root}/source:/opt/source", stdin="echo at $PWD\n")
    assert result.returncode == 0, result.stderr
    assert "at /" in result.stderr
    assert result.stdout.startswith(f"{node.root}/images/sif@x+built+1+")
    assert {"--fakeroot", "--writable", "--no-home"} <= set(node.words("exec"))
    assert f"type=bind,source={node.root}/source,destination=/opt/source,ro" in node.words("exec")
    failed = node.image(*words[:3], "sif@x+built+2", words[4], stdin="false\necho after\n")
    assert failed.returncode == 1
    assert "an install command ended with status 1" in failed.stderr
    assert "after" not in failed.stderr
