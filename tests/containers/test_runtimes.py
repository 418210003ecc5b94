"""One suite for all runtimes: what a rank finds must not depend on how it got into its image.

Each runtime runs two jobs on the lab's four nodes; most tests read what their ranks wrote.
"""

import hashlib
import json
import os
import re
import shutil
import signal
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

from hpcbert.lab.files import has_pmix
from hpcbert.system.runner import run
from tests.kit import containers
from tests.kit.cases import read_constant
from tests.kit.containers import HERE, REAL_PYXIS, SYSTEM_PATH, Image
from tests.kit.doctor import set_key
from tests.kit.lab import start_daemon, stop_daemon
from tests.kit.needs import lacks, require
from tests.kit.recipes import SHELL
from tests.kit.registry import Registry, serving_tiny
from tests.kit.waiting import CEILING, unqueued, until

pytestmark = pytest.mark.slurm

RUNTIMES = ["enroot", "pyxis", "apptainer", "none"]
# The same places everywhere, and so one trial after the other: pytest orders by a parameter's place.
EVERY = pytest.mark.parametrize("trial", RUNTIMES, indirect=True)
CONTAINERS = pytest.mark.parametrize("trial", RUNTIMES[:3], indirect=True)
ENROOT = pytest.mark.parametrize("trial", RUNTIMES[:1], indirect=True)
# 200 KiB, in parts: the kernel takes no variable above 128 KiB.
LONG = {f"LONG_{n}": f"{n}$x'\" " * 8600 for n in range(4)}
SETTINGS = read_constant(__file__, "SETTINGS")
ON_HOST, IN_IMAGE, STRICT = (SETTINGS[name] for name in ("ON_HOST", "IN_IMAGE", "STRICT"))
SCRATCH = "/tmp/hpcbert-scratch"


@dataclass
class Job:
    """A task of a submitted array: `number` is Slurm's."""

    number: str
    campaign: Path
    report: Path

    @cached_property
    def ranks(self):
        """What the ranks found, in their order."""
        ranks = [json.loads(path.read_text()) for path in self.report.glob("rank*.json")]
        return sorted(ranks, key=lambda rank: int(rank["environment"]["SLURM_PROCID"]))

    @property
    def events(self):
        paths = (self.campaign / "status").glob(f"*.{self.report.name}.jsonl")
        return [json.loads(line) for path in paths for line in path.read_text().splitlines()]

    @property
    def text(self):
        """All that its array and the ranks said."""
        paths = [*(self.campaign / "slurm").iterdir(), *(self.campaign / "logs").rglob("*.log")]
        return "".join(path.read_text(errors="replace") for path in paths)


