"""The command line: click, one module per command, loaded when it is used."""

from __future__ import annotations
