"""What programs print of a run is read as they mean it: a row for each case."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcbert.logs.setting import Setting
from tests.kit.cases import cases, read_constant
from tests.kit.cli import CollectJson
from tests.kit.recipes import Reader, grammar
from tests.recipes.logs import LOGS, print_log

# MindSpore 1 prints a tensor without dimensions, MindSpore 2 one of a single number; with loss
# scaling the loss is the first of several outputs (mindspore-ai/models@9d99f64, src/utils.py).
OUTPUTS: dict[str, str] = read_constant(__file__, "OUTPUTS")


@cases
def test_a_log_gives_the_number_that_its_program_means_or_a_reason(
    tmp_path: Path,
    *,
    log: str,
    changes: tuple[tuple[str, str], ...] | None,
    fields: dict[str, Any] | None,
    settings: dict[str, Any] | None,
    recipes: tuple[str, ...] | None,
    numbers: dict[str, float] | None,
    rules: tuple[str, ...] | None,
    facts: dict[str, Any] | None,
    codes: tuple[str, ...] | None,
    says: str | None,
    missing: str | None,
) -> None:
    """`numbers` by the name of a rule, or a reason or a missing setting by all `rules`."""
    text = print_log(log, changes or (), **(fields or {}))
    setting = Setting(**{**LOGS[log]["setting"], **(settings or {})}).settled({})[0]
    expected: dict[str, float] = numbers or {}
    for recipe in recipes or (LOGS[log]["recipe"],):
        usual = [rule.name for rule in grammar(recipe).rules]
        for rule in rules or expected or usual:
            reading = Reader(recipe, tmp_path).read(text.encode(), rule, setting)
            value = expected.get(rule)
            assert reading.throughput == (value and pytest.approx(value, rel=1e-3)), reading
            assert tuple(reason.code for reason in reading.reasons) == (codes or ()), reading
            assert (says or "") in "; ".join(map(str, [*reading.reasons, *reading.flags]))
            assert reading.missing == (missing or "")
            read = {**dict(reading.facts), **reading.setting._asdict()}
            assert {name: read.get(name) for name in facts or {}} == (facts or {})


@pytest.mark.parametrize("outputs", OUTPUTS)
@pytest.mark.parametrize("recipe", ["mindspore", "mindspore-models"])
def test_every_form_of_mindspores_loss_is_read_and_each_steps_counts(
    recipe: str, outputs: str, tmp_path: Path
) -> None:
    setting, read = Setting(**LOGS["mindspore"]["setting"]), Reader(recipe, tmp_path).read
    for loss, step in (("11.05", 0), ("nan", 7), ("-inf", 8)):
        changes = [("LOSS", OUTPUTS[outputs].format("11.05"))]
        if step:  # 7 is within an epoch, 8 at its end
            shown = OUTPUTS[outputs].format(loss)
            changes.insert(0, (f"(step: {step}, outputs are )LOSS", rf"\g<1>{shown}"))
        reading = read(print_log("mindspore", changes).encode(), "", setting)
        if not step:
            assert reading.throughput == pytest.approx(16 * 20 / 10.15), reading
        elif outputs != "scientific":
            assert f"the loss is {loss} at iteration {step}" in str(reading.reasons), reading


@cases
def test_a_log_that_is_collected_alone_has_its_labels(
    tmp_path: Path,
    run: CollectJson,
    *,
    log: str,
    changes: tuple[tuple[str, str], ...] | None,
    options: tuple[object, ...] | None,
    median: float | None,
    shape: str | None,
    table: dict[str, Any] | None,
    codes: list[str],
) -> None:
    path = tmp_path / "program-1234567.out"
    path.write_text(print_log(log, changes or ()))
    (read,) = run(path, *(options or ()))["data"]["tables"]
    (row,) = read["rows"]
    assert row["median"] == (median and pytest.approx(median, rel=1e-3))
    assert shape in (None, row["shape"])
    assert {name: read[name] for name in table or {}} == (table or {})
    assert [reason["code"] for reason in row["runs"][0]["reasons"]] == (codes or [])


def test_runs_of_two_depths_are_not_repeats(tmp_path: Path, run: CollectJson) -> None:
    for number, layers in ((1, 12), (2, 24)):
        model = f"model:\n  name: flex_bert\n  model_config:\n    num_hidden_layers: {layers}\n"
        text = print_log("composer", [(r"\A", model)])
        (tmp_path / f"composer-123456{number}.out").write_text(text)
    (table,) = run(tmp_path)["data"]["tables"]
    reasons = [entry["reasons"][0]["code"] for entry in table["rows"][0]["runs"]]
    assert reasons == ["incomparable", "incomparable"]


@pytest.mark.parametrize("shown", ["65.5 Ktokens/s", "65536.0 tokens/s", "65.5 k tokens per sec"])
def test_a_recipe_without_a_unit_reads_no_other(shown: str, tmp_path: Path) -> None:
    from tests.kit.logs import Reader as GrammarReader

    toml: str = read_constant(__file__, "WITHOUT_UNIT")
    text = "".join(f"step {n}: speed {shown} of epoch 1\n" for n in range(1, 121))
    read, setting = GrammarReader(tmp_path), Setting(nodes=1, gpus_per_node=1, gpus=1)
    assert read(toml, text, "", setting).throughput is None
    assert read(toml.replace(".*? of epoch", ""), text, "", setting).throughput is None
    assert read(toml, text.replace(shown, "512.0"), "", setting).throughput == 512


@pytest.mark.parametrize("rule", ["rate", "footer"])
@pytest.mark.parametrize(("last", "expected"), [(128, []), (512, ["config"])])
def test_a_rule_of_another_record_minds_the_lengths_too(
    rule: str, last: int, expected: list[str], tmp_path: Path
) -> None:
    from tests.kit.logs import Reader as GrammarReader

    lengths = [last if n > 60 else 128 for n in range(1, 121)]
    lines = [f"step {n} of {size} tokens: 50.0 samples/s\n" for n, size in enumerate(lengths, 1)]
    text = "".join([*lines, "total 50.0 samples/s\n"])
    setting = Setting(nodes=1, gpus_per_node=8, gpus=8, batch_size_per_device=32)
    reading = GrammarReader(tmp_path)(read_constant(__file__, "WITH_LENGTHS"), text, rule, setting)
    assert [reason.code for reason in reading.reasons] == expected
