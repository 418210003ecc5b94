"""A test class for ReFrame (reframe-hpc/reframe, 4.6 or newer): one point, measured by hpcbert.

    import reframe as rfm
    from hpcbert.reframe import BertThroughput

    @rfm.simple_test
    class Bert(BertThroughput):
        framework = "oneflow"
        nodes = 4

ReFrame starts `hpcbert submit --wait` on its local scheduler; hpcbert submits the jobs itself, as
its site.toml describes, and its gate decides whether the test passes.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import reframe
from reframe.core.builtins import performance_function, run_before, sanity_function, variable
from reframe.core.exceptions import SanityError
from reframe.utility.typecheck import List


class BertThroughput(reframe.RunOnlyRegressionTest):
    """The median throughput of a point; it fails unless all repeats are valid.

    Attributes:
        framework, nodes, gpus_per_node, repeats: As the options of `hpcbert submit`.
        options: Further options of it, one word each.
        campaign: The campaign's id, for ReFrame's performance log.
    """

    framework = variable(str, value="pytorch")
    nodes = variable(int, value=1)
    gpus_per_node = variable(int, value=1)
    repeats = variable(int, value=5)
    options = variable(List[str], value=[])
    campaign = variable(str, value="", loggable=True)

    descr = "BERT pre-training throughput"
    local = True
    valid_systems = ["*"]  # noqa: RUF012 - ReFrame's metaclass reads it
    valid_prog_environs = ["*"]  # noqa: RUF012

    @run_before("run")  # A test sets nodes from its parameters after its init.
    def set_command(self) -> None:
        """Set the command line of the job."""
        words = ["submit", "--wait", "--json", "--fw", self.framework]
        words += ["--nodes", str(self.nodes), "--gpus-per-node", str(self.gpus_per_node)]
        words += ["--repeats", str(self.repeats), *self.options]
        self.executable = shlex.quote(sys.executable)
        self.executable_opts = ["-m", "hpcbert", *map(shlex.quote, words)]

    @run_before("sanity")
    def read_campaign(self) -> None:
        """Read the campaign's id from the job's output."""
        if not self.is_dry_run() and (row := self._find_row()):
            self.campaign = row["origin"]["name"]

    @sanity_function
    def has_only_valid_repeats(self) -> bool:
        """Return True, or fail with the errors of hpcbert."""
        document = self._read_document()
        if errors := document["errors"]:
            sentences = (f"{error['message']} {error['hint']}".strip() for error in errors)
            raise SanityError(" ".join(sentences))
        if not self._find_row():
            raise SanityError("there is not exactly one point with a median: one test is one point")
        return bool(document["exit_code"] == 0)

    @performance_function("samples/s")
    def throughput(self) -> float:
        """Return the median of the valid repeats, over all devices."""
        return float(self._find_row()["median"])

    @performance_function("samples/s")
    def throughput_per_gpu(self) -> float:
        """Return that over the number of devices."""
        row = self._find_row()
        return float(row["median"] / row["gpus"])

    def _read_document(self) -> dict[str, Any]:
        output = Path(self.stagedir) / str(self.job.stdout)
        lines = output.read_text(encoding="utf-8").splitlines()
        try:
            document: dict[str, Any] = json.loads(lines[-1])
        except (IndexError, ValueError):
            raise SanityError(f"hpcbert printed no document; see {self.job.stderr}") from None
        return document

    def _find_row(self) -> dict[str, Any]:
        """Return the only row with a median; empty if there is none, or several."""
        tables = (self._read_document()["data"] or {}).get("tables", [])
        rows: list[dict[str, Any]] = [row for table in tables for row in table["rows"]]
        return rows[0] if len(rows) == 1 and rows[0]["median"] is not None else {}
