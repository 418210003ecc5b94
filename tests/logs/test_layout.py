import os

import pytest

from hpcbert.errors import UsageError
from hpcbert.logs.layout import discover, natural_key
from tests.kit.cases import cases
from tests.kit.logs import write_file


def find_log(path, *names, pattern=""):
    for name in names:
        write_file(path, name, "")
    (log,) = discover([path], pattern).logs
    return log


@cases
def test_dlperfs_layout_and_its_deviations(tmp_path, name, expected):
    others = ("result/bert_result.json", "1n1g/notes.txt", "1n1g/bert_b32.csv")
    log = find_log(tmp_path, name, *others)
    fields = (log.model, log.nodes, log.gpus_per_node, log.batch_size, log.precision)
    assert (*fields, log.repeat, log.attempt) == expected


def test_a_pattern_names_its_fields_overrides_folders_and_has_characters_of_its_own(tmp_path):
    patterns = {
        "base_bs{batch_size}_{precision}_gpu{gpus}.log": "deep/base_bs48_fp32_gpu8.log",
        "{model}/*_bs{batch_size}_{precision}_gpu{gpus}*": "base/x_bs48_FP32_gpu8_log",
        "run{repeat}/b{batch_size}-{precision}-{gpus}": "run3/b48-fp32-8",
    }
    for number, (pattern, name) in enumerate(patterns.items()):
        log = find_log(tmp_path / str(number), name, "other/thing.log", pattern=pattern)
        assert (log.batch_size, log.precision, log.gpus) == (48, "fp32", 8)
    log = find_log(tmp_path, "1n1g/run_4x8.log", pattern="run_{nodes}x{gpus_per_node}.log")
    assert (log.nodes, log.gpus_per_node) == (4, 8)
    assert find_log(tmp_path, pattern="run_*.log").nodes == 1
    log = find_log(tmp_path, "a+b(1).log", "aab1.log", pattern="a+b({repeat}).log")
    assert log.path.name == "a+b(1).log"
    # A file that is named outright is taken whatever its name.
    log = find_log(write_file(tmp_path, "4n8g/whatever.out", ""))
    assert (log.nodes, log.gpus_per_node, log.repeat) == (4, 8, None)


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
    places = [(n, r) for n in (1, 2, 10) for r in (1, 2, 10)]
    for n, r in places:
        write_file(tmp_path, f"{n}n8g/bert_b32_fp32_{r}.log", "")
    assert [(log.nodes, log.repeat) for log in discover([tmp_path]).logs] == places
    assert natural_key("2n8g") < natural_key("10n8g") < natural_key("10n8g/x")


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
