"""Settings of an adaptive number of repeats, which stop when the median is precise enough."""

from __future__ import annotations

import re

from hpcbert.system.decode import Invalid

AUTO_REPEATS = "auto"
# No table is published of fewer; more than the last is a typing error: a year of runs of an
# hour.
FEWEST_REPEATS, MOST_REPEATS = 5, 10_000
# Defaults: maximum number of runs, and widest interval of the median.
DEFAULT_MAX_REPEATS, DEFAULT_PRECISION = 15, 0.01
_SHARE = re.compile(r"(?P<number>\d{1,6}(?:\.\d{0,12})?|\.\d{1,12})\s*(?P<sign>%?)")


def read_share(text: str) -> float:
    """Read a share of the median: `1%`, `1.5 %`, `0.01`.

    Raises:
        Invalid: It is not a share between nothing and all.
    """
    match = _SHARE.fullmatch(text.strip())
    return check_share(
        float(match["number"]) / (100 if match["sign"] else 1) if match else -1.0, text
    )


def check_share(value: float, text: str = "") -> float:
    """Return a share of the median.

    Raises:
        Invalid: It is not between nothing and all.
    """
    if 0 < value < 1:
        return value
    raise Invalid(
        "must be a share above 0 and below 100 %, such as 1% or 0.01", value=text or value
    )
