"""One use case a module: takes configuration, runner and store, returns a result, never prints."""

from __future__ import annotations
