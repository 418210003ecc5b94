from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcbert.errors import UsageError
from hpcbert.logs.layout import LogFile, discover, natural_key
from tests.kit.cases import cases


def touch_files(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def find_log(path: Path, pattern: str = "") -> LogFile:
    (log,) = discover([path], pattern).logs
    return log._replace(path=path)


@cases
def test_dlperfs_layout_and_its_deviations(
    tmp_path: Path, name: str, expected: tuple[object, ...]
) -> None:
    touch_files(tmp_path, name, "result/bert_result.json", "1n1g/notes.txt", "1n1g/bert_b32.csv")
    log = find_log(tmp_path)
    fields = (log.model, log.nodes, log.gpus_per_node, log.batch_size, log.precision)
    assert (*fields, log.repeat, log.attempt) == expected


def test_order_is_natural(tmp_path: Path) -> None:
    touch_files(
        tmp_path, *(f"{n}n8g/bert_b32_fp32_{r}.log" for n in (1, 2, 10) for r in (1, 2, 10))
    )
    shapes = [(log.nodes, log.repeat) for log in discover([tmp_path]).logs]
    assert shapes == [(n, r) for n in (1, 2, 10) for r in (1, 2, 10)]
    assert natural_key("2n8g") < natural_key("10n8g") < natural_key("10n8g/x")


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("base_bs{batch_size}_{precision}_gpu{gpus}.log", "deep/base_bs48_fp32_gpu8.log"),
        ("{model}/*_bs{batch_size}_{precision}_gpu{gpus}*", "base/x_bs48_FP32_gpu8_log"),
        ("run{repeat}/b{batch_size}-{precision}-{gpus}", "run3/b48-fp32-8"),
    ],
)
def test_patterns_name_their_fields(tmp_path: Path, pattern: str, name: str) -> None:
    touch_files(tmp_path, name, "other/thing.log")
    log = find_log(tmp_path, pattern)
    assert (log.batch_size, log.precision, log.gpus) == (48, "fp32", 8)


def test_a_pattern_that_tells_the_shape_overrides_folders(tmp_path: Path) -> None:
    touch_files(tmp_path, "1n1g/run_4x8.log")
    log = find_log(tmp_path, "run_{nodes}x{gpus_per_node}.log")
    assert (log.nodes, log.gpus_per_node) == (4, 8)
    assert find_log(tmp_path, "run_*.log").nodes == 1


def test_pattern_characters_are_themselves(tmp_path: Path) -> None:
    touch_files(tmp_path, "a+b(1).log", "aab1.log")
    (log,) = discover([tmp_path], "a+b({repeat}).log").logs
    assert log.path.name == "a+b(1).log"


def test_wrong_patterns_are_explained(tmp_path: Path) -> None:
    touch_files(tmp_path, "run1.log")
    with pytest.raises(UsageError, match=r"no field \{repeet\}") as caught:
        discover([tmp_path], "run{repeet}.log")
    assert "repeat" in caught.value.hint
    with pytest.raises(UsageError, match="No log matches"):
        discover([tmp_path], "job{repeat}.log")
    with pytest.raises(UsageError, match="No log matches"):
        discover([tmp_path / "run1.log"], "job{repeat}.log")


def test_files_named_outright_are_taken_whatever_their_name(tmp_path: Path) -> None:
    touch_files(tmp_path, "4n8g/whatever.out")
    (log,) = discover([tmp_path / "4n8g" / "whatever.out"]).logs
    assert (log.nodes, log.gpus_per_node, log.repeat) == (4, 8, None)


def test_what_holds_no_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No log has a name in DLPerf"):
        discover([tmp_path])
    with pytest.raises(UsageError, match="no such file"):
        discover([tmp_path / "absent"])


def test_campaigns_are_found_and_not_walked_into(tmp_path: Path) -> None:
    touch_files(tmp_path, "runs/a/manifest.json", "runs/a/logs/1n1g/bert_b32_fp32_1.log")
    touch_files(tmp_path, "runs/b/manifest.json", "old/1n1g/bert_b32_fp32_1.log")
    discovery = discover([tmp_path, tmp_path / "runs" / "a"])
    assert sorted(path.name for path in discovery.campaigns) == ["a", "b"]
    assert [log.path for log in discovery.logs] == [tmp_path / "old/1n1g/bert_b32_fp32_1.log"]


def test_links_neither_hang_nor_double(tmp_path: Path) -> None:
    touch_files(tmp_path, "logs/1n1g/bert_b32_fp32_1.log")
    (tmp_path / "logs" / "again").symlink_to(tmp_path / "logs")
    (tmp_path / "logs" / "1n1g" / "loop").symlink_to(tmp_path / "logs" / "1n1g" / "loop")
    (tmp_path / "logs" / "1n1g" / "bert_b32_fp32_2.log").symlink_to("bert_b32_fp32_1.log")
    (tmp_path / "elsewhere").symlink_to(tmp_path / "logs")
    discovery = discover([tmp_path, tmp_path / "logs", tmp_path / "elsewhere"])
    assert len(discovery.logs) == 1


def test_pipes_and_dangling_links_are_left_to_the_reader(tmp_path: Path) -> None:
    (tmp_path / "1n1g").mkdir()
    os.mkfifo(tmp_path / "1n1g" / "bert_b32_fp32_1.log")
    (tmp_path / "1n1g" / "bert_b32_fp32_2.log").symlink_to("absent.log")
    assert len(discover([tmp_path]).logs) == 2


@pytest.mark.needs("permissions")
def test_folders_that_may_not_be_looked_into_are_named(tmp_path: Path) -> None:
    touch_files(tmp_path, "1n1g/bert_b32_fp32_1.log", "2n1g/bert_b32_fp32_1.log")
    (tmp_path / "2n1g").chmod(0)
    discovery = discover([tmp_path])
    with pytest.raises(PermissionError):
        discover([tmp_path / "2n1g"])
    (tmp_path / "2n1g").chmod(0o700)
    assert [log.nodes for log in discovery.logs] == [1]
    assert "2n1g: can't be read" in discovery.warnings[0]
