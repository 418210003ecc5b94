"""The first hour of an ordinary user, as the page has it, on a real cluster."""

import os
import pwd
import re
import shutil
from pathlib import Path

from hpcbert.lab.record import Lab
from hpcbert.system.runner import Outcome, run
from tests.kit.doctor import set_key
from tests.kit.paths import REPOSITORY
from tests.kit.waiting import CEILING

TUTORIAL = REPOSITORY / "docs" / "tutorial" / "first-table.md"
PAGE = REPOSITORY / "docs" / "how-to" / "first-hour.md"
_BLOCK = re.compile(r"^## (.+?)\n.*?^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


def log_in(lab: Lab, script: str, **env: str) -> Outcome:
    """Return what a login shell of the lab's user does with a script."""
    entry = pwd.getpwnam(lab.plan.user)
    become = ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--init-groups"]
    env |= {"HOME": entry.pw_dir, "USER": entry.pw_name, "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
    shell = [*become, "bash", "--login", "-e", "-c", script]
    outcome = run(shell, env=env, cwd=Path(entry.pw_dir), timeout=3 * CEILING)
    assert outcome.ok, f"{script}: {outcome.stdout}{outcome.stderr}"
    return outcome


def list_checks(text: str) -> list[str]:
    """Return doctor's lines about a lab, without what differs between labs."""
    checks = re.findall(r"^ok   (?!recipe ).+", text, re.MULTILINE)
    varying = re.compile(r"(?<= )\S*/(?=site\.toml|runs)|\d[\d.:T-]*|(?<= at )\S+(?= is )")
    return [varying.sub("*", check) for check in checks]


def test_the_labs_user_finds_hpcbert(lab):
    outcome = log_in(lab, "hpcbert --version && sinfo --noheader --format=%D && hpcbert doctor")
    assert outcome.stdout.startswith("hpcbert ")
    page = TUTORIAL.read_text().partition("hpcbert doctor\n```")[2]
    block = page.partition("```text\n")[2].partition("```")[0]
    assert list_checks(block) == list_checks(outcome.stdout)


def test_each_command_of_the_page_does_what_it_says(lab, checkout):
    home = Path(pwd.getpwnam(lab.plan.user).pw_dir)
    (home / "hpcbert").symlink_to(checkout.path)
    blocks = dict(_BLOCK.findall(PAGE.read_text()))
    outputs = {}
    # Dependencies, torch among them, are those of the tests: downloading them takes minutes.
    packages = next(Path(checkout.python).parents[1].glob("lib/python3*/site-packages"))
    # Where packages come from here.
    kinds = ("PIP_", "SSL_", "REQUESTS_")
    pip = {name: value for name, value in os.environ.items() if name.startswith(kinds)}
    first = next(iter(blocks))
    line = "hpcbert-env/bin/python -m pip install"
    more = f"echo {packages} >$(echo hpcbert-env/lib/python3*/site-packages)/tests.pth; {line}"
    assert line in blocks[first]
    blocks[first] = blocks[first].replace(line, more)
    for title, block in blocks.items():
        # A person on a cluster has no HPCBERT_SITE, and one hpcbert.
        before = "unset HPCBERT_SITE; "
        before += "" if title == first else 'export PATH="$HOME/hpcbert-env/bin:$PATH"; '
        before += "" if "cd ~" in block else "cd ~/measurements; "
        outputs[title] = log_in(lab, f"{before}{block}", **pip).stdout
        if title == "Describe the cluster":
            # The lab's GPUs are fake, as its own site.toml says.
            site = home / "measurements" / "site.toml"
            site.write_text(set_key(site.read_text(), "frameworks.pytorch", "device", '"auto"'))
    rehearsal = outputs["Rehearse"]
    assert "hpcbert collect" not in rehearsal
    assert re.search(r"REHEARSAL rank=\d/2 .* host=n\d", rehearsal)
    # The sample has four nodes; the cluster's are those of the ranks.
    lines = [line for line in rehearsal.splitlines() if not line.startswith("sample: ")]
    assert len([line for line in lines if "REHEARSAL rank" in line]) == 2
    assert "1/1" in outputs["Measure"]
    back = outputs["Keep and share the results"]
    assert "my first one" in back
    assert "rehearsed" in back
    assert list(home.glob("measurements/runs/*-pytorch-*/report/index.html"))
    shutil.rmtree(home / "measurements")
