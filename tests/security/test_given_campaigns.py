"""A campaign that came from somebody else runs nothing, leads to no file outside, and fits in memory."""

import json
import os
import pickle
import sys
import zipfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from hpcbert.campaign import archive, store
from hpcbert.errors import UsageError
from hpcbert.results import document
from tests.kit.campaigns import Built
from tests.kit.cases import cases, read_constant
from tests.kit.cli import Cli, run, start_process
from tests.kit.logs import write_file
from tests.kit.scripts import tool

SECRET = "samples/s of a file that only its reader may read"
# The commands that read a campaign, or an archive of one.
READING = read_constant(__file__, "READING")
READER = read_constant(__file__, "READER")
# hpcbert in a Python that tells of every pickle that is loaded and names something.
WATCHED = read_constant(__file__, "WATCHED")


@pytest.fixture
def secret(tmp_path):
    path = write_file(tmp_path, "secret.log", SECRET)
    path.chmod(0o600)
    return path


@pytest.fixture
def built(build):
    built = build("1n1g", repeats=2, scheduler="local")
    built.finish()
    return built


def set_key(data: dict[str, Any], key: str, value: str) -> str:
    """Return a manifest with a dotted key changed; of the first array, if it begins with a dot."""
    *place, last = key.strip(".").split(".")
    table = data["arrays"][0] if key.startswith(".") else data
    for name in place:
        table = table[name]
    table[last] = value
    return json.dumps(data)


def edit(built: Built, key: str, value: str) -> None:
    path = built.directory / "manifest.json"
    path.write_text(set_key(json.loads(path.read_text()), key, value))


def check_refused(words: str, place: Path, message: str) -> None:
    result = run(*words.split(), place)
    assert (result.returncode, message in result.stderr) == (2, True), result
    assert SECRET not in result.output
    assert "bug" not in result.stderr


@cases
def test_a_path_outside_the_campaign_is_refused(built, secret, key, value):
    edit(built, key, value.replace("{secret}", str(secret)))
    with pytest.raises(UsageError, match="names a file outside the campaign") as caught:
        store.read_manifest(built.directory)
    assert caught.value.hint
    edit(built, key, "logs/\ud800.log")
    with pytest.raises(UsageError, match="half of a character"):
        store.read_manifest(built.directory)


@pytest.mark.parametrize("words", READING)
def test_no_command_reads_a_file_outside(built, secret, tmp_path, words):
    manifest = (built.directory / "manifest.json").read_bytes()
    for key in (".log", ".script"):
        edit(built, key, str(secret))
        check_refused(words, built.directory, "outside the campaign")
        (built.directory / "manifest.json").write_bytes(manifest)
    log = built.log_path("1n1g", 1)
    log.rename(tmp_path / "aside")
    log.symlink_to(secret)
    check_refused(words, built.directory, f"{log}: This is a link to a place outside")


@pytest.mark.parametrize("name", ["folder", "status", "recipe.toml", "env/x.1.0.nodes.jsonl"])
def test_a_link_out_of_the_campaign_is_refused_and_one_within_is_followed(
    built, secret, tmp_path, name
):
    log = built.log_path("1n1g", 1)
    log.symlink_to(log.rename(log.with_suffix(".kept")))
    assert run("collect", built.directory).returncode == 0
    places = {"folder": log.parent, "status": built.status_path("1n1g", 1)}
    link = places.get(name, built.directory / name)
    link.parent.mkdir(exist_ok=True)
    if link.exists():
        link.rename(tmp_path / "aside")
    link.symlink_to(secret.parent if name == "folder" else secret)
    for words in ("collect", "archive"):
        check_refused(words, built.directory, f"{link}: This is a link to a place outside")