class Trial:
    """One runtime on the lab, with its images, its site descriptions and two jobs."""

    look: Job
    strict: Job

    def __init__(self, runtime, as_user, checkout, lab, user):
        self.as_user, self.checkout, self.lab, self.user = as_user, checkout, lab, user
        self.runtime, self.path = runtime, SYSTEM_PATH
        # Whether its ranks enter by enter.sh.
        self.enters = runtime in {"enroot", "apptainer"}
        self.folder = Path(tempfile.mkdtemp(prefix=f"{runtime}-", dir=lab.layout.runs))
        os.chown(self.folder, user.uid, user.gid)
        self.cli = checkout.cli(self.folder, as_user, ENROOT_ALLOW_HTTP="y", **ON_HOST)

    def hpcbert(self, *words, site="site", **variables):
        site = str(self.folder / f"{site}.toml")
        variables |= {"PATH": self.path, "HPCBERT_SITE": site}
        return self.cli(*words, "--json", status=0, **variables).data

    def submit(self, act, shape, *, site="site", repeats=1, **variables):
        """Submit an array whose ranks do something, and return its tasks."""
        report = Path(self.as_user(["mktemp", "-d", f"{self.folder}/report XXX"]).stdout.strip())
        words = ["--shapes", shape, "--set", f"report={report}", "--set", f"act={act}"]
        words += ["--repeats", repeats, "--concurrent-repeats", repeats]
        words += ["--templates", self.folder / f"{site}-recipes"]
        data = self.hpcbert("submit", "--fw", "probe", *words, site=site, **variables)
        number, campaign = data["arrays"][0]["job_id"], Path(data["directory"])
        tasks = range(1, repeats + 1)
        return [Job(f"{number}_{task}", campaign, report / str(task)) for task in tasks]

    def wait(self, *jobs):
        """Wait until none of these jobs is in the queue."""
        numbers = ",".join(job.number for job in jobs)
        until(lambda: unqueued(self.as_user, "", f"--jobs={numbers}"), f"{numbers} are queued")

    def state(self, job):
        words = ["sacct", "-X", "-P", "-n", "-j", job.number, "-o", "State,ExitCode"]
        ends = re.compile("COMPLETED|FAILED|CANCELLED")
        until(lambda: ends.match(self.as_user(words).stdout), lambda: self.as_user(words).stdout)
        return self.as_user(words).stdout.strip().split("|")

    def on_nodes(self, command):
        """Run a command as root on every node; return all that it printed."""
        texts = []
        for process in self.lab.node_hosts.values():
            enter = ["nsenter", f"--target={process.pid}", "--mount", "--pid", "--uts"]
            outcome = run([*enter, "sh", "-c", command])
            texts.append(outcome.stdout + outcome.stderr)
        return "".join(texts)

    def variables(self, *names):
        """Return the values that variables have in the ranks of the largest job."""
        ranks = [rank["environment"] for rank in self.look.ranks]
        return {name: {rank.get(name) for rank in ranks} for name in names}

    def write_site(self, name, mounts, image, extra=""):
        extra += f'scratch = "{SCRATCH}"\n' if self.enters else ""
        if self.runtime == "apptainer":
            mounts = [*mounts, "/usr:/usr:ro"]  # which its images have no other way to
        head = self.lab.layout.site.read_text().partition("[container]")[0]
        head = set_key(head, None, "runs", f'"{self.folder}/runs"')
        lists = f"mounts = {json.dumps(mounts)}\nenv = {json.dumps(SETTINGS['LISTED'])}\n"
        table = f"frameworks.{'pytorch' if name == 'torch' else 'probe'}"
        text = f'{head}[container]\nruntime = "{self.runtime}"\n{lists}{extra}'
        (self.folder / f"{name}.toml").write_text(set_key(text, table, "image", f'"{image}"'))
        shutil.copytree(HERE / "recipes", self.folder / f"{name}-recipes", dirs_exist_ok=True)


@pytest.fixture(scope="module")
def trial(request, as_user, checkout, lab, user):
    """Make a runtime's images, folders to mount, recipes and site descriptions; look around in them."""
    runtime = request.param
    if runtime == "apptainer" and not containers.REAL_APPTAINER:
        lacks("extras", "Apptainer", "not on PATH, and HPCBERT_APPTAINER names none")
    require("squashfs")
    trial = Trial(runtime, as_user, checkout, lab, user)
    folder = trial.folder
    if runtime != "none":
        choose_path(trial)
    (folder / "mounted").mkdir()
    (folder / "mounted" / "f").write_text("mounted")
    os.chown(folder / "mounted", user.uid, user.gid)
    (user.home / "home-mark").write_text("home")
    mounts = [str(folder), f"{folder}/mounted:/mnt/dir", f"{folder}/mounted:/mnt/ro:ro+nosuid"]
    mounts += [f"{folder}/mounted/f:/mnt/file:ro"]
    if runtime != "apptainer":
        mounts += ["tmpfs:/mnt/memory:size=1M", "/etc:/mnt/away", "umount:/mnt/away"]
    if Path("/etc/openmpi").is_dir():  # another package than the library, which can do without
        mounts.append("/etc/openmpi")
    usual, strict = make_images(trial)
    trial.write_site("site", mounts, usual)
    trial.write_site("missing", ["/nowhere/to/be/found"], usual)
    trial.write_site("strict", [str(folder)], strict, "home = true\nentrypoint = true\n")
    # The interpreter has torch; it is a link into the host's /usr, which the image has.
    trial.write_site("torch", [str(checkout.path)], usual)
    recipe = folder / "strict-recipes/probe/recipe.toml"
    text = set_key(recipe.read_text(), "image", "workdir", '"/opt"')
    recipe.write_text(set_key(text, "image", "writable", "false"))
    (trial.look,) = trial.submit("mpi" if has_pmix() else "look", "4n8g", **LONG)
    if runtime != "none":
        (trial.strict,) = trial.submit("look", "1n2g", site="strict")
        trial.wait(trial.strict)
    trial.wait(trial.look)
    yield trial
    trial.on_nodes(f"rm -rf {SCRATCH} /tmp/pyxis-stand-in-{user.uid}")
    shutil.rmtree(folder)


