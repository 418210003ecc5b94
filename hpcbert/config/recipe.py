"""recipe.toml: everything about a framework, as data: one folder under templates/.

Each field is a key, which docs/reference/recipe.md explains.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal

from hpcbert.config.toml import read
from hpcbert.errors import UsageError
from hpcbert.model import USUAL_VOCABULARY, Device, FormatName, OptionValue, Precision, Shape
from hpcbert.system.decode import GIVEN, Count, EncodedAs, Invalid, Range, decode, did_you_mean

_PLACEHOLDER = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class SyntheticSettings:
    """Settings to make data if the site has none: `[dataset.synthetic]`.

    Each is a number, or the name of an option that has it.
    """

    sequence_length: int | str = 128
    predictions: int | str = 0
    vocabulary: int | str = USUAL_VOCABULARY
    files: int | str = 8


def read_number(setting: int | str, options: Mapping[str, OptionValue]) -> int:
    """Return a number that is given directly, or by the name of an option.

    Raises:
        UsageError: The option is not a number.
    """
    value = options[setting] if isinstance(setting, str) else setting
    if not isinstance(value, int):
        raise UsageError(f"The option {setting} must be a whole number, not {value!r}.")
    return value


@dataclass(frozen=True)
class Dataset:
    """The files that a recipe's program reads below the data directory: `[dataset]`.

    Names of files may hold `{OPTION}`.
    """

    files: str
    format: FormatName
    keys: tuple[str, ...] = ()
    at_least: Count = 1
    numbered: str = ""
    also: tuple[str, ...] = ()
    synthetic: SyntheticSettings = SyntheticSettings()

    @property
    def names(self) -> frozenset[str]:
        """The options in the names of files."""
        names = {name for text in (self.files, *self.also) for name in _PLACEHOLDER.findall(text)}
        settings = (getattr(self.synthetic, field.name) for field in fields(self.synthetic))
        names |= {setting for setting in settings if isinstance(setting, str)}
        return frozenset({*names, self.numbered} - {""})


def _check_release(text: str) -> str:
    if not re.fullmatch(r"\d+\.\d+", text):
        raise Invalid('must be a release of Python, such as "3.9"', value=text)
    return text


@dataclass(frozen=True)
class InstallStep:
    """One call of pip: `[[environment.install]]`."""

    requirements: str = ""
    options: tuple[str, ...] = ()
    source: bool = False
    env: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.requirements and not self.source:
            raise Invalid("must name a file, or set source", key="requirements")


@dataclass(frozen=True)
class VirtualEnvironment:
    """The virtual environment that `prepare` makes for a recipe: `[environment]`."""

    python: Annotated[str, _check_release]
    install: tuple[InstallStep, ...] = ()
    program: bool = False
    patches: tuple[str, ...] = ()

    @property
    def builds_source(self) -> bool:
        """Whether the program's checkout is installed in it."""
        return any(install_step.source for install_step in self.install)


def _read_preferences(preference: str | tuple[str, ...]) -> tuple[str, ...]:
    names = (preference,) if isinstance(preference, str) else preference
    return tuple(name for name in names if name)


# One name, or several in order of preference.
Preferred = Annotated[tuple[str, ...], EncodedAs(str | tuple[str, ...], _read_preferences)]


@dataclass(frozen=True)
class Variation:
    """Differences of a recipe on a device: `[on.DEVICE]`; empty fields mean no difference."""

    launch: Literal["", "per-gpu", "per-node"] = ""
    mpi: Preferred = ()
    alone: str = ""
    one_node: str = ""
    models: tuple[str, ...] = ()
    batch_sizes: Mapping[Precision, Count] = field(default_factory=dict)
    iters: Annotated[int, Range(0)] = 0
    skip: Annotated[int, Range(0)] = 0
    precisions: tuple[Precision, ...] = ()
    patches: tuple[str, ...] = ()
    protocols: tuple[str, ...] = ()
    rule: str = ""
    problems: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    environment: VirtualEnvironment | None = None


