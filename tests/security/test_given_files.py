"""A campaign or a recipe from somebody else, or one that names somebody else's job or process: it runs
and ends nothing on the login node, leads to no file outside, and fits in memory."""

import contextlib
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from hpcbert.campaign import archive, store
from hpcbert.commands import submit
from hpcbert.errors import SchedulerError, UsageError
from hpcbert.results import document
from hpcbert.scheduler.base import Target
from hpcbert.scheduler.local import backend, worker
from hpcbert.system.processes import machine_and_boot
from tests.campaign.test_archive import forge_manifest
from tests.kit.cases import cases, read_constant
from tests.kit.cli import Cli, run, run_here
from tests.kit.logs import announce, write_file
from tests.kit.paths import TEMPLATES
from tests.kit.scripts import tool
from tests.kit.waiting import CEILING, until

SECRET = "samples/s of a file that only its reader may read"
READER = read_constant(__file__, "READER")


@pytest.fixture
def built(build):
    return build("1n1g", repeats=2, scheduler="local").finish()


def set_key(text, key, value):
    """Return a manifest with a dotted key changed; of the first array, if it begins with a dot."""
    data = json.loads(text)
    *place, last = key.strip(".").split(".")
    table = data["arrays"][0] if key.startswith(".") else data
    for name in place:
        table = table[name]
    table[last] = value
    return json.dumps(data)


def check_refused(words, place, message):
    result = run(*words.split(), place, status=2)
    assert message in result.stderr
    assert SECRET not in result.output
    assert "bug" not in result.stderr


@cases
def test_a_path_outside_the_campaign_is_refused(built, tmp_path, key, value):
    secret = write_file(tmp_path, "secret.log", SECRET)
    path = built.directory / "manifest.json"
    path.write_text(set_key(path.read_text(), key, value.replace("{secret}", str(secret))))
    with pytest.raises(UsageError, match="names a file outside the campaign") as caught:
        store.read_manifest(built.directory)
    assert caught.value.hint
    path.write_text(set_key(path.read_text(), key, "logs/\ud800.log"))
    with pytest.raises(UsageError, match="half of a character"):
        store.read_manifest(built.directory)


def test_no_command_reads_a_file_outside_a_campaign_or_an_archive(built, tmp_path):
    secret = write_file(tmp_path, "secret.log", SECRET)
    path, log = built.directory / "manifest.json", built.log_path("1n1g", 1)
    manifest, aside = path.read_text(), tmp_path / "aside"
    packed = archive.pack(built.directory, tmp_path / "a.zip").path
    for value in (str(secret), "logs/../../../secret.log"):
        forge_manifest(packed, set_key(manifest, ".log", value))
        check_refused("logs", packed, "outside the campaign")
    reading = ("logs", "collect", "show", "audit", "explain", "archive", "monitor --once")
    for key in (".log", ".script"):
        path.write_text(set_key(manifest, key, str(secret)))
        for words in (*reading, "report --output page"):
            check_refused(words, built.directory, "outside the campaign")
    path.write_text(manifest)
    log.rename(aside)
    log.symlink_to(secret)
    for words in (*reading, "report --output page"):
        check_refused(words, built.directory, f"{log}: This is a link to a place outside")
    # A link within is followed.
    log.unlink()
    log.symlink_to(aside.rename(log.with_suffix(".kept")))
    assert run("collect", built.directory).returncode == 0
    places = {"folder": log.parent, "status": built.status_path("1n1g", 1)}
    for name in ("folder", "status", "recipe.toml", "env/x.1.0.nodes.jsonl"):
        link = places.get(name, built.directory / name)
        link.parent.mkdir(exist_ok=True)
        if link.exists():
            link.rename(aside)
        link.symlink_to(secret.parent if name == "folder" else secret)
        for words in ("collect", "archive"):
            check_refused(words, built.directory, f"{link}: This is a link to a place outside")
        link.unlink()
        if aside.exists():
            aside.rename(link)


