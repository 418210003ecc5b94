"""hpcbert accept."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click

from hpcbert import scheduler
from hpcbert.campaign import store
from hpcbert.campaign.foreign import CollectRequest
from hpcbert.campaign.suspects import RetryPolicy
from hpcbert.cli import streams
from hpcbert.cli.options import (
    MAX_RETRIES,
    VIEW_FORM,
    flag_option,
    make_reader,
    refuse_typed,
    shared_options,
    text_option,
)
from hpcbert.cli.output import Result, pick, print_text, returns_result
from hpcbert.cli.tables import list_shortfalls, write_output
from hpcbert.commands.collect import find_places, load_result_set, resolve_words
from hpcbert.commands.compare import (
    WITHIN,
    Acceptance,
    accept_results,
    find_failures,
    find_slow_nodes,
    refuse_incomparable,
    select_one_node,
)
from hpcbert.config import site
from hpcbert.config.options import Options, ShareRange
from hpcbert.config.site import Site
from hpcbert.errors import IncompleteError, UsageError
from hpcbert.model import MANIFEST, JobRequest, format_stamp
from hpcbert.results.compare import comparison_data, comparison_view, render_junit
from hpcbert.results.document import ResultSet
from hpcbert.results.grid import Grid, TableView, make_columns
from hpcbert.results.interval import min_repeats
from hpcbert.results.nodes import POWER
from hpcbert.scheduler.base import SchedulerContext
from hpcbert.slurm.hostlist import expand
from hpcbert.system.runner import run

_NODE_COLUMNS = make_columns(
    "point", "node", "runs:d", "samples/s:.2f", "of BASE:.2%", "of its like:.2%", "verdict"
)
# Options that have no effect on results that exist already.
_SUBMIT_OPTIONS = (
    *("runs", "scheduler", "partition", "account", "qos", "reservation", "nodelist", "exclude"),
    *("time_limit", "runtime", "image", "data", "source", "python"),
)


class _Order(NamedTuple):
    """What to accept.

    Attributes:
        base_name: What has the numbers.
        file: What says what to measure; None: the numbers' own points.
    """

    base_name: str
    base: ResultSet
    file: Path | None
    tolerance: float
    each_node: bool
    junit: str
    form: str
    options: Options


@click.command()
@click.argument("baseline")
@click.argument("results", nargs=-1, metavar="[RESULT]...")
@click.option(
    "--tolerance",
    callback=make_reader(ShareRange(0.001, 0.9)),
    default="5%",
    show_default=True,
    metavar="SHARE",
    help="Largest loss of a point that is accepted.",
)
@text_option("--against", "Numbers for a campaign.toml.", "RESULT")
@flag_option("--each-node", "Measure on each node alone, side by side.")
@text_option("--junit", "Write verdicts as JUnit XML.", "FILE")
@VIEW_FORM
@flag_option("--force", "Submit even if something is known to be missing.")
@MAX_RETRIES
@shared_options("site_file", "templates", *_SUBMIT_OPTIONS)
@returns_result
def accept(
    baseline: str,
    results: tuple[str, ...],
    *,
    tolerance: float,
    against: str,
    each_node: bool,
    junit: str,
    form: str,
    force: bool,
    max_retries: int,
    **values: Any,
) -> Result:
    """Measure what a baseline names, and compare: a verdict for each point and each node.

    BASELINE is a campaign, results that collect saved (*.json), or a campaign.toml with --against.
    accept submits its points, waits, collects and compares. With RESULT, nothing is submitted:
    these campaigns or saved results are compared.

    --each-node measures the points of one node on every node of the partition, or of --nodelist. It
    names the nodes that are slower than their like by more than chance.

    \b
    Examples:
      hpcbert accept baseline.json --tolerance 5%
      hpcbert accept baseline.json --each-node --partition gpu --junit accept.xml
      hpcbert accept campaign.toml --against baseline.json
      hpcbert accept baseline.json --each-node accept-20261124T100000Z
    """
    options = Options(**values)
    places = find_places(options.site_file, options.templates)
    file = Path(baseline) if baseline.endswith(".toml") else None
    if file and not against:
        raise UsageError(
            f"{baseline} says what to measure, but has no numbers.",
            hint="Name results to compare with: --against RESULT.",
        )
    if not file:
        refuse_typed(("against",), f"with {baseline}, which has numbers")
    base_name = against or baseline
    base = load_result_set([base_name], places)
    order = _Order(base_name, base, file, tolerance, each_node, junit, form, options)
    if results:
        refuse_typed((*_SUBMIT_OPTIONS, "force", "max_retries"), "with RESULT")
        return _judge(order, resolve_words(results, places))
    return _submit(order, force=force, max_retries=max_retries)


def _submit(order: _Order, *, force: bool, max_retries: int) -> Result:
    from hpcbert.cli import submit_run

    options, points = order.options, None if order.file else order.base
    nodes: list[str] = [""]
    unusable: list[str] = []
    if order.each_node:
        nodes, unusable = _list_nodes(site.load(options.site_file, options), options)
        points = points and replace(points, tables=select_one_node(points.tables))
    result = submit_run.submit_new(
        options,
        order.file,
        retries=max_retries,
        force=force,
        follow=partial(_follow, order),
        name=f"accept-{format_stamp(time.time())}",
        results=points,
        nodes=nodes,
    )
    missing = tuple(
        IncompleteError(f"{node} was not measured: it can't run jobs now.") for node in unusable
    )
    return replace(result, errors=(*result.errors, *missing))


def _list_nodes(site_config: Site, options: Options) -> tuple[list[str], list[str]]:
    """Return the nodes to measure, and those that can't run jobs now."""
    name = options.scheduler or site_config.scheduler
    backend = scheduler.create_scheduler(name, SchedulerContext(run))
    states = backend.nodes(JobRequest(partition=site_config.slurm.partition))
    if states is None:
        raise UsageError(f"--each-node has no effect with the {name} scheduler.")
    excluded = set(expand(options.exclude))
    named = expand(options.nodelist) or tuple(states)
    nodes = [node for node in named if node not in excluded]
    usable = [node for node in nodes if states.get(node, True)]
    if not usable:
        raise UsageError(
            f"No node of {site_config.slurm.partition or 'the default partition'} can run jobs.",
            hint="Name nodes: --nodelist n[01-04], or another --partition.",
        )
    return usable, [node for node in nodes if node not in usable]


