"""Which options of sbatch and srun are hpcbert's own, in every spelling that getopt accepts.

The tables are those of SchedMD/slurm, src/common/slurm_opt.c@d525b68, for all releases from 22.05
to 26.05 together: an abbreviation is refused if any of them could read it as an option of
hpcbert's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

# A name, and what follows `=` or a blank: a word with a blank in it was meant to be two.
_LONG = re.compile(r"--([^=\s]+)(?:[=\s](.*))?", re.DOTALL)
# Without a value, or with one only after `=`.
_FLAGS = """
    async bcast compress consolidate-segments contiguous debugger-test disable-status exact
    exclusive external external-launcher get-user-env help hold ignore-pbs immediate interactive
    kill-on-bad-exit label multi-prog nice no-allocate no-kill no-requeue oom-kill-step overcommit
    overlap oversubscribe parsable preserve-env propagate pty quiet quit-on-interrupt reboot requeue
    resv-ports send-libs spread-job spread-segments stepmgr test-only unbuffered usage
    use-min-nodes verbose version wait-for-children whole
    container-mount-home no-container-mount-home container-remap-root no-container-remap-root
    container-entrypoint no-container-entrypoint container-writable container-readonly
"""
# With a value, in the same word or in the next.
_VALUED = """
    account acctg-freq autocomplete bb bbf begin chdir cluster cluster-constraint clusters comment
    constraint container container-id container-type context core-spec cores-per-socket cpu-freq
    cpus-per-gpu cpus-per-task deadline delay-boot dependency distribution error exclude export
    extra extra-node-info gid gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task
    gres gres-flags hint input job-name licenses mail-type mail-user mcs-label mem mem-bind
    mem-per-cpu mem-per-gpu mem-update mincpus network nodefile nodelist nodes ntasks
    ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket ntasks-per-tres open-mode
    output partition power prefer priority profile qos reservation resources segment signal
    sockets-per-node switches tasks-per-node thread-spec threads-per-core time time-min tmp
    tres-bind tres-per-task uid wckey
    container-env container-image container-mounts container-name container-save container-workdir
"""
_SBATCH_VALUED = "array batch export-file kill-on-invalid-dep wait-all-nodes wrap"
_SRUN_VALUED = """
    accel-bind bcast-exclude cpu-bind cpu_bind epilog het-group ignore-signals jobid mpi msg-timeout
    pack-group prolog relative slurmd-debug task-epilog task-prolog threads treewidth wait
"""
_SHORT = """
    A=account B=extra-node-info C=constraint D=chdir F=nodefile G=gpus H=hold J=job-name L=licenses
    M=clusters N=nodes O=overcommit Q=quiet S=core-spec V=version W=wait b=begin c=cpus-per-task
    d=dependency e=error h=help i=input k=no-kill m=distribution n=ntasks o=output p=partition
    q=qos s=oversubscribe t=time v=verbose w=nodelist x=exclude
"""
_SBATCH_SHORT = "a=array"
_SRUN_SHORT = """
    E=preserve-env I=immediate K=kill-on-bad-exit T=threads X=disable-status Z=no-allocate l=label
    r=relative u=unbuffered
"""

_NODES = "hpcbert's --nodes sets the nodes of a point"
_TASKS = "hpcbert's --nodes and --gpus-per-node set the ranks of a point"
_LOGS = "hpcbert keeps logs and output in the campaign"
_ENVIRONMENT = "[env] of the site.toml sets variables for the ranks"
_ENVIRONMENT_OPTIONS = ("environment", "uenv", "view")
_PLUGIN_OPTIONS = " ".join(("", *_ENVIRONMENT_OPTIONS))
_IMAGE = "--image, --runtime and [container] of the site.toml set the container"
_NOTHING = "with it, nothing would run; hpcbert submit --dry-run checks without running"
_RESERVED = {
    "nodes": _NODES,
    **dict.fromkeys(("ntasks", "ntasks-per-node", "tasks-per-node"), _TASKS),
    **dict.fromkeys(("output", "error", "open-mode"), _LOGS),
    **dict.fromkeys(("export", "export-file"), _ENVIRONMENT),
    **dict.fromkeys(("help", "usage", "version", "test-only"), _NOTHING),
    **{word: _IMAGE for word in (_FLAGS + _VALUED).split() if "container-" in word},
    "chdir": "the job's directory is the campaign, and --runs sets the directory of campaigns",
    "uid": "jobs belong to their submitter",
    "gid": "jobs belong to their submitter",
}
# Slurm's own, for OCI bundles.
_RESERVED = {
    name: reason
    for name, reason in _RESERVED.items()
    if name not in {"container-id", "container-type"}
}
# Some centres require this of all jobs: a script then passes its own environment on to its steps.
_EXPORTS = frozenset({"none", "nil", "all"})
_SBATCH_RESERVED = {
    **_RESERVED,
    "job-name": "hpcbert names its jobs, so that they can be found again",
    "array": "hpcbert's --repeats and --concurrent-repeats set the array",
    "dependency": "points wait for each other unless --concurrent-points is given",
    "requeue": "requeue in [slurm] of the site.toml decides whether Slurm may start a job again",
    "no-requeue": "requeue in [slurm] of the site.toml decides whether Slurm may start a job again",
    "parsable": "hpcbert sets it itself",
    "wait": "hpcbert submit --wait waits",
    "wrap": "the script is hpcbert's; --python, --source and --set decide what it runs",
}
_SRUN_RESERVED = {
    **_RESERVED,
    "input": "ranks read no input",
    "jobid": "the step belongs to its own job",
    "kill-on-bad-exit": "hpcbert sets it itself",
    "label": "labels would be part of the log",
    "multi-prog": "all ranks run one program",
    "no-allocate": "the step belongs to its own job",
    "pty": "the log would have terminal codes",
    "wait": "hpcbert sets it itself",
}


@dataclass(frozen=True)
class _Program:
    """The grammar of one program's arguments."""

    name: str
    alone: frozenset[str]
    valued: frozenset[str]
    short: Mapping[str, str]
    own: Mapping[str, str]

    def expand_name(self, name: str) -> tuple[str, ...]:
        """Return the options that a long name may mean: itself, or all that it abbreviates."""
        if name in self.alone or name in self.valued:
            return (name,)
        options = self.alone | self.valued
        return tuple(sorted(option for option in options if option.startswith(name)))


