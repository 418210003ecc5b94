"""A file of three frameworks, two precisions and five shapes, from plan to report on a real cluster."""

from pathlib import Path

import pytest

from hpcbert.lab.daemons import run_as
from tests.kit.cases import read_constant
from tests.kit.cli import Tmux
from tests.kit.waiting import until


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