def test_results_and_manifests_that_are_too_large_or_no_text_are_refused(built, tmp_path):
    keys = ",".join(f'"k{number}":1' for number in range(300_000))
    with pytest.raises(UsageError, match="'k299999' appears twice"):
        document.parse_results(f'{{{keys},"k299999":2}}', file="x")
    results = json.loads(run("collect", built.directory, "--format", "json").stdout)
    table = results["tables"][0]
    many = [{**table, "batch_size_per_device": n} for n in range(1, 3001)]
    with pytest.raises(UsageError, match="3,000 tables; hpcbert reads at most 1,000"):
        document.parse_results(json.dumps({**results, "tables": many}), file="x")
    table["model"] = "\ud800"
    path = write_file(tmp_path, "results.json", json.dumps(results))
    check_refused(f"report --output {tmp_path}/page", path, "lone surrogate")
    check_refused(f"compare {path}", path, "lone surrogate")
    path = built.directory / "manifest.json"
    data = json.loads(path.read_text())
    for key in ("site", "user", "framework", "name", "image"):
        path.write_text(json.dumps({**data, key: "\ud800"}))
        with pytest.raises(UsageError, match="lone surrogate"):
            store.read_manifest(built.directory)
    data["arrays"][0]["repeats"] = list(range(store.MOST_REPEATS + 1))
    path.write_text(json.dumps(data))
    for words in ("logs", "collect", "monitor --once", "show", "explain"):
        message = "50,001 repeats; hpcbert reads at most 50,000"
        check_refused(words, built.directory, message)


def test_half_of_a_character_in_what_jobs_wrote_is_no_traceback(built, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("collect", built.directory)
    status = built.status_path("1n1g", 1)
    status.write_text(status.read_text().replace('"node":"', '"node":"\\ud800'))
    text = json.dumps({"nodes": "n1 \ud800", "host": {"kernel": "\ud800", "cpu": "\ud800"}})
    write_file(built.directory, "env/bert-tiny_1n1g_fp32_b4.1.0.nodes.jsonl", text)
    log = built.log_path("1n1g", 1)
    log.write_bytes(b"\xed\xa0\x80 \xff\n" + log.read_bytes())
    for number, words in enumerate(read_constant(__file__, "READING")):
        copy = shutil.copytree(built.directory, tmp_path / f"{number}" / built.directory.name)
        result = run(*words.split(), copy)
        assert result.returncode != 1, result.stderr
        assert "bug in hpcbert" not in result.stderr


def test_the_locked_settings_are_part_of_the_audit(built):
    locked = write_file(built.directory, store.LOCKED, "schema = 1\n")
    run("collect", built.directory)
    assert run("audit", built.directory).returncode == 0
    locked.write_text("schema = 1\n# changed\n")
    assert store.LOCKED in run("audit", built.directory, status=5).output


def test_a_planted_pickle_is_never_loaded(hpcbert, slurm, watched, tmp_path):
    """Where submitit keeps tasks and results, in every folder of a campaign, and for a file of it."""
    sprung, ours = tmp_path / "sprung", replace(hpcbert, run=run_here)
    names: list[object] = []

    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(sprung),)

    def list_named(*words):
        """Return what pickles named while a command ran."""
        names.clear()
        assert "Traceback" not in ours(*words).stderr
        return list(names)

    def note(event, arguments):
        names.extend([arguments] if event.startswith("pickle.") else [])

    sys.addaudithook(note)  # for good
    built, trap = watched(), pickle.dumps(Trap())
    slurm.answers(sacct=[built.sacct(1, "COMPLETED") + built.sacct(2, "FAILED")])
    ends = ("submitted.pkl", "0_result.pkl", "result.pkl")
    for folder in ("", "slurm/", "status/", "logs/", "env/", "scripts/"):
        for name in [f"12_{part}{end}" for part in ("", "1_", "2_") for end in ends]:
            write_file(built.directory, f"{folder}{name}", trap)
    for words in ("collect", "monitor --once", "logs", "retry --dry-run", "audit", "cancel --yes"):
        assert list_named(*words.split(), built.directory) == []
    for name in ("manifest.json", "measurements.json", "recipe.toml", "table.json"):
        local = watched(f"with-{name}", scheduler="local", repeats=2).finish()
        write_file(local.directory, name, trap)
        for words in ("collect", "audit", "monitor --once"):
            assert list_named(*words.split(), local.directory) == []
    assert not sprung.exists()
    pickle.loads(trap)
    assert names
    assert sprung.exists()


def name_reader(built, reader):
    write_file(built.directory, "recipe.toml", f'schema = 1\n[log]\ngrammar = "{reader}"\n')


