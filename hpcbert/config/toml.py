"""Reading one TOML file into a strict table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tomli

from hpcbert.config.strict import Table
from hpcbert.errors import ConfigError
from hpcbert.system.files import read as read_file

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = 1
MOST = 1 << 20


def read(path: Path) -> Table:
    """Read a file whose `schema` this version understands.

    Raises:
        ConfigError: It can't be read, is no TOML (with line), or has another schema.
    """
    try:
        text = read_file(path, most=MOST).decode("utf-8")
    except OSError as error:
        raise ConfigError(f"Can't read: {error.strerror}.", where=str(path)) from error
    except UnicodeDecodeError as error:
        raise ConfigError("The file is not UTF-8.", where=str(path)) from error
    try:
        table = Table(tomli.loads(text), where=str(path))
    except tomli.TOMLDecodeError as error:
        raise ConfigError(f"Not valid TOML: {error}.", where=str(path)) from error
    except (RecursionError, ValueError) as error:
        # Nested without end, or a number of thousands of digits.
        raise ConfigError(f"TOML that can't be read: {error}.", where=str(path)) from error
    schema = table.need("schema", int)
    if schema != SCHEMA:
        raise table.error("schema", f"is {schema}; this hpcbert reads {SCHEMA}.")
    return table
