"""The first hour of an ordinary user, as the page has it, on a real cluster."""

from __future__ import annotations

import os
import pwd
import re
import shutil
from pathlib import Path

import pytest

from hpcbert.lab.record import Lab
from hpcbert.system.runner import Outcome, run
from tests.kit.doctor import set_key
from tests.kit.lab import Checkout
from tests.kit.paths import REPOSITORY
from tests.kit.waiting import CEILING

TUTORIAL = REPOSITORY / "docs" / "tutorial" / "first-table.md"
PAGE = REPOSITORY / "docs" / "how-to" / "first-hour.md"
_BLOCK = re.compile(r"^## (.+?)\n.*?^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
# For pip: where packages come from here.
_PIP = ("PIP_", "SSL_", "REQUESTS_")


@pytest.fixture
def home(lab: Lab, checkout: Checkout) -> Path:
    """The home of the lab's own user, with a checkout in it."""
    path = Path(pwd.getpwnam(lab.plan.user).pw_dir)
    (path / "hpcbert").symlink_to(checkout.path)
    return path


def typed(lab: Lab, script: str, **env: str) -> Outcome:
    """Return what a login shell of the lab's user does with a script."""
    entry = pwd.getpwnam(lab.plan.user)
    become = ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--init-groups"]
    variables = {
        "HOME": entry.pw_dir,
        "USER": entry.pw_name,
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
    }
    shell = [*become, "bash", "--login", "-e", "-c", script]
    return run(shell, env={**variables, **env}, cwd=Path(entry.pw_dir), timeout=3 * CEILING)


def list_checks(text: str) -> list[str]:
    """Return doctor's lines about a lab, without what differs between labs."""
    checks = re.findall(r"^ok   (?!recipe ).+", text, re.MULTILINE)
    varying = re.compile(r"(?<= )\S*/(?=site\.toml|runs)|\d[\d.:T-]*|(?<= at )\S+(?= is )")
    return [varying.sub("*", check) for check in checks]


def test_the_labs_user_finds_hpcbert(lab: Lab) -> None:
    outcome = typed(lab, "hpcbert --version && sinfo --noheader --format=%D && hpcbert doctor")
    assert outcome.ok, outcome.stdout + outcome.stderr
    assert outcome.stdout.startswith("hpcbert ")
    page = TUTORIAL.read_text().partition("hpcbert doctor\n```")[2]
    block = page.partition("```text\n")[2].partition("```")[0]
    assert list_checks(block) == list_checks(outcome.stdout)


def test_each_command_of_the_page_does_what_it_says(
    lab: Lab, home: Path, checkout: Checkout
) -> None:
    pages = dict(_BLOCK.findall(PAGE.read_text()))
    outcomes = {}
    # Dependencies, torch among them, are those of the tests: downloading them takes minutes.
    packages = next(Path(checkout.python).parents[1].glob("lib/python3*/site-packages"))
    pip = {name: value for name, value in os.environ.items() if name.startswith(_PIP)}
    first = next(iter(pages))
    pip_line = "hpcbert-env/bin/python -m pip install"
    more = f"echo {packages} >$(echo hpcbert-env/lib/python3*/site-packages)/tests.pth; {pip_line}"
    # A person on a cluster has no HPCBERT_SITE, and one hpcbert.
    before = "unset HPCBERT_SITE; "
    script = pages[first].replace(pip_line, more)
    assert more in script
    for title, block in {**pages, first: script}.items():
        place = "" if title == first else 'export PATH="$HOME/hpcbert-env/bin:$PATH"; '
        place += "" if "cd ~" in block else "cd ~/measurements; "
        outcomes[title] = typed(lab, f"{before}{place}{block}", **pip)
        assert outcomes[title].ok, f"{title}: {outcomes[title].stdout}{outcomes[title].stderr}"
        if title == "Describe the cluster":
            # The lab's GPUs are fake, as its own site.toml says.
            site = home / "measurements" / "site.toml"
            site.write_text(set_key(site.read_text(), "frameworks.pytorch", "device", '"auto"'))
    rehearsal = outcomes["Rehearse"].stdout
    assert "hpcbert collect" not in rehearsal
    assert re.search(r"REHEARSAL rank=\d/2 .* host=n\d", rehearsal)
    # The sample has four nodes; the cluster's are those of the ranks.
    lines = [line for line in rehearsal.splitlines() if not line.startswith("sample: ")]
    assert len([line for line in lines if "REHEARSAL rank" in line]) == 2
    assert "1/1" in outcomes["Measure"].stdout
    back = outcomes["Keep and share the results"].stdout
    assert "my first one" in back
    assert "rehearsed" in back
    assert list(home.glob("measurements/runs/*-pytorch-*/report/index.html"))
    shutil.rmtree(home / "measurements")
