"""What `collect` does not wait for: judged by the modules it loads, not by a clock."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.kit.cli import HEAVY, UNCOUNTED, Cli, of_click


def loaded(site: Path, *words: object) -> set[str]:
    env = {**UNCOUNTED, "HPCBERT_SITE": str(site), "PYTHONPROFILEIMPORTTIME": "1"}
    done = Cli(site.parent, env)("collect", *words)
    assert done.returncode in (0, 4), done.stderr[-500:]
    return done.modules - of_click()


def test_logs_are_collected_without_anything_heavy(tmp_path: Path, repository: Path) -> None:
    small = ["_strptime", "hashlib", "logging", "statistics", "subprocess", "tempfile"]
    log = tmp_path / "oneflow" / "4n8g" / "bert_b32_fp32_1.log"
    log.parent.mkdir(parents=True)
    log.write_bytes((repository / "templates" / "oneflow" / "sample.log").read_bytes())
    modules = loaded(repository / "site.toml", tmp_path)
    assert "hpcbert.logs.scan" in modules
    assert not modules & {*HEAVY, *small}
    assert not {
        name for name in modules if name.startswith(("hpcbert.slurm", "hpcbert.campaign.store"))
    }


def test_a_remembered_campaign_asks_no_scheduler(
    build: Callable[..., Any], repository: Path
) -> None:
    made = build("1n1g", repeats=1, scheduler="local")
    made.complete("1n1g", 1, 10.0)
    modules = loaded(repository / "site.toml", made.directory)
    assert "hpcbert.campaign.judge" in modules
    assert not modules & {"submitit", "asyncio", "jinja2", "rich", "subprocess"}


LATE = """
import sys
from pathlib import Path
from hpcbert.cli import watching

pauses = []
watching.time.sleep = pauses.append
pause = watching.use_the_first(watching.import_the_rest)
pause(0.25)
pause(0.25)
known = {*sys.modules}
from hpcbert.cli.tables import collected
collected([Path(sys.argv[1])])
assert len(pauses) == 2 and pauses[0] < pauses[1]
print(*(one for one in {*sys.modules} - known if one.startswith("hpcbert")))
"""


def test_a_table_that_was_waited_for_needs_no_further_module(
    build: Callable[..., Any], repository: Path
) -> None:
    made = build("1n1g", repeats=1, scheduler="local")
    made.complete("1n1g", 1, 10.0)
    env = {**UNCOUNTED, "HPCBERT_SITE": str(repository / "site.toml")}
    words = [sys.executable, "-c", LATE, str(made.directory)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=env)
    assert done.stdout.split() == []
