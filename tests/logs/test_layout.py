import os

import pytest

from hpcbert.errors import UsageError
from hpcbert.logs.layout import discover
from tests.kit.cases import cases
from tests.kit.logs import write_file


@cases
def test_paths_say_what_was_run_in_dlperfs_layout_or_by_a_pattern(
    tmp_path, name, expected, *, pattern
):
    for path in (name, "result/bert_result.json", "1n1g/notes.txt", "1n1g/bert_b32.csv"):
        write_file(tmp_path, path, "")
    (log,) = discover([tmp_path], pattern or "").logs
    assert {field: getattr(log, field) for field in expected} == expected


def test_order_is_natural_and_wrong_patterns_and_what_holds_no_log_are_refused(tmp_path):
    with pytest.raises(UsageError, match="No log has a name in DLPerf"):
        discover([tmp_path])
    with pytest.raises(UsageError, match="no such file"):
        discover([tmp_path / "absent"])
    path = write_file(tmp_path, "run1.log", "")
    with pytest.raises(UsageError, match=r"no field \{repeet\}") as caught:
        discover([tmp_path], "run{repeet}.log")
    assert "repeat" in caught.value.hint
    for place in (tmp_path, path):
        with pytest.raises(UsageError, match="No log matches"):
            discover([place], "job{repeat}.log")
    # A file that is named outright is taken whatever its name.
    (log,) = discover([write_file(tmp_path, "4n8g/whatever.out", "")]).logs
    assert (log.nodes, log.gpus_per_node, log.repeat) == (4, 8, None)
    places = [(n, r) for n in (1, 2, 10) for r in (1, 2, 10)]
    for n, r in places:
        write_file(tmp_path, f"{n}n8g/bert_b32_fp32_{r}.log", "")
    assert [(log.nodes, log.repeat) for log in discover([tmp_path]).logs] == places


def test_campaigns_are_not_walked_into_and_links_neither_hang_nor_double(tmp_path):
    name = "1n1g/bert_b32_fp32_1.log"
    for path in ("a/manifest.json", f"a/logs/{name}", "b/manifest.json"):
        write_file(tmp_path / "runs", path, "")
    log = write_file(tmp_path / "old", name, "")
    log.with_name("loop").symlink_to(log.with_name("loop"))
    log.with_name("bert_b32_fp32_2.log").symlink_to(log.name)
    (tmp_path / "old" / "again").symlink_to(tmp_path / "old")
    (tmp_path / "elsewhere").symlink_to(tmp_path / "old")
    places = (tmp_path, tmp_path / "runs" / "a", tmp_path / "old", tmp_path / "elsewhere")
    discovery = discover(places)
    assert sorted(path.name for path in discovery.campaigns) == ["a", "b"]
    (only,) = discovery.logs
    assert only.path.samefile(log)
    # What can't be read is left to the reader, who says so.
    (tmp_path / "x" / "1n1g").mkdir(parents=True)
    os.mkfifo(tmp_path / "x" / name)
    (tmp_path / "x" / name.replace("_1", "_2")).symlink_to("absent.log")
    assert len(discover([tmp_path / "x"]).logs) == 2


@pytest.mark.needs("permissions")
def test_folders_that_may_not_be_looked_into_are_named(tmp_path):
    for shape in ("1n1g", "2n1g"):
        write_file(tmp_path, f"{shape}/bert_b32_fp32_1.log", "")
    (tmp_path / "2n1g").chmod(0)
    discovery = discover([tmp_path])
    with pytest.raises(PermissionError):
        discover([tmp_path / "2n1g"])
    (tmp_path / "2n1g").chmod(0o700)
    assert [log.nodes for log in discovery.logs] == [1]
    assert "2n1g: can't be read" in discovery.warnings[0]