@cases
def test_nothing_that_a_recipe_names_is_imported(built, tmp_path, monkeypatch, reader):
    sprung = tmp_path / "sprung"
    browser = tool(tmp_path, "browser", f"#!/bin/sh\ntouch {sprung}\n")
    monkeypatch.setenv("BROWSER", str(browser))
    built.log("1n1g", 1, browser.read_text()).chmod(0o755)
    for folder in ("", "scripts/"):
        trap = f"import pathlib; pathlib.Path({str(sprung)!r}).touch()"
        write_file(built.directory, f"{folder}mine.py", trap)
    modules = set(sys.modules)
    name_reader(built, reader)
    archive.pack(built.directory, tmp_path / "stranger.zip")
    for source in (built.directory, tmp_path / "stranger.zip"):
        check_refused("collect", source, "log.grammar")
    assert not sprung.exists()
    named = {"antigravity", "this", "unittest.__main__", "test.__main__", "mine"}
    assert not named & (set(sys.modules) - modules)


def test_modules_of_installed_packages_alone_are_imported(built, tmp_path, monkeypatch):
    """Neither what a recipe names nor what shadows a module that hpcbert imports."""
    place, sprung = tmp_path / "work", tmp_path / "sprung"
    trap = f"import pathlib; pathlib.Path({str(sprung)!r}).touch()\n{READER}"
    announce(place, "yours", "grammars", "yours:read")
    for name in ("mine", "yours"):
        write_file(place, f"{name}.py", trap)
    for path in (str(place), f"{place}/none:", ""):
        for name in () if path else ("click", "tomli"):  # As with `python -m`.
            write_file(place, f"{name}.py", trap)
        for reader in ("mine:read", "entry-point:mine", "entry-point:yours"):
            name_reader(built, reader)
            result = Cli(place, {"PYTHONPATH": path})("collect", built.directory, status=2)
            assert "log.grammar" in result.stderr
            assert not sprung.exists()
    name_reader(built, "entry-point:brought")
    check_refused("collect", built.directory, "hint: There are: none")
    write_file(tmp_path, "packages/installed_reader.py", READER)
    packages = tmp_path / "packages"
    announce(packages, "brought", "grammars", "installed_reader:read")
    monkeypatch.setattr(sys, "path", [*sys.path, str(packages)])
    assert "43.00" in run("collect", built.directory).stdout
    sys.modules.pop("installed_reader", None)


def test_a_job_that_a_manifest_merely_names_is_not_cancelled_and_a_campaigns_own_is(
    hpcbert, slurm, watched, tmp_path
):
    """Id, name, place and user in a manifest are what somebody chose."""

    def list_running(built, place, **columns):
        """Have squeue list a job of the first repeat with what says whose it is."""
        columns = {"uid": os.geteuid(), "place": place, **columns}
        slurm.answers(squeue=[built.squeue(1, "RUNNING", **columns)])

    def cancel(directory):
        ours = replace(hpcbert, run=run_here)
        return ours("cancel", "--yes", "--json", directory, status=0).document

    def warn_of(directory):
        document = cancel(directory)
        assert (document["data"]["cancelled"], document["data"]["jobs"]) == (False, [])
        assert slurm.calls("scancel") == []
        (warning,) = document["warnings"]
        return str(warning)

    built, elsewhere = watched(), tmp_path / "thesis"
    elsewhere.mkdir()
    list_running(built, built.directory)
    copy = shutil.copytree(built.directory, tmp_path / built.directory.name)
    assert f"job 12 was submitted in {built.directory}, not in {copy}" in warn_of(copy)
    (array,) = built.campaign.arrays
    thesis = {"job": "88_1", "name": "the other job's", "command": "/home/me/thesis.sh"}
    list_running(built, elsewhere, **thesis)
    for name in (array.name, "the other job's", ""):
        lie = replace(array, job_id="88", workdir=str(elsewhere), name=name)
        built.change(uid=os.geteuid(), arrays=(lie,))
        assert f"job 88 was submitted in {elsewhere}" in warn_of(built.directory)
    built.change(uid=54321)
    list_running(built, built.directory, uid=54321)
    assert warn_of(built.directory) == "Not cancelled: job 12 belongs to user 54321."
    # A campaign's own jobs are, as it was, linked, moved or submitted by hand.
    link, former = tmp_path / "link", tmp_path / "where it was"
    for number, name in enumerate(("as it was", "linked", "moved", "by hand")):
        built = watched(name)
        directory, script = built.directory, built.campaign.arrays[0].script
        link.unlink(missing_ok=True)
        link.symlink_to(directory)
        place, submitted_script, job = {
            "as it was": (directory, "", "12"),
            "linked": (link, directory / script, "12"),
            "moved": (former, former / script, "12"),
            "by hand": (tmp_path, directory / script, "31"),
        }[name]
        list_running(built, place, job=f"{job}_1", command=submitted_script)
        assert cancel(directory)["warnings"] == []
        assert [call[1:] for call in slurm.calls("scancel")][number:] == [[job]]


