"""What a submission takes at most, and a retry's script: the first one's, but for what must differ."""

from dataclasses import replace

import pytest

from hpcbert.errors import UsageError
from hpcbert.model import JobRequest, Shape
from hpcbert.scheduler.slurm import TRAITS as SLURM_TRAITS
from hpcbert.script import request
from hpcbert.timelimit import TimeLimit
from tests.kit.cases import cases
from tests.kit.drafts import combined, drafted, reference
from tests.kit.scripts import bash, only_script, sbatch_options


def test_a_submission_s_hours_are_summed_as_people_read_them_and_too_many_are_refused(tmp_path):
    def list_costs(limit="02:00:00", *, together=False, **fields):
        fields = {"shape": Shape(2, 8), "precisions": ("fp32",), "device": "gpu", **fields}
        site = reference(tmp_path, slurm={"time_limit": TimeLimit.parse(limit)})
        options = {"together": together, "most_indices": 10}
        draft = drafted(site, combined(**fields), options=options)
        return request.array_costs(draft.campaign.arrays)

    def sum_all(costs):
        nodes = request.sum_hours(cost.on_nodes(cost.hours) for cost in costs)
        return nodes, request.sum_hours(cost.on_devices(cost.hours) for cost in costs)

    assert sum_all(list_costs()) == (20.0, 160.0)
    assert sum_all(list_costs(repeats=1, precisions=("fp32", "bf16"))) == (8.0, 64.0)
    (cost,) = costs = list_costs(together=True)
    assert (cost.repeats, cost.jobs, sum_all(costs)) == (5, 1, (4.0, 32.0))
    (cost,) = list_costs(repeats=25)  # in three arrays
    assert (cost.repeats, cost.jobs) == (25, 25)
    costs = list_costs(scaling=True)
    assert sum_all(costs) == (50.0, 10.0 + 40.0 + 80.0 + 160.0)
    request.refuse_expensive(costs, 290.0)
    with pytest.raises(UsageError, match="up to 290 GPU-hours, more than 289") as caught:
        request.refuse_expensive(costs, 289.0)
    assert "--max-gpu-hours 290" in caught.value.hint
    request.refuse_expensive(costs, 870.0, tries=3)
    with pytest.raises(UsageError, match=r"up to 870 GPU-hours, .* up to 3 times"):
        request.refuse_expensive(costs, 869.0, tries=3)
    endless = list_costs("UNLIMITED")
    assert sum_all(endless) == (None, None)
    with pytest.raises(UsageError, match="no upper limit") as caught:
        request.refuse_expensive(endless, 1e9)
    assert "--time" in caught.value.hint
    # As people read hours.
    for device, unit in (("gpu", "GPU-hours"), ("cpu", "rank-hours"), ("auto", "device-hours")):
        assert request.hours_unit(list_costs(device=device)) == unit
    texts = {0.08333333333333333: "0.0833", 12.5: "12.5", 5.0: "5", 305.0: "305", None: "-"}
    texts[1234.56] = "1,234.6"
    assert {number: request.format_hours(number) for number in texts} == texts


def render_script(folder, *words, together=False, **slurm):
    site = reference(folder, slurm={"sbatch_args": words, **slurm})
    draft = drafted(site, options={"together": together})
    return draft.campaign.arrays[0], only_script(draft)


def retry(array, text, exclude=("n3", "n4"), limit=""):
    """Return the request and the script of a retry of repeats 2 and 4."""
    limit = limit or array.request.time_limit
    again = request.retry_request(
        array.request, name="job.t1", indices=(2, 4), exclude=exclude, time_limit=limit
    )
    retried = replace(array, request=again, repeats=(2, 4), first_attempt=3)
    return again, request.rewrite_script(text, array.request, retried, scheduler=SLURM_TRAITS)


def test_a_retry_adds_options_of_sbatch_and_changes_its_first_attempt(tmp_path):
    array, text = render_script(tmp_path)
    _, script = retry(array, text, limit="02:00:00")
    added = [line for line in script.splitlines() if line not in text.splitlines()]
    *options, attempt = [line for line in added if "array_name=" not in line]
    words = ("job-name=job.t1", "comment=job.t1", "array=2,4%1", "time=02:00:00", "exclude=n3,n4")
    assert options == [f"#SBATCH --{word}" for word in words]
    assert "first_attempt=3 " in attempt
    assert bash("-n", stdin=script).ok
    with pytest.raises(UsageError, match="first_attempt"):
        retry(array, text.replace("first_attempt=", "attempt_from="))
    # The user's own comment and excluded nodes stay, and repeats that share a job share it again.
    array, text = render_script(tmp_path, "--comment=mine", "--exclude=n[7-8]")
    again, _ = retry(array, text)
    assert (again.comment, again.exclude) == ("mine", "n[7-8],n3,n4")
    assert retry(array, text, exclude=())[0].exclude == "n[7-8]"
    array, text = render_script(tmp_path, together=True)
    again, script = retry(array, text)
    assert again.array == ""
    assert "\nrepeats=(2 4)\n" in script
    assert "--array" not in script


@cases
def test_the_request_on_record_is_what_sbatch_reads_in_the_script(tmp_path, words):
    for exclusive in (True, False):
        array, text = render_script(tmp_path, *words, exclusive=exclusive, partition="gpu")
        assert request.read_request(sbatch_options(text)) == array.request
        again, script = retry(array, text, limit="2-0")
        assert request.read_request(sbatch_options(script)) == again


def test_a_request_says_which_campaign_it_writes_to(tmp_path):
    for name in ("a b", "a %j b"):
        directory = tmp_path / name
        output = f"{directory}/slurm/".replace("%", "%%") + "%A_%a.out"
        job = replace(JobRequest(), output=output)
        assert not request.is_written_to(job, tmp_path)
        directory.mkdir()
        assert request.is_written_to(job, directory)
        assert not request.is_written_to(job, tmp_path)
        assert not request.is_written_to(replace(job, output=""), directory)
