"""One suite for all runtimes: what a rank finds must not depend on how it got into its image.

Each runtime runs a handful of jobs through `hpcbert submit` on the lab's four nodes; every test reads
what their ranks wrote down. enroot is the real one where HPCBERT_ENROOT or PATH names it, and pyxis
where HPCBERT_PYXIS names its plugin; else the stand-ins beside this file. Apptainer is tried where
HPCBERT_APPTAINER or PATH names it (Debian unstable and Ubuntu have a package), and by nobody's stand-in.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from hpcbert.lab.files import has_pmix
from hpcbert.system.runner import run
from tests.kit.cases import cases
from tests.kit.containers import (
    HERE,
    SYSTEM_PATH,
    Image,
    open_stand_ins,
    real_apptainer,
    real_enroot,
)
from tests.kit.doctor import set_key
from tests.kit.lab_faults import start_daemon, stop_daemon
from tests.kit.needs import lacks, require
from tests.kit.registry import Registry
from tests.kit.waiting import CEILING, unqueued, until

pytestmark = pytest.mark.slurm

RUNTIMES = ["enroot", "pyxis", "apptainer", "none"]
# The same places everywhere, and so one trial after the other: pytest orders by a parameter's place.
EVERY = pytest.mark.parametrize("trial", RUNTIMES, indirect=True)
CONTAINERS = pytest.mark.parametrize("trial", RUNTIMES[:3], indirect=True)
# Those that enter by enter.sh.
JOINS = ["enroot", "apptainer"]
ENROOT = pytest.mark.parametrize("trial", RUNTIMES[:1], indirect=True)

SCRATCH = "/tmp/hpcbert-scratch"
IMAGE_PATH = "/of/the/image:/usr/local/bin:/usr/bin:/bin"
# 200 KiB, in parts: the kernel takes no variable above 128 KiB.
LONG = {f"LONG_{n}": f"{n}$x'\" " * 8600 for n in range(4)}
ON_HOST = {
    "HOST_ONLY": 'it\'s "quoted" `id` $HOME \\n *',
    "MANY_LINES": "one\n'two'\n  three=3 \n",
    "BOTH_SAID": "host",
    "LISTED": "host",
    "LISTED_LINES": "host one\nhost two",
}
IN_IMAGE = {
    "IMAGE_ONLY": "of the image",
    "BOTH_SAID": "image",
    "LISTED": "image",
    "LISTED_LINES": "image",
    "LISTED_ABSENT": "image",
    "BOTH": "image",
}
# What only the others do.
NOT_BINDS = ["tmpfs:/mnt/memory:size=1M", "/etc:/mnt/away", "umount:/mnt/away"]
LISTED = ["LISTED", "LISTED_LINES", "LISTED_ABSENT", "ABSENT_EVERYWHERE"]


@dataclass
class Job:
    """One submitted job."""

    number: str
    campaign: Path
    report: Path

    @cached_property
    def ranks(self) -> list[dict[str, Any]]:
        """What the ranks found, in their order."""
        texts = [path.read_text() for path in self.report.glob("rank*.json")]
        ranks: list[dict[str, Any]] = [json.loads(text) for text in texts]
        return sorted(ranks, key=lambda rank: int(rank["environment"]["SLURM_PROCID"]))

    @property
    def events(self) -> list[dict[str, Any]]:
        paths = (self.campaign / "status").glob("*.jsonl")
        return [json.loads(line) for path in paths for line in path.read_text().splitlines()]

    @property
    def text(self) -> str:
        """All that it and its ranks said."""
        paths = [*(self.campaign / "slurm").iterdir(), *(self.campaign / "logs").rglob("*.log")]
        return "".join(path.read_text(errors="replace") for path in paths)


@dataclass
class Trial:
    """One runtime on the lab, with its images and site descriptions."""

    runtime: str
    folder: Path
    path: str
    as_user: Callable[..., Any]
    checkout: Any
    lab: Any
    user: Any
    jobs: dict[str, Job] = field(default_factory=dict)

    def submit(
        self,
        name: str,
        shape: str,
        act: str,
        site: str = "site",
        variables: Mapping[str, str] = ON_HOST,
    ) -> Job:
        nodes, gpus = shape.rstrip("g").split("n")
        report = self.folder / f"report {name}"
        self.as_user(["mkdir", "-p", str(report)])
        words = ["--fw", "probe", "--nodes", nodes, "--gpus-per-node", gpus, "--repeats", "1"]
        words += ["--set", f"act={act}", "--set", f"report={report}"]
        if site == "strict":
            words += ["--templates", str(self.folder / "strict-templates")]
        result = self.hpcbert("submit", *words, "--json", site=site, variables=variables)
        assert result.ok, result.stdout + result.stderr
        data = json.loads(result.stdout)["data"]
        (array,) = data["arrays"]
        self.jobs[name] = Job(array["job_id"], Path(data["directory"]), report)
        return self.jobs[name]

    def hpcbert(
        self,
        *words: str,
        site: str = "site",
        timeout: float = CEILING,
        variables: Mapping[str, str] = ON_HOST,
    ) -> Any:
        environment = {
            **variables,
            "ENROOT_ALLOW_HTTP": "y",
            "PATH": self.path,
            "PYTHONPATH": str(self.checkout.path),
            "HPCBERT_SITE": str(self.folder / f"{site}.toml"),
        }
        command = [self.checkout.python, "-m", "hpcbert", *words]
        return self.as_user(command, env=environment, cwd=self.folder, timeout=timeout)

    def wait(self, *jobs: Job) -> None:
        """Wait until none of these jobs is in the queue, and accounting knows how they ended."""
        numbers = ",".join(job.number for job in jobs)
        words = ["squeue", "--noheader", "--format=%i %T %r", f"--jobs={numbers}"]
        until(lambda: unqueued(self.as_user(words)), lambda: str(self.as_user(words)))

    def wait_for_ranks(self, job: Job, number: int) -> None:
        """Wait until so many ranks wait for their end."""

        def ready() -> bool:
            if any(event["event"] == "end" for event in job.events):
                pytest.fail(f"it ended: {job.text}")
            return len(list(job.report.glob("*.waits"))) == number

        until(ready, lambda: job.text)

    def state(self, job: Job) -> list[str]:
        """Return state and exit code as accounting has them."""
        words = ["sacct", "-X", "-P", "-n", "-j", job.number, "-o", "State,ExitCode"]
        ended = ("COMPLETED", "FAILED", "CANCELLED")
        until(
            lambda: self.as_user(words).stdout.startswith(ended), lambda: self.as_user(words).stdout
        )
        row: list[str] = self.as_user(words).stdout.strip().split("|")
        return row

    def on_nodes(self, command: str) -> str:
        """Run a command as root on every node; return all that it printed."""
        output = ""
        for process in self.lab.node_hosts.values():
            enter = ["nsenter", f"--target={process.pid}", "--mount", "--pid", "--uts"]
            outcome = run([*enter, "sh", "-c", command])
            output += outcome.stdout + outcome.stderr
        return output

    def kill_leaders(self, job: Job) -> None:
        """Kill the processes that keep a job's containers, on all of its nodes."""
        notes = f"{SCRATCH}/hpcbert-{self.user.uid}/state/hpcbert-{job.number}-*/step-*/leader"
        killed = self.on_nodes(
            f"for note in {notes}; do"
            '  if [ -f "$note" ]; then read -r pid _ <"$note" && kill -KILL "$pid" && echo killed; fi;'
            " done"
        )
        assert set(killed.split()) == {"killed"}  # the second may end with the first

    def leftovers(self) -> str:
        """Return processes of the user and unpacked images that are on any node."""
        trees = f"find /tmp /dev/shm -user {self.user.uid} -not -path '*/cache/*' -path '*/etc/rc'"
        shared = f"find /dev/shm -user {self.user.uid} -type f"
        return self.on_nodes(f"ps -o pid=,args= -U {self.user.uid}; {trees}; {shared}")


