"""The first hour of an ordinary user, as the page has it, and a file of thirty points, on a real cluster."""

import os
import pwd
import re
import shutil
from pathlib import Path

import pytest

from hpcbert.lab.daemons import run_as
from hpcbert.system.runner import run
from tests.kit.cases import read_constant
from tests.kit.cli import Tmux
from tests.kit.doctor import set_key
from tests.kit.paths import REPOSITORY
from tests.kit.waiting import CEILING, until


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


@pytest.mark.needs("tmux")
def test_thirty_points_are_planned_submitted_listed_and_reported(hpcbert, user, lab):
    """As an ordinary user, with the view driven by keys.

    All jobs are held until one of each framework is let go; the others are cancelled.
    """
    (hpcbert.cwd / "campaign.toml").write_text(read_constant(__file__, "FILE"))
    plan = hpcbert("plan", "campaign.toml", "--rehearse", "--json", status=0).data
    assert (plan["can_run"], plan["total"]["points"], plan["total"]["jobs"]) == (True, 30, 30)
    shapes = [point["shape"] for point in plan["campaigns"][0]["points"]]
    assert shapes == ["1n1g", "1n4g", "1n8g", "2n8g", "4n8g"] * 2
    words = ("submit", "campaign.toml", "--rehearse", "--sbatch-arg=--hold", "--notify", "END")
    campaigns = hpcbert(*words, "--json", status=0).data["campaigns"]
    assert [len(campaign["arrays"]) for campaign in campaigns] == [10, 10, 10]
    names = [Path(campaign["directory"]).name for campaign in campaigns]
    first_jobs = [str(campaign["arrays"][0]["job_id"]) for campaign in campaigns]
    assert "MailType=END" in hpcbert.run(["scontrol", "show", "job", first_jobs[0]]).stdout
    assert "10 of its repeats wait or run" in hpcbert("rm", "--yes", *names, status=2).stderr
    lock = Path(campaigns[1]["directory"]) / "campaign.lock.toml"
    like = hpcbert("submit", "--like", lock, "--rehearse", "--dry-run", "--json", status=0)
    assert (like.data["framework"], len(like.data["arrays"])) == ("oneflow", 10)
    variables = {**hpcbert.env, **lab.environment, "HOME": user.home, "USER": user.name}
    argv = [*run_as(user.name), "env", *(f"{name}={text}" for name, text in variables.items())]
    tmux = Tmux(hpcbert.cwd, [*argv, hpcbert.python, "-m", "hpcbert", "monitor", *names], 120, 40)
    try:
        tmux.shows("30 waiting")
        tmux.shows_recorded("thirty-waiting-120x40")
        tmux.keys("Left", "Down", "Left", "Down", "Left")
        tmux.shows("3/3")
        hpcbert.run(["scontrol", "release", ",".join(first_jobs)])
        tmux.shows("3 completed, 27 waiting  about")
        tmux.shows_recorded("thirty-folded-120x40")
        tmux.keys("/", *"4n8g")
        tmux.shows("filter: 4n8g")
        tmux.keys("Escape")
        tmux.no_longer_shows("filter: 4n8g")
        for key in ("Home", "Down", "Down"):
            tmux.keys(key, "c")
            tmux.shows("Cancel 9 repeats of")
            tmux.keys("y")
            tmux.shows("Cancelled 9 repeats of")
        for text in ("all is over", "3 completed, 27 cancelled"):
            tmux.shows(text)
        tmux.keys("q")
        tmux.shows("left 0")
    finally:
        tmux.end()
    listed = hpcbert("list", "--json", status=0).data["campaigns"]
    rows = {(entry["name"], entry["note"], len(entry["shapes"])) for entry in listed}
    assert rows == {("thirty points", "3 x 2 x 5", 5)}
    for command in ("collect", "report --output out"):
        answer = hpcbert(*command.split(), *names, status=4)
        assert answer.output.count("is a rehearsal: nothing was trained") == 3
    # Slurm may still be clearing up after a job that has ended.
    until(lambda: hpcbert("rm", "--yes", *names).returncode == 0, "nothing of them lives")
    assert not list((hpcbert.cwd / "runs").glob("*-*"))