def choose_path(trial):
    """Set the PATH of whoever submits, and so that of the jobs."""
    stand_ins = containers.open_stand_ins(trial.folder / "bin")
    enroot = containers.REAL_ENROOT or str(stand_ins)
    first = {"enroot": enroot, "apptainer": containers.REAL_APPTAINER}
    first["pyxis"] = f"{stand_ins / 'pyxis'}:{enroot}"
    trial.path = f"{first[trial.runtime]}:{SYSTEM_PATH}"
    if trial.runtime != "pyxis" or not REAL_PYXIS:
        return
    # The real one, and an enroot on slurmd's PATH; jobs must not say where enroot keeps things.
    trial.path = SYSTEM_PATH
    line = f"required {REAL_PYXIS} runtime_path=/tmp/pyxis container_scope=job\n"
    (trial.lab.layout.etc / "plugstack.conf").write_text(line)
    trial.on_nodes(SETTINGS["INSTALL"].format(enroot=enroot, scratch=SCRATCH))
    for node in trial.lab.plan.node_names:
        stop_daemon(trial.lab, node)
        start_daemon(trial.lab, node)


def make_images(trial):
    folder, paths = trial.folder, []
    mark = {"etc/image-mark": "right", "mnt/away/f": "below", "etc/rc.local": ""}
    images = {"image": Image(IN_IMAGE, files=mark)}
    files = {**mark, **SETTINGS["FILES"]}
    images["strict"] = Image(STRICT, entrypoint="/opt/entry", files=files)
    with Registry() as registry:  # Apptainer makes images of what a registry serves
        for name, image in images.items():
            if trial.runtime != "apptainer":
                paths.append(image.write(folder / f"{name}.sqsh"))
                continue
            variables = [f"{key}={value}" for key, value in image.environment.items()]
            entry = [image.entrypoint] if image.entrypoint else None
            settings = {"Env": variables, "WorkingDir": image.workdir, "Entrypoint": entry}
            registry.push(f"tests/{name}:1", [image.lay_out(folder / f"{name}.tree")], **settings)
            paths.append(folder / f"{name}.sif")
            uri, env = f"docker://{registry.host}/tests/{name}:1", {"APPTAINER_NOHTTPS": "1"}
            words = ["apptainer", "pull", "--disable-cache", str(paths[-1]), uri]
            result = trial.as_user(words, env={"PATH": trial.path, **env}, cwd=folder)
            assert result.ok, result.stderr
    return paths