@pytest.fixture(scope="module")
def commands(open_directory: Path) -> Path:
    require("squashfs")
    return open_stand_ins(open_directory / "stand-ins")


@pytest.fixture(scope="module")
def trial(
    request: pytest.FixtureRequest,
    commands: Path,
    as_user: Any,
    checkout: Any,
) -> Iterator[Trial]:
    """Submit all jobs of a runtime and wait until they are over."""
    runtime: str = request.param
    if runtime == "apptainer" and not real_apptainer():
        lacks("extras", "Apptainer", "not on PATH, and HPCBERT_APPTAINER names none")
    lab, user = request.getfixturevalue("lab"), request.getfixturevalue("user")
    folder = Path(tempfile.mkdtemp(prefix=f"{runtime}-", dir=lab.layout.runs))
    os.chown(folder, user.uid, user.gid)
    new_trial = Trial(runtime, folder, "", as_user, checkout, lab, user)
    new_trial.path = _find_path(new_trial, commands)
    _furnish(new_trial)
    run_jobs(new_trial)
    yield new_trial
    new_trial.on_nodes(f"rm -rf {SCRATCH} /tmp/pyxis-stand-in-{user.uid}")
    shutil.rmtree(folder)


def run_jobs(trial: Trial) -> None:
    meet = "mpi" if has_pmix() else "look"
    look = trial.submit("look", "4n8g", meet, variables={**ON_HOST, **LONG})
    quick = [look, trial.submit("fail", "2n4g", "fail")]
    if trial.runtime != "none":
        quick.append(trial.submit("missing", "1n1g", "look", site="missing"))
        quick.append(trial.submit("strict", "1n2g", "look", site="strict"))
    cancelled = trial.submit("cancel", "2n2g", "wait")
    killed = trial.submit("kill", "2n2g", "wait")
    longer = [cancelled, killed]
    if trial.runtime in JOINS:
        longer.append(trial.submit("leader", "2n2g", "wait"))
    trial.wait(*quick)
    for job in longer:
        trial.wait_for_ranks(job, 4)
    trial.as_user(["scancel", cancelled.number])
    first_of_node_two = killed.ranks[2]
    node = trial.lab.node_hosts[first_of_node_two["host"]]
    run(
        ["nsenter", f"--target={node.pid}", "--pid", "kill", "-KILL", str(first_of_node_two["pid"])]
    )
    if trial.runtime in JOINS:
        trial.kill_leaders(trial.jobs["leader"])
    trial.wait(*longer)
    if trial.runtime == "pyxis" and not os.environ.get("HPCBERT_PYXIS"):
        # What the plugin's epilog does when a job ends.
        trial.on_nodes(f"rm -rf /tmp/pyxis-stand-in-{trial.user.uid}/n*/data/pyxis_*")