KINDS: dict[str, type[OptionValue]] = {"str": str, "int": int, "float": float, "bool": bool}
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
# Samples per device if a recipe only names a precision.
_DEFAULT_BATCH_SIZE = 32


def _check_module(name: str) -> str:
    if not _MODULE.fullmatch(name):
        raise Invalid("is not the name of a Python module")
    return name


@dataclass(frozen=True)
class Option:
    """One setting of a recipe for `--set NAME=VALUE`: `[options.NAME]`."""

    name: Annotated[str, GIVEN]
    kind: Literal["str", "int", "float", "bool"]
    default: OptionValue
    help: str
    choices: tuple[OptionValue, ...] = ()
    at_least: float | None = None
    at_most: float | None = None
    measured: bool = True

    def __post_init__(self) -> None:
        bounds = [name for name in ("at_least", "at_most") if getattr(self, name) is not None]
        if bounds and self.kind not in {"int", "float"}:
            raise Invalid("is for numbers only", key=bounds[0])
        if problem := self.explain_misfit(self.default):
            raise Invalid(problem, key="default")

    def explain_misfit(self, value: OptionValue) -> str:
        """Return the fault of a value, as the end of a sentence; empty if it is valid."""
        if isinstance(value, float) and not isfinite(value):
            return f"needs a finite number, not {value}"
        if type(value) is not KINDS[self.kind]:
            return f"must be of type {self.kind}, not {value!r}"
        if self.choices and value not in self.choices:
            return f"must be one of {', '.join(map(str, self.choices))}, not {value!r}"
        if self.at_least is not None and value < self.at_least:  # type: ignore[operator]
            return f"must be {self.at_least:g} or more, not {value}"
        if self.at_most is not None and value > self.at_most:  # type: ignore[operator]
            return f"must be {self.at_most:g} or less, not {value}"
        return ""


@dataclass(frozen=True)
class Preset:
    """A named protocol of a recipe, `[protocols.NAME]`: what a request leaves open."""

    name: Annotated[str, GIVEN]
    help: str
    iters: Count = 120
    skip: Annotated[int, Range(0)] = 20
    window_seconds: Annotated[int, Range(0, 86_400)] = 0
    accumulation: Count = 0
    global_batch_size: Count = 0
    samples_per_device: Count = 0
    xla: bool = False
    precisions: tuple[Precision, ...] = ()
    gpus: bool = True

    def __post_init__(self) -> None:
        ways = ("accumulation", "global_batch_size", "samples_per_device")
        if sum(bool(getattr(self, way)) for way in ways) > 1:
            raise Invalid(f"can be set in one way only: {', '.join(ways)}", key="accumulation")


@dataclass(frozen=True)
class Sample:
    """The run behind a recipe's sample.log, and its expected numbers: `[sample]`."""

    nodes: Count = 1
    gpus_per_node: Count = 1
    batch_size_per_device: Count = 1
    precision: str = ""
    accumulation: Count = 1
    throughput: Mapping[str, Annotated[float, Range(1e-6, 1e12)]] = field(default_factory=dict)

    @property
    def shape(self) -> Shape:
        """The nodes and GPUs that it ran on."""
        return Shape(self.nodes, self.gpus_per_node)


@dataclass(frozen=True)
class Upstream:
    """The origin of the upstream program: `[source]`."""

    repository: str = ""
    commit: str = ""
    path: str = ""
    flags: tuple[str, ...] = ()
    patches: tuple[str, ...] = ()
    incomplete: str = ""


@dataclass(frozen=True)
class RecipeImage:
    """The container that ranks run in: `[image]`."""

    reference: str = ""
    base: str = ""
    install: tuple[str, ...] = ()
    copy: str = ""
    writable: bool = True
    workdir: str = ""


