import pytest

from tests.faults.kit import Cluster
from tests.kit.cli import Cli


@pytest.fixture(scope="module")
def impatient(lab, as_user):
    """Half of Slurm's own time is what a command waits for a controller or node that is away."""
    path = lab.layout.slurm_conf
    conf = path.read_text()
    anybody = Cluster(lab, as_user, Cli(lab.layout.runs))
    path.write_text(f"{conf}MessageTimeout=5\n")
    anybody.must("scontrol", "reconfigure", as_root=True)
    yield
    path.write_text(conf)
    anybody.must("scontrol", "reconfigure", as_root=True)


@pytest.fixture
def cluster(lab, as_user, checkout, work, impatient):
    hpcbert = Cli(work, {"PYTHONPATH": str(checkout.path)}, as_user, checkout.python)
    new_cluster = Cluster(lab, as_user, hpcbert)
    yield new_cluster
    new_cluster.clear()
