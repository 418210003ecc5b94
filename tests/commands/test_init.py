"""The first site.toml: what a cluster has decides each value, and nothing is guessed in silence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from hpcbert.commands.init import Proposal, describe_choices, has_cluster, propose, render_site
from hpcbert.config.site import Site, read_site
from hpcbert.errors import SchedulerError, UsageError
from hpcbert.scheduler.base import SchedulerContext
from hpcbert.scheduler.slurm.cluster import Cluster
from hpcbert.system.machine import MachineFacts
from hpcbert.system.runner import Outcome, Runner
from tests.kit.cases import cases
from tests.kit.paths import SITE
from tests.kit.slurm import AWAY, DENIED, Answers, partition

ENFORCED = (
    "ClusterName = c\nSLURM_VERSION = 24.11.5\nAccountingStorageEnforce = associations,limits,qos\n"
)
COMPLAINTS = {"away": AWAY, "denied": DENIED, "database": "sacctmgr: error: no connection"}


def propose_site(
    answers: Runner,
    *,
    here: Mapping[str, Any] | None = None,
    picks: Mapping[str, str] | None = None,
    folder: str = "/home/me",
    options: Mapping[str, Any] | None = None,
) -> Proposal:
    """Return the site of a cluster for a user who picks some answers, by words of the question."""
    facts = {"interfaces": ("eth0",), "programs": (), "shared": {}, **(here or {})}
    cluster = Cluster(SchedulerContext(answers))
    assert has_cluster(cluster)
    return propose(
        cluster,
        MachineFacts(**facts),
        options or {},
        lambda question: (picks or {}).get(question.name.split()[-1], question.default),
        folder=Path(folder),
    )


def write_site(proposal: Proposal, folder: Path) -> Site:
    """Return the site as it is read again."""
    path = folder / "site.toml"
    path.write_text(render_site(SITE.read_text(), proposal.values))
    return read_site(path, base=folder, env={})


def script(answers: Mapping[str, Any]) -> Answers:
    """Return a cluster of a row: `partitions` are tables for `partition`, with `more` words."""
    texts: dict[str, Any] = {**answers}
    texts["config"] = {"enforced": ENFORCED}.get(*[texts.get("config", Answers.config)] * 2)
    rules = texts.get("partitions", ())
    if not isinstance(rules, str):
        lines = []
        for rule in rules:
            fields = {name: text for name, text in rule.items() if name not in {"more", "groups"}}
            line = partition(**fields).rstrip() + f" {rule.get('more', '')}\n"
            lines.append(
                line.replace("AllowGroups=ALL", f"AllowGroups={rule.get('groups', 'ALL')}")
            )
        texts["partitions"] = "".join(lines) or Answers.partitions
    texts["complaints"] = {
        name: COMPLAINTS[word] for name, word in texts.get("complaints", {}).items()
    }
    return Answers(**texts)


@pytest.fixture(autouse=True)
def me(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcbert.system.files.user_name", lambda _: "me")
    monkeypatch.setattr("hpcbert.system.files.is_in_any_group", lambda groups: "users" in groups)


@cases
def test_the_cluster_decides_the_site(
    *,
    answers: Mapping[str, Any] | None,
    ask: Mapping[str, Any] | None,
    site: Mapping[str, Any],
    why: Mapping[str, str] | None,
    others: Mapping[str, str] | None,
    warning: str | None,
    tmp_path: Path,
) -> None:
    """`why`, `others`: parts of a choice's reason and alternatives; `warning`: or `none`."""
    proposal = propose_site(script(answers or {}), **(ask or {}))
    written = write_site(proposal, tmp_path)
    values = {key: str(attrgetter(key)(written)) for key in site}
    assert values == {key: str(value) for key, value in site.items()}
    choices = {choice.key: choice for choice in proposal.choices}
    for key, text in (why or {}).items():
        assert text in choices[key].why
    for key, text in (others or {}).items():
        assert text in "; ".join(choices[key].others)
    if warning == "none":
        assert proposal.warnings == []
    elif warning:
        assert any(warning in text for text in proposal.warnings)