@EVERY
def test_every_rank_ran_once_where_slurm_put_it_and_open_mpi_reduces_over_all(trial):
    job = trial.look
    assert trial.state(job) == ["COMPLETED", "0:0"], job.text
    names = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID")
    places = [(rank["host"], *(rank["environment"][n] for n in names)) for rank in job.ranks]
    assert places == [(f"n{n // 8 + 1}", str(n), str(n % 8), str(n // 8)) for n in range(32)]
    assert {rank["stdin"] for rank in job.ranks} == {""}
    assert trial.variables("SLURM_NTASKS", "CUDA_VISIBLE_DEVICES") == {
        "SLURM_NTASKS": {"32"},
        "CUDA_VISIBLE_DEVICES": {"0,1,2,3,4,5,6,7"},
    }
    (address,), (nodes,) = trial.variables("MASTER_ADDR", "HPCBERT_NODE_IPS").values()
    assert nodes is not None
    assert nodes.split(",")[0] == address
    assert len(set(nodes.split(","))) == 4
    for number, rank in enumerate(job.ranks if has_pmix() else ()):
        assert rank["mpi"] == {"rank": number, "size": 32, "sum": 496}
        assert rank["environment"]["PMIX_RANK"] == str(number)
        assert rank["shared"] == {"/tmp": 8, "/dev/shm": 8}


@CONTAINERS
def test_the_ranks_of_a_node_are_in_one_container_as_site_and_recipe_describe_it(trial):
    ranks, strict = trial.look.ranks, trial.strict.ranks
    assert len({(rank["host"], *rank["namespaces"].values()) for rank in ranks}) == 4
    assert {(rank["image"], rank["uid"]) for rank in ranks} == {("right", trial.user.uid)}
    # The image's directory or the recipe's.
    assert {(rank["cwd"], rank["home"], rank["entered"]) for rank in ranks} == {("/work", "", "")}
    places = {(rank["cwd"], rank["home"], rank["entered"]) for rank in strict}
    assert places == {("/opt", "home", "x\n")}
    assert {rank["writable"]["/opt"] for rank in strict} == {False}


@CONTAINERS
def test_mounts_are_where_their_flags_want_them_and_one_without_a_source_fails_the_job(trial):
    for rank in trial.look.ranks:
        assert set(rank["mounts"].values()) == {"mounted"}
        assert rank["unmounted"] is False
        writable = {"/opt": True, "/mnt/dir": True, "/mnt/ro": False}
        assert {name: rank["writable"][name] for name in writable} == writable
        if trial.runtime != "apptainer":
            assert (rank["memory"], rank["writable"]["/mnt/memory"]) == ("tmpfs", True)
    (job,) = trial.submit("look", "1n1g", site="missing")
    trial.wait(job)
    assert trial.state(job)[0] == "FAILED"
    assert job.ranks == []
    assert "/nowhere/to/be/found" in job.text
    assert not any(event["event"] == "step" for event in job.events)


@EVERY
def test_what_the_host_says_passes_unless_the_recipe_says_otherwise(trial):
    expected = {name: ON_HOST[name] for name in ("HOST_ONLY", "MANY_LINES")}
    expected |= {"BY_RECIPE": "recipe", "BOTH": "recipe"}
    expected |= {name: hashlib.sha256(text.encode()).hexdigest() for name, text in LONG.items()}
    assert trial.variables(*expected) == {name: {text} for name, text in expected.items()}


@CONTAINERS
def test_the_image_wins_except_over_what_is_listed(trial):
    expected = {name: ON_HOST[name] for name in ("LISTED", "LISTED_LINES")}
    expected |= {"IMAGE_ONLY": "of the image", "BOTH_SAID": "image", "LISTED_ABSENT": "image"}
    assert trial.variables(*expected) == {name: {text} for name, text in expected.items()}
    assert set().union(*trial.variables("ABSENT_EVERYWHERE", "LANG").values()) == {None}
    # No profile replaces what the image sets.
    ranks = [rank["environment"] for rank in trial.strict.ranks]
    assert {(rank["PATH"], rank["BY"]) for rank in ranks} == {(STRICT["PATH"], "entry")}


@pytest.mark.parametrize("trial", ["enroot", "pyxis", "none"], indirect=True)
@pytest.mark.site("the environment of 32 ranks, the same with each release")
def test_32_ranks_have_the_one_environment_on_record(trial):
    """As environment.json says, in which paths, addresses and names of this run have words."""
    # What Slurm, PMIx and what they start give differs from release to release.
    of_slurm = r"(SLURM|PMIX|PMI_|SRUN_|OMPI_MCA_|PRTE_MCA_|HYDRA_|I_MPI_|ZE_|ENVIRONMENT$)"
    ranks = [rank["environment"] for rank in trial.look.ranks]
    environments = [{n: v for n, v in rank.items() if not re.match(of_slurm, n)} for rank in ranks]
    assert [rank.pop("HPCBERT_DEVICE") for rank in environments] == [str(n % 8) for n in range(32)]
    first, second, *_ = environments
    only_first = first.keys() - second.keys()
    assert only_first == {name for name in first if "NCCL_DEBUG" in name}
    for name in only_first:
        del first[name]
    assert environments == [first] * 32
    words = {
        str(trial.folder): "FOLDER",
        str(trial.user.home): "HOME",
        str(trial.checkout.path): "CHECKOUT",
        trial.user.name: "USER",
        trial.lab.network.prefix.removesuffix("0/24"): "NET.",
    }
    for name, value in first.items():
        for text, word in words.items():
            value = value.replace(text, word)  # noqa: PLW2901 - one word after the other
        first[name] = re.sub(r"FOLDER/runs/[^/]+/?|^\d{5}$", "*", value)
    assert first == json.loads((HERE / "environment.json").read_text())[trial.runtime]


@EVERY
def test_a_rank_that_fails_is_cancelled_or_killed_ends_the_job_and_leaves_nothing(trial):
    def wait_for_ranks(job):
        """Wait until four ranks wait for their end."""

        def are_ready():
            assert not any(event["event"] == "end" for event in job.events), job.text
            return len(list(job.report.glob("*.waits"))) == 4

        until(are_ready, lambda: job.text)

    (failing,) = trial.submit("fail", "2n4g")
    uid, tasks = trial.user.uid, []
    if trial.runtime != "none":
        tasks = trial.submit("wait", "2n2g", repeats=3 if trial.enters else 2)
        cancelled, *killed = tasks
        wait_for_ranks(cancelled)
        trial.as_user(["scancel", cancelled.number])
        wait_for_ranks(killed[0])
        rank = killed[0].ranks[2]  # the first of node two
        node = f"--target={trial.lab.node_hosts[rank['host']].pid}"
        run(["nsenter", node, "--pid", "kill", "-KILL", str(rank["pid"])])
        for job in killed[1:]:
            wait_for_ranks(job)
            number = job.ranks[0]["environment"]["SLURM_JOB_ID"]
            notes = f"{SCRATCH}/hpcbert-{uid}/state/hpcbert-{number}-*/step-*/leader"
            kill = 'read -r pid _ <"$note" && kill -KILL "$pid" && echo killed'
            loop = f'for note in {notes}; do if [ -f "$note" ]; then {kill}; fi; done'
            # The second may end with the first.
            assert set(trial.on_nodes(loop).split()) == {"killed"}
        trial.wait(*tasks)
        assert trial.state(cancelled)[0].startswith("CANCELLED")
        assert len(list(cancelled.report.glob("*.term"))) == 4
        for job in killed:
            assert trial.state(job)[0] == "FAILED"
            assert job.events[-1]["exit"] == 128 + signal.SIGKILL
    trial.wait(failing)
    assert trial.state(failing) == ["FAILED", "7:0"], failing.text
    assert failing.events[-1]["exit"] == 7
    if trial.runtime == "pyxis" and not REAL_PYXIS:
        # What the plugin's epilog does when a job ends.
        trial.on_nodes(f"rm -rf /tmp/pyxis-stand-in-{uid}/n*/data/pyxis_*")
    trees = f"find /tmp /dev/shm -user {uid} -not -path '*/cache/*' -path '*/etc/rc'"
    command = f"ps -o pid=,args= -U {uid}; {trees}; find /dev/shm -user {uid} -type f"
    until(lambda: not trial.on_nodes(command).strip(), lambda: trial.on_nodes(command))


@ENROOT
@pytest.mark.torch
def test_training_in_containers_gives_a_table(trial):
    data = trial.hpcbert(
        *("submit", "--fw", "pytorch", "--nodes", "2", "--gpus-per-node", "1"),
        *("--model", "bert-tiny", "--batch-size", "2", "--iters", "6", "--skip", "2"),
        *("--repeats", "1", "--python", trial.checkout.python, "--wait"),
        site="torch",
    )
    ((row,),) = (table["rows"] for table in data["tables"])
    assert (row["shape"], row["repeats"]) == ("2n1g", {"ok": 1, "asked": 1})
    assert row["median"] > 0
    (repeat,) = row["runs"]
    assert [environment["node"] for environment in repeat["environments"]] == repeat["nodes"]
    (path,) = trial.folder.rglob("env/bert-tiny_2n1g*.nodes.jsonl")
    parts = [json.loads(line) for line in path.read_text().splitlines()]
    (described,) = [
        part["nodes"] for part in parts
        if "IMAGE_ONLY" in part.get("image", {}).get("environment", {})
    ]  # fmt: skip
    assert sorted(described.split()) == repeat["nodes"]
    assert {name for part in parts for name in part["nodes"].split()} == set(repeat["nodes"])


@ENROOT
def test_four_jobs_that_need_an_image_at_once_import_it_once(trial):
    tree = Image(IN_IMAGE, files={"etc/image-mark": "imported"}).lay_out(trial.folder / "layer")
    with Registry(address=trial.lab.network.controller) as registry:
        registry.push("team/program:1.0", [tree], Env=["IMAGE_ONLY=imported"], WorkingDir="/work")
        reference = f"docker://{registry.host}#team/program:1.0"
        trial.write_site("site", [str(trial.folder), "/usr:/usr:ro"], reference)
        trial.as_user(["mkdir", "-p", str(trial.folder / "images")])
        jobs = trial.submit("look", "1n1g", repeats=4)
        trial.wait(*jobs)
        assert registry.pulls("team/program") == 1
    for job in jobs:
        assert job.events[-1]["exit"] == 0, job.text
        (rank,) = job.ranks
        assert (rank["image"], rank["environment"]["IMAGE_ONLY"]) == ("imported", "imported")
    assert len(list((trial.folder / "images").glob("*.sqsh"))) == 1


def test_an_import_that_was_killed_is_taken_up_by_tasks_of_other_nodes_which_import_once(
    as_user, lab, work
):
    require("squashfs")
    first, *further = lab.plan.node_names
    for name in ("image.sh", "enroot.sh"):
        shutil.copy(SHELL / name, work / name)
        (work / name).chmod(0o755)
    with serving_tiny(lab.network.controller) as registry:
        # Each node has its own TEMP.
        task = f"""#!/bin/bash
export PATH={containers.open_stand_ins(work / "bin")}:{SYSTEM_PATH} HOME=/tmp/import-$SLURM_JOB_ID
export XDG_RUNTIME_DIR=$HOME ENROOT_ALLOW_HTTP=y
exec bash {work}/image.sh import {registry.uri()} {work}/images r+bert+tiny+1.0
"""
        (work / "task.sh").write_text(task)
        registry.delay = CEILING
        words = ["sbatch", "--parsable", f"--nodelist={first}", f"--output={work}/out"]
        script = f"#!/bin/bash\nexec bash {work}/task.sh\n"
        assert as_user(words, stdin=script, cwd=work).stdout.strip().isdigit()
        until(lambda: registry.pulls("bert/tiny"), "nobody imports it")
        # As the kernel does when memory runs out. A job has process ids of its own.
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # Others' processes come and go.
                if f"{work}/image.sh".encode() in (path / "cmdline").read_bytes():
                    os.kill(int(path.name), signal.SIGKILL)
        registry.delay = 1.0
        words = ["srun", f"--nodelist={','.join(further)}", "--nodes=3", "--ntasks=24"]
        words += ["bash", f"{work}/task.sh"]
        result = as_user(words, cwd=work, env={"HPCBERT_STALE_AFTER": "3"})
        assert result.ok, result.stderr
        assert registry.pulls("bert/tiny") == 2
    assert "the importer before died" in result.stderr
    paths = result.stdout.split()
    assert (len(paths), len(set(paths))) == (24, 1)
    assert Path(paths[0]).is_file()
    assert list((work / "images").glob(".*")) == []
