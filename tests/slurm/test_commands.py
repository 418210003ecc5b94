"""Formats as Slurm 22.05.8 printed them, fields in the order that is asked for."""

import pytest

from hpcbert.config.options import Options
from hpcbert.config.site import load
from hpcbert.errors import UsageError
from hpcbert.scheduler.base import SchedulerContext
from hpcbert.scheduler.slurm.cluster import run_queries, run_query
from hpcbert.slurm import commands
from hpcbert.slurm.commands import JobRow, parse_mail, read_sacct, read_squeue
from tests.kit.cases import cases, read_constant
from tests.kit.cli import run
from tests.kit.slurm import Answer, Slurm, failed, sacct

SACCT = read_constant(__file__, "SACCT")
SQUEUE = read_constant(__file__, "SQUEUE")


def test_sacct_and_squeue_lines_become_rows_and_others_are_kept():
    junk = "sacct: error: hm\n1_1.batch|nobody|RUNNING\n|||||||||||\n1_x|" + "|" * 10 + "\n\n"
    listing = read_sacct(junk + SACCT)
    assert listing.garbage == tuple(line for line in junk.splitlines() if line)
    assert listing.rows == read_sacct(SACCT).rows
    first, *failed, _, waits, never, single = listing.rows
    assert first == JobRow(
        job="1", tasks=((1, 1, 1),), user="nobody", name="camp-bert", state="COMPLETED",
        reason="None", exit_code=0, submit=1795255599.0, start=1795255600.0, end=1795255600.0,
        elapsed=0.0, limit=120.0, nodelist="n[1-2]",
    )  # fmt: skip
    assert [row.exit_code for row in failed] == [3, 137]
    assert [waits.covers(number) for number in (4, 5, 7, 8)] == [False, True, True, False]
    assert (waits.start, waits.end) == (None, None)
    assert (never.start, never.limit) == (None, None)
    assert single.tasks == ()
    # A name with the separator shifts no field.
    line = "5|me|RUNNING|0:0|None|1|2|Unknown|3|4|n1|a|b|COMPLETED\n"
    (row,) = read_sacct(line).rows
    assert (row.state, row.name) == ("RUNNING", "a|b|COMPLETED")
    listing = read_squeue(SQUEUE)
    assert listing.garbage == ()
    job_row, waits, row, lost, runs = listing.rows
    assert (job_row.state, job_row.exit_code, job_row.nodelist) == ("COMPLETED", None, "n[1-2]")
    assert (waits.reason, waits.start, waits.limit) == ("JobArrayTaskLimit", None, 120.0)
    assert row.reason == "job requeued in held state"
    assert (lost.limit, runs.elapsed) == (365 * 86400, 3723)
    steps = JobRow("1", ((1, 9, 4),), "u", "n", "PENDING")
    assert [number for number in range(12) if steps.covers(number)] == [1, 5, 9]


@cases
def test_job_ids_are_read(text, expected, *, is_part):
    """Steps and parts of heterogeneous jobs stand in answers too, and are none of ours."""
    assert commands.parse_job_id(text) == expected
    for read, lines in ((read_sacct, SACCT), (read_squeue, SQUEUE)):
        line = lines.splitlines()[0].replace("1_1|", f"{text}|", 1)
        assert not is_part or read(f"{line}\n{lines}") == read(lines)


