"""What errors say: numbers with their words, no wall of names, no number of the system."""

from hpcbert.errors import describe_error, format_count, join_names


def test_counts_have_their_number_and_errors_no_wall_of_names_or_number_of_the_system():
    assert format_count(1, "repeat") == "1 repeat"
    assert format_count(0, "repeat") == "0 repeats"
    assert format_count(1, "job waits", "jobs wait") == "1 job waits"
    assert format_count(3, "job waits", "jobs wait") == "3 jobs wait"
    assert describe_error(PermissionError(13, "Permission denied", "a.txt")) == "Permission denied"
    assert join_names(map(str, range(30)), most=3) == "0, 1, 2 and 27 more"