@pytest.mark.parametrize("value", ["{secret}", "logs/../../../secret.log"])
def test_logs_of_an_archive_are_the_archives(built, secret, tmp_path, value):
    packed = tmp_path / "a.zip"
    archive.pack(built.directory, packed)
    with zipfile.ZipFile(packed) as zipped:
        files = {name: zipped.read(name) for name in zipped.namelist()}
    (manifest,) = (name for name in files if name.endswith("/manifest.json"))
    (index,) = (name for name in files if name.endswith("/archive.json"))
    text = set_key(json.loads(files[manifest]), ".log", value.replace("{secret}", str(secret)))
    described = json.loads(files[index])
    described["files"]["manifest.json"]["sha256"] = sha256(text.encode()).hexdigest()
    files |= {manifest: text.encode(), index: json.dumps(described).encode()}
    with zipfile.ZipFile(packed, "w") as zipped:
        for name, content in files.items():
            zipped.writestr(name, content)
    check_refused("logs", packed, "outside the campaign")


def test_results_that_are_too_large_or_no_text_are_refused(built, tmp_path):
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


def test_a_manifest_that_is_too_large_or_no_text_is_refused(built):
    path = built.directory / "manifest.json"
    data: dict[str, Any] = json.loads(path.read_text())
    for key in ("site", "user", "framework", "name", "image"):
        path.write_text(json.dumps({**data, key: "\ud800"}))
        with pytest.raises(UsageError, match="lone surrogate"):
            store.read_manifest(built.directory)
    data["arrays"][0]["repeats"] = list(range(store.MOST_REPEATS + 1))
    path.write_text(json.dumps(data))
    for words in ("logs", "collect", "monitor --once", "show", "explain"):
        message = "50,001 repeats; hpcbert reads at most 50,000"
        check_refused(words, built.directory, message)


@cases
def test_half_of_a_character_in_what_jobs_wrote_is_no_traceback(
    built, tmp_path, monkeypatch, words
):
    monkeypatch.chdir(tmp_path)
    run("collect", built.directory)
    status = built.status_path("1n1g", 1)
    status.write_text(status.read_text().replace('"node":"', '"node":"\\ud800'))
    text = json.dumps({"nodes": "n1 \ud800", "host": {"kernel": "\ud800", "cpu": "\ud800"}})
    write_file(built.directory, "env/bert-tiny_1n1g_fp32_b4.1.0.nodes.jsonl", text)
    log = built.log_path("1n1g", 1)
    log.write_bytes(b"\xed\xa0\x80 \xff\n" + log.read_bytes())
    result = run(*words.split(), built.directory)
    assert result.returncode != 1, result.stderr
    assert "bug in hpcbert" not in result.stderr


def test_the_locked_settings_are_part_of_the_audit(built):
    locked = write_file(built.directory, store.LOCKED, "schema = 1\n")
    run("collect", built.directory)
    assert run("audit", built.directory).returncode == 0
    locked.write_text("schema = 1\n# changed\n")
    result = run("audit", built.directory)
    assert (result.returncode, store.LOCKED in result.output) == (5, True)


class Trap:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def watch(*words: object, cwd: Path, program: str = WATCHED, **env: str) -> str:
    argv = [sys.executable, "-c", program, *map(str, words)]
    result = start_process(argv, cwd=cwd, env={**os.environ, **env})
    assert "Traceback" not in result.stderr
    return result.stderr


def test_a_planted_pickle_is_never_loaded(hpcbert, slurm, watched, tmp_path):
    """Where submitit keeps tasks and results, and in every folder of a campaign."""
    built, sprung = watched(), tmp_path / "sprung"
    slurm.answers(sacct=[built.sacct(1, "COMPLETED") + built.sacct(2, "FAILED")])
    ends = ("submitted.pkl", "0_result.pkl", "result.pkl")
    for folder in ("", "slurm/", "status/", "logs/", "env/", "scripts/"):
        for name in [f"12_{part}{end}" for part in ("", "1_", "2_") for end in ends]:
            write_file(built.directory, f"{folder}{name}", pickle.dumps(Trap(sprung)))
    for words in ("collect", "monitor --once", "logs", "retry --dry-run", "audit", "cancel --yes"):
        line = [*words.split(), built.directory]
        assert "PICKLE" not in watch(*line, cwd=hpcbert.cwd, **hpcbert.env)
    assert not sprung.exists()
    load = "import pickle; pickle.load(open('x', 'rb')); sys.exit()\nfrom hpcbert"
    write_file(tmp_path, "x", pickle.dumps(Trap(sprung)))
    assert "PICKLE" in watch(cwd=tmp_path, program=WATCHED.replace("from hpcbert", load))