def test_one_accounting_query_whatever_the_number_of_jobs_and_the_callers_settings():
    ids = [str(number) for number in range(1000, 1450)]
    argv = commands.sacct_argv([*ids, "1000"], users=["b", "a", "b"], since=1795255599.9)
    assert argv[:7] == ["sacct", "-X", "-P", "-n", "-D", "-o", argv[6]]
    assert argv[argv.index("-S") + 1] == "uts1795255599"
    assert argv[argv.index("-u") + 1] == "a,b"
    assert argv[argv.index("-j") + 1].split(",") == ids
    kept = {"PATH": "/bin", "SLURM_CONF": "/etc/slurm.conf", "SLURM_JWT": "x"}
    names = ("SLURM_TIME_FORMAT", "SLURM_CLUSTERS", "SACCT_FORMAT", "SQUEUE_STATES", "SCANCEL_X")
    environment = commands.query_environment({**kept, **dict.fromkeys(names, "mine")})
    assert environment == {**kept, "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
    durations = {"0:05": 5, "1:02:03": 3723, "2-00:00:01": 172801, "UNLIMITED": None, "": None}
    assert {text: commands.parse_duration(text) for text in durations} == durations


def test_fields_asked_for_exist_in_every_release(shared):
    table = (shared / "upstream-flags" / "slurm-sacct-fields.tsv").read_text()
    rows = (line.split("\t") for line in table.splitlines() if not line.startswith(("#", "flag")))
    notes = {name: note for name, _, _, _, note in filter(any, rows)}
    argv = commands.sacct_argv(["1"], users=["u"], since=0)
    fields = argv[argv.index("-o") + 1].split(",")
    assert all(notes[name].startswith("present: all") for name in fields)


@pytest.mark.site("a second cluster (scripted)")
def test_the_jobs_of_sibling_clusters_are_told_apart_by_their_heading():
    """The same number on each: squeue --federation (SchedMD/slurm, src/squeue/squeue.c)."""
    line = "7_1|me|RUNNING|1|2|3|0:05|1:00|n1|camp|None|//7|//(null)|///work\n"
    text = "".join(f"CLUSTER: {name}\nJOBID|USER|STATE\n{line}\n" for name in ("east", "west"))
    listing = read_squeue(text)
    assert listing.garbage == ()
    assert [(row.job, row.cluster) for row in listing.rows] == [("7", "east"), ("7", "west")]


@pytest.mark.site("Slurm 20.11 and 21.08 (scripted)")
def test_a_sacct_without_the_submit_line_is_asked_again_without_it():
    # SchedMD/slurm, src/sacct/options.c, before it asks slurmdbd; 20.11 has no such field.
    refusal = failed('sacct: error: Invalid field requested: "SubmitLine"\n')
    slurm = Slurm(sacct=[refusal, sacct(7, "COMPLETED", place="/runs/x")])
    argv = commands.sacct_argv(["7"], users=["me"], since=0)
    (row,) = read_sacct(run_query(SchedulerContext(slurm), argv).stdout).rows
    assert (row.job, row.state, row.workdir, row.command) == ("7", "COMPLETED", "/runs/x", "")
    assert slurm.calls == [(*argv,), tuple(word.replace(",SubmitLine", "") for word in argv)]
    assert commands.simplify_query(["sacct"], "sacct: error: Problem talking to the database") == []


@cases
def test_asking_again_is_useless_only_where_nothing_will_answer(status, complaint, answer):
    slurm = Slurm(sacct=Answer(code=status, complaint=complaint))
    assert run_queries(SchedulerContext(slurm), [["sacct"]])[1] == answer


@cases
def test_types_and_address_become_words_of_sbatch(typed, words):
    assert parse_mail(typed) == words
    assert load(options=Options(notify=typed)).slurm.sbatch_args[-2:] == words[-2:]


def test_a_script_has_its_mail_and_the_local_queue_refuses_it(empty_directory):
    for typed in ("ENDED", "me", "a@b,c@d", "a b@c"):
        with pytest.raises(UsageError, match="--notify"):
            parse_mail(typed)
    words = ("submit", "--dry-run", "--notify", "fail,me@example.org", "--json")
    result = run(*words, "--scheduler", "slurm")
    (array,) = result.data["arrays"]
    assert "#SBATCH --mail-type=FAIL\n#SBATCH --mail-user=me@example.org" in array["script_text"]
    assert any("--mail-type=FAIL" in warning for warning in result.document["warnings"])
    refused = run("submit", "--notify", "END", "--scheduler", "local", "--json", status=2)
    assert "--notify has no effect" in refused.error["message"]
