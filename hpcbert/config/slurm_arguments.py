"""Arguments of the user's own for sbatch and srun: which are hpcbert's to set, and their values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

# A name, and what follows `=` or a blank: a word with a blank in it was meant to be two.
_LONG = re.compile(r"--([^=\s]+)(?:[=\s](.*))?", re.DOTALL)
# Without a value, or with one only after `=` (SchedMD/slurm, src/common/slurm_opt.c@d525b68): the
# next word is not its value, but would be taken for a script or a command.
_FLAG_WORDS = """
    async bcast compress consolidate-segments contiguous debugger-test disable-status exact
    exclusive external external-launcher get-user-env help hold ignore-pbs immediate interactive
    kill-on-bad-exit label multi-prog nice no-allocate no-kill no-requeue oom-kill-step overcommit
    overlap oversubscribe parsable preserve-env propagate pty quiet quit-on-interrupt reboot requeue
    resv-ports send-libs spread-job spread-segments stepmgr test-only unbuffered usage
    use-min-nodes verbose version wait-for-children whole
"""
_LETTER_PAIRS = """
    A=account B=extra-node-info C=constraint D=chdir F=nodefile G=gpus H=hold J=job-name L=licenses
    M=clusters N=nodes O=overcommit Q=quiet S=core-spec V=version W=wait b=begin c=cpus-per-task
    d=dependency e=error h=help i=input k=no-kill m=distribution n=ntasks o=output p=partition
    q=qos s=oversubscribe t=time v=verbose w=nodelist x=exclude
"""
_SRUN_LETTER_PAIRS = """
    E=preserve-env I=immediate K=kill-on-bad-exit T=threads X=disable-status Z=no-allocate l=label
    r=relative u=unbuffered
"""
# Options of pyxis.
_PYXIS_WORDS = """
    container-env container-image container-mounts container-name container-save container-workdir
    container-mount-home no-container-mount-home container-remap-root no-container-remap-root
    container-entrypoint no-container-entrypoint container-writable container-readonly
