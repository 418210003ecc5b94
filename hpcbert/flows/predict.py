"""Predict the throughput of more nodes from the measured points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcbert.flows.collect import CollectRequest
from hpcbert.flows.results import load
from hpcbert.results.scaling import curve_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcbert.flows.results import Places
    from hpcbert.model import Group
    from hpcbert.results.scaling import Curve, Prediction


@dataclass(frozen=True)
class Forecast:
    """A table's model and what it predicts."""

    group: Group
    curve: Curve
    predictions: tuple[Prediction, ...]


def predict(
    words: Sequence[str], at: Places, nodes: Sequence[int], *, rule: str = ""
) -> tuple[tuple[Forecast, ...], tuple[str, ...]]:
    """Return a forecast for each table of some results, and warnings about the results.

    Args:
        words: Campaigns, logs, archives, saved results; the newest campaign without any.
        at: Where campaigns and recipes are.
        nodes: The numbers of nodes.
        rule: Name of the rule that reads logs; the recipes' own by default.

    Raises:
        UsageError: As `load`.
    """
    found = load(words, at, CollectRequest(rule=rule) if rule else None)
    forecasts = []
    for table in found.tables:
        curve = curve_of(table)
        forecasts.append(Forecast(table.group, curve, tuple(map(curve.predicted, nodes))))
    return tuple(forecasts), (*found.warnings, *found.refused)
