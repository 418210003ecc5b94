"""What the documents say is compared with what the code does; nothing is run."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import click
import pytest
import tomli

from hpcbert.cli import images
from hpcbert.cli.main import COMMANDS, root
from hpcbert.cli.output import INTERRUPTED, Result, make_document
from hpcbert.config import campaignfile, recipe, site
from hpcbert.config.campaignfile import CampaignFile
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
_HEADING = re.compile(r"^(#+) (.+)$", re.MULTILINE)


def name_of(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


def prose(text: str) -> str:
    return _FENCE.sub("", text)


def section(text: str, title: str) -> str:
    """Return what stands below a heading, up to the next heading of any level."""
    below = re.split(rf"^#+ {re.escape(title)}$", prose(text), maxsplit=1, flags=re.MULTILINE)[1]
    return re.split(r"^#+ ", below, maxsplit=1, flags=re.MULTILINE)[0]


def rows(text: str, first: str) -> list[list[str]]:
    """Return the rows of the tables whose first column has this title."""
    table_rows: list[list[str]] = []
    matching = False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line[:1] == "|" else []
        if not cells:
            matching = False
        elif matching and not cells[0].startswith("---"):
            table_rows.append(cells)
        matching = matching or cells[:1] == [first]
    return table_rows


def codes(cell: str) -> list[str]:
    return _CODE.findall(cell)


def slug(title: str) -> str:
    """Return a heading's anchor as GitHub makes it."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "")
    return re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_lead_somewhere(page: Path) -> None:
    for link in _LINK.findall(prose(page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            text = prose(target.read_text(encoding="utf-8"))
            assert anchor in {slug(title) for _, title in _HEADING.findall(text)}, link


def test_every_page_can_be_reached_from_the_readme() -> None:
    paths: set[Path] = set()
    todo = [REPOSITORY / "README.md"]
    while todo:
        page = todo.pop().resolve()
        if page in paths or page.suffix != ".md":
            continue
        paths.add(page)
        links = _LINK.findall(prose(page.read_text(encoding="utf-8")))
        todo += [page.parent / link.partition("#")[0] for link in links if ":" not in link]
    assert {page.resolve() for page in PAGES if "docs" in page.parts} <= paths


def command_lines(text: str) -> Iterator[tuple[str, bool]]:
    """Yield what the documents tell a person to type, and whether it is complete."""
    for _, language, block in _FENCE.findall(text):
        lines = (
            block.replace("\\\n", " ").splitlines() if language in ("sh", "bash", "console") else []
        )
        typed = [line.removeprefix("$ ") for line in lines]
        yield from ((line, True) for line in typed if line.startswith("hpcbert "))
    for line in re.findall(r"^    (hpcbert .+)$", prose(text), re.MULTILINE):
        yield line, True
    for code in _CODE.findall(prose(text)):
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
        values, remaining, _ = command.make_parser(context).parse_args(words)
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


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_command_lines_in_documents_parse(page: Path) -> None:
    wrong = {}
    for line, complete in command_lines(page.read_text(encoding="utf-8")):
        try:
            check_command_line(line, complete=complete)
        except click.ClickException as error:  # noqa: PERF203
            wrong[line] = error.format_message()
    assert wrong == {}


def test_the_readme_of_commands_names_every_environment_variable() -> None:
    text = (REFERENCE / "command-line.md").read_text(encoding="utf-8")
    named = {word for row in rows(text, "environment variable") for word in codes(row[0])}
    sources = "\n".join(
        path.read_text(encoding="utf-8")
        for path in REPOSITORY.glob("hpcbert/**/*.py")
        if "workloads" not in path.parts  # run in jobs, whose script sets theirs
    )
    read = set(re.findall(r"""(?:environ|env)(?:\.get\(|\[)["'](\w+)["']""", sources))
    assert {name for name in read if name.startswith(("HPCBERT_", "XDG_"))} <= named


def test_exit_codes_are_those_of_the_errors() -> None:
    def tree(error: type[HpcbertError]) -> Iterator[type[HpcbertError]]:
        yield error
        for subclass in error.__subclasses__():
            if subclass.__module__.startswith("hpcbert."):
                yield from tree(subclass)

    text = (REFERENCE / "exit-codes.md").read_text(encoding="utf-8")
    written = {(int(row[0]), row[1].strip("`")) for row in rows(text, "code")}
    raised = {(error.exit_code, error.code) for error in tree(HpcbertError)}
    assert written == raised | {(0, ""), (INTERRUPTED, "interrupted")}


def site_keys() -> dict[str, list[str]]:
    text = (REFERENCE / "site.md").read_text(encoding="utf-8")
    return {codes(row[0])[0]: row for row in rows(text, "key")}


def general(key: str) -> str:
    """Return a key of a site.toml as the page names it."""
    key = re.sub(r"^env\.\w+$", "env.NAME", key)
    key = re.sub(r"^frameworks\.\w+", "frameworks.NAME", key)
    key = re.sub(r"\.batch_sizes\.\w+$", ".batch_sizes.PRECISION", key)
    return re.sub(r"\.options\.\w+$", ".options.OPTION", key)


FREE = {"batch_sizes": "PRECISION", "batch_factors": "GPU", "throughput": "RULE"}


def document_keys(hint: Any, name: str = "") -> Iterator[str]:
    """Yield the keys of a document as pages name them, from the annotations that it is read by."""
    origin, parts = get_origin(hint), get_args(hint)
    tables = [part for part in parts if is_dataclass(part)]
    if origin is Annotated:
        yield from document_keys(parts[0], name)
    elif origin is Mapping:
        free = "NAME" if tables or name == "env" else "OPTION"
        yield from document_keys(parts[1], f"{name}.{FREE.get(name.rpartition('.')[2], free)}")
    elif tables:
        yield from document_keys(tables[0], f"{name}[]" if origin is tuple else name)
    elif is_dataclass(hint) and hint is not TimeLimit:
        hints = get_type_hints(hint, include_extras=True)
        for field in decode.document_fields(hint):
            yield from document_keys(hints[field.name], f"{name}.{field.name}".lstrip("."))
    else:
        yield name


def flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def test_a_key_of_a_site_is_a_field_and_stands_in_the_reference_site_and_on_the_page() -> None:
    """With a template that prints it, these are the four places of a new key."""
    values = tomli.loads((REPOSITORY / "site.toml").read_text(encoding="utf-8"))
    fields = {"schema", *document_keys(site.Site)}
    assert {general(key) for key, _ in flat(values)} == fields
    assert set(site_keys()) == fields


def test_a_key_of_a_campaign_file_stands_in_the_example_and_on_the_page() -> None:
    fields = {"schema", *document_keys(CampaignFile)}
    text = campaignfile.EXAMPLE.read_text(encoding="utf-8")
    keys, table = set(), ""
    for name, array, header, key in re.findall(r"(?m)^#?(?:((\[*)\[(\w+).*\])|(\w+) = )", text):
        table = f"{header}{'[]' if array else ''}." if name else table
        keys.add(header if name else f"{table}{key}")
    assert fields <= keys
    page = (REFERENCE / "campaign-file.md").read_text(encoding="utf-8")
    assert {codes(row[0])[0] for row in rows(page, "key")} == fields


def test_every_key_of_a_site_is_read_and_shown(tmp_path: Path) -> None:
    """Each key of the reference site gets another value, which then is what `config` shows."""
    text = (REPOSITORY / "site.toml").read_text(encoding="utf-8")
    replacements = {"scheduler": "slurm", "container.runtime": "pyxis", "container.env": "OTHER"}
    replacements |= {"slurm.time_limit": "02:00:00", "nodes.cpu_bind": "none"}
    replacements |= {"slurm.gpu_option": "gpus"}
    path = tmp_path / "site.toml"
    for key, value in flat(tomli.loads(text)):
        table, _, name = key.rpartition(".")
        other = replacements.get(key) or ANOTHER[type(value)](value)
        shown = json.dumps([other] if isinstance(value, list) else other)
        line = re.compile(rf"^{name} = .*$", re.MULTILINE)
        start = text.index(f"[{table}]") if table else 0
        path.write_text(text[:start] + line.sub(f"{name} = {shown}", text[start:], count=1))
        if key != "schema":
            read = site.list_origins(site.read_site(path, base=Path("/"), env={}))
            read_value, by = read[key]
            plain = read_value[0] if isinstance(read_value, tuple) else read_value
            assert (plain, by) == (other, str(path)), key


ANOTHER: dict[type, Callable[[Any], Any]] = {
    str: lambda _: "/other",
    bool: lambda value: not value,
    int: lambda value: value + 1,
    float: lambda value: value + 1,
    list: lambda _: "--comment=x",
}


def test_the_site_page_has_the_defaults_that_are_read(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text('schema = 1\nname = "x"\nscheduler = "local"\n[frameworks.x]\n')
    read = site.list_origins(site.read_site(path, base=tmp_path, env={}))
    for key, (value, by) in read.items():
        default = codes(site_keys()[general(key)][2])
        if by == "default" and key not in ("runs", "sources", "container.images"):
            plain = list(value) if isinstance(value, tuple) else value
            assert tomli.loads(f"x = {default[0]}")["x"] == plain, key


def test_the_recipe_page_has_the_keys_that_are_read(tmp_path: Path) -> None:
    text = (REFERENCE / "recipe.md").read_text(encoding="utf-8")
    (example,) = [block for _, language, block in _FENCE.findall(text) if language == "toml"]
    (tmp_path / "recipe.toml").write_text(example)
    grammar.parse(recipe.load(tmp_path).log, where="the example")
    keys = {key.replace("log.OPTION", "log") for key in document_keys(recipe.Recipe)}
    assert {key for row in rows(text, "key") for key in codes(row[0])} == {"schema", *keys}


def test_the_json_page_has_the_keys_of_a_recipe() -> None:
    text = (REFERENCE / "json.md").read_text(encoding="utf-8")
    (row,) = [row for row in rows(text, "command") if row[0] == "`frameworks show`"]
    description = images.describe_recipe(recipe.load(REPOSITORY / "templates" / "pytorch"))
    assert set(codes(row[1])) == set(description)


def list_events() -> set[str]:
    folder = REPOSITORY / "hpcbert" / "shell"
    parts = ("job", "watch", "enough", "preflight")
    library = "\n".join((folder / f"{part}.bash").read_text("utf-8") for part in parts)
    return {"finished", *re.findall(r"\bmark ([a-z-]+)", library)}


def list_reasons() -> set[str]:
    paths = (REPOSITORY / "hpcbert").glob("*/*.py")
    sources = "\n".join(path.read_text(encoding="utf-8") for path in paths)
    used = re.findall(r"""(?:Reason|CannotReduceError)\(\s*"([a-z-]+)",""", sources)
    return {failures.DEVICE, failures.HOST, failures.ERROR, *used}


DIRECTORY, NUMBERS = "reference/campaign-directory.md", "explanation/numbers.md"
# Of a page, below a heading if there is one, what the first column of a table names.
NAMED: tuple[tuple[str, str, str, Callable[[], set[str]]], ...] = (
    (DIRECTORY, "", "lock key", lambda: {"schema", *(field.name for field in fields(Lock))}),
    (DIRECTORY, "manifest.json", "key", lambda: {"schema", *document_keys(Campaign)}),
    (DIRECTORY, "Status events", "event", list_events),
    (
        "reference/json.md",
        "The document",
        "key",
        lambda: {*json.loads(make_document("x", Result()))},
    ),
    (NUMBERS, "", "reason", list_reasons),
    (NUMBERS, "", "flag", lambda: {*flag_meanings()}),
)


@pytest.mark.parametrize(
    ("page", "heading", "column", "names"), NAMED, ids=[" ".join(row[:3]) for row in NAMED]
)
def test_a_page_names_what_there_is(
    page: str, heading: str, column: str, names: Callable[[], set[str]]
) -> None:
    text = (REPOSITORY / "docs" / page).read_text(encoding="utf-8")
    text = section(text, heading) if heading else text
    written = {word for row in rows(text, column) for word in codes(row[0])}
    assert {word for word in written if "." not in word or heading != "The document"} == names()


def test_the_states_page_is_the_table_of_states_and_reasons() -> None:
    text = (REFERENCE / "states.md").read_text(encoding="utf-8")
    assert rows(text, "state") == [
        [
            *(f"`{state.word}`", f"`{state.code}`" if state.code else ""),
            state.kind + (", may return" if state.returns else ""),
            *(state.sentence, state.advice),
        ]
        for state in states.STATES
    ]
    assert rows(text, "reason of Slurm's") == [
        [f"`{word}`", *reason] for word, reason in reasons.REASONS.items()
    ]
    assert rows(text, "text of Slurm's begins") == [
        [f"`{start.strip()}`", *reason_text] for start, reason_text in reasons.TEXTS.items()
    ]


def test_decisions_are_numbered_and_listed() -> None:
    folder = REPOSITORY / "docs" / "decisions"
    names = sorted(path.name for path in folder.glob("[0-9]*.md"))
    assert [int(name[:4]) for name in names] == list(range(1, len(names) + 1))
    index = (folder / "README.md").read_text(encoding="utf-8")
    assert _LINK.findall(index) == names


def test_contributing_lists_the_rooms_in_the_order_of_the_contract() -> None:
    text = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    listed = [name for row in rows(text, "room") for name in codes(row[0])]
    project = tomli.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    contract, *_ = project["tool"]["importlinter"]["contracts"]
    floors = [re.split(r"\s*[|:]\s*", layer) for layer in contract["layers"]]
    assert listed == [room for floor in floors for room in floor]
    assert "\n".join(" · ".join(floor) for floor in floors) in text


def test_the_tests_page_names_every_folder_that_spans_rooms() -> None:
    text = (REPOSITORY / "tests/README.md").read_text(encoding="utf-8")
    folders = {
        word for row in rows(text, "folder") for word in re.findall(r"`(tests/\w+)`", row[0])
    }
    assert folders == {f"tests/{page.parent.name}" for page in REPOSITORY.glob("tests/*/README.md")}


def test_contributing_s_directions_lead_to_files() -> None:
    text = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    places = [place for row in rows(text, "what") for place in codes(row[1]) if "/" in place]
    assert places
    for place in places:
        assert list(REPOSITORY.glob(place.replace("NAME", "pytorch"))), place