def _follow(
    order: _Order, directories: Sequence[Path], policy: RetryPolicy, site_config: Site
) -> Result:
    from hpcbert.cli.progress import follow_campaign

    words = ["hpcbert", "accept", str(order.file or order.base_name)]
    words += ["--against", order.base_name] if order.file else []
    words += ["--each-node"] if order.each_node else []
    name = store.read_manifest(directories[0]).name
    print_text(f"then, also if this is interrupted:  {shlex.join([*words, name])}", err=True)
    # A retry must not exclude the only node that its campaign is about.
    policy = replace(policy, suspect=not order.each_node)
    for directory in directories:
        follow_campaign(directory, policy, site_config)
    return _judge(order, directories)


def _judge(order: _Order, paths: Sequence[Path]) -> Result:
    """Compare results with the baseline, and nodes with each other."""
    places = find_places(order.options.site_file, order.options.templates)
    rules = {table.group.framework: table.group.rule for table in order.base.tables}
    results = {}
    for path in paths:
        is_campaign = (path / MANIFEST).is_file()
        framework = store.read_manifest(path).framework if is_campaign else ""
        # A campaign is collected by the baseline's rule.
        request = CollectRequest(rule=rules.get(framework, "")) if is_campaign else None
        results[path] = load_result_set([str(path)], places, request)
    acceptance = accept_results(order.base, order.base_name, results, each_node=order.each_node)
    refuse_incomparable(acceptance.comparisons, "Name a baseline that was measured as these are.")
    failures = [
        *find_failures(acceptance.comparisons, 1 - order.tolerance),
        *find_slow_nodes(acceptance),
    ]
    if order.junit:
        content = render_junit("hpcbert accept", acceptance.comparisons, failures)
        write_output(Path(order.junit), content, "--junit")
    tables = [table for result in results.values() for table in result.tables]
    refused = [IncompleteError(text) for result in results.values() for text in result.refused]
    warnings = [text for result in results.values() for text in result.warnings]
    warnings += [f"{difference}." for difference in acceptance.differences]
    verdicts = _list_verdicts(acceptance)
    views = []
    if not order.each_node:
        views = [comparison_view(entry, WITHIN) for entry in acceptance.comparisons]
    if order.each_node or any(len(entry.verdicts) > 1 for _, entry in acceptance.nodes):
        views.append(_make_node_view(acceptance, verdicts))
    width = streams.line_width(sys.stdout)
    return Result(
        data={
            "baseline": order.base_name,
            "tolerance": order.tolerance,
            "results": [str(path) for path in paths],
            "comparisons": [comparison_data(entry) for entry in acceptance.comparisons],
            "nodes": verdicts,
            "power": [
                {"point": point, "power": POWER, **pick(entry, "false_alarm spread detectable")}
                for point, entry in acceptance.nodes
            ],
            "differences": [difference._asdict() for difference in acceptance.differences],
        },
        text="\n\n".join(view.render(order.form, width) for view in views),
        errors=(*failures, *refused, *list_shortfalls(tables)),
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _list_verdicts(acceptance: Acceptance) -> list[dict[str, Any]]:
    medians = {
        pair.new.name: pair.base.row.median
        for comparison in acceptance.comparisons
        for pair in comparison.pairs
    }
    verdicts = []
    for point, comparison in acceptance.nodes:
        base = medians.get(point)
        for verdict in comparison.verdicts:
            share = verdict.median / base if verdict.median and base else None
            verdicts.append({"point": point, **verdict._asdict(), "of_base": share})
    return verdicts


def _make_node_view(acceptance: Acceptance, verdicts: Sequence[dict[str, Any]]) -> TableView:
    keys = ("point", "node", "runs", "median", "of_base", "ratio", "state")
    rows = tuple(tuple(verdict[key] for key in keys) for verdict in verdicts)
    level = max((entry.false_alarm or 0 for _, entry in acceptance.nodes), default=0)
    legend = f"A verdict needs {min_repeats()} valid runs on three nodes, or five on two."
    if level:
        legend = (
            "Where no node is slower than its like, a point has a node that is named all the same "
            f"in at most {level:.2%} of the cases"
        )
        if loss := max(entry.detectable or 0 for _, entry in acceptance.nodes):
            legend += (
                f"; a node that loses {loss:.0%} is named in {POWER:.0%}, at these runs' spread"
            )
        legend += "."
    return TableView(
        heading=("Nodes",),
        grid=Grid("nodes", "Nodes", _NODE_COLUMNS, rows),
        notes=tuple(map(str, acceptance.differences)),
        legend=legend,
        colours=tuple("red" if entry["state"] == "slower" else None for entry in verdicts),
    )
