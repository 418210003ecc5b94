"""The first site.toml: what a cluster has decides each value, and nothing is guessed in silence."""

import re
from operator import attrgetter
from pathlib import Path

import pytest

from hpcbert.commands import init
from hpcbert.config.site import read_site
from hpcbert.errors import HpcbertError, SchedulerError
from hpcbert.scheduler.base import SchedulerContext
from hpcbert.scheduler.slurm.cluster import Cluster
from hpcbert.system.machine import MachineFacts
from hpcbert.system.runner import Outcome
from tests.kit.cases import cases
from tests.kit.paths import SITE
from tests.kit.slurm import Answers, partition

pytestmark = pytest.mark.usefixtures("me")


def propose_site(
    place, *, answers=None, run=None, machine=(), picks=(), folder="/home/me", options=(),
    environ=None,
):  # fmt: skip
    """Return the proposal for a user who picks answers by words of the question, and its site.

    Partitions in `answers` are arguments of `partition`.
    """
    facts = {"interfaces": ("eth0",), "programs": (), "shared": {}, **dict(machine)}
    texts = {"partitions": [{}], **(answers or {})}
    texts["partitions"] = "".join(partition(**columns) for columns in texts["partitions"])
    cluster = Cluster(SchedulerContext(run or Answers(**texts), environ=environ or {}))
    assert init.has_cluster(cluster)
    proposal = init.Proposal(
        cluster, MachineFacts(**facts), Path(folder), dict(options),
        lambda question: dict(picks).get(question.name.split()[-1], question.default),
    )  # fmt: skip
    init.complete(proposal)
    path = place / "site.toml"
    path.write_text(init.render_site(SITE.read_text(), proposal.values))
    return proposal, read_site(path, base=place, env={})


@cases
def test_the_cluster_decides_the_site(
    tmp_path, *, answers, ask, site, why, alternatives, text, warning
):
    """Of choices: parts of the reason `why` and of the alternatives, and how a user reads them."""
    proposal, written = propose_site(tmp_path, answers=answers, **(ask or {}))
    values = {key: str(attrgetter(key)(written)) for key in site}
    assert values == {key: str(value) for key, value in site.items()}
    choices = {choice.key: choice for choice in proposal.choices}
    for key, part in (why or {}).items():
        assert part in choices[key].why
    for key, part in (alternatives or {}).items():
        assert part in "; ".join(choices[key].others)
    assert (text or "") in init.describe_choices(proposal.choices)
    if warning == "none":
        assert proposal.warnings == []
    elif warning:
        assert any(warning in text for text in proposal.warnings)


@cases
def test_only_the_user_or_the_controller_can_say(answers, options, message, hint, tmp_path):
    with pytest.raises(HpcbertError, match=message) as refused:
        propose_site(tmp_path, answers=answers, options=options)
    assert hint in refused.value.hint


@cases
def test_the_form_of_a_request_is_one_that_sbatch_accepts(
    rules, option, constraint, arguments, tmp_path
):
    cluster = Answers()

    def answer(argv, **_):
        words = " ".join(argv)
        if argv[0] == "sbatch":
            broken = [text for word, must, text in rules if bool(re.search(word, words)) != must]
            return Outcome(tuple(argv), int(bool(broken)), "", "".join(broken[:1]))
        features = "gpu*|v100|2\ngpu*|a100,ib|6\n"
        return Outcome(tuple(argv), 0, features) if "%f" in words else cluster(argv)

    proposal, site = propose_site(tmp_path, run=answer)
    assert (site.slurm.gpu_option, site.slurm.constraint) == (option, constraint)
    assert site.slurm.sbatch_args == arguments
    is_refused = any("Invalid account" in text for _, _, text in rules)
    assert any("Invalid account" in text for text in proposal.warnings) == is_refused
    choices = {choice.key: choice.others for choice in proposal.choices}
    assert (choices.get("slurm.constraint") == ("v100",)) == (constraint == "a100")


@cases
def test_commands_that_a_module_may_have_are_not_missing(name, expected):
    environ = {name: "/opt/modules"}
    unconfigured = Outcome(("sinfo",), 1, "", "Could not establish a configuration source")
    context = SchedulerContext(lambda argv, **_: unconfigured, environ=environ)
    assert not init.has_cluster(Cluster(context))
    missing = SchedulerContext(lambda argv, **_: Outcome(tuple(argv), 127), environ=environ)
    if not expected:
        assert not init.has_cluster(Cluster(missing))
        return
    with pytest.raises(SchedulerError) as refused:
        init.has_cluster(Cluster(missing))
    assert expected in refused.value.hint
    assert "--local" in refused.value.hint


def test_the_fake_gpus_of_a_lab_are_optional(tmp_path):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/slurm.conf").touch()
    environ = {"SLURM_CONF": str(tmp_path / "etc/slurm.conf")}
    for device in ("", "auto"):
        _, site = propose_site(tmp_path, environ=environ)
        assert site.frameworks["pytorch"].device == device
        (tmp_path / "env.sh").touch()  # site.toml is there since the first round
