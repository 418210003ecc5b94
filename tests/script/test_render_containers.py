"""What scripts say of containers, and how they go on when a node is not in one."""

import itertools
import os
import pwd
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbert.container import runtimes
from hpcbert.errors import UsageError
from hpcbert.model import Shape
from hpcbert.script.draft import by_hand
from hpcbert.script.plan import Request, plan
from tests.kit import drafts, scripts
from tests.kit.cases import cases, read_constant
from tests.kit.containers import REAL_ENROOT, Image, open_stand_ins
from tests.kit.drafts import load, reference, settled
from tests.kit.needs import require
from tests.kit.paths import REPOSITORY
from tests.kit.recipes import SHELL
from tests.kit.scripts import drafted_in, kinds, only_script, run_program

pytestmark = pytest.mark.slow

TEXT = st.text(st.characters(blacklist_categories=["Cs", "Cc"]), max_size=20)


def run_campaign(draft, folder, status=0, **env):
    """Write a campaign and run its script; return the calls of srun."""
    script = scripts.run_script(draft, folder, status=status, NODE="node3", NO_RANKS="1", **env)
    assert ("node3: not in the container" in script.stderr) == (status == 125)
    return scripts.records(folder / "record.srun")


def test_pyxis_gets_every_flag_and_makes_the_container_outside_the_measured_step(tmp_path):
    def read_flags(call):
        words = [word for word in call if word.startswith(("--container", "--no-container"))]
        return dict(word.partition("=")[::2] for word in words)

    settings: Any = {"mounts": ("/scratch:/scratch:ro",), "env": ("HF_HOME",), "data": "/data"}
    draft = drafted_in(tmp_path, "pyxis", "/images/d e.sqsh", **settings)
    calls = run_campaign(draft, tmp_path, INSIDE="1", PYXIS_CONTAINER_IMAGE="other")
    create, inside, outside, measured, leave = calls
    assert read_flags(create)["--container-image"] == "/images/d e.sqsh"
    text = f"{draft.directory}:{draft.directory}"
    switches = {"--no-container-mount-home", "--no-container-remap-root", "--container-writable"}
    names = {"MASTER_ADDR", "MASTER_PORT", "HPCBERT_NODES", "HPCBERT_NODE_IPS", "HF_HOME"}
    for call in (create, inside, measured):
        values = read_flags(call)
        assert values["--container-name"] == "hpcbert-5"
        assert values["--container-mounts"].startswith(f"{text},/data:/data,/scratch:/scratch:ro,")
        assert names <= set(values["--container-env"].split(","))
        assert switches | {"--no-container-entrypoint"} <= set(values)
    assert "--container-image" not in read_flags(measured)
    assert not read_flags(outside)
    assert not read_flags(leave)
    assert leave[-2:] == ["remove", "hpcbert-5"]
    assert "-l" not in measured
    assert "container" in kinds(draft)
    # A node without the plugin ends the job before training.
    draft = drafted_in(tmp_path / "plain", "pyxis")
    calls = run_campaign(draft, tmp_path / "plain", status=125)
    assert kinds(draft) == ["start", "end"]
    assert scripts.events(draft)[-1]["exit"] == 125
    assert not [call for call in calls if "--output" in " ".join(call)]


def test_settings_of_site_and_recipe_reach_both_runtimes_and_enroot_imports(tmp_path):
    flags: Any = dict.fromkeys(("home", "remap_root", "entrypoint"), True)
    point: Any = {"shape": "2n1g", "workdir": "/work dir"}
    point["tables"] = {"nodes": {"interface": "ib0"}}
    for runtime, words in read_constant(__file__, "SETTINGS").items():
        text = only_script(drafted_in(tmp_path, runtime, scratch="/raid x", **flags, **point))
        assert [word for word in (*words, "interface=ib0\n") if word not in text] == []
    text = only_script(drafted_in(tmp_path, "enroot", "nvcr.io/nvidia/pytorch:25.04-py3"))
    uri = "'docker://nvcr.io#nvidia/pytorch:25.04-py3'"
    assert f"import_image {uri} '{tmp_path}/a b/images' nvcr.io+nvidia+pytorch+25.04-py3" in text
    text = only_script(drafted_in(tmp_path, "enroot", "/images/x.sqsh"))
    assert "image=/images/x.sqsh\n" in text
    assert "import_image" not in text