@dataclass(frozen=True)
class Recipe:
    """Everything about a framework, nested as its recipe.toml is.

    Attributes:
        digest: SHA-256 over the folder's files.
        batch_factors: What they are multiplied with on GPUs with more memory, by the word that
            names these in the type of Slurm's resource, in lower case.
        log: The `[log]` table, not decoded: `hpcbert.logs.grammar` knows its form.
    """

    name: Annotated[str, GIVEN]
    folder: Annotated[str, GIVEN]
    digest: Annotated[str, GIVEN]
    title: str
    launch: Literal["per-gpu", "per-node"]
    data: str = ""
    mpi: Preferred = ()
    alone: str = ""
    one_node: str = ""
    models: tuple[str, ...] = ()
    precisions: tuple[Precision, ...] = ()
    batch_sizes: Mapping[Precision, Count] = field(default_factory=dict)
    batch_factors: Mapping[str, Count] = field(default_factory=dict)
    batch_granularity: Count = 8
    xla: bool | str = False
    accumulation: bool = False
    collectives: str = ""
    mixed_precision: str = ""
    options: Mapping[str, Option] = field(default_factory=dict)
    protocols: Mapping[str, Preset] = field(default_factory=dict)
    source: Upstream = Upstream()
    image: RecipeImage = RecipeImage()
    files: tuple[str, ...] = ()
    modules: tuple[Annotated[str, _check_module], ...] = ()
    needs: tuple[Literal["data", "source"], ...] = ()
    dataset: Dataset | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    log: Mapping[str, Any] = field(default_factory=dict, compare=False)
    problems: tuple[str, ...] = ()
    sample: Sample | None = None
    devices: tuple[Device, ...] = ("gpu",)
    on: Mapping[Device, Variation] = field(default_factory=dict)
    environment: VirtualEnvironment | None = None

    def __post_init__(self) -> None:
        for key in ("models", "precisions", "devices"):
            if not getattr(self, key):
                raise Invalid("must name at least one", key=key)
        for name in set(self.batch_sizes) - set(self.precisions):
            raise Invalid(
                "is not known", did_you_mean(name, self.precisions), key=f"batch_sizes.{name}"
            )
        not_here, no_option = "the recipe does not", "is not an option of the recipe"
        compiler = (self.xla,) if isinstance(self.xla, str) else ()
        _refuse_foreign(compiler, self.options, "xla", no_option)
        _refuse_foreign(self.on, self.devices, "on", "is not among the recipe's devices")
        if self.dataset:
            _refuse_foreign(sorted(self.dataset.names), self.options, "dataset", no_option)
        precisions = {f"protocols.{name}": p.precisions for name, p in self.protocols.items()}
        precisions |= {f"on.{device}": v.precisions for device, v in self.on.items()}
        for key, names in precisions.items():
            _refuse_foreign(names, self.precisions, f"{key}.precisions", not_here)
        if self.sample and self.sample.precision:
            sample = (self.sample.precision,)
            _refuse_foreign(sample, self.precisions, "sample.precision", not_here)
        for device, variation in self.on.items():
            key = f"on.{device}"
            _refuse_foreign(variation.protocols, self.protocols, f"{key}.protocols", not_here)
            rule = (variation.rule,) if variation.rule else ()
            _refuse_foreign(rule, _rule_names(self.log), f"{key}.rule", not_here)
            if self.protocols and not self._protocols_on(variation):
                raise Invalid("leaves no protocol to run", key=f"{key}.precisions")

    @property
    def has_script(self) -> bool:
        """Whether hpcbert starts the program; it only reads the logs of others."""
        return (Path(self.folder) / "run.sh.j2").is_file()

    def preset(self, name: str) -> Preset:
        """Return the protocol with a name; the first one for an empty name.

        Raises:
            KeyError: The recipe has no such protocol.
        """
        return self.protocols[name] if name else next(iter(self.protocols.values()))

    def multiply_batch_sizes(self, gres: str) -> dict[Precision, int]:
        """Return the default batch sizes on the GPUs of `slurm.gres`: `gpu:h100`.

        Where these are slices of a GPU (MIG: `1g.10gb`), they have a part of its memory.
        """
        words = re.findall(r"[a-z0-9]+", gres.lower())
        is_slice = any(re.fullmatch(r"\d+g", word) for word in words)
        factors = (self.batch_factors[word] for word in words if word in self.batch_factors)
        factor = 1 if is_slice else next(factors, 1)
        return {precision: factor * size for precision, size in self.batch_sizes.items()}

    def for_device(self, device: Device) -> Recipe:
        """Return the recipe with the differences of one of its devices applied."""
        variation = self.on.get(device)
        if variation is None:
            return self
        names = ("launch", "mpi", "alone", "one_node", "models", "environment")
        precisions = variation.precisions or self.precisions
        sizes = {**self.batch_sizes, **variation.batch_sizes}
        return replace(
            self,
            **{name: getattr(variation, name) or getattr(self, name) for name in names},
            precisions=precisions,
            batch_sizes={precision: sizes[precision] for precision in precisions},
            protocols=self._protocols_on(variation),
            on={},
            sample=None,  # of a run elsewhere
            problems=(*self.problems, *variation.problems),
            env={**self.env, **variation.env},
            source=replace(self.source, patches=(*self.source.patches, *variation.patches)),
        )

    def _protocols_on(self, variation: Variation) -> dict[str, Preset]:
        """Return the protocols that can run on a device, the default first."""
        protocols = {}
        for name in variation.protocols or self.protocols:
            preset = self.protocols[name]
            precisions = tuple(
                precision
                for precision in preset.precisions
                if precision in (variation.precisions or preset.precisions)
            )
            # A protocol without any is for all.
            if precisions or not preset.precisions:
                preset = replace(preset, precisions=precisions)
                if variation.iters:
                    preset = replace(preset, iters=variation.iters, skip=variation.skip)
                protocols[name] = preset
        return protocols

    def tasks_per_node(self, shape: Shape) -> int:
        """Return the number of srun tasks per node: one for each GPU, or one for all."""
        return shape.gpus_per_node if self.launch == "per-gpu" else 1


