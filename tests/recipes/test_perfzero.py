"""PerfZero's methods, with the values that each of them sets by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbert.errors import UsageError
from hpcbert.model import Shape
from hpcbert.script.plan import Request, RequestCell
from tests.kit import drafts
from tests.kit.cases import cases

_METHOD = "BertClassifyBenchmarkReal."


def render(
    tmp_path: Path, shape: str, settings: dict[str, str], values: tuple[int, int, int]
) -> str:
    """Render a protocol of PerfZero with a batch size, an accumulation and iterations."""
    batch, accumulation, iters = values
    cells = (RequestCell(Shape.parse(shape), "", batch),)
    preset = "tpu" if shape == "1n32g" else "perfzero"
    request = Request(
        cells[0].shape,
        cells,
        preset=preset,
        settings={"perfzero": "/z", **settings},
        accumulation=accumulation,
        iters=iters or None,
        skip=1,
    )
    recipe = drafts.load("perfzero")
    draft = drafts.drafted(
        drafts.reference(tmp_path), request, framework_recipe=recipe, options={"dry": True}
    )
    return "".join(draft.scripts.values())


@cases
def test_a_method_runs_with_its_own_values(
    tmp_path: Path, shape: str, settings: dict[str, str], values: tuple[int, int, int], method: str
) -> None:
    text = render(tmp_path, shape, settings, values)
    assert f"--benchmark_methods=tf2_bert.bert_benchmark.{_METHOD}{method}\n" in text
    assert ("--tpu_parameters='{" in text) == (shape == "1n32g")
    assert "--gcloud_key_file_url= --benchmark_num_trials=1 \\\n" in text


@cases
def test_other_values_are_refused(
    tmp_path: Path, settings: dict[str, str], values: tuple[int, int, int]
) -> None:
    with pytest.raises(UsageError, match=r"its own values|no effect|has no perfzero_method"):
        render(tmp_path, "1n8g", settings, values)


def test_flags_of_perfzero_are_its_words(tmp_path: Path) -> None:
    text = render(tmp_path, "1n8g", {"perfzero_flags": "--debug --execution_id=a;b"}, (0, 0, 0))
    assert "--gcloud_key_file_url= --debug '--execution_id=a;b' \\\n" in text
