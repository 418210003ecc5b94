"""What scripts say of containers, and how they go on when a node is not in one."""

from __future__ import annotations

import itertools
import os
import pwd
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbert.commands.submit import write_campaign
from hpcbert.config.recipe import RecipeImage
from hpcbert.config.site import Site
from hpcbert.container import runtimes
from hpcbert.errors import UsageError
from hpcbert.model import Shape
from hpcbert.script.draft import Draft, by_hand
from hpcbert.script.plan import Request, plan
from tests.kit import drafts
from tests.kit.cases import cases
from tests.kit.containers import Image, open_stand_ins, real_enroot
from tests.kit.drafts import changed, reference, settled
from tests.kit.needs import require
from tests.kit.paths import REPOSITORY
from tests.kit.recipes import SHELL
from tests.kit.scripts import events, only_script, records, run_script, slurm_in, tool
from tests.kit.waiting import CEILING

pytestmark = pytest.mark.slow

ENTER = REPOSITORY / "hpcbert" / "shell" / "enter.sh"


def draft_in_container(where: Site, image: str = "", *, data: str = "", **options: Any) -> Draft:
    site = settled(where, image=image, data=data)
    return drafts.drafted(site, Request(Shape(1, 1), repeats=1), options=options)


def run_campaign(draft: Draft, tmp_path: Path, **env: str) -> tuple[int, str, list[list[str]]]:
    """Write a campaign and run its script; return exit code, stderr and the calls of srun."""
    slurm = slurm_in(tmp_path / "bin")
    script = run_script(draft, tmp_path, **{**slurm, "NODE": "node3", "NO_RANKS": "1", **env})
    return script.returncode, script.stderr, records(tmp_path / "record.srun")


def read_flags(call: list[str]) -> dict[str, str]:
    words = [word for word in call if word.startswith(("--container", "--no-container"))]
    return {word.partition("=")[0]: word.partition("=")[2] for word in words}


def test_pyxis_gets_every_flag_and_makes_the_container_outside_the_measured_step(
    tmp_path: Path,
) -> None:
    where = reference(
        tmp_path,
        container={"runtime": "pyxis", "mounts": ("/scratch:/scratch:ro",), "env": ("HF_HOME",)},
    )
    draft = draft_in_container(where, "/images/d e.sqsh", data="/data")
    code, errors, calls = run_campaign(draft, tmp_path, INSIDE="1", PYXIS_CONTAINER_IMAGE="other")
    assert code == 0, errors
    create, inside, outside, measured, leave = calls
    assert read_flags(create)["--container-image"] == "/images/d e.sqsh"
    text = f"{draft.directory}:{draft.directory}"
    for call in (create, inside, measured):
        values = read_flags(call)
        assert values["--container-name"] == "hpcbert-5"
        assert values["--container-mounts"].startswith(f"{text},/data:/data,/scratch:/scratch:ro,")
        for name in ("MASTER_ADDR", "MASTER_PORT", "HPCBERT_NODES", "HPCBERT_NODE_IPS", "HF_HOME"):
            assert name in values["--container-env"].split(",")
        assert {
            "--no-container-mount-home",
            "--no-container-remap-root",
            "--container-writable",
            "--no-container-entrypoint",
        } <= set(values)
    assert "--container-image" not in read_flags(measured)
    assert not read_flags(outside)
    assert not read_flags(leave)
    assert leave[-2:] == ["remove", "hpcbert-5"]
    assert "-l" not in measured
    assert "container" in [event["event"] for event in events(draft)]


def test_a_node_without_the_plugin_ends_the_job_before_training(tmp_path: Path) -> None:
    draft = draft_in_container(reference(tmp_path, container={"runtime": "pyxis"}), "/i.sqsh")
    code, errors, calls = run_campaign(draft, tmp_path)
    assert code == 125
    assert "node3: not in the container" in errors
    assert [event["event"] for event in events(draft)] == ["start", "end"]
    assert events(draft)[-1]["exit"] == 125
    assert not [call for call in calls if "--output" in " ".join(call)]


@cases
def test_settings_of_site_and_recipe_reach_both_runtimes(
    tmp_path: Path, runtime: str, expected: list[str]
) -> None:
    recipe = replace(drafts.load(), image=RecipeImage(writable=False, workdir="/work dir"))
    flags = dict.fromkeys(("home", "remap_root", "entrypoint"), True)
    container = {"runtime": runtime, "scratch": "/raid x", **flags}
    where = reference(tmp_path, nodes={"interface": "ib0"}, container=container)
    request = Request(Shape(2, 1), repeats=1)
    text = only_script(
        drafts.drafted(settled(where, image="/i.sqsh"), request, framework_recipe=recipe)
    )
    for words in (*expected, "interface=ib0\n"):
        assert words in text