def _rule_names(log: Mapping[str, Any]) -> list[str]:
    tables = log.get("rules")
    rules = tables if isinstance(tables, list) else []
    return [str(rule.get("name")) for rule in rules if isinstance(rule, dict)]


def _refuse_foreign(names: Iterable[str], choices: Collection[str], key: str, reason: str) -> None:
    for name in names:
        if name not in choices:
            raise Invalid(f"names {name!r}, which {reason}", did_you_mean(name, choices), key=key)


def load(folder: Path) -> Recipe:
    """Read one recipe folder strictly.

    Raises:
        ConfigError: recipe.toml is missing or wrong; the message names file and key.
    """
    return read_recipe(folder / "recipe.toml", name=folder.name, digest=digest(folder))


def read_recipe(path: Path, *, name: str, digest: str) -> Recipe:
    """Read a recipe.toml that may be apart from its folder, as a campaign's copy is.

    Raises:
        ConfigError: The file is missing or wrong; the message names file and key.
    """
    recipe = decode(
        Recipe, read(path), file=str(path), name=name, folder=str(path.parent), digest=digest
    )
    precisions, sample = recipe.precisions, recipe.sample
    sizes = dict.fromkeys(precisions, _DEFAULT_BATCH_SIZE)
    return replace(
        recipe,
        sample=sample and replace(sample, precision=sample.precision or precisions[0]),
        batch_sizes={**sizes, **recipe.batch_sizes},
        protocols=recipe.protocols or {"": Preset("", "")},
    )


def digest(folder: Path) -> str:
    """Return the SHA-256 of names and contents of the files that make a recipe."""
    checksum = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.is_file():
            checksum.update(f"{path.name}\0{path.stat().st_size}\0".encode())
            checksum.update(path.read_bytes())
    return checksum.hexdigest()
