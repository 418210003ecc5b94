"""What the documents say is what the code does; what they say to type and to write is done, word by word."""

import ast
import importlib
import itertools
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import click
import pytest
import tomli

from docs.reference import write_commands, write_examples
from hpcbert.cli import images
from hpcbert.cli.help import walk_commands
from hpcbert.cli.main import COMMANDS, root
from hpcbert.cli.output import Result, make_document
from hpcbert.config import campaignfile, recipe, site
from hpcbert.config.options import Runtime
from hpcbert.errors import HpcbertError, Interruption
from hpcbert.logs import failures, grammar, scan
from hpcbert.logs.setting import Setting
from hpcbert.model import Campaign
from hpcbert.results.words import flag_meanings
from hpcbert.script.rerun import Lock
from hpcbert.slurm import reasons, states
from hpcbert.system import decode
from hpcbert.timelimit import TimeLimit
from tests.kit import cli, logs
from tests.kit.cases import read_constant
from tests.kit.paths import REFERENCE, REPOSITORY
from tests.kit.recipes import NAMES, load
from tests.kit.scripts import SPOOL_PAGE, read_steps, type_commands, write_files

PAGES = sorted(
    page for form in ("*.md", "docs/**/*.md", "templates/*/*.md") for page in REPOSITORY.glob(form)
)
_FENCE = re.compile(r"^(```+)(\w*)\n(.*?)^\1$", re.MULTILINE | re.DOTALL)
_SHELLS = ("sh", "bash", "console")
_FREE = {"batch_sizes": "PRECISION", "batch_factors": "GPU", "throughput": "RULE"}


def read(name: str) -> str:
    return (REPOSITORY / name).read_text(encoding="utf-8")


def prose(text: str) -> str:
    return _FENCE.sub("", text)