def test_enroot_imports_what_a_registry_has_and_takes_a_file_as_it_is(tmp_path: Path) -> None:
    where = reference(tmp_path, container={"runtime": "enroot", "scratch": "/raid"})
    text = only_script(draft_in_container(where, "nvcr.io/nvidia/pytorch:25.04-py3"))
    uri = "'docker://nvcr.io#nvidia/pytorch:25.04-py3'"
    assert f"import_image {uri} '{tmp_path}/a b/images' nvcr.io+nvidia+pytorch+25.04-py3" in text
    text = only_script(draft_in_container(where, "/images/x.sqsh"))
    assert "image=/images/x.sqsh\n" in text
    assert "import_image" not in text


@pytest.mark.parametrize("runtime", ["pyxis", "enroot", "apptainer", "none"])
def test_a_campaign_brings_what_its_script_runs(tmp_path: Path, runtime: str) -> None:
    image = "/i.sif" if runtime == "apptainer" else "/i.sqsh"
    draft = draft_in_container(reference(tmp_path, container={"runtime": runtime}), image)
    names = {target for target, _ in draft.copies}
    joining = {"enter", "join", "sweep", "image"}
    files = {
        "pyxis": {"pyxis", "sweep"},
        "enroot": {*joining, "enroot"},
        "apptainer": {*joining, "apptainer"},
        "none": set(),
    }
    every = {f"scripts/{name}.sh" for name in {*joining, *runtimes.RUNTIMES}}
    assert every & names == {f"scripts/{name}.sh" for name in files[runtime]}
    assert ("joined.bash" in only_script(draft)) == (runtime in {"enroot", "apptainer"})
    for target, source in draft.copies:
        assert source.is_file(), target


@pytest.mark.parametrize("runtime", ["pyxis", "enroot"])
def test_a_script_by_hand_starts_ranks_where_it_was_submitted(
    tmp_path: Path, runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPOSITORY)
    where = reference(tmp_path, container={"runtime": runtime})
    site = settled(where, image="/i.sqsh")
    measurement_plan = plan(drafts.load(), site, Request(Shape(1, 1)))
    (texts, files) = by_hand(measurement_plan, site, drafts.load(), options=drafts.OPTIONS)
    (text,) = texts.values()
    assert "workdir" in text
    assert '"$campaign:$campaign"' in text
    assert ("scripts/enter.sh" in files) == (runtime == "enroot")


@pytest.mark.parametrize("runtime", ["pyxis", "enroot"])
def test_what_a_runtime_can_not_carry_is_refused(tmp_path: Path, runtime: str) -> None:
    where = reference(tmp_path, container={"runtime": runtime})
    for mount in ("/$HOME:/x", '/a"b:/x', "/`id`:/x", "/a\\b:/x"):
        site = changed(where, container={"mounts": (mount,)})
        if runtime == "enroot":
            draft_in_container(site, "/i.sqsh")
            continue
        with pytest.raises(UsageError, match="a shell would expand"):
            draft_in_container(site, "/i.sqsh")
    with pytest.raises(UsageError, match="comma or a colon"):
        draft_in_container(where, "/i.sqsh", data="/a,b")
    with pytest.raises(UsageError, match="read as the name"):
        draft_in_container(where, "x.sqsh")


TEXT = st.text(st.characters(blacklist_categories=["Cs", "Cc"]), max_size=20)


@settings(max_examples=40, deadline=None)
@given(mount=TEXT, workdir=TEXT, scratch=TEXT, image=TEXT)
def test_any_text_arrives_as_one_word_at_enter_sh(
    tmp_path_factory: pytest.TempPathFactory, mount: str, workdir: str, scratch: str, image: str
) -> None:
    mount = "/" + mount.translate({ord(char): "_" for char in ":,"})
    mount = mount if mount.isprintable() else "/x"
    image = f"/{image}" if image.isprintable() and image.strip() == image else "/y"
    tmp_path = tmp_path_factory.mktemp("words")
    where = reference(
        tmp_path, container={"runtime": "enroot", "mounts": (mount,), "scratch": f"/{scratch}"}
    )
    recipe = replace(drafts.load(), image=RecipeImage(workdir=workdir))
    site = settled(where, image=image)
    draft = drafts.drafted(site, Request(Shape(1, 1), repeats=1), framework_recipe=recipe)
    part = only_script(draft).split("begin_job\n")[1].split("\ncreate_container")[0]
    words = (
        f"campaign='{SHELL}' library='{SHELL}' device=gpu tasks=1 devices_per_task=1 job_name=5 handed_over=()\n"
        f"{part.replace('/scripts/', '/')}\n"
        'printf \'%s\\0\' "${container[@]}" "${enter[@]}"'
    )
    result = subprocess.run(["bash", "-u"], input=words.encode(), capture_output=True, check=True)
    arguments = result.stdout.decode().split("\0")[:-1]
    pairs = dict(itertools.pairwise(arguments))
    assert pairs["--image"] == image
    assert f"{mount}:{mount}" in arguments
    assert pairs["--scratch"] == f"/{scratch}"
    if workdir:
        assert pairs["--workdir"] == workdir


