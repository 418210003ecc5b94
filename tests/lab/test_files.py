"""The files of a lab's Slurm, for each release and kind of node."""

from pathlib import Path

import pytest

from hpcbert.config.site import read_site
from hpcbert.lab import files
from hpcbert.lab.record import Lab, LabPlan
from tests.kit.cases import cases


def render(file, *, version="", **plan):
    lab = Lab(plan=LabPlan(**plan), mark="", boot="", root=Path("/srv/lab"), slot=7)
    release = files.read_release(version)
    return files.render_file(file, **files.file_values(lab, host="head", release=release))


def settings(text):
    lines = (line for line in text.splitlines() if "=" in line and not line.startswith("NodeName"))
    return dict(line.split("=", 1) for line in lines)


def test_slurm_conf_points_at_nothing_outside_the_lab_and_names_each_node():
    text = render("slurm.conf", nodes=2, gpus_per_node=4)
    conf = settings(text)
    assert conf["SlurmctldHost"] == "head(198.19.7.254)"
    socket = "/srv/lab/munge/munge.socket"
    assert (conf["AuthInfo"], conf["AccountingStoragePass"]) == (f"socket={socket}", socket)
    paths = ("StateSaveLocation", "SlurmdSpoolDir", "SlurmctldPidFile", "SlurmdPidFile")
    assert all(conf[key].startswith("/srv/lab/") for key in paths)
    ports = {conf["SlurmctldPort"], conf["SlurmdPort"], conf["AccountingStoragePort"]}
    assert ports == {"21070", "21071", "21072"}
    first, second = (line for line in text.splitlines() if line.startswith("NodeName="))
    assert "NodeAddr=198.19.7.1 " in first
    assert "NodeAddr=198.19.7.2 CPUs=16 " in second
    assert "Gres=gpu:4" in second
    rows = "127.0.0.1 localhost\n::1 localhost\n198.19.7.254 head\n198.19.7.1 n1\n198.19.7.2 n2\n"
    assert render("hosts", nodes=2) == rows


def test_the_devices_of_nodes_are_those_of_the_plan():
    bare = {"gpus_per_node": 0, "accounting": False}
    text = render("slurm.conf", **bare)
    assert "Gres=" not in text
    assert settings(text)["AccountingStorageType"] == "accounting_storage/none"
    assert render("gres.conf", **bare) == "AutoDetect=off\n"
    for gpus, names in ((1, "nvidia0"), (8, "nvidia[0-7]")):
        assert f"File=/srv/lab/dev/{names}\n" in render("gres.conf", gpus_per_node=gpus)
    kinds, wins = ("2080ti", "none"), ("PrivateData=nodes",)
    plan = {"nodes": 3, "gpus_per_node": 2, "gpu_types": kinds}
    text = render("slurm.conf", **plan, settings=wins, lacks=("mpi_pmix",))
    assert text.count("Gres=gpu:2080ti:2 ") == 2
    assert settings(text)["PrivateData"] == "nodes"
    assert settings(text)["PluginDir"] == "/srv/lab/plugins"
    assert render("gres.conf", **plan).splitlines()[1:] == [
        f"NodeName={node} Name=gpu Type=2080ti File=/srv/lab/dev/nvidia[0-1]"
        for node in ("n1", "n3")
    ]


def test_the_site_of_a_lab_has_its_places_and_devices(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "has_pmix", lambda: True)
    path = tmp_path / "site.toml"
    for gpus, gres, count in ((0, "", 4), (2, "gpu", 2)):
        path.write_text(render("site.toml", gpus_per_node=gpus, name="lab2"))
        site = read_site(path, base=tmp_path, env={})
        assert (site.slurm.gres, site.nodes.gpus_per_node) == (gres, count)
        assert (site.name, site.runs, site.sources) == ("lab2", "/srv/lab/runs", "/srv/lab/sources")
        assert (site.slurm.mpi, site.slurm.exclusive) == ("pmix", False)
        assert site.container.images == "/srv/lab/images"


@pytest.mark.site("Slurm 20.11 and 21.08 (scripted)")
@cases
def test_an_older_slurm_gets_the_keys_that_it_knows(version, stored, cgroup):
    """slurmd 20.11 ends with a parse error in cgroup.conf, slurmctld with one in slurm.conf."""
    text = render("slurm.conf", version=f"{version}\n")
    assert [line for line in text.splitlines() if line.startswith("AccountingStore")] == [stored]
    assert render("cgroup.conf", version=version) == cgroup