def _build_program(
    name: str, alone: str, valued: str, short: str, reserved: Mapping[str, str]
) -> _Program:
    letters = dict(pair.split("=") for pair in short.split())
    return _Program(name, frozenset(alone.split()), frozenset(valued.split()), letters, reserved)


_PROGRAMS = {
    program.name: program
    for program in (
        _build_program(
            *("sbatch", f"{_FLAGS} wait", _VALUED + _SBATCH_VALUED + _PLUGIN_OPTIONS),
            *(f"{_SHORT} {_SBATCH_SHORT}", _SBATCH_RESERVED),
        ),
        _build_program(
            *("srun", _FLAGS, _VALUED + _SRUN_VALUED + _PLUGIN_OPTIONS),
            *(_SHORT + _SRUN_SHORT, _SRUN_RESERVED),
        ),
    )
}


def explain_refusal(program: str, words: Sequence[str]) -> str:
    """Return which arguments for sbatch or srun can't be passed on, and why; empty if all can.

    Args:
        program: `sbatch` or `srun`.
        words: As the user gives them: `--mem=0`, `-J name`, or `-J` and `name`.
    """
    reader = _PROGRAMS[program]
    for option in _parse_words(reader, words):
        if not option.names:
            return f"{option.word!r} is not an option of {program}."
        for name in option.names:
            if name in reader.own and not _is_harmless(program, name, option.value):
                return (
                    f"{option.word!r} ({program}'s --{name}) is hpcbert's own: {reader.own[name]}."
                )
    return ""


def _is_harmless(program: str, name: str, value: str) -> bool:
    """Return whether a value of an option that is hpcbert's own makes no difference for ranks."""
    return (program, name) == ("sbatch", "export") and value.lower() in _EXPORTS


def argument_value(words: Sequence[str], name: str, program: str = "sbatch") -> str:
    """Return the value that arguments give to an option of sbatch, the last of several; else empty.

    Args:
        words: As the user gives them.
        name: The option's long name.
        program: The program, if it is srun.
    """
    return argument_values(words, program).get(name, "")


def argument_values(words: Sequence[str], program: str = "sbatch") -> dict[str, str]:
    """Return the value of each option in the arguments, the last of several, by its long name."""
    options = _parse_words(_PROGRAMS[program], words)
    return {option.names[0]: option.value for option in options if len(option.names) == 1}


def environment_arguments(words: Sequence[str]) -> tuple[str, ...]:
    """Return arguments for srun with which a site's plugin changes the programs' environment.

    They are options of plugins: `--environment` of CSCS' container engine takes an EDF file
    (docs.cscs.ch, Container Engine), `--uenv` and `--view` a mounted software stack
    (eth-cscs/slurm-uenv-mount). The value may be a word of its own.

    Args:
        words: As the user gives them for srun.
    """
    arguments: list[str] = []
    iterator = iter(words)
    for word in iterator:
        name, equals, _ = word.removeprefix("--").partition("=")
        if word.startswith("--") and name in _ENVIRONMENT_OPTIONS:
            arguments += (
                [word] if equals else [word, *([value] if (value := next(iterator, "")) else [])]
            )
    return tuple(arguments)


@dataclass(frozen=True)
class _Option:
    """One option among arguments.

    Attributes:
        word: As it was given.
        names: Its possible meanings; none if it is not an option at all.
    """

    word: str
    names: tuple[str, ...] = ()
    value: str = ""


def _parse_words(reader: _Program, words: Sequence[str]) -> Iterator[_Option]:
    """Read arguments as getopt_long does: abbreviations, joined short options, values apart."""
    iterator = iter(words)
    for word in iterator:
        match = _LONG.fullmatch(word)
        if match:
            names = reader.expand_name(match[1]) or (match[1],)
            takes_value = len(names) == 1 and names[0] in reader.valued and match[2] is None
            yield _Option(word, names, next(iterator, "") if takes_value else match[2] or "")
        elif word[:1] == "-" and word[1:].strip("-"):
            yield from _parse_letters(reader, word, iterator)
        else:
            yield _Option(word)


def _parse_letters(reader: _Program, word: str, iterator: Iterator[str]) -> Iterator[_Option]:
    """Read short options that share an argument; the first with a value takes the rest of it."""
    for position, letter in enumerate(word[1:], start=2):
        name = reader.short.get(letter, letter)
        if name in reader.valued:
            yield _Option(word, (name,), word[position:].strip() or next(iterator, ""))
            return
        yield _Option(word, (name,))
