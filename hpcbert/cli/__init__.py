"""The command line: click, one module a command, loaded when it is used."""

from __future__ import annotations
