"""One use case a module: takes configuration and runner, returns a result, never prints."""

from __future__ import annotations