def test_the_local_scheduler_runs_ranks_in_one_container_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    require("squashfs")
    enroot = real_enroot() or str(open_stand_ins(tmp_path / "stand-ins"))
    image = Image(environment={"PYTORCH_VERSION": "2"}, files={"etc/marker": "inside\n"})
    recorder = (
        "#!/bin/bash\necho $(cat /etc/marker) $RANK $WORLD_SIZE $(readlink /proc/self/ns/mnt)\n"
    )
    tool(tmp_path, "python", recorder)
    container = {"scratch": str(tmp_path / "kept"), "mounts": (str(tmp_path),)}
    where = reference(tmp_path, container={"runtime": "enroot", **container})
    file = image.write(tmp_path / "i.sqsh")
    site = settled(where, image=str(file), python=str(tmp_path / "python"))
    request = Request(Shape(1, 2), repeats=2)
    draft = drafts.drafted(site, request, options={"scheduler": "local", "together": True})
    write_campaign(draft)
    result = subprocess.run(
        ["bash", str(draft.directory / draft.campaign.arrays[0].script)],
        env={**os.environ, "PATH": f"{enroot}:{os.environ['PATH']}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=CEILING,
    )
    assert result.returncode == 0, result.stderr
    logs = sorted((draft.directory / "logs").rglob("*.log"))
    assert len(logs) == 2
    for log in logs:
        first, *messages = sorted(log.read_text().splitlines())
        assert first.startswith("hpcbert: ranks start with ")
        lines = [line.rsplit(maxsplit=1) for line in messages]
        assert sorted(message for message, _ in lines) == ["inside 0 2", "inside 1 2"]
        assert len({namespace for _, namespace in lines}) == 1
    for folder in ("data", "state"):
        (path,) = (tmp_path / "kept").glob(f"*/{folder}")
        assert list(path.iterdir()) == []


@cases
def test_the_image_wins_over_its_profile_and_what_it_lacks_is_there(
    environment: dict[str, str], path: str, home: str, tmp_path: Path
) -> None:
    """Debian's /etc/profile, which a login shell reads, replaces PATH."""
    require("squashfs")
    enroot = real_enroot() or str(open_stand_ins(tmp_path / "stand-ins"))
    profile = {"etc/profile": "PATH=/usr/local/bin:/usr/bin:/bin:/usr/games\nexport PATH\n"}
    image = Image(environment=environment, files=profile).write(tmp_path / "i.sqsh")
    words = ["bash", "-p", str(ENTER), "{}", "--name", "hpcbert-7", "--image", str(image)]
    words += ["--scratch", str(tmp_path / "kept"), "--no-entrypoint"]
    env = {"PATH": f"{enroot}:{os.environ['PATH']}", "HOME": "/host", "SLURM_LOCALID": "0"}
    env |= {"SLURM_NTASKS": "1", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}

    def enter(verb: str, *command: str) -> str:
        argv = [word.replace("{}", verb) for word in words]
        result = subprocess.run(
            [*argv, *command], env=env, capture_output=True, text=True, check=False, timeout=CEILING
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    enter("create")
    printed = enter("enter", "--", "sh", "-c", 'echo "$PATH"; echo "$HOME"; echo "$USER"')
    account = pwd.getpwuid(os.geteuid())
    assert printed.splitlines() == [path, home or account.pw_dir, account.pw_name]
    subprocess.run(
        ["bash", "-p", str(ENTER), "remove", "--name", "hpcbert-7", "--scratch", str(tmp_path / "kept")],
        env=env, capture_output=True, check=True, timeout=CEILING,
    )  # fmt: skip


@cases
def test_enter_sh_refuses_words_that_it_can_not_follow(words: list[str], says: str) -> None:
    result = subprocess.run(
        ["bash", "-p", str(ENTER), *words],
        env={"PATH": os.environ["PATH"], "SLURMD_NODENAME": "node7"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 125
    assert says in result.stderr


@pytest.mark.parametrize(
    "words", [("--environment=/e d/f.toml",), ("--uenv", "pytorch/v2.6:v1", "--view=default")]
)
@pytest.mark.parametrize("runtime", ["none", "pyxis"])
def test_what_a_plugin_puts_around_ranks_is_around_what_describes_them(
    tmp_path: Path, words: tuple[str, ...], runtime: str
) -> None:
    args = ("--network=x", *words, "--label")
    where = reference(tmp_path, container={"runtime": runtime}, slurm={"srun_args": args})
    draft = draft_in_container(where, "" if runtime == "none" else "/i.sqsh")
    code, errors, calls = run_campaign(draft, tmp_path, INSIDE="1")
    assert code == 0, errors
    described = {call[call.index("describe") + 1]: call for call in calls if "describe" in call}
    (measured,) = [call for call in calls if "--network=x" in call]
    assert set(words) <= set(measured)
    assert set(words) <= set(described["image"])
    assert not {"--network=x", "--label"} & set(described["image"])
    assert not set(words) & set(described["host"])


def test_without_a_plugin_one_step_describes_node_and_interpreter(tmp_path: Path) -> None:
    where = reference(tmp_path, slurm={"srun_args": ("--label",)})
    code, errors, calls = run_campaign(draft_in_container(where), tmp_path)
    assert code == 0, errors
    assert [call[call.index("describe") + 1] for call in calls if "describe" in call] == ["both"]
