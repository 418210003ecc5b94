"""site.toml: one cluster, or this machine; each field is a key, see docs/reference/site.md."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from hpcbert.config import slurm_arguments
from hpcbert.config.options import Options, Runtime, check_runtime
from hpcbert.config.places import default_site, find_site
from hpcbert.config.schedulers import check_scheduler
from hpcbert.config.toml import read
from hpcbert.errors import ConfigError
from hpcbert.model import OptionValue, Precision
from hpcbert.slurm import commands
from hpcbert.slurm.hostlist import expand
from hpcbert.system import decode, redact
from hpcbert.system.decode import GIVEN, Count, EncodedAs, Filled, Invalid, Range
from hpcbert.timelimit import TimeLimit

_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# Variables by which Slurm, its PMI and hpcbert's scripts inform the ranks (sbatch(1) and srun(1),
# OUTPUT ENVIRONMENT VARIABLES; job.bash, rank.bash), and those that steer Slurm's own commands.
_RESERVED_PREFIXES = ("SLURM", "SBATCH_", "SRUN_", "PMI_", "PMIX_", "HPCBERT_")
# Slurm decides which devices a rank sees (gres.conf(5), AutoDetect), and for the CPU, hpcbert.
_RESERVED_NAMES = (
    *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    *("GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK"),
    *("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
)
# bash refuses to export these (bash(1), Shell Variables).
_READ_ONLY = frozenset({"BASHOPTS", "BASH_VERSINFO", "EUID", "PPID", "SHELLOPTS", "UID"})
# Where a job may run and who pays for it: options of sbatch and srun. sbatch reads them from
# SBATCH_PARTITION and so on too (SchedMD/slurm, src/sbatch/opt.c, env_vars); SLURM_PARTITION is
# srun's and SALLOC_PARTITION is salloc's.
_SELECTION = ("partition", "account", "qos", "reservation", "constraint")


def check_variable(name: str) -> str:
    """Return a valid name for an environment variable."""
    if not _VARIABLE_NAME.fullmatch(name):
        raise Invalid("is not a valid name for an environment variable")
    return name


def check_point_variable(name: str) -> str:
    """Return the name of a variable that the user may set for a point.

    Raises:
        Invalid: It is not a name, or something else sets it, or it names a secret.
    """
    check_variable(name)
    if name.startswith(_RESERVED_PREFIXES) or name in _RESERVED_NAMES:
        raise Invalid("is set by Slurm or hpcbert itself", "Leave it out.")
    if name in _READ_ONLY:
        raise Invalid("belongs to bash, which refuses to set it", "Leave it out.")
    if redact.is_secret_name(name):
        raise Invalid("may hold a secret, and would appear in scripts and tables", _SECRETS_HINT)
    return name


_SECRETS_HINT = "Put it where the program reads it itself, such as a file in your home directory."


def check_point_value(text: str) -> str:
    """Return a value that the user may give to a variable of a point.

    Raises:
        Invalid: It holds a control character or looks like a secret.
    """
    if _CONTROL.search(text):
        raise Invalid("holds a line break or another control character", value=text)
    if redact.mask_text(text) != text:
        raise Invalid("looks like a secret, and would appear in scripts and tables", _SECRETS_HINT)
    return text


CpuBind = Literal["gpu", "none", "cluster"]
GpuOption = Literal["gres", "gpus-per-node", "gpus"]
_HOUR = TimeLimit.parse("01:00:00")


def _check_arguments(program: str, words: tuple[str, ...]) -> tuple[str, ...]:
    if reason := slurm_arguments.explain_refusal(program, words):
        raise Invalid(f"can't be passed on: {reason}", "Leave it out there.")
    return words


def _check_absolute(path: str) -> str:
    if path and not Path(path).is_absolute():
        raise Invalid("must be an absolute path, because every node looks it up")
    return path


_Variable = Annotated[str, check_variable]
_BatchSize = Annotated[int, Range(1, 1_000_000)]


# Value of `frameworks.NAME.data` if `prepare` makes the data.
SYNTHETIC = "synthetic"


@dataclass(frozen=True)
class FrameworkSettings:
    """The settings of a site for one framework: `[frameworks.NAME]` in site.toml."""

    image: str = ""
    data: str = ""
    samples: Count = 4096
    source: str = ""
    repository: str = ""
    python: str = ""
    model: str = ""
    device: str = ""
    batch_sizes: Mapping[Precision, _BatchSize] = field(default_factory=dict)
    options: Mapping[str, OptionValue] = field(default_factory=dict)


@dataclass(frozen=True)
class SlurmSettings:
    """The settings for submitting jobs: `[slurm]` in site.toml.

    Attributes:
        nodelist: Nodes to run on; a point that needs fewer takes the first.
    """

    partition: str = ""
    account: str = ""
    qos: str = ""
    reservation: str = ""
    constraint: str = ""
    nodelist: Annotated[str, GIVEN] = ""
    exclude: Annotated[str, GIVEN] = ""
    gres: str = "gpu"
    gpu_option: GpuOption = "gres"
    time_limit: TimeLimit = _HOUR
    mpi: str = ""
    exclusive: bool = True
    memory: str = ""
    requeue: bool = True
    sbatch_args: Annotated[tuple[str, ...], partial(_check_arguments, "sbatch")] = ()
    srun_args: Annotated[tuple[str, ...], partial(_check_arguments, "srun")] = ()
    poll_floor: Annotated[float, Range(0.1, 3600, "must be above 0 seconds: 0.1 to 3600")] = 10.0

    @property
    def node_memory(self) -> str:
        """The memory to request from sbatch: a cluster's default is a part of a whole node."""
        has_memory = any(word.startswith("--mem") for word in self.sbatch_args)
        return self.memory or ("0" if self.exclusive and not has_memory else "")

    def request_gpus(self, nodes: int, gpus_per_node: int) -> tuple[str, ...]:
        """Return sbatch's option for the GPUs of a job; none if the site requests none."""
        name, _, kind = self.gres.partition(":")
        if not name:
            return ()
        if name != "gpu" or self.gpu_option == "gres":
            return (f"--gres={self.gres}:{gpus_per_node}",)
        count = gpus_per_node * (nodes if self.gpu_option == "gpus" else 1)
        return (f"--{self.gpu_option}={f'{kind}:' if kind else ''}{count}",)

    def request_options(self, nodes: int, tasks: int, *, gpus: int, cpus: int) -> list[str]:
        """Return sbatch's options for what a job needs.

        Args:
            nodes: Number of nodes; the other arguments are of each node.
            cpus: Of each task; 0 if unknown.
        """
        options = [f"--nodes={nodes}", f"--ntasks-per-node={tasks}"]
        options += ["--distribution=block", "--wait-all-nodes=1", *self.selection]
        options += self.request_gpus(nodes, gpus) if gpus else ()
        options += [f"--cpus-per-task={cpus}"] if cpus else []
        options += [f"--mem={self.node_memory}"] if self.node_memory else []
        options += ["--exclusive"] if self.exclusive else []
        return [*options, f"--time={self.time_limit.text}"]

    @property
    def has_gpus(self) -> bool:
        """Whether jobs request GPUs: by `gres`, or by one of the further options."""
        values = slurm_arguments.argument_values((*self.sbatch_args, *self.srun_args))
        resources = f"{values.get('gres', '')},{values.get('tres-per-task', '')}"
        has_option = "gpu" in resources or any(name.startswith("gpus") for name in values)
        return bool(self.gres) or has_option

    @property
    def selection(self) -> tuple[str, ...]:
        """The options of sbatch and srun for where a job may run and who pays for it."""
        values = ((name, getattr(self, name)) for name in _SELECTION)
        return tuple(f"--{name}={value}" for name, value in values if value)

    def placement(self, nodes: int) -> tuple[str, ...]:
        """Return sbatch's options for the nodes of a job with this many nodes.

        They follow `sbatch_args`: of several, sbatch takes the last.
        """
        node_names = expand(self.nodelist)
        # All of them would become part of the job, however few it requests (sbatch(1), --nodelist).
        nodelist = ",".join(node_names[:nodes]) if len(node_names) > nodes else self.nodelist
        excluded_nodes = slurm_arguments.argument_value(self.sbatch_args, "exclude")
        exclude = ",".join(filter(None, (excluded_nodes, self.exclude))) if self.exclude else ""
        values = (("nodelist", nodelist), ("exclude", exclude))
        return tuple(f"--{name}={value}" for name, value in values if value)