@pytest.mark.parametrize("case", ["another program", "another campaign's queue", "its own queue"])
def test_a_manifest_that_names_another_process_does_not_end_it(watched, tmp_path, case):
    other, built = tmp_path / "another campaign", watched(scheduler="local")
    other.mkdir()
    place = built.directory if case == "its own queue" else other
    words = ["-m", "hpcbert.scheduler.local.worker", str(place)]
    (tmp_path / words[1]).write_text("sleep 600\n:\n")
    argv = ["sleep", "600"] if case == "another program" else ["sh", *words]
    with subprocess.Popen(argv, cwd=tmp_path, start_new_session=True) as process:
        try:
            job = worker.queue_job_id(process.pid)
            built = built.change(arrays=(replace(built.campaign.arrays[0], job_id=job),))
            plan = worker.Plan(machine_and_boot(), str(tmp_path / "lock"), 60.0, 1.0, ())
            (built.directory / worker.PLAN_FILE).write_text(json.dumps(asdict(plan)))
            until(Path(f"/proc/{process.pid}/cmdline").read_bytes, "it is there")
            assert backend.is_queue_alive(job)
            target = submit.find_living(built, run=None)  # type: ignore[arg-type]
            if case == "its own queue":
                assert (target.jobs, target.left) == ((job,), ())
                submit.cancel(built, target, run=None)  # type: ignore[arg-type]
                assert process.wait(CEILING)
            else:
                assert (target.jobs, target.repeats) == ((), ())
                assert (str(other) if "queue" in case else case) in target.left[0]
                with pytest.raises(SchedulerError, match="ended already"):
                    submit.cancel(built, Target((job,), ()), run=None)  # type: ignore[arg-type]
                assert process.poll() is None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def test_no_template_gets_out_and_what_recipes_need_still_works(tmp_path, monkeypatch):
    """It is of a recipe beside a site.toml in the working directory."""
    (tmp_path / "site.toml").write_text('schema = 1\nname = "t"\nscheduler = "slurm"\n')
    shutil.copytree(TEMPLATES / "pytorch", tmp_path / "templates/mine")
    monkeypatch.chdir(tmp_path)
    body = tmp_path / "templates/mine/run.sh.j2"

    def refuse(template, *words):
        body.write_text(f"set -e\n{template}\n")
        result = run(*words, "--fw", "mine", "--json")
        assert result.returncode == 2, (template, result)
        message = result.error["message"]
        assert message.startswith(str(body)), message
        assert not Path("sprung").exists(), template
        assert not Path("runs").exists(), template
        return message

    # One template a line: Jinja's and Python's ways out, as lists of template injections have them.
    escapes = Path(__file__).with_name("escapes.txt").read_text().splitlines()
    for template in escapes:
        message = refuse(template, "render")
        is_of_a_file = re.search("include|raw|import", template)
        assert is_of_a_file or f"{body}:2: A template" in message, (template, message)
    # An endless recursion is an error, and an interrupt ends an endless template.
    for template in (
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% include 'mine/run.sh.j2' %}",
    ):
        assert "A template is wrong" in refuse(template, "render")
        refuse(escapes[3], "submit", "--dry-run")
    body.write_text(
        "{% for x in range(99999) %}{% for y in range(99999) %}{% endfor %}{% endfor %}\n"
    )
    with Cli(Path.cwd()).start("render", "--fw", "mine") as process:
        maps = Path(f"/proc/{process.pid}/maps")
        until(lambda: "markupsafe" in maps.read_text(), "Jinja is loaded")
        process.send_signal(signal.SIGINT)
        assert process.wait(CEILING) == 130
    body.write_text(
        "{% set ns = namespace(n=0) %}{% for i in range(8) %}{% set ns.n = ns.n + 2**i %}{% endfor %}\n"
        "echo {{ ns.n }} {{ gcd(12, 18) }} {{ point.key }} {{ range(3)|join(',') }} {{ 'a b'.upper() }}\n"
    )
    result = run("render", "--fw", "mine", status=0)
    assert "echo 255 6 bert-base_1n1g_fp32_b32 0,1,2 'A B'\n" in result.stdout
