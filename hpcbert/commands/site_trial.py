"""What a site's own sbatch accepts: some require `--gpus`, a constraint, or a clean environment.

Such rules are a plugin's (job_submit), and no query shows them. sbatch tests one form of a request
after the other; nothing is submitted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import get_args

from hpcbert.config.site import GpuOption, Site
from hpcbert.scheduler.slurm.cluster import Cluster, run_query
from hpcbert.scheduler.slurm.examine import EXPORT, is_unreachable, try_site
from hpcbert.scheduler.slurm.identify import format_complaint
from hpcbert.slurm import inventory

# Features that are tried, those of the most nodes first.
_MOST_FEATURES = 8


@dataclass(frozen=True)
class Trial:
    """The result of a trial.

    Attributes:
        refusal: Why sbatch refused the site's own form; empty if it did not, or can't be asked.
        accepted: The sites that it accepts instead, which differ in `[slurm]`; best first.
    """

    refusal: str = ""
    accepted: tuple[Site, ...] = ()


def try_forms(site: Site, cluster: Cluster) -> Trial:
    """Have sbatch test a site's job on one node, then other forms of it if that is refused.

    Of forms with a constraint, all that differ in it alone are tried: only the user can choose.
    """
    outcome = try_site(site, cluster.context, 1)
    if outcome.ok or is_unreachable(outcome):
        return Trial()
    accepted: list[Site] = []
    arguments = (EXPORT,) if EXPORT in outcome.stderr else ()
    for form in _list_forms(site, cluster, arguments):
        if accepted and form.slurm.gpu_option != accepted[0].slurm.gpu_option:
            break
        if try_site(form, cluster.context, 1).ok:
            accepted.append(form)
            if not form.slurm.constraint:
                break
    return Trial(format_complaint(outcome), tuple(accepted))


def _list_forms(site: Site, cluster: Cluster, arguments: tuple[str, ...]) -> Iterator[Site]:
    """Yield the other forms: those without a constraint first."""
    features = _list_features(site.slurm.partition, cluster)
    options = get_args(GpuOption) if site.slurm.gres else (site.slurm.gpu_option,)
    for option, constraint in (*product(options, [""]), *product(options, features)):
        slurm = replace(site.slurm, gpu_option=option, constraint=constraint, sbatch_args=arguments)
        if slurm != site.slurm:
            yield replace(site, slurm=slurm)


def _list_features(partition: str, cluster: Cluster) -> list[str]:
    outcome = run_query(cluster.context, inventory.features_argv(), timeout=30)
    node_counts: Counter[str] = Counter()
    for names, number in inventory.read_features(outcome.stdout, partition):
        node_counts.update(dict.fromkeys(names, number))
    return [name for name, _ in node_counts.most_common(_MOST_FEATURES)]