def _find_path(trial: Trial, commands: Path) -> str:
    """Return the PATH of whoever submits, and so that of the jobs."""
    if trial.runtime == "none":
        return SYSTEM_PATH
    if trial.runtime == "apptainer":
        return f"{real_apptainer()}:{SYSTEM_PATH}"
    enroot = real_enroot() or str(commands)
    if trial.runtime == "enroot":
        return f"{enroot}:{SYSTEM_PATH}"
    plugin = os.environ.get("HPCBERT_PYXIS")
    if not plugin:
        return f"{commands / 'pyxis'}:{enroot}:{SYSTEM_PATH}"
    _install(trial, plugin, enroot)
    return SYSTEM_PATH


def _install(trial: Trial, plugin: str, enroot: str) -> None:
    """Give the lab's Slurm the real plugin, and its nodes an enroot on slurmd's PATH."""
    line = f"required {plugin} runtime_path=/tmp/pyxis container_scope=job\n"
    (trial.lab.layout.etc / "plugstack.conf").write_text(line)
    # The plugin keeps the jobs' ENROOT_*_PATH from enroot: an administrator says where things are.
    settings = trial.folder / "enroot.conf"
    names = ("RUNTIME", "DATA", "CACHE")
    settings.write_text(
        "".join(f"ENROOT_{name}_PATH {SCRATCH}/{name}-$(id -u)\n" for name in names)
    )
    file = _find_conf(Path(enroot) / "enroot")
    # Where the plugin's epilog looks, which has no PATH; on the nodes alone.
    layer = "lowerdir=/usr/bin,upperdir=/tmp/.bin/upper,workdir=/tmp/.bin/work"
    trial.on_nodes(
        f"mkdir -p /tmp/.bin/upper /tmp/.bin/work /tmp/pyxis; mkdir -p -m 1777 {SCRATCH};"
        f"mount -t overlay overlay -o {layer} /usr/bin && ln -s {enroot}/* /usr/bin/;"
        f"mount --bind {settings} {file}"
    )
    for node in trial.lab.plan.node_names:
        stop_daemon(trial.lab, node)
        start_daemon(trial.lab, node, run=run)


