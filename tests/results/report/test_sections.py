"""Every word of a report stands in one catalogue, in each language."""

import ast
import re
from dataclasses import replace
from fnmatch import fnmatchcase

from hpcbert.model import UNFINISHED
from hpcbert.results.document import ResultSet, Source
from hpcbert.results.formats import PUBLISHED_COLUMNS
from hpcbert.results.reduce import tabulate
from hpcbert.results.report import sections
from hpcbert.results.report.model import ReportInput
from hpcbert.results.words import LANGUAGES, Words, catalogue
from tests.kit.paths import REPOSITORY
from tests.results import test_reduce


def test_every_text_is_in_the_catalogue_in_each_language_and_none_in_the_code():
    """A key that is missing is an error of the report that needs it."""
    room = REPOSITORY / "hpcbert" / "results" / "report"
    paths = [*room.glob("*.py"), room / "page.html.j2", room.parent / "formats.py"]
    code = "".join(path.read_text(encoding="utf-8") for path in paths)
    words = re.findall(r'"([\w.{}\[\]\'-]+)(?::[^"\s]*)?"', code)
    # `*` stands for what is only known at run time; the ends of some keys come from data.
    patterns = {re.sub(r"\{[^}]*\}", "*", word) for word in words} - {"*", "**", "column.*"}
    patterns |= {"flag.*", "reason.*", "unit.*", "fact.*"} | {
        f"column.{name}" for name in PUBLISHED_COLUMNS
    }
    patterns |= {f"column.{pattern}" for pattern in patterns}
    for key, entry in catalogue().items():
        assert set(entry) - {"names"} == set(LANGUAGES), key
        texts = {language: entry[language] for language in LANGUAGES}
        assert all(text.strip() for text in texts.values()), key
        assert len({frozenset(re.findall(r"\{\w+\}", text)) for text in texts.values()}) == 1, key
        assert any(fnmatchcase(key, pattern) for pattern in patterns), key
    # The page that explains reasons has the same ones.
    numbers = (REPOSITORY / "docs" / "explanation" / "numbers.md").read_text(encoding="utf-8")
    _, _, table = numbers.partition("\n| reason |")
    reasons = re.findall(r"^\| `([\w-]+)`", table.partition("\n\n")[0], re.MULTILINE)
    assert {key.removeprefix("reason.") for key in catalogue() if "reason." in key} == set(reasons)
    # Texts with a blank between letters are documentation or names of facts.
    text = (room / "page.html.j2").read_text(encoding="utf-8")
    plain = re.sub(r"\{#.*?#\}|\{%.*?%\}|\{\{.*?\}\}|<[^>]*>", "", text, flags=re.DOTALL)
    assert re.findall(r"[^\W\d_]+", plain) == []
    nodes = [
        node
        for name in ("model", "sections")
        for node in ast.walk(ast.parse((room / f"{name}.py").read_text(encoding="utf-8")))
    ]
    documentation = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    constants = [node for node in nodes if isinstance(node, ast.Constant)]
    literals = [str(node.value) for node in constants if id(node) not in documentation]
    facts = r"(GPU|CPU|memory,|library|package|variable|system|GPU clock|GPU memory|nic) .*"
    sentences = [text for text in literals if re.search(r"[a-z]{2,} [a-z]{2,}", text)]
    assert [text for text in sentences if not re.fullmatch(facts, text)] == []


def test_a_report_says_what_where_and_when_which_point_is_best_and_what_is_wrong():
    def measure(framework, gpus, code="", **changes):
        """Return a point of one run, 10 samples/s for each GPU, or invalid for a reason."""
        run = test_reduce.make_run(1, None if code else 10.0 * gpus, code)
        group = replace(test_reduce.GROUP, framework=framework, precision="bf16", **changes)
        facts = (("GPU", ("NVIDIA H100 80GB HBM3",)),)
        return test_reduce.make_point(f"1n{gpus}g", runs=(run,), group=group, facts=facts)

    def summarize(*points, created=()):
        """Return title and paragraph of a report on points of campaigns created at these times."""
        sources = tuple(Source("campaign", time, created=time) for time in created)
        results = ResultSet(tabulate(points), sources=sources)
        inputs, words = ReportInput("", test_reduce.MADE, results), Words("en")
        return sections.make_title(inputs, words), sections.summarize(inputs, words)

    early, late = "2026-11-20T10:00:00Z", "2026-11-21T10:00:00Z"
    dates = {(): "", (early,): ", 2026-11-20", (late, early): ", 2026-11-20 to 2026-11-21"}
    for created, date in dates.items():
        title, _ = summarize(measure("a", 1), measure("b", 8), created=created)
        assert title == f"bert-base bf16 with a, b on NVIDIA H100 80GB HBM3, 1n1g to 1n8g{date}"
    ring = measure("a", 8, variant="NCCL_ALGO=Ring")
    _, text = summarize(ring, measure("a", 4, variant="NCCL_ALGO=Tree"))
    assert "by a bert-base bf16, batch size 32 per device, NCCL_ALGO=Ring (1n8g)" in text
    # Models are not compared.
    _, text = summarize(measure("a", 8), measure("b", 4, model="bert-large"))
    assert "80.00 samples/s, by a bert-base" in text
    assert "40.00 samples/s, by b bert-large" in text
    for reason, sentence in (
        (UNFINISHED, "have not ended yet: 1."),
        ("device-oom", "Invalid runs by reason: device-oom (1)."),
    ):
        _, text = summarize(measure("a", 1), measure("a", 8, reason))
        assert sentence in text
        assert "Valid runs: 1 of 2." in text
        assert ("Invalid runs" in text) is (reason != UNFINISHED)
        assert "No run is valid" in summarize(measure("a", 8, reason))[1]
