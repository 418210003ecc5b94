"""How ranks are started: the site's kind of MPI, else the recipe's best that the cluster has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hpcbert.config import recipe
from hpcbert.model import Shape
from tests.kit.cases import cases
from tests.kit.drafts import combined, drafted, load, reference


@cases
def test_how_ranks_are_started(
    of_recipe: tuple[str, ...],
    slurm: dict[str, object],
    of_slurm: tuple[str, ...],
    expected: str,
    tmp_path: Path,
) -> None:
    site, mpi_recipe = reference(tmp_path, slurm=slurm), replace(load(), mpi=of_recipe)
    draft = drafted(site, framework_recipe=mpi_recipe, options={"mpi": of_slurm})
    assert draft.resolved.mpi == expected
    (text,) = draft.scripts.values()
    assert (f"--mpi={expected} " in text) == bool(expected)


def test_a_recipe_names_one_kind_or_several(tmp_path: Path) -> None:
    lines = (Path(load().folder) / "recipe.toml").read_text().split("\n", 1)
    read = {}
    for value in ('"pmix"', '["pmix", "pmi2"]', '""', "[]"):
        (tmp_path / "recipe.toml").write_text(f"{lines[0]}\nmpi = {value}\n{lines[1]}")
        read[value] = recipe.load(tmp_path).mpi
    assert list(read.values()) == [("pmix",), ("pmix", "pmi2"), (), ()]


@pytest.mark.parametrize(
    ("mpi", "shape", "warned"),
    [
        ("pmi2", Shape(1, 2), True),
        ("pmix", Shape(1, 2), False),
        ("pmix_v4", Shape(1, 2), False),
        ("", Shape(1, 2), False),
        ("pmi2", Shape(1, 1), False),
    ],
)
def test_ranks_that_may_not_find_each_other_are_warned_of(
    mpi: str, shape: Shape, *, warned: bool, tmp_path: Path
) -> None:
    mpi_recipe = replace(load(), mpi=("pmix",))
    draft = drafted(
        reference(tmp_path, slurm={"mpi": mpi}),
        combined(shape, ("fp32",)),
        framework_recipe=mpi_recipe,
    )
    warnings = [
        warning for warning in draft.resolved.warnings if "finds its ranks by pmix" in warning
    ]
    assert bool(warnings) == warned