def _find_conf(enroot: Path) -> str:
    """Return the path of enroot.conf: 4.0 prints it, earlier releases have it in their program."""
    printed = run([str(enroot), "info"]).stdout
    match = re.search(r"^Config file: (.+)$", printed, re.MULTILINE)
    if match:
        return match[1]
    match = re.search(r'ENROOT_SYSCONF_PATH\s+"([^"]+)"', enroot.read_text())
    return f"{match[1] if match else '/etc/enroot'}/enroot.conf"


@cases
def test_the_settings_of_any_enroot_are_found(program: str, file: str, tmp_path: Path) -> None:
    (tmp_path / "enroot").write_text(f"#!/bin/bash\n{program}\n")
    (tmp_path / "enroot").chmod(0o755)
    assert _find_conf(tmp_path / "enroot") == file


def _furnish(trial: Trial) -> None:
    """Make images, folders to mount, recipes and the three site descriptions."""
    folder = trial.folder
    mark = {"etc/image-mark": "right", "mnt/away/f": "below", "etc/rc.local": ""}
    entry = '#!/bin/sh\necho x >>/tmp/entered\nexec "$@"\n'
    profile = "export PATH=/of/the/profile:/usr/bin:/bin BY=profile\n"
    entered = Image(
        {"BY": "entry", "PATH": IMAGE_PATH},
        entrypoint="/opt/entry",
        files={**mark, "opt/entry": entry, "etc/profile": profile},
    )
    images = {"image": Image(IN_IMAGE, files=mark), "strict": entered}
    if trial.runtime == "apptainer":
        _pull(trial, images)
    else:
        for name, new_image in images.items():
            new_image.write(folder / f"{name}.sqsh")
    (folder / "mounted").mkdir()
    (folder / "mounted" / "f").write_text("mounted")
    os.chown(folder / "mounted", trial.user.uid, trial.user.gid)
    (trial.user.home / "home-mark").write_text("home")
    shutil.copytree(HERE / "recipes", folder / "templates")
    strict = folder / "strict-templates" / "probe"
    shutil.copytree(HERE / "recipes" / "probe", strict)
    text = (strict / "recipe.toml").read_text()
    image_settings = 'reference = ""\nwritable = false\nworkdir = "/opt"\n'
    (strict / "recipe.toml").write_text(text.replace('reference = ""\n', image_settings))
    mounts = [
        f"{folder}",
        f"{folder}/mounted:/mnt/dir",
        f"{folder}/mounted:/mnt/ro:ro+nosuid",
        f"{folder}/mounted/f:/mnt/file:ro",
        *(NOT_BINDS if trial.runtime != "apptainer" else []),
        # Comes with another package than the library: MPI does without it.
        *(["/etc/openmpi"] if Path("/etc/openmpi").is_dir() else []),
    ]
    end = "sif" if trial.runtime == "apptainer" else "sqsh"
    image = f"{folder}/image.{end}"
    _write_site(trial, "site", mounts=mounts, image=image)
    _write_site(trial, "missing", mounts=["/nowhere/to/be/found"], image=image)
    extra = "home = true\nentrypoint = true\n"
    _write_site(trial, "strict", mounts=[f"{folder}"], image=f"{folder}/strict.{end}", extra=extra)
    # The interpreter has torch; what it is a link to is in the host's /usr, which the image has.
    _write_site(trial, "torch", mounts=[str(trial.checkout.path)], image=image, framework="pytorch")


def _pull(trial: Trial, images: dict[str, Image]) -> None:
    """Have Apptainer make images of what a registry serves."""
    with Registry() as registry:
        for name, image in images.items():
            tree = image.lay_out(trial.folder / f"{name}.tree")
            variables = [f"{key}={value}" for key, value in image.environment.items()]
            entry = [image.entrypoint] if image.entrypoint else None
            registry.push(
                f"tests/{name}:1", [tree], env=variables, workdir=image.workdir, entrypoint=entry
            )
            shutil.rmtree(tree)
            uri = f"docker://{registry.host}/tests/{name}:1"
            words = ["apptainer", "pull", "--disable-cache", f"{trial.folder}/{name}.sif", uri]
            settings = {"PATH": trial.path, "APPTAINER_NOHTTPS": "1"}
            result = trial.as_user(words, env=settings, cwd=trial.folder, timeout=CEILING)
            assert result.ok, result.stderr