@cases
def test_only_the_user_can_say(
    answers: Mapping[str, Any], options: Mapping[str, Any], message: str, hint: str
) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        propose_site(script(answers), options=options)
    assert hint in refused.value.hint


@cases
def test_the_largest_time_limit_is_the_allowed_one(
    limit: str, own: str, options: Mapping[str, Any] | None, expected: str, tmp_path: Path
) -> None:
    answers = Answers(
        sinfo=f"gpu*|up|2|{limit}|1-infinite|gpu:8|n[1-2]\n",
        config=ENFORCED,
        own=f"a|me|||normal|normal|{own}||\n",
        user="me|a\n",
    )
    if expected:
        proposal = propose_site(answers, options=options)
        assert str(write_site(proposal, tmp_path).slurm.time_limit) == expected
    else:
        with pytest.raises(UsageError, match="at most"):
            propose_site(answers, options=options)


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
    assert (slurm.gpu_option, slurm.constraint) == (option, constraint)
    assert slurm.sbatch_args == arguments
    assert any("Invalid account" in text for text in proposal.warnings) == (refusal == "all")
    others = [choice.others for choice in proposal.choices if choice.key == "slurm.constraint"]
    assert (others == [("v100",)]) == (refusal == "a type of GPU")


def test_a_controller_that_is_away_is_no_cluster_less() -> None:
    cluster = Cluster(SchedulerContext(Answers(complaints={"sinfo": AWAY, "partitions": AWAY})))
    with pytest.raises(SchedulerError, match="controller does not answer") as refused:
        has_cluster(cluster)
    assert "--local" in refused.value.hint


@cases
def test_commands_that_a_module_may_have_are_not_missing(
    name: str, module: str, expected: str, tmp_path: Path
) -> None:
    (tmp_path / module).mkdir(parents=True, exist_ok=True)
    environ = {name: f"/nowhere:{tmp_path}"}
    for code, complaint in ((1, "Could not establish a configuration source"), (127, "")):
        outcome = Outcome(("sinfo",), code, "", complaint)
        context = SchedulerContext(lambda argv, outcome=outcome, **_: outcome, environ=environ)
        if code != 127 or not expected:
            assert not has_cluster(Cluster(context))
            continue
        with pytest.raises(SchedulerError) as refused:
            has_cluster(Cluster(context))
        assert expected in refused.value.hint
        assert "--local" in refused.value.hint


def test_what_is_chosen_is_said_with_the_reason_and_the_alternatives() -> None:
    sinfo = "cpu*|up|2|infinite|1-infinite|(null)|n[1-2]\ngpu|up|2|infinite|1-infinite|gpu:8|n[1-2]"
    text = describe_choices(propose_site(Answers(sinfo=sinfo)).choices)
    assert "slurm.partition      gpu: 2 nodes with gpu:8; the default, cpu, has no GPUs" in text
    assert "also there (--partition): cpu (no GPUs, 2 nodes)" in text


@pytest.mark.parametrize("is_lab", [True, False], ids=["a lab", "another cluster"])
def test_the_fake_gpus_of_a_lab_are_optional(is_lab: bool, tmp_path: Path) -> None:
    for name in ("etc/slurm.conf", "env.sh", "site.toml") if is_lab else ("etc/slurm.conf",):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    environ = {"SLURM_CONF": str(tmp_path / "etc" / "slurm.conf")}
    cluster = Cluster(SchedulerContext(Answers(), environ=environ))
    here = MachineFacts((), (), {})
    proposal = propose(cluster, here, {}, lambda question: question.default, folder=tmp_path)
    framework = write_site(proposal, tmp_path).frameworks["pytorch"]
    assert framework.device == ("auto" if is_lab else "")