@pytest.mark.parametrize(
    "name", ["manifest.json", "measurements.json", "recipe.toml", "table.json"]
)
def test_a_pickle_in_the_place_of_a_file_is_no_file(built, tmp_path, name):
    write_file(built.directory, name, pickle.dumps(Trap(tmp_path / "sprung")))
    for words in (["collect"], ["audit"], ["monitor", "--once"]):
        assert "PICKLE" not in watch(*words, built.directory, cwd=tmp_path)
    assert not (tmp_path / "sprung").exists()


def name_reader(built: Built, reader: str) -> None:
    write_file(built.directory, "recipe.toml", f'schema = 1\n[log]\ngrammar = "{reader}"\n')


@cases
@pytest.mark.parametrize("packed", [False, True], ids=["directory", "archive"])
def test_nothing_that_a_recipe_names_is_imported(built, tmp_path, monkeypatch, reader, packed):
    sprung = tmp_path / "sprung"
    browser = tool(tmp_path, "browser", f"#!/bin/sh\ntouch {sprung}\n")
    monkeypatch.setenv("BROWSER", str(browser))
    built.log("1n1g", 1, browser.read_text()).chmod(0o755)
    for folder in ("", "scripts/"):
        trap = f"import pathlib; pathlib.Path({str(sprung)!r}).touch()"
        write_file(built.directory, f"{folder}mine.py", trap)
    modules = set(sys.modules)
    name_reader(built, reader)
    source = built.directory
    if packed:
        source = tmp_path / "stranger.zip"
        archive.pack(built.directory, source)
    check_refused("collect", source, "log.grammar")
    assert not sprung.exists()
    named = {"antigravity", "this", "unittest.__main__", "test.__main__", "mine"}
    assert not named & (set(sys.modules) - modules)


@pytest.mark.parametrize("where", ["-m", "PYTHONPATH", "empty part of PYTHONPATH"])
def test_a_module_of_the_working_directory_is_not_imported(built, tmp_path, where):
    """Neither what a recipe names nor what shadows a module that hpcbert imports."""
    place, sprung = tmp_path / "work", tmp_path / "sprung"
    for name in ("mine", "yours") + (("click", "tomli") if where == "-m" else ()):
        trap = f"import pathlib; pathlib.Path({str(sprung)!r}).touch()\n{READER}"
        write_file(place, f"{name}.py", trap)
    write_file(place, "yours-1.0.dist-info/METADATA", "Name: yours\nVersion: 1.0\n")
    entry = "[hpcbert.grammars]\nyours = yours:read\n"
    write_file(place, "yours-1.0.dist-info/entry_points.txt", entry)
    paths = {"-m": "", "PYTHONPATH": str(place), "empty part of PYTHONPATH": f"{place}/none:"}
    for reader in ("mine:read", "entry-point:mine", "entry-point:yours"):
        name_reader(built, reader)
        result = Cli(place, {"PYTHONPATH": paths[where]})("collect", built.directory, status=2)
        assert "log.grammar" in result.stderr
        assert not sprung.exists()


def test_the_entry_point_of_an_installed_package_is_called(built, tmp_path, monkeypatch):
    name_reader(built, "entry-point:brought")
    check_refused("collect", built.directory, "hint: There are: none")
    write_file(tmp_path, "packages/installed_reader.py", READER)
    info = "packages/brought-1.0.dist-info"
    write_file(tmp_path, f"{info}/METADATA", "Name: brought\nVersion: 1.0\n")
    entry = "[hpcbert.grammars]\nbrought = installed_reader:read\n"
    write_file(tmp_path, f"{info}/entry_points.txt", entry)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "packages")])
    assert "43.00" in run("collect", built.directory).stdout
    sys.modules.pop("installed_reader", None)
