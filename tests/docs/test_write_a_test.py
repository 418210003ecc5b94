"""The page "Write a test": its example passes, and its builders exist."""

from __future__ import annotations

import importlib
import re

from tests.docs.test_documents import codes, rows
from tests.kit import cli, logs
from tests.kit.campaigns import Build
from tests.kit.paths import REPOSITORY

PAGE = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_the_example_passes(build: Build) -> None:
    (text,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names = {**vars(logs), **vars(cli), "Build": Build}
    exec(text, names)
    (test,) = (value for name, value in names.items() if name.startswith("test_"))
    test(build)


def test_the_builders_are_in_the_kit() -> None:
    builders = [codes(row[0])[0].partition("(")[0] for row in rows(PAGE, "builder")]
    assert len(builders) == 6
    for builder in builders:
        module, name = builder.split(".")
        assert getattr(importlib.import_module(f"tests.kit.{module}"), name).__doc__