"""
_FLAGS = frozenset(_FLAG_WORDS.split())
# Without a letter, but read here, so that an abbreviation of them must be known too.
_READ_NAMES = frozenset({"comment", "gres", "mem", "mpi"})

_NODES = "hpcbert's --nodes sets the nodes of a point"
_TASKS = "hpcbert's --nodes and --gpus-per-node set the ranks of a point"
_LOGS = "hpcbert keeps logs and output in the campaign"
_ENVIRONMENT = "[env] of the site.toml sets variables for the ranks"
_ENVIRONMENT_OPTIONS = ("environment", "uenv", "view")
_IMAGE = "--image, --runtime and [container] of the site.toml set the container"
_NOTHING = "with it, nothing would run; hpcbert submit --dry-run checks without running"
_RESERVED = {
    "nodes": _NODES,
    **dict.fromkeys(("ntasks", "ntasks-per-node", "tasks-per-node"), _TASKS),
    **dict.fromkeys(("output", "error", "open-mode"), _LOGS),
    **dict.fromkeys(("export", "export-file"), _ENVIRONMENT),
    **dict.fromkeys(("help", "usage", "version", "test-only"), _NOTHING),
    **dict.fromkeys(_PYXIS_WORDS.split(), _IMAGE),
    "chdir": "the job's directory is the campaign, and --runs sets the directory of campaigns",
    "uid": "jobs belong to their submitter",
    "gid": "jobs belong to their submitter",
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


class _Program(NamedTuple):
    """What hpcbert knows of the arguments of sbatch or srun.

    Attributes:
        letters: Long names of short options.
        reserved: Why an option is hpcbert's own, by its long name.
    """

    letters: dict[str, str]
    reserved: dict[str, str]

    def expand_name(self, name: str) -> str:
        """Return the long name of an abbreviation, as getopt does; a reserved one if in doubt."""
        names = _FLAGS | _READ_NAMES | set(self.letters.values()) | set(self.reserved)
        if name in names or name == "container":  # Slurm's own, for OCI bundles
            return name
        matches = sorted(known for known in names if known.startswith(name))
        return next((match for match in matches if match in self.reserved), [*matches, name][0])


def _make_program(letter_pairs: str, reserved: dict[str, str]) -> _Program:
    return _Program(dict(pair.split("=") for pair in letter_pairs.split()), reserved)


_PROGRAMS = {
    "sbatch": _make_program(f"{_LETTER_PAIRS} a=array", _SBATCH_RESERVED),
    "srun": _make_program(_LETTER_PAIRS + _SRUN_LETTER_PAIRS, _SRUN_RESERVED),
}


class _Option(NamedTuple):
    """One option among arguments; without a name if the word is not an option."""

    word: str
    name: str = ""
    value: str = ""


def explain_refusal(program: str, words: Sequence[str]) -> str:
    """Return which arguments for sbatch or srun can't be passed on, and why; empty if all can.

    Args:
        program: `sbatch` or `srun`.
        words: As the user gives them: `--mem=0`, `-J name`, or `-J` and `name`.
    """
    for word, name, value in _parse_words(_PROGRAMS[program], words):
        if not name:
            return f"{word!r} is not an option of {program}."
        if name == "export" and program == "sbatch" and value.lower() in _EXPORTS:
            continue
        if reason := _PROGRAMS[program].reserved.get(name):
            return f"{word!r} ({program}'s --{name}) is hpcbert's own: {reason}."
    return ""


def argument_value(words: Sequence[str], name: str, program: str = "sbatch") -> str:
    """Return the value that arguments give to an option, the last of several; else empty."""
    return argument_values(words, program).get(name, "")


def argument_values(words: Sequence[str], program: str = "sbatch") -> dict[str, str]:
    """Return the value of each option in the arguments, the last of several, by its long name."""
    return {option.name: option.value for option in _parse_words(_PROGRAMS[program], words)}


def environment_arguments(words: Sequence[str]) -> tuple[str, ...]:
    """Return arguments for srun with which a site's plugin changes the programs' environment.

    They are options of plugins: `--environment` of CSCS' container engine takes an EDF file
    (docs.cscs.ch, Container Engine), `--uenv` and `--view` a mounted software stack
    (eth-cscs/slurm-uenv-mount).
    """
    arguments: list[str] = []
    for word, name, value in _parse_words(_PROGRAMS["srun"], words):
        if name in _ENVIRONMENT_OPTIONS:
            has_value = "=" in word or " " in word
            arguments += [word] if has_value or not value else [word, value]
    return tuple(arguments)


def _parse_words(program: _Program, words: Sequence[str]) -> list[_Option]:
    """Read arguments as getopt_long does, except that a value apart must not begin with a dash."""
    options: list[_Option] = []
    lacks_value = False
    for word in words:
        if word.startswith("-") and word.strip("-"):
            options += _parse_option(program, word)
            lacks_value = _may_lack_value(options[-1])
        elif lacks_value:
            options[-1] = options[-1]._replace(value=word)
            lacks_value = False
        else:
            options.append(_Option(word))
    return options


def _may_lack_value(option: _Option) -> bool:
    is_known = len(option.name) > 1 and option.name not in _FLAGS
    return is_known and not option.value and "=" not in option.word


def _parse_option(program: _Program, word: str) -> list[_Option]:
    """Read a long option, or short ones of which the first with a value takes the rest."""
    if long := _LONG.fullmatch(word):
        return [_Option(word, program.expand_name(long[1]), long[2] or "")]
    options: list[_Option] = []
    for position, letter in enumerate(word[1:], start=2):
        name = program.letters.get(letter, letter)
        if letter in program.letters and name not in _FLAGS:
            return [*options, _Option(word, name, word[position:].strip())]
        options.append(_Option(word, name))
    return options
