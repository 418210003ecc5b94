"""The doctor's container part: what it finds, what it says about it, and on which nodes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
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
from hpcbert.config import places, recipe
from hpcbert.config.site import Site
from hpcbert.finding import Finding
from hpcbert.system.runner import Outcome, run
from tests.kit import drafts
from tests.kit.cases import cases
from tests.kit.drafts import changed
from tests.kit.paths import REPOSITORY
from tests.kit.waiting import CEILING

pytestmark = pytest.mark.slow

TOOLS = ("bash", "cat", "stat", "df", "awk", "id", "uname", "getent", "head", "unshare", "true")


PROBE = REPOSITORY / "hpcbert/shell/probe.sh"


def format_rows(*lines: tuple[str, str, str, str]) -> str:
    return "".join("\t".join(line) + "\n" for line in lines)


def site_of(
    folder: Path, *, scheduler: str = "slurm", runtime: str = "enroot", more: str = ""
) -> Site:
    start = f'schema = 1\nname = "x"\nscheduler = "{scheduler}"\nruns = "runs"\n'
    return drafts.site(folder, f'[container]\nruntime = "{runtime}"\n{more}', start=start)


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A PATH of ordinary commands only, to which a test adds what it wants."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in TOOLS:
        (folder / name).symlink_to(str(shutil.which(name)))
    return folder


@cases
def test_the_probe_finds_what_containers_lack(
    tools: Path,
    *,
    programs: Mapping[str, str] | None,
    words: str,
    check: str,
    status: str,
    detail: str | None,
    change: str | None,
) -> None:
    # /usr/sbin is always looked through as well.
    if check == "enroot" and shutil.which("enroot", path="/usr/sbin:/sbin"):
        pytest.skip("enroot is in /usr/sbin")
    for name, text in (programs or {}).items():
        (tools / name).unlink(missing_ok=True)
        (tools / name).write_text(f"#!/bin/bash\n{text}\n")
        (tools / name).chmod(0o755)
    (tools / "a b.sqsh").write_bytes(b"no squashfs")
    env = {"PATH": str(tools), "HOME": str(tools)}
    argv = ["bash", str(PROBE), *(word.replace("HERE", str(tools)) for word in words.split("|"))]
    outcome = run(argv, env=env)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    rows = {row.name: row for row in read_rows(outcome.stdout)}
    assert rows[check].status == status
    assert (detail or "").replace("HERE", str(tools)) in rows[check].detail
    assert "\x1b" not in rows[check].detail
    finding = make_container_finding("n1", check, status, rows[check].detail)
    assert (change or "") in finding.change


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


USAGE = "Usage: enroot COMMAND [ARG...]\n\n Commands:\n   list   [options]\n   version\n"
REFUSED = "curl: (22) The requested URL returned error code: 401"


@pytest.mark.parametrize(
    ("printed", "change", "words"),
    [
        # Before 4.0 it has no `digest`, and prints its usage.
        ((USAGE, ""), "", ("not checked: this enroot has no digest", "4.0")),
        (("", USAGE), "", ("not checked: this enroot has no digest", "4.0")),
        (("", REFUSED), "~/.config/enroot/.credentials", ("authn.nvidia.com",)),
    ],
    ids=["usage", "usage as an error", "a refusal"],
)
def test_a_registry_that_gives_no_digest_is_explained(
    tmp_path: Path, printed: tuple[str, str], change: str, words: tuple[str, ...]
) -> None:
    folders = places.recipe_folders(tmp_path / "site.toml")
    pytorch = recipe.load(places.find_recipe("pytorch", folders))

    def answer(argv: Sequence[str], **_: Any) -> Outcome:
        status, *texts = (1, *printed) if argv[0] == "enroot" else (0,)
        return Outcome(tuple(argv), status, *texts)

    site = changed(site_of(tmp_path), container={"images": str(tmp_path / "images")})
    (finding,) = check_containers(site, (pytorch,), run=answer)
    assert (finding.name, finding.status) == ("registry (nvcr.io)", "warn")
    assert finding.change == change
    assert all(word in f"{finding.detail} {finding.hint}" for word in words)


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
