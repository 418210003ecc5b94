"""What errors say: numbers with their words, and no number of the system."""

from hpcbert.errors import describe_error, format_count


def test_counts_have_their_number_and_errors_no_number_of_the_system():
    assert format_count(0, "repeat") == "0 repeats"
    assert format_count(1, "job waits", "jobs wait") == "1 job waits"
    assert format_count(3, "job waits", "jobs wait") == "3 jobs wait"
    assert describe_error(PermissionError(13, "Permission denied", "a.txt")) == "Permission denied"
