"""Tables of cases next to their tests, so that a user's report becomes a row."""

import inspect
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest
import tomli
from hypothesis import strategies as st

Test = TypeVar("Test", bound=Callable[..., None])
# Any value of JSON.
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=8,
)


def cases(test: Test) -> Test:
    """Give a test its rows: the table of its name in the TOML of its file's name.

    Example: `test_commands.toml` has a table `test_job_ids_are_read` of rows such as
    `{id = "two lines", answer = "7\\n", ids = ["7"]}`. Keys are parameters of the test; one that a
    row leaves out is None, and `id` and `source` (where the row comes from) are none. Arrays are
    tuples, or lists if the test says so.
    """
    table = _read_tables(Path(inspect.getfile(test)).with_suffix(".toml"))[test.__name__]
    keys = {key for row in table for key in row} - {"source"}
    parameters = inspect.signature(test).parameters
    names = [name for name in parameters if name in keys]
    lists = {name for name in names if str(parameters[name].annotation).startswith("list[")}
    rows = []
    for row in table:
        cells = (row.get(name) if name in lists else _freeze(row.get(name)) for name in names)
        rows.append(pytest.param(*cells, id=row.get("id")))
    parametrized: Test = pytest.mark.parametrize(names, rows)(test)
    return parametrized


def read_constant(file: str, name: str) -> Any:
    """Return a value of the TOML of a file's name: `LOG = read_constant(__file__, "LOG")`."""
    return _freeze(_read_tables(Path(file).with_suffix(".toml"))[name])


@cache
def _read_tables(path: Path) -> dict[str, Any]:
    return tomli.loads(path.read_text(encoding="utf-8"))


def _freeze(value: object) -> object:
    if isinstance(value, dict):
        return {key: _freeze(cell) for key, cell in value.items()}
    return tuple(map(_freeze, value)) if isinstance(value, list) else value
