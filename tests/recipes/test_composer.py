"""Composer's rolling rates and its clock, as its programs print them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbert.logs.scan import Reading
from hpcbert.logs.setting import Setting
from tests.kit.cases import cases
from tests.kit.cli import CollectJson
from tests.kit.recipes import Reader

# AI-Sweden-Models/ModernBERT-large: 8 nodes of 8, 3 sequences of 8,192 tokens each, 0.6466 batches/s
# over 25 batches (timpal0l/ModernBERT@a2150d1, training; the model's card).
_SETTING = Setting(skip=20, iters=120)
_CONFIG = """\
max_seq_len: 8192
global_train_batch_size: 192
precision: amp_bf16
callbacks:
  speed_monitor:
    window_size: 25
"""
_HEADER = "composer_version: 0.24.1\nnum_gpus_per_node: 8\nnum_nodes: 8\n"


def make_log(
    config: str = _CONFIG, *, batches: int = 120, form: str = "[token={tokens}/1198]:"
) -> str:
    """Return batches of 1.5466 seconds; the rate is printed from the 26th on."""
    lines = [config + _HEADER]
    for place in range(1, batches + 1):
        lines.append(form.format(tokens=place * 1572864, place=place) + "\n")
        lines.append(f"\t Train time/batch: {place - 1}\n\t Train time/sample: {place * 192}\n")
        lines.append("\t Train trainer/device_train_microbatch_size: 3\n")
        lines.append("\t Train loss/train/total: 1.9\n")
        if place > 5:
            lines.append("\t Train throughput/batches_per_sec: 0.6466\n")
            lines.append("\t Train throughput/samples_per_sec: 124.1470\n")
            lines.append("\t Train throughput/device/samples_per_sec: 1.9398\n")
        lines.append(
            f"\t Train time/train: {place * 1.54655 / 3600:.4f}\n\t Train time/val: 0.0000\n"
        )
    return "".join(lines)


def read(tmp_path: Path, log: str, rule: str = "rate") -> Reading:
    return Reader("composer", tmp_path).read(log.encode(), rule, _SETTING)


@pytest.mark.parametrize("form", ["[token={tokens}/1198]:", "[epoch=1][batch={place}/120]:"])
@pytest.mark.parametrize(
    ("config", "note"),
    [
        pytest.param(_CONFIG, "the last 25 records", id="stated"),
        pytest.param(_CONFIG.replace("    window_size: 25\n", ""), "default", id="left open"),
        pytest.param(_CONFIG.replace("window_size: 25", "window_size: 1"), "", id="one batch"),
    ],
)
def test_a_rolling_rate_is_flagged_with_its_window(
    form: str, config: str, note: str, tmp_path: Path
) -> None:
    reading = read(tmp_path, make_log(config, form=form))
    assert reading.throughput == pytest.approx(124.147)
    assert ("rolling" in reading.flags) == bool(note)
    assert note in " ".join(str(one.detail) for one in reading.notes)
    facts = dict(reading.facts)
    assert (facts["nodes"], facts["gpus_per_node"], facts["precision"]) == (8, 8, "bf16")


def test_a_run_on_64_mi250x_is_read_without_options(tmp_path: Path, run: CollectJson) -> None:
    """0.6466 batches/s of 192 samples, by 8 nodes of 8 dies each."""
    model = "model:\n  name: flex_bert\n  model_config:\n    num_hidden_layers: 28\n"
    log = tmp_path / "modernbert_composer-1234567.out"
    log.write_text(model + "    padding: unpadded\n" + make_log())
    document = run(log)
    (table,) = document["data"]["tables"]
    (row,) = table["rows"]
    assert row["median"] == pytest.approx(0.6466 * 192, rel=1e-4)
    assert (row["shape"], table["precision"], table["batch_size_per_device"]) == ("8n8g", "bf16", 3)
    assert table["model"] == "modernbert-large"
    assert "rolling" in row["flags"]


@cases
def test_a_model_of_another_depth_is_none_of_the_published(
    program: str, layers: int, model: str, tmp_path: Path, run: CollectJson
) -> None:
    config = f"model:\n  name: {program}\n  model_config:\n    num_hidden_layers: {layers}\n"
    log = tmp_path / "composer-1234567.out"
    log.write_text(config + make_log())
    (table,) = run(log)["data"]["tables"]
    assert table["model"] == model


def test_runs_of_two_depths_are_not_repeats(tmp_path: Path, run: CollectJson) -> None:
    for number, layers in ((1, 12), (2, 24)):
        config = f"model:\n  name: flex_bert\n  model_config:\n    num_hidden_layers: {layers}\n"
        (tmp_path / f"composer-123456{number}.out").write_text(config + make_log())
    (table,) = run(tmp_path)["data"]["tables"]
    reasons = [entry["reasons"][0]["code"] for entry in table["rows"][0]["runs"]]
    assert reasons == ["incomparable", "incomparable"]


def test_the_clock_confirms_it_and_is_not_rolling(tmp_path: Path) -> None:
    reading = read(tmp_path, make_log(), "elapsed")
    assert reading.throughput == pytest.approx(124.147, rel=0.01)
    assert "rolling" not in reading.flags


def test_a_clock_in_hours_is_too_coarse_for_a_few_seconds(tmp_path: Path) -> None:
    reading = Reader("composer", tmp_path).read(
        make_log().encode(), "elapsed", _SETTING._replace(iters=30)
    )
    assert reading.throughput is None
    assert "coarse" in str(reading.reasons)


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        pytest.param("samples_per_sec: 124", "samples_per_sec: 249", "contradiction", id="rate"),
        pytest.param("batch_size: 192", "batch_size: 384", "config", id="global batch"),
        pytest.param("total: 1.9", "total: nan", "loss", id="loss"),
    ],
)
def test_what_does_not_fit_gives_no_number(old: str, new: str, code: str, tmp_path: Path) -> None:
    reading = Reader("composer", tmp_path).read(
        make_log().replace(old, new).encode(),
        "rate",
        _SETTING._replace(accumulation=1),
    )
    assert reading.throughput is None
    assert code in {reason.code for reason in reading.reasons}, reading