def _write_site(
    trial: Trial,
    name: str,
    *,
    mounts: list[str],
    image: str,
    extra: str = "",
    framework: str = "probe",
) -> None:
    scratch = f'scratch = "{SCRATCH}"\n' if trial.runtime in JOINS else ""
    if trial.runtime == "apptainer":
        mounts = [*mounts, "/usr:/usr:ro"]  # which its images have no other way to
    text = trial.lab.layout.site.read_text()
    head, _, _ = text.partition("[container]")
    runs = f'runs = "{trial.lab.layout.runs}"'
    assert runs in head
    head = head.replace(runs, f'runs = "{trial.folder}/runs"')
    container = (
        f'[container]\nruntime = "{trial.runtime}"\nmounts = {json.dumps(mounts)}\n'
        f"env = {json.dumps(LISTED)}\n{scratch}{extra}"
    )
    text = set_key(head + container, f"frameworks.{framework}", "image", f'"{image}"')
    (trial.folder / f"{name}.toml").write_text(text)


# --- Where ranks are, and their files ---------------------------------------------------------------


@EVERY
def test_every_rank_ran_once_where_slurm_put_it(trial: Trial) -> None:
    job = trial.jobs["look"]
    assert trial.state(job) == ["COMPLETED", "0:0"], job.text
    names = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID")
    places = [(rank["host"], *(rank["environment"][n] for n in names)) for rank in job.ranks]
    assert places == [(f"n{n // 8 + 1}", str(n), str(n % 8), str(n // 8)) for n in range(32)]
    assert {rank["stdin"] for rank in job.ranks} == {""}


@EVERY
def test_open_mpi_reduces_over_all_ranks(pmix: None, trial: Trial) -> None:
    ranks = trial.jobs["look"].ranks
    assert [rank["mpi"] for rank in ranks] == [
        {"rank": n, "size": 32, "sum": 496} for n in range(32)
    ]
    for number, rank in enumerate(ranks):
        assert rank["environment"]["PMIX_RANK"] == str(number)
        assert rank["environment"]["SLURM_NTASKS"] == "32"
        assert rank["environment"]["CUDA_VISIBLE_DEVICES"] == "0,1,2,3,4,5,6,7"
        assert rank["shared"] == {"/tmp": 8, "/dev/shm": 8}


@CONTAINERS
def test_the_ranks_of_a_node_are_in_one_container_of_the_image(trial: Trial) -> None:
    ranks = trial.jobs["look"].ranks
    assert len({(rank["host"], *rank["namespaces"].values()) for rank in ranks}) == 4
    assert {(rank["image"], rank["uid"]) for rank in ranks} == {("right", trial.user.uid)}


@CONTAINERS
def test_site_and_recipe_decide_directory_home_and_entrypoint(trial: Trial) -> None:
    strict, usual = trial.jobs["strict"].ranks, trial.jobs["look"].ranks
    # The image's directory or the recipe's.
    assert {(rank["cwd"], rank["home"], rank["entered"]) for rank in usual} == {("/work", "", "")}
    assert {(rank["cwd"], rank["home"], rank["entered"]) for rank in strict} == {
        ("/opt", "home", "x\n")
    }
    assert {rank["writable"]["/opt"] for rank in strict} == {False}


@CONTAINERS
def test_mounts_are_where_their_flags_want_them(trial: Trial) -> None:
    for rank in trial.jobs["look"].ranks:
        assert set(rank["mounts"].values()) == {"mounted"}
        assert rank["unmounted"] is False
        writable = {"/opt": True, "/mnt/dir": True, "/mnt/ro": False}
        assert {name: rank["writable"][name] for name in writable} == writable
        if trial.runtime != "apptainer":
            assert (rank["memory"], rank["writable"]["/mnt/memory"]) == ("tmpfs", True)


@CONTAINERS
def test_a_missing_mount_source_fails_the_job_with_its_name(trial: Trial) -> None:
    job = trial.jobs["missing"]
    assert trial.state(job)[0] == "FAILED"
    assert job.ranks == []
    assert "/nowhere/to/be/found" in job.text
    assert not any(event["event"] == "step" for event in job.events)


# --- Environment ------------------------------------------------------------------------------------


def read_variables(trial: Trial, *names: str) -> dict[str, set[str | None]]:
    ranks = [rank["environment"] for rank in trial.jobs["look"].ranks]
    return {name: {rank.get(name) for rank in ranks} for name in names}


@EVERY
def test_what_the_host_says_passes_unless_the_recipe_says_otherwise(trial: Trial) -> None:
    expected = {name: ON_HOST[name] for name in ("HOST_ONLY", "MANY_LINES")}
    expected |= {"BY_RECIPE": "recipe", "BOTH": "recipe"}
    # 200 KiB of variables.
    assert sum(map(len, LONG.values())) >= 200 << 10
    expected |= {name: hashlib.sha256(text.encode()).hexdigest() for name, text in LONG.items()}
    assert read_variables(trial, *expected) == {name: {text} for name, text in expected.items()}


@CONTAINERS
def test_the_image_wins_except_over_what_is_listed(trial: Trial) -> None:
    expected = {
        "IMAGE_ONLY": "of the image",
        "BOTH_SAID": "image",
        "LISTED": "host",
        "LISTED_LINES": "host one\nhost two",
        "LISTED_ABSENT": "image",
        "ABSENT_EVERYWHERE": None,
        "LANG": None,
    }
    assert read_variables(trial, *expected) == {name: {text} for name, text in expected.items()}
    # No profile replaces what the image sets.
    ranks = [rank["environment"] for rank in trial.jobs["strict"].ranks]
    assert {(rank["PATH"], rank["BY"]) for rank in ranks} == {(IMAGE_PATH, "entry")}


@EVERY
def test_ranks_know_where_the_first_node_is(trial: Trial) -> None:
    variables = read_variables(trial, "MASTER_ADDR", "HPCBERT_NODE_IPS")
    (address,), (nodes,) = variables.values()
    assert nodes is not None
    assert nodes.split(",")[0] == address
    assert len(set(nodes.split(","))) == 4


# What Slurm, PMIx and what they start give: it differs from release to release.
_OF_SLURM = re.compile(
    r"(SLURM|PMIX|PMI_|SRUN_|OMPI_MCA_|PRTE_MCA_|HYDRA_|I_MPI_|ZE_|ENVIRONMENT$)"
)
# What the first rank alone has, and what each has of its own.
_OF_A_RANK = re.compile(r"HPCBERT_DEVICE|NCCL_DEBUG.*")
# All else, by runtime: the same with every release of Slurm.
_SAME: dict[str, dict[str, str]] = json.loads((HERE / "environment.json").read_text())


@pytest.mark.parametrize(
    "trial", [runtime for runtime in RUNTIMES if runtime in _SAME], indirect=True
)
@pytest.mark.site("the environment of 32 ranks, the same with each release")
def test_32_ranks_have_the_one_environment_on_record(trial: Trial) -> None:
    """As environment.json says, in which paths, addresses and names of this run have words."""
    ranks = [rank["environment"] for rank in trial.jobs["look"].ranks]
    rank_variables = [{n: v for n, v in rank.items() if not _OF_SLURM.match(n)} for rank in ranks]
    assert [rank["HPCBERT_DEVICE"] for rank in rank_variables] == [str(n % 8) for n in range(32)]
    only_first = rank_variables[0].keys() - rank_variables[1].keys()
    assert only_first == {name for name in rank_variables[0] if "NCCL_DEBUG" in name}
    first, *others = [
        {n: v for n, v in rank.items() if not _OF_A_RANK.match(n)} for rank in rank_variables
    ]
    assert others == [first] * 31
    assert {n: _strip_run(trial, value) for n, value in first.items()} == _SAME[trial.runtime]


def _strip_run(trial: Trial, value: str) -> str:
    """Return a value without what is of this run alone."""
    words = {
        str(trial.folder): "FOLDER",
        str(trial.user.home): "HOME",
        str(trial.checkout.path): "CHECKOUT",
        trial.user.name: "USER",
        trial.lab.network.prefix.removesuffix("0/24"): "NET.",
    }
    for text, word in words.items():
        value = value.replace(text, word)
    return re.sub(r"FOLDER/runs/[^/]+/?|^\d{5}$", "*", value)


# --- Ends -------------------------------------------------------------------------------------------


@EVERY
def test_one_ranks_exit_status_is_the_jobs(trial: Trial) -> None:
    job = trial.jobs["fail"]
    assert trial.state(job) == ["FAILED", "7:0"], job.text
    assert job.events[-1]["exit"] == 7


@EVERY
def test_a_cancelled_jobs_ranks_get_term(trial: Trial) -> None:
    job = trial.jobs["cancel"]
    assert trial.state(job)[0].startswith("CANCELLED")
    assert len(list(job.report.glob("*.term"))) == 4


@EVERY
def test_a_killed_rank_or_leader_ends_the_job(trial: Trial) -> None:
    for name in trial.jobs.keys() & {"kill", "leader"}:
        job = trial.jobs[name]
        assert trial.state(job)[0] == "FAILED"
        assert job.events[-1]["exit"] == 128 + signal.SIGKILL


@EVERY
def test_nothing_is_left_on_any_node(trial: Trial) -> None:
    until(lambda: not trial.leftovers().strip(), trial.leftovers)


# --- What it is all for -----------------------------------------------------------------------------


@ENROOT
@pytest.mark.torch
def test_training_in_containers_gives_a_table(trial: Trial) -> None:
    result = trial.hpcbert(
        *("submit", "--fw", "pytorch", "--nodes", "2", "--gpus-per-node", "2"),
        *("--model", "bert-tiny", "--batch-size", "2", "--iters", "6", "--skip", "2"),
        *("--repeats", "1", "--python", trial.checkout.python, "--wait", "--json"),
        site="torch",
        timeout=CEILING,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    (table,) = json.loads(result.stdout.splitlines()[-1])["data"]["tables"]
    (row,) = table["rows"]
    assert (row["shape"], row["repeats"]) == ("2n2g", {"ok": 1, "asked": 1})
    assert row["median"] > 0
    (repeat,) = row["runs"]
    assert [environment["node"] for environment in repeat["environments"]] == repeat["nodes"]
    (path,) = trial.folder.rglob("env/bert-tiny_2n2g*.nodes.jsonl")
    parts = [json.loads(line) for line in path.read_text().splitlines()]
    both = " ".join(repeat["nodes"])
    variables = [(part["nodes"], part.get("image", {}).get("environment", {})) for part in parts]
    in_image = [nodes for nodes, values in variables if "IMAGE_ONLY" in values]
    assert [" ".join(sorted(nodes.split())) for nodes in in_image] == [both]
    assert {name for part in parts for name in part["nodes"].split()} == set(repeat["nodes"])


@ENROOT
def test_eight_jobs_that_need_an_image_at_once_import_it_once(trial: Trial) -> None:
    tree = Image(IN_IMAGE, files={"etc/image-mark": "imported"}).lay_out(trial.folder / "layer")
    with Registry(address=trial.lab.network.controller) as registry:
        registry.push("team/program:1.0", [tree], env=["IMAGE_ONLY=imported"], workdir="/work")
        mounts = [str(trial.folder), "/usr:/usr:ro"]
        reference = f"docker://{registry.host}#team/program:1.0"
        _write_site(trial, "registry", mounts=mounts, image=reference)
        report = trial.folder / "report registry"
        trial.as_user(["mkdir", "-p", str(report), str(trial.folder / "images")])
        words = ["--nodes", "1", "--gpus-per-node", "1", "--repeats", "8"]
        words += ["--concurrent-repeats", "8", "--set", f"report={report}"]
        result = trial.hpcbert("submit", "--fw", "probe", *words, "--json", site="registry")
        assert result.ok, result.stdout + result.stderr
        data = json.loads(result.stdout)["data"]
        job = Job(data["arrays"][0]["job_id"], Path(data["directory"]), report)
        trial.wait(job)
        assert registry.pulls("team/program") == 1
    ends = [event["exit"] for event in job.events if event["event"] == "end"]
    assert ends == [0] * 8, job.text
    (rank,) = job.ranks
    assert (rank["image"], rank["environment"]["IMAGE_ONLY"]) == ("imported", "imported")
    assert len(list((trial.folder / "images").glob("*.sqsh"))) == 1
