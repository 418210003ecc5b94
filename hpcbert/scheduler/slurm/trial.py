"""What a site's own sbatch accepts: some require `--gpus`, a constraint, or a clean environment.

Such rules are a plugin's (job_submit), and no query shows them. sbatch tests one form of a request
after the other; nothing is submitted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import get_args

from hpcbert.config.site import GpuOption, Site
from hpcbert.config.slurm_arguments import argument_value
from hpcbert.scheduler.slurm import admission
from hpcbert.scheduler.slurm.cluster import Cluster, classify_silence
from hpcbert.scheduler.slurm.identify import format_complaint
from hpcbert.scheduler.slurm.submission import TRANSIENT
from hpcbert.slurm import inventory
from hpcbert.slurm.commands import submission_environment
from hpcbert.system.runner import Outcome

# Features that are tried, those of the most nodes first.
_MOST_FEATURES = 8
_TEST = "#!/bin/sh\ntrue\n"
# A site's plugin that requires jobs to drop the caller's environment.
_EXPORT = "--export=NONE"
# The keys in which forms differ.
_KEYS = ("gpu_option", "constraint", "sbatch_args")


@dataclass(frozen=True)
class Trial:
    """The result of a trial.

    Attributes:
        outcome: What sbatch said of the site's own form.
        refusal: Why sbatch refused that; empty if it did not, or can't be asked.
        accepted: The sites that it accepts instead, which differ in `[slurm]`; best first.
    """

    outcome: Outcome
    refusal: str = ""
    accepted: tuple[Site, ...] = ()

    def list_changes(self, site: Site) -> list[str]:
        """Return the settings of a site.toml that the best of these forms changes."""
        return [
            f"slurm.{key} = {json.dumps(value)}"
            for accepted in self.accepted[:1]
            for key in _KEYS
            if (value := getattr(accepted.slurm, key)) != getattr(site.slurm, key)
        ]


def try_forms(site: Site, cluster: Cluster, nodes: int = 1) -> Trial:
    """Have sbatch test a site's job on some nodes, then other forms of it if that is refused.

    Of forms with a constraint, all that differ in it alone are tried: only the user can choose.
    """
    outcome = _try_site(site, cluster, nodes)
    if outcome.ok or is_unreachable(outcome):
        return Trial(outcome)
    accepted: list[Site] = []
    for form in _list_forms(site, cluster, has_export_rule=_EXPORT in outcome.stderr):
        if accepted and form.slurm.gpu_option != accepted[0].slurm.gpu_option:
            break
        if _try_site(form, cluster, nodes).ok:
            accepted.append(form)
            if form.slurm.constraint == site.slurm.constraint:
                break
    return Trial(outcome, format_complaint(outcome), tuple(accepted))


def is_unreachable(outcome: Outcome) -> bool:
    """Return whether sbatch failed because Slurm is missing, not configured, busy or away."""
    busy = not outcome.ok and any(phrase in outcome.stderr for phrase in TRANSIENT)
    return busy or classify_silence(outcome) in {"missing", "unconfigured", "away"}


def _try_site(site: Site, cluster: Cluster, nodes: int) -> Outcome:
    words = ["sbatch", "--test-only", *admission.site_options(site, nodes)]
    environment = submission_environment(cluster.context.environ)
    return cluster.context.run(words, stdin=_TEST, env=environment, timeout=60)


def _list_forms(site: Site, cluster: Cluster, *, has_export_rule: bool) -> Iterator[Site]:
    """Yield the other forms: first those without another constraint; the site's own stays."""
    arguments = site.slurm.sbatch_args
    if has_export_rule and not argument_value(arguments, "export"):
        arguments = (*arguments, _EXPORT)
    features = [] if site.slurm.constraint else _list_features(site.slurm.partition, cluster)
    options = get_args(GpuOption) if site.slurm.gres else (site.slurm.gpu_option,)
    for option, constraint in (
        *product(options, [site.slurm.constraint]),
        *product(options, features),
    ):
        slurm = replace(site.slurm, gpu_option=option, constraint=constraint, sbatch_args=arguments)
        if slurm != site.slurm:
            yield replace(site, slurm=slurm)


def _list_features(partition: str, cluster: Cluster) -> list[str]:
    counts = inventory.count_features(cluster.features, partition) or Counter()
    return [name for name, _ in counts.most_common(_MOST_FEATURES)]
