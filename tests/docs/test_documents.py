"""What the documents say is compared with what the code does; of the code, only commands are run."""

import ast
import itertools
import json
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
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
from hpcbert.cli.output import INTERRUPTED, Result, make_document
from hpcbert.config import campaignfile, recipe, site
from hpcbert.errors import HpcbertError
from hpcbert.logs import failures, grammar
from hpcbert.model import Campaign
from hpcbert.results.wording import flag_meanings
from hpcbert.script.rerun import Lock
from hpcbert.slurm import reasons, states
from hpcbert.system import decode
from hpcbert.timelimit import TimeLimit
from tests.kit.paths import REFERENCE, REPOSITORY

PAGES = sorted(
    page for form in ("*.md", "docs/**/*.md", "templates/*/*.md") for page in REPOSITORY.glob(form)
)
_FENCE = re.compile(r"^(```+)(\w*)\n(.*?)^\1$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_MESSAGE = re.compile(rf"\bhpcbert ({'|'.join(COMMANDS)})\b([^.;:()|`\n]*)")
_FREE = {"batch_sizes": "PRECISION", "batch_factors": "GPU", "throughput": "RULE"}


def read(name: str) -> str:
    return (REPOSITORY / name).read_text(encoding="utf-8")


def prose(text: str) -> str:
    return _FENCE.sub("", text)


def codes(cell: str) -> list[str]:
    return _CODE.findall(cell)


def rows(text: str, first: str) -> list[list[str]]:
    """Return the rows of the tables whose first column has this title."""
    table_rows: list[list[str]] = []
    matching = False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line[:1] == "|" else []
        matching = bool(cells) and matching
        if matching and not cells[0].startswith("---"):
            table_rows.append(cells)
        matching = matching or cells[:1] == [first]
    return table_rows


# --- Links and command lines ------------------------------------------------------------------------


def list_anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", prose(page.read_text(encoding="utf-8")), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)|`", r"\1", title).lower() for title in titles)
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in plain}


def command_lines(text: str) -> Iterator[tuple[str, bool]]:
    """Yield what a page tells a person to type, and whether it is complete."""
    for _, language, block in _FENCE.findall(text):
        if language in ("sh", "bash", "console"):
            lines = block.replace("\\\n", " ").splitlines()
            typed = [line.removeprefix("$ ") for line in lines]
            yield from ((line, True) for line in typed if line.startswith("hpcbert "))
    yield from ((line, True) for line in re.findall(r"(?m)^    (hpcbert .+)$", prose(text)))
    for code in codes(prose(text)):
        words = code.split()
        if code.startswith("hpcbert "):
            yield code, False
        elif len(words) > 1 and words[0] in COMMANDS and words[1][:2] == "--":
            yield f"hpcbert {code}", False


def check_command_line(line: str, *, complete: bool) -> None:
    _, *words = itertools.takewhile(lambda word: word != "|", shlex.split(line, comments=True))
    command: click.Command = root
    context = click.Context(root, info_name="hpcbert")
    while isinstance(command, click.Group):
        _, remaining, _ = command.make_parser(context).parse_args(words)
        if not remaining:
            return
        name, subcommand, words = command.resolve_command(context, remaining)
        assert subcommand is not None, remaining[0]
        command = subcommand
        context = click.Context(subcommand, info_name=name, parent=context)
    values, remaining, _ = command.make_parser(context).parse_args(words)
    assert remaining == []
    for param in command.params:
        value = values.get(param.name)
        assert not (complete and param.required and value in (None, ())), param.name
        if isinstance(value, str) and isinstance(param.type, click.Choice | click.IntRange):
            param.type_cast_value(context, value)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_a_page_s_links_lead_somewhere_and_its_command_lines_parse(page):
    text = page.read_text(encoding="utf-8")
    for link in _LINK.findall(prose(text)):
        if not re.match(r"[a-z]+:", link):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), link
            assert not anchor or anchor in list_anchors(target), link
    wrong = {}
    for line, complete in command_lines(text):
        try:
            check_command_line(line, complete=complete)
        except click.ClickException as error:  # noqa: PERF203
            wrong[line] = error.format_message()
    assert wrong == {}


def list_messages() -> Iterator[tuple[str, str]]:
    """Yield each command that the sources name, and what stands after it, with X for values."""
    for path in sorted((REPOSITORY / "hpcbert").rglob("*")):
        if path.suffix in {".toml", ".sh", ".bash"}:
            yield from _MESSAGE.findall(path.read_text(encoding="utf-8"))
        elif path.suffix == ".py":
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                parts = node.values if isinstance(node, ast.JoinedStr) else [node]
                text = "".join(
                    str(part.value) if isinstance(part, ast.Constant) else "X" for part in parts
                )
                yield from _MESSAGE.findall(text)


@pytest.mark.slow
def test_a_message_names_commands_with_options_that_exist():
    messages = sorted({(name, tail.strip()) for name, tail in list_messages() if "-" in tail})
    assert len(messages) > 40
    for name, tail in messages:
        command = root.get_command(click.Context(root, info_name="hpcbert"), name)
        assert command
        subcommands = command.commands if isinstance(command, click.Group) else {}
        command = subcommands.get(tail.partition(" ")[0]) or subcommands.get("list", command)
        context = click.Context(command, help_option_names=["-h", "--help"])
        params = command.get_params(context)
        flags = {flag for param in params for flag in (*param.opts, *param.secondary_opts)}
        assert set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", tail)) <= flags, (name, tail)


# --- Pages that are written by programs -------------------------------------------------------------


def test_the_pages_of_the_commands_are_what_the_commands_say():
    current = {*write_commands.FOLDER.glob("*.md"), write_commands.OVERVIEW}
    texts = {path: path.read_text(encoding="utf-8") for path in current}
    pages = write_commands.pages()
    stale = {path.name for path in pages.keys() | texts if pages.get(path) != texts.get(path)}
    assert not stale, "run: make pages"


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


# --- Keys -------------------------------------------------------------------------------------------


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


def site_keys() -> dict[str, list[str]]:
    return {codes(row[0])[0]: row for row in rows(read("docs/reference/site.md"), "key")}


def general(key: str) -> str:
    """Return a key of a site.toml as the page names it."""
    key = re.sub(r"^env\.\w+$", "env.NAME", key)
    key = re.sub(r"^frameworks\.\w+", "frameworks.NAME", key)
    key = re.sub(r"\.batch_sizes\.\w+$", ".batch_sizes.PRECISION", key)
    return re.sub(r"\.options\.\w+$", ".options.OPTION", key)


def flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def test_a_key_of_a_site_is_in_the_reference_site_on_the_page_read_and_shown(tmp_path):
    """With a template that prints it, these are the places of a new key."""
    text, path = read("site.toml"), tmp_path / "site.toml"
    values = dict(flat(tomli.loads(text)))
    assert {general(key) for key in values} == {"schema", *document_keys(site.Site)}
    assert {general(key) for key in values} == set(site_keys())
    replacements = {"scheduler": "slurm", "container.runtime": "pyxis", "container.env": "OTHER"}
    replacements |= {
        "slurm.time_limit": "02:00:00",
        "nodes.cpu_bind": "none",
        "slurm.gpu_option": "gpus",
    }
    for key, value in values.items():
        if key == "schema":
            continue
        # Each gets another value, which then is what `config` shows.
        table, _, name = key.rpartition(".")
        by_type = {str: "/other", list: "--comment=x", bool: not value}
        other = replacements.get(key, by_type.get(type(value), value))
        other = value + 1 if type(value) in (int, float) else other
        shown = json.dumps([other] if isinstance(value, list) else other)
        start = text.index(f"[{table}]") if table else 0
        line = re.compile(rf"^{name} = .*$", re.MULTILINE)
        path.write_text(text[:start] + line.sub(f"{name} = {shown}", text[start:], count=1))
        origins = site.list_origins(site.read_site(path, base=Path("/"), env={}))
        plain = (other,) if isinstance(value, list) else other
        assert origins[key] == (plain, str(path)), key


def test_the_site_page_has_the_defaults_that_are_read(tmp_path):
    path = tmp_path / "site.toml"
    path.write_text('schema = 1\nname = "x"\nscheduler = "local"\n[frameworks.x]\n')
    origins = site.list_origins(site.read_site(path, base=tmp_path, env={}))
    for key, (value, by) in origins.items():
        if by == "default" and key not in ("runs", "sources", "container.images"):
            default = codes(site_keys()[general(key)][2])
            plain = list(value) if isinstance(value, tuple) else value
            assert tomli.loads(f"x = {default[0]}")["x"] == plain, key


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


# --- Tables -----------------------------------------------------------------------------------------


def list_events() -> set[str]:
    parts = ("job", "watch", "enough", "preflight")
    library = "\n".join(read(f"hpcbert/shell/{part}.bash") for part in parts)
    return {"finished", *re.findall(r"\bmark ([a-z-]+)", library)}


def list_reasons() -> set[str]:
    sources = "\n".join(path.read_text("utf-8") for path in REPOSITORY.glob("hpcbert/*/*.py"))
    used = re.findall(r"""(?:Reason|CannotReduceError)\(\s*"([a-z-]+)",""", sources)
    return {failures.DEVICE, failures.HOST, failures.ERROR, *used}


def list_variables() -> set[str]:
    paths = (path for path in REPOSITORY.glob("hpcbert/**/*.py") if "workloads" not in path.parts)
    sources = "\n".join(path.read_text(encoding="utf-8") for path in paths)
    names = re.findall(r"""(?:environ|env)(?:\.get\(|\[)["'](\w+)["']""", sources)
    return {name for name in names if name.startswith(("HPCBERT_", "XDG_"))}


# Of a page, below a heading if there is one, what the first column of a table names.
NAMED: dict[tuple[str, str, str], Callable[[], set[str]]] = {
    ("reference/campaign-directory", "", "lock key"): lambda: (
        {"schema"} | {field.name for field in fields(Lock)}
    ),
    ("reference/campaign-directory", "manifest.json", "key"): lambda: (
        {"schema"} | {*document_keys(Campaign)}
    ),
    ("reference/campaign-directory", "Status events", "event"): list_events,
    ("reference/json", "The document", "key"): lambda: {*json.loads(make_document("x", Result()))},
    ("explanation/numbers", "", "reason"): list_reasons,
    ("explanation/numbers", "", "flag"): lambda: {*flag_meanings()},
}


@pytest.mark.parametrize(("page", "heading", "column"), NAMED, ids=map(" ".join, NAMED))
def test_a_page_names_what_there_is(page, heading, column):
    text = read(f"docs/{page}.md")
    if heading:
        _, _, text = prose(text).partition(f"# {heading}\n")
        text = re.split(r"^#+ ", text, maxsplit=1, flags=re.MULTILINE)[0]
    names = {word for row in rows(text, column) for word in codes(row[0])}
    expected = NAMED[page, heading, column]()
    assert {word for word in names if "." not in word or heading != "The document"} == expected


def test_exit_codes_and_variables_are_those_of_the_program():
    def list_errors(error: type[HpcbertError]) -> Iterator[tuple[int, str]]:
        yield error.exit_code, error.code
        for subclass in error.__subclasses__():
            if subclass.__module__.startswith("hpcbert."):
                yield from list_errors(subclass)

    table = rows(read("docs/reference/exit-codes.md"), "code")
    written = {(int(row[0]), row[1].strip("`")) for row in table}
    assert written == {*list_errors(HpcbertError), (0, ""), (INTERRUPTED, "interrupted")}
    table = rows(read("docs/reference/command-line.md"), "environment variable")
    assert list_variables() <= {word for row in table for word in codes(row[0])}


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