def codes(cell: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", cell)


def rows(text: str, first: str) -> list[list[str]]:
    """Return the rows of the tables whose first column has this title."""
    form = rf"^\| *{re.escape(first)} *\|.*\n\|[-:| ]+\n((?:\|.*\n?)*)"
    lines = "".join(re.findall(form, text, re.MULTILINE)).splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_links_of_pages_lead_somewhere():
    for page in PAGES:
        for link in re.findall(r"\]\((?![a-z]+:)([^)\s]+)\)", prose(page.read_text("utf-8"))):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), (page, link)
            if anchor:  # of a heading, as GitHub makes it
                titles = re.findall(r"(?m)^#+ (.+)$", prose(target.read_text("utf-8")))
                plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)|`", r"\1", title) for title in titles)
                anchors = {re.sub(r"[^\w\- ]", "", title.lower()) for title in plain}
                assert anchor in {title.replace(" ", "-") for title in anchors}, (page, link)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_the_command_lines_of_a_page_parse(page):
    """What a page has people type is complete; what it names may lack arguments."""
    text = page.read_text(encoding="utf-8")
    blocks = [block for _, language, block in _FENCE.findall(text) if language in _SHELLS]
    typed = re.findall(r"(?m)^(?:\$ )?(hpcbert .+)$", "".join(blocks).replace("\\\n", " "))
    typed += re.findall(r"(?m)^    (hpcbert .+)$", prose(text))
    forms = (r"hpcbert (.+)", rf"((?:{'|'.join(COMMANDS)})\s+--.*)")
    matches = [re.fullmatch(form, code) for code in codes(prose(text)) for form in forms]
    named = [f"hpcbert {match[1]}" for match in matches if match]
    for number, line in enumerate([*typed, *named]):
        _, *words = itertools.takewhile(lambda word: word != "|", shlex.split(line, comments=True))
        command: click.Command | None = root
        context = click.Context(root, info_name="hpcbert")
        while isinstance(command, click.Group) and words:
            _, words, _ = command.make_parser(context).parse_args(words)
            if words:
                name, command, words = command.resolve_command(context, words)
                assert command, line
                context = click.Context(command, info_name=name, parent=context)
        assert command
        if not isinstance(command, click.Group):
            values, remaining, _ = command.make_parser(context).parse_args(words)
            assert remaining == [], line
            for param in command.params:
                value = values.get(param.name)
                is_missing = param.required and value in (None, ())
                assert not (is_missing and number < len(typed)), (line, param.name)
                if isinstance(value, str) and isinstance(param.type, click.Choice | click.IntRange):
                    param.type_cast_value(context, value)


@pytest.mark.slow
def test_a_message_names_commands_with_options_that_exist():
    """Of each command that the sources name, what stands after it is read, with X for values."""
    form = re.compile(rf"\bhpcbert ({'|'.join(COMMANDS)})\b([^.;:()|`\n]*-[^.;:()|`\n]*)")
    messages = set()
    for path in (REPOSITORY / "hpcbert").rglob("*"):
        if path.suffix in {".toml", ".sh", ".bash"}:
            messages |= {*form.findall(path.read_text(encoding="utf-8"))}
        elif path.suffix == ".py":
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                parts = node.values if isinstance(node, ast.JoinedStr) else [node]
                texts = [str(part.value) if type(part) is ast.Constant else "X" for part in parts]
                messages |= {*form.findall("".join(texts))}
    assert len(messages) > 40
    for name, tail in messages:
        command = root.get_command(click.Context(root, info_name="hpcbert"), name)
        assert command
        subcommands = command.commands if isinstance(command, click.Group) else {}
        command = subcommands.get(tail.split()[0]) or subcommands.get("list", command)
        context = click.Context(command, help_option_names=["-h", "--help"])
        params = command.get_params(context)
        flags = {flag for param in params for flag in (*param.opts, *param.secondary_opts)}
        assert set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", tail)) <= flags, (name, tail)


def test_the_pages_of_the_commands_are_what_the_commands_say():
    paths = {*write_commands.FOLDER.glob("*.md"), write_commands.OVERVIEW}
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    assert texts == write_commands.pages(), "run: make pages"


@pytest.mark.torch  # its absence is in what plan prints
def test_every_command_with_json_has_an_example_which_is_what_it_prints():
    page = write_examples.read_examples()
    with_json = {
        name.partition(" ")[2]
        for name, context in walk_commands()
        if any(param.name == "as_json" for param in context.command.params)
        and not isinstance(context.command, click.Group)
    }
    assert {*write_examples.LINES, *write_examples.OF_A_LAB} == with_json == page.keys()
    # tests/cluster/test_lab.py compares those of a lab; only root may end one.
    elsewhere = (*write_examples.OF_A_LAB, *(["lab down"] if os.geteuid() else []))
    documents = {**write_examples.documents(), **{name: page[name] for name in elsewhere}}
    assert page == documents, "run: make pages"


def document_keys(hint: Any, name: str = "") -> Iterator[str]:
    """Yield the keys of a document as pages name them, from the annotations that it is read by."""
    origin, parts = get_origin(hint), get_args(hint)
    tables = [part for part in parts if is_dataclass(part)]
    if origin is Annotated:
        yield from document_keys(parts[0], name)
    elif origin is Mapping:
        free = "NAME" if tables or name == "env" else "OPTION"
        yield from document_keys(parts[1], f"{name}.{_FREE.get(name.rpartition('.')[2], free)}")
    elif tables:
        yield from document_keys(tables[0], f"{name}[]" if origin is tuple else name)
    elif is_dataclass(hint) and hint is not TimeLimit:
        hints = get_type_hints(hint, include_extras=True)
        for field in decode.document_fields(hint):
            yield from document_keys(hints[field.name], f"{name}.{field.name}".lstrip("."))
    else:
        yield name


def test_a_key_of_a_site_is_in_the_reference_site_on_the_page_read_and_shown(tmp_path):
    """With a template that prints it, these are the places of a new key."""

    def generalize(key):
        key = re.sub(r"^env\.\w+$", "env.NAME", key)
        key = re.sub(r"^frameworks\.\w+", "frameworks.NAME", key)
        key = re.sub(r"\.batch_sizes\.\w+$", ".batch_sizes.PRECISION", key)
        return re.sub(r"\.options\.\w+$", ".options.OPTION", key)

    def list_values(table, prefix=""):
        for name, value in table.items():
            if isinstance(value, dict):
                yield from list_values(value, f"{prefix}{name}.")
            else:
                yield f"{prefix}{name}", value

    text, path = read("site.toml"), tmp_path / "site.toml"
    values = dict(list_values(tomli.loads(text)))
    page = {codes(row[0])[0]: row for row in rows(read("docs/reference/site.md"), "key")}
    assert {*map(generalize, values)} == {"schema", *document_keys(site.Site)} == page.keys()
    replacements = {"scheduler": "slurm", "container.runtime": "pyxis", "container.env": "OTHER"}
    replacements |= {"slurm.time_limit": "02:00:00", "nodes.cpu_bind": "none"}
    replacements |= {"slurm.gpu_option": "gpus"}
    for key in values.keys() - {"schema"}:
        # Each gets another value, which then is what `config` shows.
        value, (table, _, name) = values[key], key.rpartition(".")
        by_type = {str: "/other", list: "--comment=x", bool: not value}
        other = replacements.get(key, by_type.get(type(value), value))
        other = value + 1 if type(value) in (int, float) else other
        shown = json.dumps([other] if isinstance(value, list) else other)
        start = text.index(f"[{table}]") if table else 0
        line = re.compile(rf"^{name} = .*$", re.MULTILINE)
        path.write_text(text[:start] + line.sub(f"{name} = {shown}", text[start:], count=1))
        origins = site.list_origins(site.read_site(path, base=Path("/"), env={}))
        assert origins[key] == ((other,) if isinstance(value, list) else other, str(path)), key
    path.write_text('schema = 1\nname = "x"\nscheduler = "local"\n[frameworks.x]\n')
    origins = site.list_origins(site.read_site(path, base=tmp_path, env={}))
    for key, (value, by) in origins.items():
        if by == "default" and key not in ("runs", "sources", "container.images"):
            default = codes(page[generalize(key)][2])[0]
            plain = list(value) if isinstance(value, tuple) else value
            assert tomli.loads(f"x = {default}")["x"] == plain, key


def test_a_key_of_a_campaign_file_is_in_the_example_and_on_the_page():
    names = {"schema", *document_keys(campaignfile.CampaignFile)}
    text = campaignfile.EXAMPLE.read_text(encoding="utf-8")
    keys, table = set(), ""
    for name, array, header, key in re.findall(r"(?m)^#?(?:((\[*)\[(\w+).*\])|(\w+) = )", text):
        table = f"{header}{'[]' if array else ''}." if name else table
        keys.add(header if name else f"{table}{key}")
    assert names <= keys
    page = read("docs/reference/campaign-file.md")
    assert {codes(row[0])[0] for row in rows(page, "key")} == names


def test_a_key_of_a_recipe_is_on_its_page_and_the_example_there_is_valid(tmp_path):
    text = read("docs/reference/recipe.md")
    (example,) = [block for _, language, block in _FENCE.findall(text) if language == "toml"]
    (tmp_path / "recipe.toml").write_text(example)
    grammar.parse(recipe.load(tmp_path).log, where="the example")
    keys = {key.replace("log.OPTION", "log") for key in document_keys(recipe.Recipe)}
    assert {key for row in rows(text, "key") for key in codes(row[0])} == {"schema", *keys}
    table = rows(read("docs/reference/json.md"), "command")
    (row,) = [row for row in table if row[0] == "`frameworks show`"]
    pytorch = recipe.load(REPOSITORY / "templates" / "pytorch")
    assert set(codes(row[1])) == set(images.describe_recipe(pytorch))


def test_tables_name_what_there_is():
    """Of a page, below a heading if there is one, the first column of a table is read."""
    parts = ("job", "watch", "enough", "preflight")
    library = "\n".join(read(f"hpcbert/shell/{part}.bash") for part in parts)
    sources = "\n".join(path.read_text("utf-8") for path in REPOSITORY.glob("hpcbert/*/*.py"))
    reasons = re.findall(r"""(?:Reason|CannotReduceError)\(\s*"([a-z-]+)",""", sources)
    fields_of_lock = [field.name for field in fields(Lock)]
    for page, heading, column, names in (
        ("reference/campaign-directory", "", "lock key", {"schema", *fields_of_lock}),
        ("reference/campaign-directory", "manifest.json", "key", {"schema", *document_keys(Campaign)}),
        ("reference/campaign-directory", "Status events", "event",
         {"finished", *re.findall(r"\bmark ([a-z-]+)", library)}),
        ("reference/json", "The document", "key", {*json.loads(make_document("x", Result()))}),
        ("explanation/numbers", "", "reason",
         {failures.DEVICE, failures.HOST, failures.ERROR, *reasons}),
        ("explanation/numbers", "", "flag", {*flag_meanings()}),
    ):  # fmt: skip
        text = read(f"docs/{page}.md")
        if heading:
            text = re.split(r"(?m)^#+ ", prose(text).partition(f"# {heading}\n")[2], maxsplit=1)[0]
        listed = {word for row in rows(text, column) for word in codes(row[0])}
        if heading == "The document":
            listed = {word for word in listed if "." not in word}
        assert listed == names, (page, column)


def test_exit_codes_and_variables_are_those_of_the_program():
    def list_errors(error: type[HpcbertError]) -> Iterator[tuple[int, str]]:
        yield error.exit_code, error.code
        for subclass in error.__subclasses__():
            if subclass.__module__.startswith("hpcbert."):
                yield from list_errors(subclass)

    table = rows(read("docs/reference/exit-codes.md"), "code")
    written = {(int(row[0]), row[1].strip("`")) for row in table}
    assert written == {*list_errors(HpcbertError), (0, ""), (Interruption.exit_code, "interrupted")}
    paths = (path for path in REPOSITORY.glob("hpcbert/**/*.py") if "workloads" not in path.parts)
    sources = "\n".join(path.read_text(encoding="utf-8") for path in paths)
    variables = re.findall(r"""env\w*(?:\.get\(|\[)["']((?:HPCBERT|XDG)_\w+)["']""", sources)
    table = rows(read("docs/reference/command-line.md"), "environment variable")
    assert {*variables} <= {word for row in table for word in codes(row[0])}


def test_the_states_page_is_the_table_of_states_and_reasons():
    text = (REFERENCE / "states.md").read_text(encoding="utf-8")
    assert rows(text, "state") == [
        [
            *(f"`{state.word}`", f"`{state.code}`" if state.code else ""),
            state.kind + (", may return" if state.returns else ""),
            *(state.sentence, state.advice),
        ]
        for state in states.STATES
    ]
    for column, meanings in (
        ("reason of Slurm's", reasons.REASONS),
        ("text of Slurm's begins", reasons.TEXTS),
    ):
        expected = [[f"`{word.strip()}`", *meaning] for word, meaning in meanings.items()]
        assert rows(text, column) == expected


def test_contributing_lists_the_rooms_and_its_directions_lead_to_files():
    text = read("CONTRIBUTING.md")
    contract, *_ = tomli.loads(read("pyproject.toml"))["tool"]["importlinter"]["contracts"]
    floors = [re.split(r"\s*[|:]\s*", layer) for layer in contract["layers"]]
    listed = [name for row in rows(text, "room") for name in codes(row[0])]
    assert listed == [room for floor in floors for room in floor]
    assert "\n".join(" · ".join(floor) for floor in floors) in text
    places = [place for row in rows(text, "what") for place in codes(row[1]) if "/" in place]
    assert places
    assert all([*REPOSITORY.glob(place.replace("NAME", "pytorch"))] for place in places)
    folders = {word for row in rows(read("tests/README.md"), "folder") for word in codes(row[0])}
    assert folders == {f"tests/{page.parent.name}" for page in REPOSITORY.glob("tests/*/README.md")}


def test_the_readme_says_the_same_in_both_languages():
    english, chinese = read("README.md"), read("README.zh.md")
    assert _FENCE.findall(english) == _FENCE.findall(chinese) != []
    # Outside of blocks, whatever the words around it.
    for name, form in read_constant(__file__, "SAME").items():
        parts = [re.findall(form, prose(text), re.MULTILINE) for text in (english, chinese)]
        assert sorted(parts[0]) == sorted(parts[1]) != [], name
    assert "](README.zh.md)" in english
    assert "](README.md)" in chinese
    (table,) = re.findall(r"```text\npytorch.*?```", english, re.DOTALL)
    assert table in read("docs/tutorial/first-table.md")


@pytest.mark.slow
def test_figures_of_results_are_of_the_tables_that_their_pages_show():
    # Another matplotlib draws with other bytes; what is written in a picture stays.
    texts = re.compile(r"<text[^>]*>(.*?)</text>")
    script = runpy.run_path(str(REPOSITORY / "benchmarks" / "picture.py"))
    (command,) = re.findall(r"(?ms)^hpcbert report (.*?)\n```", read("README.md"))
    assert sorted(re.findall(r"dlperf:\S+", command)) == sorted(script["TABLES"])
    published = script["picture"](script["published"]())
    assert texts.findall(read("docs/pictures/published.svg")) == texts.findall(published)
    rows = script["table"]().rows
    assert [row.median for row in rows] == [77.30, 96.55]
    text = f"{rows[0].median:.2f} samples/s on one rank, {rows[1].median:.2f} on two"
    assert text in read("docs/tutorial/first-table.md")
    committed = read("docs/tutorial/first-table.svg")
    assert texts.findall(committed) == texts.findall(script["picture"]())


def test_drawings_are_as_drawn_and_use_the_program_s_words():
    draw = runpy.run_path(str(REPOSITORY / "docs" / "pictures" / "draw.py"))
    texts = {name: read(f"docs/pictures/{name}") for name in draw["drawn"]()}
    assert texts == draw["drawn"](), "run: make pages"
    life = [part for part in draw["campaign"]() if isinstance(part, draw["Box"])]
    assert {box.title for box in life if box.code} <= set(COMMANDS)
    undrawn = {states.Kind.UNKNOWN, states.Kind.UNNEEDED}
    assert {box.title.split()[-1] for box in life} >= {*states.Kind} - undrawn
    assert {*draw["SOURCES"], "none"} == {*get_args(states.Source)}
    assert {*draw["RUNTIMES"]} == {*get_args(Runtime)}
    parts = ("job", "watch", "pyxis", "enough")
    library = "\n".join(read(f"hpcbert/shell/{part}.bash") for part in parts)
    events = {event for *_, event in draw["PHASES"]} - {""} | dict(draw["OTHERS"]).keys()
    assert events == set(re.findall(r"\bmark ([a-z-]+)", library))


def test_the_navigation_is_that_of_the_index_and_leads_to_every_page():
    """`make docs` builds the site, and fails at any warning."""
    conf = runpy.run_path(str(REPOSITORY / "docs" / "conf.py"))
    reached: set[str] = set()
    todo = [str(conf["root_doc"])]
    while todo:
        name = todo.pop()
        reached.add(name)
        contents = conf["navigation"](name, read(f"{name}.md"))
        for pair in re.findall(r"^(?:.*<(.+)>|(\S+))$", contents, re.MULTILINE):
            path = "".join(pair)
            if path[:1] not in ":`":
                below = path[1:] if path[0] == "/" else os.path.normpath(Path(name).parent / path)
                pages = [*REPOSITORY.glob(f"{below}.md")]
                assert pages, f"{name} leads to {path}, which is not there"
                names = {str(page.relative_to(REPOSITORY)).removesuffix(".md") for page in pages}
                todo += names - reached
    assert reached == {
        str(page.relative_to(REPOSITORY)).removesuffix(".md")
        for form in conf["include_patterns"]
        for page in REPOSITORY.glob(form.replace("/**", "/**/*"))
    }
    decisions = sorted(path.name for path in (REPOSITORY / "docs/decisions").glob("[0-9]*.md"))
    assert [int(name[:4]) for name in decisions] == list(range(1, len(decisions) + 1))
    index = read("docs/index.md")
    captions = re.findall(r"(?m)^:caption: (.+)$", conf["navigation"](conf["root_doc"], index))
    assert captions == re.findall(r"(?m)^## (.+)$", index)


@pytest.mark.slow
def test_a_new_framework_is_measured_without_touching_hpcbert(tmp_path):
    """In a directory with a space in its name. Pages have the keys of what comes of it."""

    def read_keys(page, heading):
        """Return the keys in the tables below a heading of a page, as far as the next one."""
        text = read(f"docs/reference/{page}.md").partition(f"\n## {heading}\n")[2]
        cells = re.findall(r"(?m)^\|( `[^|]*)", text.partition("\n## ")[0])
        return {code for cell in cells for code in codes(cell)}

    place = tmp_path / "add a framework"
    for name, language, block in read_steps("add-a-framework.md", end="## Before it becomes part"):
        write_files([(name, language, block)], place)
        if not name:
            assert language == "sh"
            type_commands(block, place)
    measured, rehearsal = sorted(path.parent for path in place.glob("runs/*/manifest.json"))
    text = type_commands(f"hpcbert collect {measured.name} --json", place)
    (table,) = json.loads(text)["data"]["tables"]
    assert [row["shape"] for row in table["rows"]] == ["1n1g", "1n2g"]
    assert [row["repeats"] for row in table["rows"]] == [{"ok": 2, "asked": 2}] * 2
    assert json.loads((rehearsal / "manifest.json").read_text())["rehearse"]
    type_commands(f"hpcbert collect {rehearsal.name}", place, status=4)
    names = {path.name for path in (place / "templates" / "sleeper").iterdir()}
    assert names == {"recipe.toml", "run.sh.j2", "train.sh", "sample.log"}
    assert not (REPOSITORY / "templates" / "sleeper").exists()
    keys = {f"tables[].{key}" for key in table}
    for row in table["rows"]:
        keys |= {"repeats.ok", "repeats.asked"} | (set(row) - {"repeats"}) | set(row["metrics"])
        keys |= {key for run in row["runs"] for key in run}
    keys |= {"left_out", "beside", *(f"made.{key}" for key in ("hpcbert", "date", "command"))}
    sometimes = {"reasons", "tables[].largest", "rates"}
    assert read_keys("json", "collect") - sometimes == keys - sometimes
    text = type_commands(f"hpcbert monitor --once --json {measured.name}", place)
    *events, document = map(json.loads, text.splitlines())
    assert len(events) == 4
    keys = {key for event in events for key in event}
    assert keys <= read_keys("json", "monitor")
    data = read_keys("json", "monitor") - keys - {"rate", "unit", "flags"}
    assert {re.split(r"[\[.]", key)[0] for key in data} == set(document["data"])
    measurements = json.loads((measured / "measurements.json").read_text())
    keys = {f"runs[].{key}" for run in measurements["runs"] for key in run}
    keys |= set(measurements) - {"runs"}
    assert read_keys("campaign-directory", "measurements.json") == keys


@pytest.mark.torch
def test_a_new_scheduler_runs_cancels_and_retries(tmp_path):
    place, steps = tmp_path / "add a scheduler", read_steps(SPOOL_PAGE)
    write_files(steps, place)
    # An environment that has all of this one. pip needs no network: what it builds with is there.
    home = place / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    (packages,) = home.glob("lib/python*/site-packages")
    path = sysconfig.get_path("purelib")
    (packages / "tests.pth").write_text(f"import site; site.addsitedir({path!r})\n")
    python, outer = shlex.quote(str(home / "bin" / "python")), shlex.quote(sys.executable)
    tools = {
        "python": f'#!/bin/bash\nexec {python} "$@"\n',
        "hpcbert": f'#!/bin/bash\nexec {python} -m hpcbert "$@"\n',
        "pip": f'#!/bin/bash\nexec {outer} -m pip --python {python} "$@" --quiet --no-index --no-deps '
        "--no-build-isolation\n",
    }
    commands = [block for name, _, block in steps if not name]
    assert len(commands) == 2
    for block in commands:
        output = type_commands(f"export SPOOL=$PWD/queue\n{block}", place, tools=tools)
        assert re.search(r"^nodes .*\n(?:.*\n)*.* 1/1 *", output, re.MULTILINE), output
    assert sorted(path.name for path in place.glob("queue/*")) == ["0001", "0002", "0003"]
    manifests = [json.loads(path.read_text()) for path in place.glob("runs/2*/manifest.json")]
    assert [manifest["scheduler"] for manifest in manifests] == ["spool", "spool"]


@pytest.mark.slow
def test_the_page_about_notebooks_runs_from_its_first_line_to_its_last(build, empty_directory):
    build("1n1g", "1n2g", repeats=3, scheduler="local").finish()
    place: dict[str, Any] = {}
    for cell in re.findall(r"(?ms)^```python\n(.*?)^```$", read("docs/how-to/notebook.md")):
        exec(compile(cell, "notebook.md", "exec"), place)
    assert list(place["result"].rows["median"]) == pytest.approx([11.0, 22.0])
    assert {path.name for path in Path().glob("*.png")} == {"scaling.png"}
    assert len(list(Path("frames").glob("*.parquet"))) == 4


@pytest.mark.slow
def test_every_command_of_a_recipe_s_page_works_as_typed(empty_directory, without_slurm):
    """Without submitting; what prepare needs is for another place."""
    for name in NAMES:
        text = read(f"templates/{name}/README.md")
        typed = re.findall(r"(?m)^ {4}hpcbert ((?:prepare|submit|render) .+)$", text)
        commands = [shlex.split(line, comments=True) for line in typed]
        assert all(words[1:3] == ["--fw", name] for words in commands)
        kinds = {(words[0], "cpu" in words) for words in commands}
        on_cpu = load(name).environment or load(name).on.get("cpu") or name == "pytorch"
        assert ("submit", True) in kinds if on_cpu else kinds, name
        for words in commands:
            if words[0] != "prepare":
                result = cli.run(*words, *(["--dry-run"] if words[0] == "submit" else []))
                assert result.returncode == 0, (words, result.stderr)


def test_the_log_grammar_s_examples_give_the_numbers_that_they_say(tmp_path):
    examples = re.findall(
        r"(?ms)^`([a-z-]+)`: (?:[^\n]+\n)+\n```text\n(.*?)```\n\n```toml\n(.*?)```\n\n([^\n]+)",
        read("docs/reference/log-grammar-examples.md"),
    )
    assert {kind for kind, *_ in examples} == set(grammar._KEYS) - {"custom"}
    setting = Setting(nodes=1, gpus_per_node=2, batch_size_per_device=32, skip=1, iters=4)
    for kind, log, table, sentence in examples:
        log_grammar = logs.parse(table)
        (rule,) = log_grammar.rules
        path = logs.write_file(tmp_path, f"{kind}.log", log)
        reading = scan.read(path, log_grammar, rule, setting)
        (number,) = re.findall(r"\*\*([\d.]+)\*\* samples/s", sentence)
        assert (rule.kind, reading.reasons) == (kind, ())
        assert f"{reading.throughput:.2f}" == number, kind


def test_the_example_of_write_a_test_passes_and_its_builders_exist(build):
    page = read("CONTRIBUTING.md")
    (text,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names = {**vars(logs), **vars(cli)}
    exec(text, names)
    (test,) = (value for name, value in names.items() if name.startswith("test_"))
    test(build)
    builders = [codes(row[0])[0].partition("(")[0] for row in rows(page, "builder")]
    assert len(builders) == 6
    for builder in builders:
        module, name = builder.split(".")
        assert getattr(importlib.import_module(f"tests.kit.{module}"), name).__doc__
