"""The first site.toml: what a cluster has decides each value, and nothing is guessed in silence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hpcbert.commands.init import (
    Proposal,
    Question,
    describe_choices,
    has_cluster,
    propose,
    render_site,
)
from hpcbert.config.site import Site, read_site
from hpcbert.errors import SchedulerError, UsageError
from hpcbert.scheduler.base import SchedulerContext
from hpcbert.scheduler.slurm.cluster import Cluster
from hpcbert.system.machine import MachineFacts
from hpcbert.system.runner import Outcome, Runner
from tests.kit.cases import cases
from tests.kit.cluster import AWAY, DENIED, Answers, partition
from tests.kit.paths import SITE

ENFORCED = (
    "ClusterName = c\nSLURM_VERSION = 24.11.5\nAccountingStorageEnforce = associations,limits,qos\n"
)
HERE = MachineFacts(interfaces=("eth0",), programs=(), shared={})


def line(
    name: str, gres: str, *, limit: str = "infinite", nodes: int = 2, state: str = "up"
) -> str:
    return f"{name}|{state}|{nodes}|{limit}|1-infinite|{gres}|n[1-{nodes}]\n"


def default(question: Question) -> str:
    return question.default


def propose_site(
    answers: Runner,
    *,
    surroundings: MachineFacts = HERE,
    pick: Callable[[Question], str] = default,
    folder: Path = Path("/home/me"),
    **options: Any,
) -> Proposal:
    cluster = Cluster(SchedulerContext(answers))
    assert has_cluster(cluster)
    return propose(cluster, surroundings, options, pick, folder=folder)


def write_site(proposal: Proposal, folder: Path) -> Site:
    """Return the site as it is read again."""
    path = folder / "site.toml"
    path.write_text(render_site(SITE.read_text(), proposal.values))
    return read_site(path, base=folder, env={})


@pytest.fixture(autouse=True)
def me(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcbert.system.ownership.user_name", lambda _: "me")
    monkeypatch.setattr(
        "hpcbert.system.ownership.is_in_any_group", lambda groups: "users" in groups
    )


@cases
def test_gpus_by_type_and_number(gres: str, name: str, count: int, tmp_path: Path) -> None:
    proposal = propose_site(Answers(sinfo=line("gpu*", gres)))
    site = write_site(proposal, tmp_path)
    assert (site.slurm.gres, site.nodes.gpus_per_node) == (name, count)
    assert any("MIG" in warning for warning in proposal.warnings) == (name == "gpu:1g.10gb")


@cases
def test_the_partition_is_one_that_has_gpus(
    sinfo: str, chosen: str, reason: str, alternatives: str
) -> None:
    proposal = propose_site(Answers(sinfo=sinfo, partitions=""))
    choice = next(candidate for candidate in proposal.choices if candidate.key == "slurm.partition")
    assert choice.value == chosen
    assert reason in choice.why
    assert alternatives in "; ".join(choice.others)


def test_a_partition_for_others_is_passed_over(tmp_path: Path) -> None:
    sinfo = "".join(line(name, "gpu:8") for name in ("a*", "b", "c", "d"))
    parts = partition("a", accounts="others") + partition("b").replace(
        "AllowGroups=ALL", "AllowGroups=ml"
    )
    parts += partition("c") + "ReqResv=YES" + "\n"
    parts = parts.replace("\nReqResv", " ReqResv") + partition("d", accounts="proj")
    association = "proj|me|||normal|normal|||\n"
    answers = Answers(
        sinfo=sinfo, partitions=parts, config=ENFORCED, own=association, user="me|proj\n"
    )
    proposal = propose_site(answers)
    assert write_site(proposal, tmp_path).slurm.partition == "d"
    listed = "; ".join(proposal.choices[0].others)
    assert "for the accounts others" in listed
    assert "for the groups ml" in listed
    assert "for reservations only" in listed


OWN = "proj|me|||normal|normal|||\n"


@pytest.mark.parametrize(
    "rule", [("AllowQos=ALL", "AllowQos=gold"), ("AllowQos=ALL", "DenyQos=normal")]
)
def test_a_partition_for_another_qos_is_passed_over(rule: tuple[str, str]) -> None:
    first = partition("a").replace(*rule)
    answers = Answers(
        sinfo=line("a*", "gpu:8") + line("b", "gpu:8"), partitions=first + partition("b"),
        config=ENFORCED, own=OWN, user="me|proj\n",
    )  # fmt: skip
    proposal = propose_site(answers)
    assert proposal.value_of("slurm.partition") == "b"
    assert "is not for you: it is for the QOS" in proposal.choices[0].why
    assert not proposal.warnings
    proposal = propose_site(answers, partition="a")
    assert any("None of your QOS" in warning for warning in proposal.warnings)


def test_a_partition_for_many_nodes_is_the_second_choice() -> None:
    sinfo = line("wide*", "gpu:8", nodes=4).replace("1-infinite", "2-4") + line("b", "gpu:8")
    choice = propose_site(Answers(sinfo=sinfo, partitions="")).choices[0]
    assert choice.value == "b"
    assert "the default, wide, allows no fewer than 2 nodes a job" in choice.why
    assert "no fewer than 2 nodes a job, at most 4 nodes a job" in choice.others[0]


NO_GRES = "sbatch: error: cli_filter/lua: --gres is not supported here, use --gpus"
NO_FEATURE = "sbatch: error: job_submit/lua: name the GPU of your job with --constraint"
NO_EXPORT = "sbatch: error: jobs must be submitted with --export=NONE"
FEATURES = "gpu*|v100|2\ngpu*|a100,ib|6\n"
REFUSALS: dict[str, Callable[[str], str]] = {
    "none": lambda words: "",
    "only --gpus": lambda words: "" if "--gpus=" in words else NO_GRES,
    "no --gres": lambda words: NO_GRES if "--gres=" in words else "",
    "a type of GPU": lambda words: "" if "constraint=v100" in words or "constraint=a100" in words else NO_FEATURE,
    "both": lambda words: NO_GRES if "--gres=" in words else "" if "constraint=v100" in words else NO_FEATURE,
    "--export": lambda words: "" if "--export=NONE" in words else NO_EXPORT,
    "all": lambda words: "sbatch: error: Batch job submission failed: Invalid account",
}  # fmt: skip


@cases
def test_the_form_of_a_request_is_one_that_sbatch_accepts(
    refusal: str, option: str, constraint: str, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    cluster = Answers()

    def answer(argv: Sequence[str], **_: Any) -> Outcome:
        words = " ".join(argv)
        if argv[0] == "sbatch":
            complaint = REFUSALS[refusal](words)
            return Outcome(tuple(argv), int(bool(complaint)), "", complaint)
        return Outcome(tuple(argv), 0, FEATURES) if "%f" in words else cluster(argv)

    proposal = propose_site(answer)
    slurm = write_site(proposal, tmp_path).slurm
    assert (slurm.gpu_option, slurm.constraint, slurm.sbatch_args) == (
        option,
        constraint,
        arguments,
    )
    assert any("Invalid account" in text for text in proposal.warnings) == (refusal == "all")
    others = next((choice.others for choice in proposal.choices if choice.key == "slurm.constraint"), ())  # fmt: skip
    assert others == (("v100",) if refusal == "a type of GPU" else ())


LADDER = (("debug*", 10, "OFF", "30:00"), ("owners", 9, "OFF", "infinite"), ("spare", 1, "REQUEUE", "infinite"))  # fmt: skip


def ranked(names: str) -> tuple[str, str]:
    """Return lines of sinfo and scontrol for partitions of the ladder, all with the same nodes."""
    rows = [row for row in LADDER if row[0].removesuffix("*") in names.split()]
    sinfo = "".join(line(name, "gpu:8", limit=limit) for name, _, _, limit in rows)
    rules = [
        partition(name.removesuffix("*")).rstrip() + f" PriorityTier={tier} PreemptMode={mode}\n"
        for name, tier, mode, _ in rows
    ]
    return sinfo, "".join(rules)


@cases
def test_a_preemptible_partition_is_said(
    names: str, config: str, chosen: str, *, preempted: bool
) -> None:
    sinfo, rules = ranked(names)
    proposal = propose_site(Answers(sinfo=sinfo, partitions=rules, config=config))
    assert proposal.choices[0].value == chosen
    assert ("preempted" in proposal.choices[0].why) == preempted
    assert any("preemptible (REQUEUE)" in text for text in proposal.warnings) == preempted


@cases
def test_a_preemptible_qos_is_said(config: str, preempts: str, mode: str, warning: str) -> None:
    association = "a|me|||spare|spare|||\n"
    qos = f"spare||||{mode}\nhigh|||{preempts}|cluster\n"
    proposal = propose_site(Answers(config=config, own=association, user="me|a\n", qos=qos))
    warnings = [text for text in proposal.warnings if "preempt" in text]
    assert len(warnings) == bool(warning)
    assert all(warning in text and "by those of QOS high" in text for text in warnings)


@pytest.mark.parametrize(
    ("sharing", "forced"), [("FORCE:4", True), ("FORCE:1", False), ("FORCE", True), ("FORCE:12", True), ("EXCLUSIVE", False), ("YES:4", False)]
)  # fmt: skip
def test_nodes_that_a_partition_shares_in_any_case_are_said(sharing: str, *, forced: bool) -> None:
    rules = partition().replace("MaxNodes", f"OverSubscribe={sharing} MaxNodes")
    proposal = propose_site(Answers(partitions=rules))
    assert any("overrules --exclusive" in text for text in proposal.warnings) == forced


def test_a_partition_that_shares_its_nodes_is_the_second_choice() -> None:
    rules = partition("a").replace("MaxNodes", "OverSubscribe=FORCE:4 MaxNodes") + partition("b")
    sinfo = line("a", "gpu:8", nodes=9) + line("b", "gpu:8")
    proposal = propose_site(Answers(sinfo=sinfo, partitions=rules))
    assert (proposal.choices[0].value, proposal.warnings) == ("b", [])


def test_accounting_that_does_not_answer_is_said() -> None:
    away = dict.fromkeys(("own", "accounts", "user", "qos"), "sacctmgr: error: no connection")
    proposal = propose_site(Answers(config=ENFORCED, complaints=away))
    assert any("does not say which are yours" in warning for warning in proposal.warnings)
    proposal = propose_site(Answers(config=ENFORCED))
    assert any("You have no account" in warning for warning in proposal.warnings)


def test_no_more_memory_is_asked_for_than_the_partition_allows(tmp_path: Path) -> None:
    rule = partition().replace("MaxNodes", "MaxMemPerNode=64000 MaxNodes")
    proposal = propose_site(Answers(partitions=rule, config="DefMemPerNode = 4000\n"))
    assert write_site(proposal, tmp_path).slurm.memory == "64000"


def test_resources_that_are_no_gpus_are_named() -> None:
    proposal = propose_site(Answers(sinfo=line("npu*", "npu:910b:8,shard:4")))
    (gres,) = (choice for choice in proposal.choices if choice.key == "slurm.gres")
    assert (gres.value, gres.others) == ("", ("npu:910b:8", "shard:4"))


def test_of_two_types_of_gpus_the_most_is_taken_and_the_other_named(tmp_path: Path) -> None:
    answers = Answers(sinfo=line("gpu*", "gpu:v100:4") + line("gpu*", "gpu:a100:8", nodes=3))
    proposal = propose_site(answers)
    site = write_site(proposal, tmp_path)
    assert (site.slurm.gres, site.nodes.gpus_per_node) == ("gpu:a100", 8)
    assert "gpu:v100:4" in describe_choices(proposal.choices)
    site = write_site(propose_site(answers, gpu_type="v100"), tmp_path)
    assert (site.slurm.gres, site.nodes.gpus_per_node) == ("gpu:v100", 4)
    with pytest.raises(UsageError, match="type 'h100'") as refused:
        propose_site(answers, gpu_type="h100")
    assert "a100, v100" in refused.value.hint
    with pytest.raises(UsageError, match="gpu:a100:16"):
        propose_site(answers, gpus_per_node=16)


def test_a_type_of_gpu_that_another_partition_has_leads_there(tmp_path: Path) -> None:
    answers = Answers(sinfo=line("a*", "gpu:v100:4") + line("b", "gpu:a100:8"))
    site = write_site(propose_site(answers, gpu_type="a100"), tmp_path)
    assert (site.slurm.partition, site.slurm.gres) == ("b", "gpu:a100")


def test_a_cluster_without_gpus_computes_on_cpus_and_says_so(tmp_path: Path) -> None:
    proposal = propose_site(Answers(sinfo=line("cpu*", "(null)")))
    site = write_site(proposal, tmp_path)
    assert (site.slurm.gres, site.settings("pytorch").device) == ("", "cpu")
    assert any("no GPUs" in warning for warning in proposal.warnings)


TWO = "a|me|||normal|normal|||\nb|me|||normal|normal|||\n"


@cases
def test_a_demanded_account_is_written(
    association: str, user: str, account: str, tmp_path: Path
) -> None:
    proposal = propose_site(Answers(config=ENFORCED, own=association, user=user))
    assert write_site(proposal, tmp_path).slurm.account == account


def test_which_of_several_accounts_pays_only_the_user_can_say(tmp_path: Path) -> None:
    answers = Answers(config=ENFORCED, own=TWO, user="me|\n")
    with pytest.raises(UsageError, match="which account") as refused:
        propose_site(answers)
    assert "--account: account a; account b" in refused.value.hint
    assert write_site(propose_site(answers, account="b"), tmp_path).slurm.account == "b"
    picked = propose_site(
        answers, pick=lambda question: "a" if question.name == "account" else question.default
    )
    assert write_site(picked, tmp_path).slurm.account == "a"
    with pytest.raises(UsageError, match="no account 'c'"):
        propose_site(answers, account="c")


def test_an_account_that_is_not_checked_is_left_out(tmp_path: Path) -> None:
    assert write_site(propose_site(Answers(own=TWO)), tmp_path).slurm.account == ""


def test_a_qos_that_the_partition_takes_is_written(tmp_path: Path) -> None:
    association = "a|me|||normal,gold|normal|||\n"
    answers = Answers(
        config=ENFORCED, own=association, user="me|a\n", partitions=partition("gpu", qos="gold")
    )
    assert write_site(propose_site(answers), tmp_path).slurm.qos == "gold"
    answers.partitions = partition("gpu")
    assert write_site(propose_site(answers), tmp_path).slurm.qos == ""


@cases
def test_the_time_limit_is_no_longer_than_allowed(
    limit: str, association_limit: str, expected: str, tmp_path: Path
) -> None:
    answers = Answers(
        sinfo=line("gpu*", "gpu:8", limit=limit),
        config=ENFORCED,
        own=f"a|me|||normal|normal|{association_limit}||\n",
        user="me|a\n",
    )
    assert str(write_site(propose_site(answers), tmp_path).slurm.time_limit) == expected
    assert (
        str(write_site(propose_site(answers, time_limit="2"), tmp_path).slurm.time_limit)
        == "00:02:00"
    )
    if expected != "01:00:00":
        with pytest.raises(UsageError, match="at most"):
            propose_site(answers, time_limit="01:00:00")


@pytest.mark.parametrize(
    ("key", "memory"),
    [
        ("DefMemPerNode = 4000", "0"),
        ("DefMemPerCPU = 4000", "0"),
        ("DefMemPerNode = UNLIMITED", ""),
    ],
)
def test_exclusive_jobs_ask_for_all_memory_where_they_would_get_a_part(
    key: str, memory: str, tmp_path: Path
) -> None:
    proposal = propose_site(Answers(config=f"{key}\n"))
    assert write_site(proposal, tmp_path).slurm.memory == memory


@cases
def test_mpi_is_what_srun_has(types: str, expected: str, *, warned: bool, tmp_path: Path) -> None:
    listed = "".join(f"\t{word}\n" for word in types.split())
    answers = Answers(mpi=f"MPI plugin types are...\n{listed}")
    proposal = propose_site(answers)
    assert write_site(proposal, tmp_path).slurm.mpi == expected
    assert any("no pmix" in warning for warning in proposal.warnings) == warned
    with pytest.raises(UsageError, match="MPI type 'openmpi'"):
        propose_site(answers, mpi="openmpi")


def test_private_nodes_are_taken_as_the_controller_tells_of_them(tmp_path: Path) -> None:
    answers = Answers(complaints={"sinfo": DENIED})
    proposal = propose_site(answers)
    site = write_site(proposal, tmp_path)
    assert (site.slurm.partition, site.slurm.gres, site.nodes.gpus_per_node) == ("gpu", "gpu", 8)
    assert any("PrivateData" in warning for warning in proposal.warnings)


def test_private_partitions_have_to_be_named(tmp_path: Path) -> None:
    answers = Answers(complaints={"sinfo": DENIED, "partitions": DENIED})
    with pytest.raises(UsageError, match="which partition") as refused:
        propose_site(answers)
    assert "--gpus-per-node" in refused.value.hint
    proposal = propose_site(answers, partition="gpu", gpus_per_node=4, gpu_type="a100")
    site = write_site(proposal, tmp_path)
    assert (site.slurm.partition, site.slurm.gres, site.nodes.gpus_per_node) == (
        *("gpu", "gpu:a100"),
        4,
    )
    assert any("could not check this site" in warning for warning in proposal.warnings)
    assert str(site.slurm.time_limit) == "01:00:00"


def test_arrays_shorter_than_the_repeats_of_a_point_are_told() -> None:
    proposal = propose_site(Answers(config="MaxArraySize = 4\n"))
    assert any("at most 3 elements" in warning for warning in proposal.warnings)
    assert not propose_site(Answers(config="MaxArraySize = 1001\n")).warnings


def test_a_controller_that_is_away_is_no_cluster_less() -> None:
    cluster = Cluster(SchedulerContext(Answers(complaints={"sinfo": AWAY, "partitions": AWAY})))
    with pytest.raises(SchedulerError, match="controller does not answer") as refused:
        has_cluster(cluster)
    assert "--local" in refused.value.hint


@pytest.mark.parametrize(
    ("complaint", "code"), [("Could not establish a configuration source", 1), ("", 127)]
)
def test_without_slurm_there_is_this_machine(complaint: str, code: int) -> None:
    from hpcbert.system.runner import Outcome

    context = SchedulerContext(lambda argv, **_: Outcome(tuple(argv), code, "", complaint))
    assert not has_cluster(Cluster(context))


@cases
def test_commands_that_a_module_may_have_are_not_missing(
    name: str, module: str, expected: str, tmp_path: Path
) -> None:
    from hpcbert.system.runner import Outcome

    (tmp_path / module).mkdir(parents=True, exist_ok=True)
    environ = {name: f"/nowhere:{tmp_path}"}
    context = SchedulerContext(lambda argv, **_: Outcome(tuple(argv), 127), environ=environ)
    with pytest.raises(SchedulerError) as refused:
        has_cluster(Cluster(context))
    assert expected in refused.value.hint
    assert "--local" in refused.value.hint


@cases
def test_the_container_runtime_is_what_srun_brings(
    usage: str, programs: tuple[str, ...], runtime: str, tmp_path: Path
) -> None:
    surroundings = MachineFacts(interfaces=(), programs=programs, shared={})
    proposal = propose_site(Answers(help=usage), surroundings=surroundings)
    assert write_site(proposal, tmp_path).container.runtime == runtime
    listed = next(choice.others for choice in proposal.choices if choice.key == "container.runtime")
    assert set(programs) <= {*listed, runtime}


def test_campaigns_do_not_go_where_only_this_machine_sees_them(tmp_path: Path) -> None:
    shared = MachineFacts((), (), {"SCRATCH": "/scratch/me"})
    proposal = propose_site(Answers(), surroundings=shared, folder=Path("/tmp/x"))
    site = write_site(proposal, tmp_path)
    assert (site.runs, site.sources) == ("/scratch/me/hpcbert/runs", "/scratch/me/hpcbert/sources")
    alone = propose_site(Answers(), folder=Path("/dev/shm/x"))
    assert any("local to each machine" in warning for warning in alone.warnings)


def test_a_fast_network_is_named_and_taken_if_the_user_says_so(tmp_path: Path) -> None:
    surroundings = MachineFacts(interfaces=("ib0", "eth0"), programs=(), shared={})
    assert (
        write_site(propose_site(Answers(), surroundings=surroundings), tmp_path).nodes.interface
        == ""
    )
    picked = propose_site(
        Answers(),
        surroundings=surroundings,
        pick=lambda question: "ib0" if "interface" in question.name else question.default,
    )
    assert write_site(picked, tmp_path).nodes.interface == "ib0"


def test_what_is_chosen_is_said_with_the_reason_and_the_rest() -> None:
    text = describe_choices(
        propose_site(Answers(sinfo=line("cpu*", "(null)") + line("gpu", "gpu:8"))).choices
    )
    assert "slurm.partition      gpu: 2 nodes with gpu:8; the default, cpu, has no GPUs" in text
    assert "also there (--partition): cpu (no GPUs, 2 nodes)" in text


def test_a_type_that_a_person_picks_is_not_called_the_most() -> None:
    answers = Answers(sinfo=line("gpu*", "gpu:a100:4,gpu:v100:2"))
    proposal = propose_site(
        answers, pick=lambda question: "v100" if "GPU" in question.name else question.default
    )
    (chosen,) = (choice for choice in proposal.choices if choice.key == "slurm.gres")
    assert (chosen.value, chosen.why) == ("gpu:v100", "you said so: 2 nodes with gpu:v100:2")


def test_of_two_types_alike_neither_is_called_the_most() -> None:
    proposal = propose_site(Answers(sinfo=line("gpu*", "gpu:tesla:2,gpu:gtx:2")))
    (chosen,) = (choice for choice in proposal.choices if choice.key == "slurm.gres")
    assert (chosen.value, chosen.others) == ("gpu:gtx", ("2 nodes with gpu:tesla:2",))
    assert chosen.why == "2 nodes with gpu:gtx:2"


@pytest.mark.parametrize("is_lab", [True, False], ids=["a lab", "another cluster"])
def test_the_fake_gpus_of_a_lab_are_optional(is_lab: bool, tmp_path: Path) -> None:
    for name in ("etc/slurm.conf", "env.sh", "site.toml") if is_lab else ("etc/slurm.conf",):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    environ = {"SLURM_CONF": str(tmp_path / "etc" / "slurm.conf")}
    cluster = Cluster(SchedulerContext(Answers(sinfo=line("gpu*", "gpu:8")), environ=environ))
    proposal = propose(cluster, HERE, {}, default, folder=Path("/home/me"))
    framework = write_site(proposal, tmp_path).frameworks["pytorch"]
    assert framework.device == ("auto" if is_lab else "")
