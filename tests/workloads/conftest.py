"""The reference program as one rank in the test's process, and as two ranks that are forked."""

import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.kit.cases import read_constant
from tests.kit.needs import free_port
from tests.kit.waiting import CEILING

if find_spec("torch"):
    import torch

    from hpcbert.workloads import bert_data, bert_pretrain, bert_ranks, bert_settings

    # On a busy machine two threads wait for each other.
    torch.set_num_threads(1)
else:  # These can't even be imported without PyTorch.
    collect_ignore_glob = ["test_bert_*.py", "test_masked_words.py"]

SMALL = read_constant(__file__, "SMALL")
_FORK = read_constant(__file__, "_FORK")


@pytest.fixture(autouse=True)
def without_launcher(monkeypatch):
    for name in list(os.environ):
        if re.match(r"((LOCAL_)?RANK|WORLD_SIZE|MASTER_|PMI|OMPI_|MV2_|SLURM_)", name):
            monkeypatch.delenv(name)


@pytest.fixture
def settings():
    return lambda *options: bert_settings.parse_settings([*SMALL, *options])


@pytest.fixture
def trainer(settings):
    def make(*options):
        chosen, ranks = settings(*options), bert_ranks.Ranks()
        device = bert_ranks.choose_device(chosen.device, ranks)
        source = bert_data.open_source(chosen, ranks, device)
        return bert_pretrain.Trainer(chosen, ranks, device, source)

    return make


@pytest.fixture
def main(capsys):
    """Run the program within the test's own process, as one rank which ends with a status."""

    def run(*options, status=0):
        capsys.readouterr()
        ended = bert_pretrain.main([*SMALL, *options])
        stdout, stderr = capsys.readouterr()
        assert ended == status, stderr
        return SimpleNamespace(stdout=stdout, stderr=stderr)

    return run


@pytest.fixture(scope="session")
def rank_server():
    """Imports PyTorch once, and forks two ranks for each line that it reads."""
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", _FORK], stdin=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE, start_new_session=True,
    ) as process:  # fmt: skip
        yield process
        # The ranks are of its session.
        os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def two_ranks(rank_server, tmp_path):
    """Run Python code, by default the program itself, as two ranks which end with a status."""

    def run(*options, code="workload.leave(workload.main())", status=0):
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        words = [str(folder), code, [*SMALL, *options], {"WORLD_SIZE": "2", **address}]
        print(json.dumps(words), file=rank_server.stdin, flush=True)
        readable, _, _ = select.select([rank_server.stdout], [], [], CEILING)
        assert readable, "the ranks did not end"
        ended, outputs = rank_server.stdout.readline().split(), []
        for rank in (0, 1):
            stdout, stderr = ((folder / f"{rank}.{end}").read_text() for end in ("out", "err"))
            outputs.append(SimpleNamespace(stdout=stdout, stderr=stderr))
        assert ended == [str(status)] * 2, outputs
        return outputs

    return run
