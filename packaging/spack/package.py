# For var/spack/repos/…/packages/py_hpcbert; `make packaging` fills in version and digest.
from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import depends_on, license, variant, version


class PyHpcbert(PythonPackage):
    """BERT pre-training throughput on Slurm clusters: submit, monitor, collect, with medians
    you can defend."""

    homepage = "https://pypi.org/project/hpcbert/"
    pypi = "hpcbert/hpcbert-@VERSION@.tar.gz"

    license("Apache-2.0", checked_by="hpcbert")

    version("@VERSION@", sha256="@SHA256@")

    variant("data", default=False, description="Training data: hpcbert data")
    variant("parquet", default=False, description="Parquet files")

    depends_on("python@3.10:", type=("build", "run"))
    depends_on("py-hatchling@1.27:", type="build")

    with_run = ("build", "run")
    depends_on("py-click@8.2.1:8", type=with_run)
    depends_on("py-jinja2@3.1.6:3", type=with_run)
    depends_on("py-tomli@2.5:2", type=with_run)
    depends_on("py-matplotlib@3.8:", type="run")
    depends_on("py-numpy@1.26:", type="run")
    depends_on("py-pandas@2.1.1:", type="run")
    depends_on("py-rich@13.3.3:15", type="run")
    depends_on("py-submitit@1.5.2:1", type="run")
    depends_on("py-textual@6.2:8", type="run")

    depends_on("py-google-crc32c@1.6:", type="run", when="+data")
    depends_on("py-h5py@3.10:", type="run", when="+data")
    depends_on("py-tokenizers@0.20:", type="run", when="+data")
    depends_on("py-pyarrow@15:", type="run", when="+parquet")