@dataclass(frozen=True)
class NodeSettings:
    """The nodes: `[nodes]` in site.toml."""

    gpus_per_node: Annotated[int, Range(1, 1024)] = 8
    cpus_per_gpu: Annotated[int, Range(0, 4096)] = 0
    cpu_bind: CpuBind = "gpu"
    drop_caches: tuple[str, ...] = ()
    interface: str = ""
    sampling: Annotated[int, Range(0, 3600)] = 1


@dataclass(frozen=True)
class ContainerSettings:
    """The container of the ranks: `[container]` in site.toml."""

    runtime: Annotated[Runtime, EncodedAs(str, check_runtime)] = "none"
    images: Filled = "images"
    mounts: tuple[str, ...] = ()
    home: bool = False
    remap_root: bool = False
    entrypoint: bool = False
    env: tuple[_Variable, ...] = ()
    scratch: Annotated[str, _check_absolute] = ""


@dataclass(frozen=True)
class Site:
    """One cluster, or this machine: a nested site.toml, with overrides from the command line.

    Attributes:
        named: Whether the user named that file.
        variables: The environment variable that sets a key, by the dotted key.
    """

    where: Annotated[str, GIVEN]
    name: Filled
    scheduler: Annotated[str, check_scheduler]
    runs: Filled = "runs"
    sources: Filled = "sources"
    slurm: SlurmSettings = SlurmSettings()
    nodes: NodeSettings = NodeSettings()
    container: ContainerSettings = ContainerSettings()
    env: Mapping[_Variable, str] = field(default_factory=dict)
    frameworks: Mapping[str, FrameworkSettings] = field(default_factory=dict)
    named: Annotated[bool, GIVEN] = False
    variables: Annotated[Mapping[str, str], GIVEN] = field(default_factory=dict)

    def settings(self, framework: str) -> FrameworkSettings:
        """Return the site's settings for a framework, or only defaults."""
        return self.frameworks.get(framework, FrameworkSettings())


