import compileall
import gc
import os
import re
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A busy machine takes its time. Each run tries the same examples, so that a failure is one of the
# change at hand; `--hypothesis-profile=random` looks for others.
_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("random", _PATIENT, derandomize=False)
settings.register_profile("hpcbert", _PATIENT, derandomize=True)
# Between two edits, few examples are enough.
settings.register_profile("quick", _PATIENT, derandomize=True, max_examples=10)
settings.load_profile("hpcbert")
pytest.register_assert_rewrite("tests.kit", "tests.faults")
REPOSITORY = Path(__file__).resolve().parent.parent
# Folders that start daemons, containers, trainings or processes without number, or try everything
# on every recipe.
SLOW = {"cluster", "containers", "contract", "faults", "lab", "prepare", "recipes"} | {
    *("security", "workloads"),
}
# What takes longest: begun first, it ends before the rest does.
LONGEST = (
    *("contract/test_contract.py", "containers/test_runtimes.py"),
    *("workloads/test_bert_pretrain.py", "docs/test_documents.py", "project/test_wheel.py"),
    *("faults/test_nodes.py", "faults/test_daemons.py", "faults/test_killed.py"),
    *("cluster/test_main_job.py", "cluster/test_site_rules.py", "cluster/test_repeats.py"),
    *("recipes/test_real_logs.py", "cluster/test_other_clusters.py", "lab/test_lifecycle.py"),
)
# Ranks of all others, in `rank`'s words.
DAEMONS, COMPUTES, QUICK = 0, 1, 2
# What may stand in a test's id as it is: a short name, no content of files.
_NAME = re.compile(r"[\w .,:;=/+@%<>()\[\]{}'*!?#&|~^$-]{1,60}", re.ASCII)
# Hundreds of tests start hpcbert, and each worker loads all tests: none compiles them for itself.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def fsync(fd: object) -> None:
    """Wait for no disk: what tests write need not survive a loss of power."""


def pytest_configure(config: pytest.Config) -> None:
    """Share fixtures, the one lab's too, among all folders: a plugin's are seen everywhere.

    hpcbert is compiled first: an ordinary user of the lab can't write where its bytecode goes.

    A shell starts what runs in its background with SIGINT ignored, and nohup with SIGHUP; every
    program below inherits that: those that tests interrupt would never notice.
    """
    os.fsync = fsync
    if not hasattr(config, "workerinput"):
        compileall.compile_dir(REPOSITORY / "hpcbert", quiet=2)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    for name in ("fixtures", "lab", "needs"):
        config.pluginmanager.import_plugin(f"tests.kit.{name}")


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name long and unprintable values after their argument: an id must be equal in every worker.

    Content can hold a time of day, for one; pytest numbers what has the same name.
    """
    if isinstance(val, (str, bytes)):
        text = val if isinstance(val, str) else val.decode("latin-1")
        return None if _NAME.fullmatch(text) else argname
    return None


def name_file(item: pytest.Item) -> str:
    """Return the path of a test's file below tests/."""
    return item.nodeid.partition("::")[0].removeprefix("tests/")


def slow(item: pytest.Item) -> bool:
    """Say whether a test is left out of `make quick`."""
    marked = any(item.get_closest_marker(name) for name in ("slow", "slurm", "torch"))
    return marked or name_file(item).partition("/")[0] in SLOW


def group_of(item: pytest.Item) -> str:
    """Say what must stay with one worker: a file's tests for their fixtures.

    Of a file, what needs a lab is one group, for each runtime that it tries, and the rest another:
    a worker starts its lab for the first group that needs one, and keeps it for all later ones.
    """
    name = name_file(item)
    if "lab" not in getattr(item, "fixturenames", ()):
        return name
    tried = getattr(getattr(item, "callspec", None), "params", {})
    return f"{name} lab {tried.get('trial', '')}".rstrip()


def rank(item: pytest.Item) -> int:
    """Say what a test does: it takes longest (below zero), waits for daemons, computes, or is quick."""
    if name_file(item) in LONGEST:
        return LONGEST.index(name_file(item)) - len(LONGEST)
    if "slurm_packages" in getattr(item, "fixturenames", ()):
        return DAEMONS
    return COMPUTES if slow(item) else QUICK


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest, and end with what is over in a moment.

    What mostly waits for daemons and what computes take turns: of the workers, some then wait while
    others use the cores. One kind after the other would leave cores idle first and workers later.
    What waits comes a quarter earlier, so that nobody waits alone in the end.
    """
    ranks: dict[str, int] = {}
    for item in items:
        group = group_of(item)
        ranks[group] = min(rank(item), ranks.get(group, QUICK))
    order: dict[str, tuple[int, float]] = {}
    for kind in set(ranks.values()):
        groups = [group for group in ranks if ranks[group] == kind]
        for place, group in enumerate(groups):
            share = place / len(groups)
            order[group] = (DAEMONS, share) if kind == COMPUTES else (kind, 0.75 * share)
    items.sort(key=lambda item: order[group_of(item)])


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Don't even load, for `make quick`, what it would leave out; PyTorch is among that."""
    if config.option.markexpr != "not slow":
        return None
    if collection_path.parent == REPOSITORY / "tests":
        return True if collection_path.name in SLOW else None
    if not (collection_path.name.startswith("test_") and collection_path.suffix == ".py"):
        return None
    text = collection_path.read_text()
    return True if re.search(r"^pytestmark = pytest\.mark\.slow$", text, re.MULTILINE) else None


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.xdist_group(group_of(item)))
    if {"slurm_packages", "lab"} & set(getattr(item, "fixturenames", ())):
        item.add_marker(pytest.mark.slurm)
    if slow(item):
        item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Keep what was loaded: to look for garbage in it, again and again, finds none."""
    gc.freeze()


@pytest.fixture(scope="session")
def shared():
    """The folder with real logs, where there is one."""
    from tests.kit.needs import SHARED, Folder, require

    require("logs")
    return Folder(SHARED)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    """No setting of the person who runs the tests reaches them."""
    kept = {"HPCBERT_SHARED", "HPCBERT_REQUIRE_SLURM"}
    for name in set(os.environ) - kept:
        if name.startswith(("SLURM_", "SBATCH_", "HPCBERT_")):
            monkeypatch.delenv(name)
