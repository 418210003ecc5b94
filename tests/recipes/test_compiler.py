"""What the reference can't compile, it refuses before a job waits for its start."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbert.errors import UsageError
from hpcbert.model import Device, OptionValue, Shape
from hpcbert.script.plan import Request, RequestCell
from tests.kit import drafts
from tests.kit.cases import cases

TUNED: dict[str, OptionValue] = {"compile_mode": "max-autotune"}


def render(
    tmp_path: Path,
    settings: dict[str, OptionValue],
    device: Device,
    precision: str = "",
    accumulation: int = 0,
) -> str:
    shape = Shape(1, 1)
    request = Request(
        shape,
        (RequestCell(shape, precision),),
        settings=settings,
        device=device,
        accumulation=accumulation,
    )
    return "".join(drafts.drafted(drafts.reference(tmp_path), request).scripts.values())


@cases
def test_what_cannot_be_compiled_is_refused_before_a_job_starts(
    tmp_path: Path,
    settings: dict[str, OptionValue],
    requested: tuple[Device, str, int],
    text: str,
) -> None:
    with pytest.raises(UsageError, match=text):
        render(tmp_path, settings, *requested)


@pytest.mark.parametrize(
    ("settings", "device"),
    [(TUNED, "gpu"), (TUNED | {"compile": "true"}, "cpu")],
    ids=["gpu", "cpu"],
)
def test_a_mode_of_the_compiler_reaches_the_program(
    tmp_path: Path, settings: dict[str, OptionValue], device: Device
) -> None:
    assert "--compile-mode max-autotune" in render(tmp_path, settings, device)