def test_a_campaign_brings_what_its_script_runs_and_by_hand_it_stays_where_it_was_submitted(
    tmp_path, monkeypatch
):
    joining = {"enter", "join", "sweep", "image"}
    files = {"pyxis": {"pyxis", "sweep"}, "enroot": {*joining, "enroot"}, "none": set()}
    files["apptainer"] = {*joining, "apptainer"}
    every = {f"scripts/{name}.sh" for name in {*joining, *runtimes.RUNTIMES}}
    for runtime, names in files.items():
        draft = drafted_in(tmp_path, runtime, "/i.sif" if runtime == "apptainer" else "/i.sqsh")
        copies = dict(draft.copies)
        assert every & set(copies) == {f"scripts/{name}.sh" for name in names}
        assert ("joined.bash" in only_script(draft)) == (runtime in {"enroot", "apptainer"})
        assert all(source.is_file() for source in copies.values())
    monkeypatch.chdir(REPOSITORY)
    for runtime in ("pyxis", "enroot"):
        site = settled(reference(tmp_path, container={"runtime": runtime}), image="/i.sqsh")
        planned = plan(load(), site, Request(Shape(1, 1)))
        texts, copied = by_hand(planned, site, load(), options=drafts.OPTIONS)
        (text,) = texts.values()
        assert "workdir" in text
        assert '"$campaign:$campaign"' in text
        assert ("scripts/enter.sh" in copied) == (runtime == "enroot")


def test_what_a_runtime_can_not_carry_is_refused(tmp_path):
    for mount in ("/$HOME:/x", '/a"b:/x', "/`id`:/x", "/a\\b:/x"):
        drafted_in(tmp_path, "enroot", mounts=(mount,))
        with pytest.raises(UsageError, match="a shell would expand"):
            drafted_in(tmp_path, "pyxis", mounts=(mount,))
    for runtime in ("pyxis", "enroot"):
        with pytest.raises(UsageError, match="comma or a colon"):
            drafted_in(tmp_path, runtime, data="/a,b")
        with pytest.raises(UsageError, match="read as the name"):
            drafted_in(tmp_path, runtime, "x.sqsh")


@settings(max_examples=40, deadline=None)
@given(mount=TEXT, workdir=TEXT, scratch=TEXT, image=TEXT)
def test_any_text_arrives_as_one_word_at_enter_sh(tmp_path_factory, mount, workdir, scratch, image):
    mount = "/" + mount.translate({ord(char): "_" for char in ":,"})
    mount = mount if mount.isprintable() else "/x"
    image = f"/{image}" if image.isprintable() and image.strip() == image else "/y"
    places = {"mounts": (mount,), "scratch": f"/{scratch}", "workdir": workdir}
    text = only_script(drafted_in(tmp_path_factory.mktemp("words"), "enroot", image, **places))
    part = text.split("begin_job\n")[1].split("\ncreate_container")[0].replace("/scripts/", "/")
    settings = "device=gpu tasks=1 devices_per_task=1 job_name=5 handed_over=()"
    show = 'printf \'%s\\0\' "${container[@]}" "${enter[@]}"'
    program = f"campaign='{SHELL}' library='{SHELL}' {settings}\n{part}\n{show}"
    arguments = scripts.bash("-uc", program).stdout.split("\0")[:-1]
    pairs = dict(itertools.pairwise(arguments))
    assert (pairs["--image"], pairs["--scratch"]) == (image, f"/{scratch}")
    assert f"{mount}:{mount}" in arguments
    assert not workdir or pairs["--workdir"] == workdir


def find_enroot(folder):
    require("squashfs")
    return f"{REAL_ENROOT or open_stand_ins(folder / 'stand-ins')}:{os.environ['PATH']}"


