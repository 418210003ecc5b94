"""From a request to job scripts: points, what they need, rendering."""

from __future__ import annotations
