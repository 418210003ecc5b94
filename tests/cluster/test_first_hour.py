"""The first hour of an ordinary user, as the page has it, on a real cluster."""

import os
import pwd
import re
import shutil
from pathlib import Path

from hpcbert.lab.daemons import run_as
from hpcbert.system.runner import run
from tests.kit.doctor import set_key
from tests.kit.paths import REPOSITORY
from tests.kit.waiting import CEILING


def test_the_labs_user_finds_hpcbert_and_each_command_of_the_page_does_what_it_says(lab, checkout):
    name, home = lab.plan.user, Path(pwd.getpwnam(lab.plan.user).pw_dir)

    def log_in(script, **env):
        """Return what a login shell of the lab's user prints."""
        env |= {"HOME": str(home), "USER": name, "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
        shell = [*run_as(name), "bash", "--login", "-e", "-c", script]
        outcome = run(shell, env=env, cwd=home, timeout=3 * CEILING)
        assert outcome.ok, f"{script}: {outcome.stdout}{outcome.stderr}"
        return outcome.stdout

    def list_checks(text):
        """Return doctor's lines about a lab, without what differs between labs."""
        checks = re.findall(r"^ok   (?!recipe ).+", text, re.MULTILINE)
        varying = re.compile(r"(?<= )\S*/(?=site\.toml|runs)|\d[\d.:T-]*|(?<= at )\S+(?= is )")
        return [varying.sub("*", check) for check in checks]

    printed = log_in("hpcbert --version && sinfo --noheader --format=%D && hpcbert doctor")
    assert printed.startswith("hpcbert ")
    page = (REPOSITORY / "docs" / "tutorial" / "first-table.md").read_text()
    page = page.partition("hpcbert doctor\n```")[2].partition("```text\n")[2].partition("```")[0]
    assert list_checks(page) == list_checks(printed)
    (home / "hpcbert").symlink_to(checkout.path)
    page = (REPOSITORY / "docs" / "how-to" / "first-hour.md").read_text()
    pattern = r"^## (.+?)\n.*?^```sh\n(.*?)^```"
    blocks = dict(re.findall(pattern, page, re.MULTILINE | re.DOTALL))
    outputs = {}
    # Dependencies, torch among them, are those of the tests: downloading them takes minutes.
    packages = next(Path(checkout.python).parents[1].glob("lib/python3*/site-packages"))
    # Where packages come from here.
    kinds = ("PIP_", "SSL_", "REQUESTS_")
    pip = {name: value for name, value in os.environ.items() if name.startswith(kinds)}
    first, line = next(iter(blocks)), "hpcbert-env/bin/python -m pip install"
    more = f"echo {packages} >$(echo hpcbert-env/lib/python3*/site-packages)/tests.pth; {line}"
    assert line in blocks[first]
    blocks[first] = blocks[first].replace(line, more)
    for title, block in blocks.items():
        # A person on a cluster has no HPCBERT_SITE, and one hpcbert.
        before = "unset HPCBERT_SITE; "
        before += "" if title == first else 'export PATH="$HOME/hpcbert-env/bin:$PATH"; '
        before += "" if "cd ~" in block else "cd ~/measurements; "
        outputs[title] = log_in(f"{before}{block}", **pip)
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
