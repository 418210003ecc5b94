"""The line that says why a run failed, out of all that is printed when one does."""

from hpcbert.logs.failures import last_error
from tests.kit.cases import cases


@cases
def test_what_a_program_ends_with(log, line, tmp_path):
    path = tmp_path / "run.log"
    path.write_bytes(b"step 1\n" + log.encode())
    assert last_error(path) == line
    path.write_bytes(b"\n".join([b"x" * 80] * 3400) + b"\n" + log.encode())
    assert last_error(path) == line, "over pieces"


@cases
def test_what_is_no_error(text, tmp_path):
    path = tmp_path / "run.log"
    begin = b"Traceback (most recent call last):\n"
    endless = begin + b'  File "a"\n' + b"  more\n" * 2000
    for data in (text.encode(), b"\x00\xff" * 4000, begin * 99, endless):
        path.write_bytes(data)
        assert last_error(path) == ""
    assert last_error(tmp_path / "missing.log") == ""


@cases
def test_of_an_output_of_several_attempts_only_one_counts(text, attempt, error, tmp_path):
    lines = {"B": "hpcbert: repeat 1 attempt {} on n1, log /x\n", "E": "a: error: no {}\n"}
    path = tmp_path / "7_1.out"
    path.write_text("".join(lines[word[0]].format(word[1]) for word in text.split()))
    assert last_error(path, attempt) == error