def test_the_local_scheduler_runs_ranks_in_one_container_and_leaves_nothing(tmp_path):
    path = find_enroot(tmp_path)
    image = Image(environment={"PYTORCH_VERSION": "2"}, files={"etc/marker": "inside\n"})
    words = "$(cat /etc/marker) $RANK $WORLD_SIZE $(readlink /proc/self/ns/mnt)"
    python = scripts.tool(tmp_path, "python", f"#!/bin/bash\necho {words}\n")
    container = {"scratch": str(tmp_path / "kept"), "mounts": (str(tmp_path),)}
    site = reference(tmp_path, container={"runtime": "enroot", **container})
    site = settled(site, image=str(image.write(tmp_path / "i.sqsh")), python=str(python))
    draft = scripts.drafted(site, together=True)
    scripts.run_script(draft, tmp_path, status=0, PATH=path)
    logs = sorted((draft.directory / "logs").rglob("*.log"))
    assert len(logs) == 2
    for log in logs:
        first, *messages = sorted(log.read_text().splitlines())
        assert first.startswith("hpcbert: ranks start with ")
        lines = [line.rsplit(maxsplit=1) for line in messages]
        assert sorted(message for message, _ in lines) == ["inside 0 2", "inside 1 2"]
        assert len({namespace for _, namespace in lines}) == 1
    for folder in ("data", "state"):
        (kept,) = (tmp_path / "kept").glob(f"*/{folder}")
        assert list(kept.iterdir()) == []


@cases
def test_the_image_wins_over_its_profile_and_what_it_lacks_is_there(
    environment, path, home, tmp_path
):
    """Debian's /etc/profile, which a login shell reads, replaces PATH."""
    env = {"PATH": find_enroot(tmp_path), "HOME": "/host", "SLURM_LOCALID": "0"}
    env |= {"SLURM_NTASKS": "1", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
    profile = {"etc/profile": "PATH=/usr/local/bin:/usr/bin:/bin:/usr/games\nexport PATH\n"}
    image = Image(environment=environment, files=profile).write(tmp_path / "i.sqsh")
    options = ("--name", "hpcbert-7", "--scratch", tmp_path / "kept")
    image_options = (*options, "--image", image, "--no-entrypoint")
    run_program("enter.sh", "create", *image_options, **env)
    command = ("--", "sh", "-c", 'echo "$PATH"; echo "$HOME"; echo "$USER"')
    printed = run_program("enter.sh", "enter", *image_options, *command, **env).stdout
    run_program("enter.sh", "remove", *options, **env)
    account = pwd.getpwuid(os.geteuid())
    assert printed.splitlines() == [path, home or account.pw_dir, account.pw_name]


@cases
def test_enter_sh_refuses_words_that_it_can_not_follow(words, says):
    refused = run_program("enter.sh", *words, status=125, SLURMD_NODENAME="node7")
    assert says in refused.stderr


def test_what_a_plugin_puts_around_ranks_is_around_what_describes_them(tmp_path):
    every = (("--environment=/e d/f.toml",), ("--uenv", "pytorch/v2.6:v1", "--view=default"))
    for number, (words, runtime) in enumerate(itertools.product(every, ("none", "pyxis"))):
        image, folder = "" if runtime == "none" else "/i.sqsh", tmp_path / str(number)
        tables = {"slurm": {"srun_args": ("--network=x", *words, "--label")}}
        draft = drafted_in(folder, runtime, image, tables=tables)
        calls = run_campaign(draft, folder, INSIDE="1")
        described = {call[call.index("describe") + 1]: call for call in calls if "describe" in call}
        (measured,) = [call for call in calls if "--network=x" in call]
        assert set(words) <= set(measured)
        assert set(words) <= set(described["image"])
        assert not {"--network=x", "--label"} & set(described["image"])
        assert not set(words) & set(described["host"])
    # Without a plugin, one step describes node and interpreter.
    draft = drafted_in(tmp_path, "none", "", tables={"slurm": {"srun_args": ("--label",)}})
    calls = run_campaign(draft, tmp_path)
    assert [call[call.index("describe") + 1] for call in calls if "describe" in call] == ["both"]