def load(
    flag: str = "",
    options: Options | None = None,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Site:
    """Find and read the site.toml, and apply the command line's overrides, once for all.

    Args:
        flag: The value of `--site`: a file, or a folder with a site.toml; empty if not given.

    Raises:
        ConfigError: The file is wrong or, if it was named, missing.
    """
    env = os.environ if env is None else env
    cwd = Path.cwd() if cwd is None else cwd
    path, _ = find_site(flag, env=env, cwd=cwd)
    is_named = bool(flag or env.get("HPCBERT_SITE"))
    # The embedded default may be in site-packages: its runs belong where the user is.
    base = cwd if path == default_site() and path.parent.name == "_templates" else path.parent
    site = replace(read_site(path, base=base, env=env), named=is_named)
    return _apply_variables(_apply_options(site, options or Options(), cwd), env)


def _apply_variables(site: Site, env: Mapping[str, str]) -> Site:
    """Fill in from sbatch's own variables what neither options nor the site say."""
    arguments = slurm_arguments.argument_values(site.slurm.sbatch_args)
    values: dict[str, Any] = {}
    variables = dict(site.variables)
    for name in _SELECTION:
        variable = f"SBATCH_{name.upper()}"
        value = env.get(variable, "").strip()
        if value and name not in arguments and not getattr(site.slurm, name):
            if not value.isprintable():
                message = "It holds a line break, or a character that does not print."
                raise ConfigError(message, where=variable, hint=f"unset {variable}")
            values[name], variables[f"slurm.{name}"] = value, variable
    return replace(site, slurm=replace(site.slurm, **values), variables=variables)


def _apply_options(site: Site, options: Options, cwd: Path) -> Site:
    slurm = options.site_values("slurm")
    if options.time_limit:
        slurm["time_limit"] = TimeLimit.parse(options.time_limit)
    mail_words = commands.parse_mail(options.notify)
    slurm["sbatch_args"] = (*site.slurm.sbatch_args, *options.sbatch_arg, *mail_words)
    slurm["srun_args"] = (*site.slurm.srun_args, *options.srun_arg)
    frameworks = dict(site.frameworks)
    framework_values = options.site_values("framework")
    if options.repository:
        framework_values["repository"] = options.repository
    if framework_values:
        settings = replace(site.settings(options.fw), **framework_values)
        frameworks[options.fw] = resolve_paths(settings, cwd)
    return replace(
        site,
        runs=str((cwd / options.runs).absolute()) if options.runs else site.runs,
        slurm=replace(site.slurm, **slurm),
        container=replace(site.container, **options.site_values("container")),
        frameworks=frameworks,
    )


def read_site(path: Path, *, base: Path, env: Mapping[str, str]) -> Site:
    """Read one site.toml strictly; HPCBERT_RUNS overrides the directory of campaigns.

    Raises:
        ConfigError: The file is wrong; the message names file and key.
    """
    site = decode.decode(Site, read(path), file=str(path), where=str(path))
    runs = env.get("HPCBERT_RUNS", "").strip()
    return replace(
        site,
        runs=_make_absolute(runs or site.runs, base),
        variables={"runs": "HPCBERT_RUNS"} if runs else {},
        sources=_make_absolute(site.sources, base),
        container=replace(site.container, images=_make_absolute(site.container.images, base)),
        frameworks={
            name: resolve_paths(framework, base) for name, framework in site.frameworks.items()
        },
    )


def resolve_paths(settings: FrameworkSettings, base: Path) -> FrameworkSettings:
    """Return settings with absolute paths, because a job starts in another directory.

    Words stay as they are: `synthetic`, a URL, an interpreter on PATH.
    """
    repository, python, data = settings.repository, settings.python, settings.data
    is_path = repository.startswith((".", "~")) or (repository and (base / repository).exists())
    return replace(
        settings,
        image=resolve_image(settings.image, base),
        data=_make_absolute(data, base) if data not in {"", SYNTHETIC} else data,
        source=_make_absolute(settings.source, base) if settings.source else "",
        python=_make_absolute(python, base) if "/" in python else python,
        repository=_make_absolute(repository, base) if is_path else repository,
    )


def resolve_image(text: str, base: Path) -> str:
    """Return an image reference, with the path of a file made absolute."""
    return _make_absolute(text, base) if text.startswith(("~/", ".")) else text


def _make_absolute(text: str, base: Path) -> str:
    return str((base / Path(text).expanduser()).absolute())


def list_origins(site: Site) -> dict[str, tuple[Any, str]]:
    """Return every setting's value and origin by its dotted key in site.toml."""
    file_keys = set(flatten(read(Path(site.where))))
    return {
        key: (value, site.variables.get(key) or (site.where if key in file_keys else "default"))
        for key, value in flatten(to_plain(site)).items()
    }


def to_plain(value: Any) -> Any:
    """Return a value as in a site.toml: tables as dicts, values written as text as text."""
    if isinstance(value, TimeLimit):
        return value.text
    if dataclasses.is_dataclass(value):
        names = [field.name for field in decode.document_fields(value.__class__)]
        return {name: to_plain(getattr(value, name)) for name in names}
    if isinstance(value, dict):
        return {name: to_plain(entry) for name, entry in value.items()}
    return value


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested tables by their dotted keys."""
    entries: dict[str, Any] = {}
    for name, value in values.items():
        nested = isinstance(value, dict)
        entries |= flatten(value, f"{prefix}{name}.") if nested else {f"{prefix}{name}": value}
    return entries
