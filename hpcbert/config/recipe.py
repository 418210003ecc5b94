"""recipe.toml: all that is known of a framework, as data."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Literal, cast

from hpcbert.config.inventory import Dataset, Option, Preset, Recipe, Sample
from hpcbert.config.strict import Table
from hpcbert.config.toml import read
from hpcbert.model import PRECISIONS, OptionValue, Shape

if TYPE_CHECKING:
    from pathlib import Path

_KINDS: dict[str, type[OptionValue]] = {"str": str, "int": int, "float": float, "bool": bool}
_Launch = Literal["per-gpu", "per-node"]
_LAUNCH = ("per-gpu", "per-node")
_NAMED = re.compile(r"\{(\w+)\}")
_NEEDS = ("data", "source")
FORMATS = ("tfrecord", "hdf5", "npz", "ofrecord", "gzip-text", "megatron")


def load(folder: Path) -> Recipe:
    """Read one recipe folder strictly.

    Raises:
        ConfigError: recipe.toml is missing or wrong; file and key are named.
    """
    return read_recipe(folder / "recipe.toml", name=folder.name, digest=digest(folder))


def read_recipe(path: Path, *, name: str, digest: str) -> Recipe:
    """Read a recipe.toml that may stand apart from its folder, as the copy in a campaign does.

    Raises:
        ConfigError: The file is missing or wrong; file and key are named.
    """
    table = Table(read(path), where=str(path))
    source, image = table.table("source"), table.table("image")
    precisions = table.items("precisions", str)
    for precision in precisions:
        if precision not in PRECISIONS:
            raise table.error("precisions", f"names {precision!r}; known: {', '.join(PRECISIONS)}.")
    if not precisions:
        raise table.error("precisions", "must name at least one precision.")
    needs = table.items("needs", str)
    for need in needs:
        if need not in _NEEDS:
            raise table.error("needs", f"names {need!r}; known: {', '.join(_NEEDS)}.")
    recipe = Recipe(
        name=name,
        title=table.need("title", str),
        data=table.get("data", str, ""),
        folder=str(path.parent),
        launch=cast("_Launch", table.choice("launch", _LAUNCH)),
        mpi=table.get("mpi", str, ""),
        models=_models(table),
        precisions=precisions,
        batch_sizes=_batch_sizes(table, precisions),
        xla=table.get("xla", bool, default=False),
        accumulation=table.get("accumulation", bool, default=False),
        options=_options(table.table("options")),
        protocols=_protocols(table.table("protocols"), precisions),
        repository=source.get("repository", str, ""),
        commit=source.get("commit", str, ""),
        path=source.get("path", str, ""),
        flags=source.items("flags", str),
        patches=source.items("patches", str),
        incomplete=source.get("incomplete", str, ""),
        image=image.get("reference", str, ""),
        base_image=image.get("base", str, ""),
        install=image.items("install", str),
        copy=image.get("copy", str, ""),
        writable=image.get("writable", bool, default=True),
        workdir=image.get("workdir", str, ""),
        files=table.items("files", str),
        needs=needs,
        dataset=_dataset(table),
        env=tuple(table.mapping("env", str).items()),
        log=dict(table.table("log").values),
        problems=table.items("problems", str),
        sample=_sample(table, precisions),
        digest=digest,
    )
    for part in (source, image, table):
        part.close()
    return recipe


def digest(folder: Path) -> str:
    """Return the SHA-256 over names and contents of the files that make a recipe."""
    total = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.is_file():
            total.update(f"{path.name}\0{path.stat().st_size}\0".encode())
            total.update(path.read_bytes())
    return total.hexdigest()


def _models(table: Table) -> tuple[str, ...]:
    models = table.items("models", str)
    if not models:
        raise table.error("models", "must name at least one model.")
    return models


def _batch_sizes(table: Table, precisions: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
    sizes = table.table("batch_sizes")
    found = tuple((precision, sizes.at_least(precision, 1, 32)) for precision in precisions)
    sizes.close()
    return found


def _protocols(table: Table, precisions: tuple[str, ...]) -> tuple[Preset, ...]:
    found = tuple(_preset(name, table.table(name), precisions) for name in table.values)
    return found or (Preset(),)


def _preset(name: str, table: Table, precisions: tuple[str, ...]) -> Preset:
    preset = Preset(
        name=name,
        help=table.need("help", str),
        iters=table.at_least("iters", 1, 120),
        skip=table.at_least("skip", 0, 20),
        accumulation=table.at_least("accumulation", 1, 1),
        global_batch_size=table.at_least("global_batch_size", 1, 0),
        samples_per_device=table.at_least("samples_per_device", 1, 0),
        xla=table.get("xla", bool, default=False),
        precisions=table.items("precisions", str),
        gpus=table.get("gpus", bool, default=True),
    )
    table.close()
    ways = ("accumulation", "global_batch_size", "samples_per_device")
    if sum(table.has(way) for way in ways) > 1:
        raise table.error("accumulation", f"can be said in one way only: {', '.join(ways)}.")
    for precision in preset.precisions:
        if precision not in precisions:
            raise table.error("precisions", f"names {precision!r}, which the recipe does not.")
    return preset


def _dataset(table: Table) -> Dataset | None:
    if not table.has("dataset"):
        return None
    inner, options = table.table("dataset"), table.table("options").values
    dataset = Dataset(
        files=inner.need("files", str),
        format=inner.choice("format", FORMATS),
        keys=inner.items("keys", str),
        at_least=inner.at_least("at_least", 1, 1),
        numbered=inner.get("numbered", str, ""),
        also=inner.items("also", str),
    )
    inner.close()
    named = {name for text in (dataset.files, *dataset.also) for name in _NAMED.findall(text)}
    named |= {dataset.numbered} - {""}
    for name in sorted(named - set(options)):
        raise table.error("dataset", f"names {name!r}, which is no option of the recipe.")
    return dataset


def _sample(table: Table, precisions: tuple[str, ...]) -> Sample | None:
    if not table.has("sample"):
        return None
    inner = table.table("sample")
    sample = Sample(
        shape=Shape(inner.at_least("nodes", 1, 1), inner.at_least("gpus_per_node", 1, 1)),
        batch_size_per_device=inner.at_least("batch_size_per_device", 1, 1),
        precision=inner.choice("precision", precisions, precisions[0]),
        accumulation=inner.at_least("accumulation", 1, 1),
        throughput=_rates(inner.table("throughput")),
    )
    inner.close()
    return sample


def _rates(table: Table) -> tuple[tuple[str, float], ...]:
    """Return samples per second by the name of a rule."""
    return tuple((name, table.within(name, float, 1e-6, 1e12, 0.0)) for name in table.values)


def _options(table: Table) -> tuple[Option, ...]:
    return tuple(_option(name, table.table(name)) for name in table.values)


def _option(name: str, table: Table) -> Option:
    kind = table.choice("kind", _KINDS)
    default = table.need("default", _KINDS[kind])
    choices = table.items("choices", _KINDS[kind])
    if choices and default not in choices:
        raise table.error("default", f"is not among the choices: {default!r}.")
    text = table.need("help", str)
    measured = table.get("measured", bool, default=True)
    table.close()
    return Option(name, kind, default, text, choices, measured)
