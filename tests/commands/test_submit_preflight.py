"""Submitting with a preflight: what waits for what, who keeps away from which node, what is said."""

from dataclasses import replace

import pytest

from hpcbert.campaign import preflight
from hpcbert.cli.progress import advise
from hpcbert.commands.monitor import open_campaign
from hpcbert.errors import SchedulerError
from hpcbert.model import Shape
from tests.kit import cli, drafts
from tests.kit.campaigns import ended, report_states, status_file
from tests.kit.cases import read_constant
from tests.kit.slurm import AWAY, Slurm, failed, sinfo

pytestmark = pytest.mark.slow

EVENTS = read_constant(__file__, "EVENTS")


def draft_points(where, **options):
    """Draft a campaign of three points, after a preflight."""
    request = drafts.combined(Shape(2, 2), ("fp32",), scaling=True, repeats=2, device="cpu")
    return drafts.drafted(drafts.reference(where), request, options={"preflight": True, **options})


def list_options(slurm, first=0):
    return tuple(call[2:-1] for call in slurm.called("sbatch")[first:])


def track(draft, *events):
    """Let the preflight's job write events, and return the campaign as it is on disk."""
    path = draft.directory / draft.campaign.preflight.status(1)
    path.unlink(missing_ok=True)
    status_file(path, *events, time=9)
    return open_campaign(draft.directory)


def test_points_wait_for_the_preflight(tmp_path):
    draft, slurm = draft_points(tmp_path / "a"), Slurm()
    campaign = drafts.submit(draft, slurm)
    after, kill = "--dependency=afterok:100", "--kill-on-invalid-dep=yes"
    waits = (f"{after},afterany:{job}" for job in (101, 102))
    assert list_options(slurm) == ((), (after, kill), *((wait, kill) for wait in waits))
    assert campaign.preflight
    assert campaign.preflight.job_id == "100"
    assert not any(array.changed for array in campaign.arrays)
    # Points that may run at once wait for the preflight alone.
    slurm = Slurm()
    drafts.submit(draft_points(tmp_path / "b", concurrent_points=True), slurm)
    assert list_options(slurm) == ((), *[(after, kill)] * 3)


def test_what_is_submitted_later_keeps_away_from_what_it_found(tmp_path):
    def interrupt(name, nodes=4):
        """Let Slurm take the preflight and then go away; return the draft, and that Slurm."""
        draft = draft_points(tmp_path / name, concurrent_points=True)
        names = (f"n{number}" for number in range(1, nodes + 1))
        slurm = Slurm(sinfo=sinfo(*names), sbatch=[None, failed(AWAY)])
        with pytest.raises(SchedulerError):
            drafts.submit(draft, slurm)
        slurm.sbatch = None
        return draft, slurm

    for number, (base, more, nodes, options) in enumerate(read_constant(__file__, "LATER")):
        draft, slurm = interrupt(str(number), nodes)
        count = slurm.count("sbatch")
        track(draft, *EVENTS[base], *more)
        drafts.submit(draft, slurm)
        assert list_options(slurm, count) == options, (base, more)
    draft, slurm = interrupt("failed")
    track(draft, *EVENTS["well"], *ended(1))
    with pytest.raises(SchedulerError, match="preflight failed") as refused:
        drafts.submit(draft, slurm)
    assert "--preflight" in refused.value.hint
    assert list(slurm.jobs) == ["100"]


def test_what_it_found_is_said_in_words(tmp_path):
    draft = draft_points(tmp_path)
    drafts.submit(draft, Slurm())
    for base, more, expected, warned in read_constant(__file__, "SAID"):
        watched = track(draft, *EVENTS[base], *more)
        texts = preflight.describe_preflight(watched)
        assert len(texts) == len(expected)
        assert all(part in text for part, text in zip(expected, texts, strict=True))
        assert bool(preflight.warn_about_preflight(watched, over=False)) == warned
    # That somebody ended it is not said to wait or run.
    for base in ("none", "started"):
        (warning,) = preflight.warn_about_preflight(track(draft, *EVENTS[base]), over=True)
        assert "job 100, has recorded no end" in warning
    for event in read_constant(__file__, "DAMAGED"):
        assert preflight.describe_preflight(track(draft, *EVENTS["started"], event, *ended()))
    # One that failed gives the cause, and points lead to it.
    watched = track(draft, *EVENTS["started"], *ended(1))
    log = preflight.find_log(watched, watched.campaign.preflight)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("job.bash: line 9: all_reduce_perf: command not found\n")
    (text,) = preflight.describe_preflight(watched)
    assert "all_reduce_perf: command not found" in text
    point = next(repeat for repeat in watched.repeats if not repeat.array.preflight)
    state = report_states(default="CANCELLED")(watched)[point.key]
    assert "preflight failed" in advise(point, state)


def test_a_dry_run_shows_it_first_a_plan_counts_it_and_a_cancel_names_it(hpcbert):
    hpcbert = replace(hpcbert, run=cli.run_here)
    words = ("--fw", "pytorch", "--device", "cpu", "--nodes", 4, "--preflight", "--force")
    arrays = hpcbert("submit", *words, "--dry-run", "--json").data["arrays"]
    assert [array["name"].startswith("pre4n1g") for array in arrays] == [True, False]
    data = hpcbert("plan", *words[:-1], "--json").data
    points = data["campaigns"][0]["points"]
    assert [point["preflight"] for point in points] == [False, True]
    total = data["total"]
    assert (total["points"], total["repeats"], total["jobs"]) == (1, 5, 6)
    assert total["rank_hours"] == 20 + 2
    name = hpcbert("submit", *words, "--rehearse", "--json", status=0).data["campaign"]
    result = hpcbert("cancel", name, "--yes", status=0)
    assert result.stdout.startswith(f"Cancelled 5 repeats and the preflight of {name}")
