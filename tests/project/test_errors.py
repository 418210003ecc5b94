"""What errors say: numbers with their words, no wall of names, no number of the system."""

from __future__ import annotations

from hpcbert.errors import describe_error, format_count, join_names
from tests.kit.cases import cases


@cases
def test_counts_have_their_number(number: int, words: tuple[str, ...], text: str) -> None:
    assert format_count(number, *words) == text


def test_errors_name_no_number_of_the_system_and_no_wall_of_names() -> None:
    assert describe_error(PermissionError(13, "Permission denied", "a.txt")) == "Permission denied"
    assert join_names(map(str, range(30)), most=3) == "0, 1, 2 and 27 more"
