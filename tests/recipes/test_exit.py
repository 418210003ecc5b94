"""A rank whose program fails fails; one whose program does nothing gives no number."""

from __future__ import annotations

from pathlib import Path

from hpcbert.logs.grammar import STARTED
from hpcbert.logs.setting import Setting
from tests.kit.paths import TEMPLATES
from tests.kit.recipes import Reader, World, core, grammar, load, setting


def test_a_failing_program_fails_the_rank(name: str, tmp_path: Path) -> None:
    world = World(name, tmp_path)
    sample = TEMPLATES / name / "sample.log"
    for case in {(c.preset.name, c.precision): c for c in core(load(name))}.values():
        for prints in (None, sample):
            assert world.run(world.render(case), code=7, prints=prints).exit != 0, str(case)


def test_a_program_that_prints_nothing_and_succeeds_gives_no_number(
    name: str, tmp_path: Path
) -> None:
    world = World(name, tmp_path)
    run = world.run(world.render(core(load(name))[-1]))
    if run.exit:
        return
    for rule in grammar(name).rules:
        reading = Reader(name, tmp_path).read(run.output.encode(), rule.name)
        assert reading.throughput is None
        assert reading.reasons or reading.missing


def test_rank_0_states_what_the_ranks_were_started_with(name: str, tmp_path: Path) -> None:
    """Before its program prints anything, as the grammar reads it; not what the request says."""
    world = World(name, tmp_path)
    for case in core(load(name))[::3]:
        script = world.render(case)
        # Slurm started other nodes and ranks than were requested.
        ranks = {"HPCBERT_NODES": "3", "SLURM_NTASKS": "6"}
        run = world.run(script, env=ranks)
        first, point = run.output.partition("\n")[0].encode(), script.point
        assert first.startswith(STARTED.encode())
        facts = dict(Reader(name, tmp_path).read(run.output.encode(), settings=Setting()).facts)
        width = point.shape.gpus_per_node // load(name).tasks_per_node(point.shape)
        assert (facts["nodes"], facts["gpus"]) == (3, 6 * width)
        assert facts["batch_size_per_device"] == point.batch_size_per_device
        assert (facts["accumulation"], facts["precision"]) == (point.accumulation, point.precision)
        assert facts.get("model") == (point.model if "bert-" in point.model else None)
        assert STARTED not in world.run(script, env={**ranks, "SLURM_PROCID": "1"}).output


def test_a_missing_checkout_or_no_data_is_no_success_with_a_number(
    name: str, tmp_path: Path
) -> None:
    world = World(name, tmp_path)
    script = world.render(core(load(name))[-1])
    for folder in ("source", "data"):
        for path in sorted((tmp_path / folder).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        (tmp_path / folder).rmdir()
    run = world.run(script)
    reading = Reader(name, tmp_path).read(run.output.encode(), settings=setting(name))
    assert run.exit != 0 or reading.throughput is None


def test_temporary_files_are_gone_when_the_rank_script_ends(name: str, tmp_path: Path) -> None:
    world = World(name, tmp_path)
    for code in (0, 7):
        world.run(world.render(core(load(name))[0]), code=code)
        assert not list((tmp_path / "tmp").iterdir())
