"""How ranks are started: the site's kind of MPI, else the recipe's best that the cluster has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hpcbert.config import recipe
from hpcbert.model import Shape
from tests.kit.cases import cases
from tests.kit.drafts import combined, drafted, load, reference


@cases
def test_how_ranks_are_started(
    of_recipe: list[str],
    slurm: dict[str, object],
    of_slurm: list[str],
    expected: str,
    tmp_path: Path,
) -> None:
    site, mpi_recipe = reference(tmp_path, slurm=slurm), replace(load(), mpi=tuple(of_recipe))
    draft = drafted(site, framework_recipe=mpi_recipe, options={"mpi": tuple(of_slurm)})
    assert draft.resolved.mpi == expected
    (text,) = draft.scripts.values()
    assert (f"--mpi={expected} " in text) == bool(expected)


@cases
def test_a_recipe_names_one_kind_or_several(
    tmp_path: Path, value: str, kinds: tuple[str, ...]
) -> None:
    text = (Path(load().folder) / "recipe.toml").read_text()
    (tmp_path / "recipe.toml").write_text(text.replace("\n", f"\nmpi = {value}\n", 1))
    assert recipe.load(tmp_path).mpi == kinds


@cases
def test_ranks_that_may_not_find_each_other_are_warned_of(
    mpi: str, gpus: int, *, warned: bool, tmp_path: Path
) -> None:
    site, request = reference(tmp_path, slurm={"mpi": mpi}), combined(Shape(1, gpus), ("fp32",))
    draft = drafted(site, request, framework_recipe=replace(load(), mpi=("pmix",)))
    assert ("finds its ranks by pmix" in " ".join(draft.resolved.warnings)) == warned
