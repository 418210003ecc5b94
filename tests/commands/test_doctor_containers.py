"""The doctor's container part: what it finds, what it says about it, and on which nodes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hpcbert.commands.checks import (
    NodeRow,
    check_containers,
    load_checks,
    make_container_finding,
    read_rows,
)
from hpcbert.config.site import Site
from hpcbert.finding import Finding
from hpcbert.system.runner import Outcome, run
from tests.kit import drafts
from tests.kit.drafts import changed
from tests.kit.paths import REPOSITORY
from tests.kit.waiting import CEILING

pytestmark = pytest.mark.slow

TOOLS = ("bash", "cat", "stat", "df", "awk", "id", "uname", "getent", "head", "unshare", "true")


PROBE = REPOSITORY / "hpcbert/shell/probe.sh"


def advice(row: NodeRow) -> Finding:
    return make_container_finding(row.node, row.name, row.status, row.detail)


def format_rows(*lines: tuple[str, str, str, str]) -> str:
    return "".join("\t".join(line) + "\n" for line in lines)


def site_of(
    folder: Path, *, scheduler: str = "slurm", runtime: str = "enroot", more: str = ""
) -> Site:
    start = f'schema = 1\nname = "x"\nscheduler = "{scheduler}"\nruns = "runs"\n'
    return drafts.site(folder, f'[container]\nruntime = "{runtime}"\n{more}', start=start)


def run_probe(tools: Path, *words: str, **environment: str) -> dict[str, NodeRow]:
    env = {"PATH": str(tools), "HOME": str(tools), **environment}
    outcome = run(["bash", str(PROBE), *words], env=env)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    return {row.name: row for row in read_rows(outcome.stdout)}


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A PATH of ordinary commands only, to which a test adds what it wants."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in TOOLS:
        program = shutil.which(name)
        assert program
        (folder / name).symlink_to(program)
    return folder


def command(folder: Path, name: str, text: str) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / name).write_text(f"#!/bin/bash\n{text}\n")
    (folder / name).chmod(0o755)


def test_a_machine_without_enroot_is_told_so(tools: Path) -> None:
    node_rows = run_probe(tools, "--enroot")
    # /usr/sbin is always looked through as well.
    if not shutil.which("enroot", path="/usr/sbin:/sbin"):
        assert node_rows["enroot"].status == "fail"
        assert advice(node_rows["enroot"]).change == "package enroot"


def test_what_enroot_says_of_its_directories_is_explained(tools: Path) -> None:
    command(
        tools,
        "enroot",
        "if [[ $1 == version ]]; then echo 4.1.2; exit; fi\n"
        "echo \"mkdir: cannot create directory '/run/enroot': Permission denied\" >&2; exit 1",
    )
    node_row = run_probe(tools, "--enroot")["directories"]
    assert node_row.status == "fail"
    advised = advice(node_row)
    assert "container.scratch" in advised.hint
    assert "ENROOT_RUNTIME_PATH" in advised.change


def test_refused_user_namespaces_are_told_with_the_kernels_settings(tools: Path) -> None:
    command(tools, "unshare", "echo 'unshare: unshare failed: Operation not permitted' >&2; exit 1")
    node_row = run_probe(tools)["user-namespaces"]
    assert node_row.status == "fail"
    assert "Operation not permitted" in node_row.detail
    assert "user.max_user_namespaces=" in node_row.detail


def test_containers_of_jobs_that_are_over_are_named(tools: Path) -> None:
    command(
        tools,
        "enroot",
        "case $1 in version) echo 4;; list) printf 'hpcbert-7-n1\\nmine\\npyxis_8\\n';; esac",
    )
    command(tools, "squeue", "case $* in *=7*) echo 7 ;; *) exit 1 ;; esac")
    assert run_probe(tools, "--enroot")["leftovers"].detail.endswith(": pyxis_8")


def test_files_and_folders_of_a_site_are_looked_at(tools: Path, tmp_path: Path) -> None:
    image, data = tmp_path / "a b.sqsh", tmp_path / "no such"
    image.write_bytes(b"no squashfs")
    node_rows = run_probe(
        tools, "--image", str(image), "--data", str(data), "--images", str(tmp_path / "images")
    )
    assert node_rows["image"].status == "fail"
    assert str(image) in node_rows["image"].detail
    assert node_rows["data"].status == "fail"
    assert node_rows["images"].status in ("ok", "warn")


def test_control_characters_of_a_detail_stay_on_its_line(tools: Path, tmp_path: Path) -> None:
    node_rows = run_probe(tools, "--image", str(tmp_path / "a\tb\nc\x1b[31m"))
    assert "\x1b" not in node_rows["image"].detail
    assert "a b c" in node_rows["image"].detail


def test_lines_of_others_are_passed_over() -> None:
    text = "motd: welcome\n" + format_rows(("n1", "fuse", "warn", "x"), ("n1", "fuse", "odd", "x"))
    assert read_rows(text) == (NodeRow("n1", "fuse", "warn", "x"),)


def test_every_name_that_the_script_tells_has_a_remedy() -> None:
    script = PROBE.read_text()
    names = {
        word.split()[1]
        for line in script.splitlines()
        for word in line.split("; ")
        if word.strip().startswith("tell ") and not word.split()[1].startswith(('"', "{"))
    } | {"scratch", "temp", "images"}
    assert names <= set(load_checks("containers"))


def check_with(site: Site, answers: dict[str, Outcome]) -> tuple[list[Finding], list[Any]]:
    calls = []

    def answer(argv: Sequence[str], **_: Any) -> Outcome:
        calls.append(list(argv))
        return answers.get(argv[0], Outcome(tuple(argv), 0))

    return list(check_containers(site, (), run=answer)), calls


def test_a_login_node_may_lack_what_only_jobs_need(tmp_path: Path) -> None:
    text = format_rows(
        ("login", "enroot", "fail", "no such program"), ("login", "images", "fail", "x")
    )
    slurm, _ = check_with(site_of(tmp_path), {"bash": Outcome((), 0, text)})
    assert [finding.status for finding in slurm] == ["warn", "fail"]
    local, _ = check_with(site_of(tmp_path, scheduler="local"), {"bash": Outcome((), 0, text)})
    assert [finding.status for finding in local] == ["fail", "fail"]


def test_without_a_container_there_is_nothing_to_look_for(tmp_path: Path) -> None:
    findings, calls = check_with(site_of(tmp_path, runtime="none"), {})
    assert [finding.status for finding in findings] == ["ok"]
    assert calls == []


def registry_finding(tmp_path: Path, status: int, output: str, errors: str) -> Finding:
    """Return the finding about a registry if enroot answers with this."""
    from hpcbert.config import places, recipe

    folders = places.recipe_folders(tmp_path / "site.toml")
    pytorch = recipe.load(places.find_recipe("pytorch", folders))

    def answer(argv: Sequence[str], **_: Any) -> Outcome:
        if argv[0] == "enroot":
            return Outcome(tuple(argv), status, output, errors)
        return Outcome(tuple(argv), 0)

    site = changed(site_of(tmp_path), container={"images": str(tmp_path / "images")})
    (finding,) = check_containers(site, (pytorch,), run=answer)
    return finding


def test_an_enroot_that_can_not_ask_a_registry_blames_no_login(tmp_path: Path) -> None:
    """Before 4.0 it has no `digest`, and prints its usage."""
    usage = "Usage: enroot COMMAND [ARG...]\n\n Commands:\n   list   [options]\n   version\n"
    for printed in ((usage, ""), ("", usage)):
        finding = registry_finding(tmp_path, 1, *printed)
        assert (finding.status, finding.change) == ("warn", "")
        assert finding.detail == "not checked: this enroot has no digest"
        assert "4.0" in finding.hint


def test_a_registry_that_refuses_is_explained(tmp_path: Path) -> None:
    refused = "curl: (22) The requested URL returned error code: 401"
    finding = registry_finding(tmp_path, 1, "", refused)
    assert (finding.name, finding.status) == ("registry (nvcr.io)", "warn")
    assert "authn.nvidia.com" in finding.hint
    assert finding.change == "~/.config/enroot/.credentials"


@pytest.mark.slurm
@pytest.mark.parametrize("runtime", ["enroot", "pyxis"])
def test_nodes_are_looked_at_from_inside_a_job(
    runtime: str, as_user: Any, checkout: Any, work: Path, lab: Any
) -> None:
    """The lab has no pyxis: its srun refuses the options, and no node is thought to have it."""
    folder = work / "with a space"
    as_user(["mkdir", "-p", str(folder)])
    (folder / "site.toml").write_text(
        f'schema = 1\nname = "lab"\nscheduler = "slurm"\nruns = "runs"\n[container]\nruntime = "{runtime}"\n'
        '[frameworks.pytorch]\nimage = "/etc/passwd"\n'
    )
    words = ["doctor", "--site", str(folder), "--nodes", "4", "--fw", "pytorch", "--json"]
    result = as_user(
        [checkout.python, "-m", "hpcbert", *words],
        env={"PYTHONPATH": str(checkout.path), "HPCBERT_SITE": ""},
        cwd=folder,
        timeout=CEILING,
    )
    assert result.returncode == 5, result.stdout + result.stderr
    findings = {finding["name"]: finding for finding in json.loads(result.stdout)["data"]}
    assert findings["user-namespaces (n[1-4])"]["status"] == "ok"
    assert findings["account (n[1-4])"]["status"] == "ok"
    broken = findings["image (n[1-4])"]
    assert (broken["status"], broken["change"]) == ("fail", "site.toml: container.images")
    if (
        runtime == "pyxis"
        and "--container-image" not in run(["srun", "--help"], env=os.environ).stdout
    ):
        assert findings["plugin (n[1-4])"]["status"] == "fail"
        assert findings["plugin (n[1-4])"]["change"] == "plugstack.conf"
    assert not list((folder / "runs").glob(".doctor-*"))
