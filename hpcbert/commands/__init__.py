"""One use case per module: takes configuration and a runner, returns a result, never prints."""

from __future__ import annotations
