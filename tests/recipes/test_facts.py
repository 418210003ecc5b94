"""What a recipe's program prints of its own run is read, checked, and listed in the recipe's README."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hpcbert.logs.grammar import FACTS, Fact
from hpcbert.logs.lines import Line
from hpcbert.logs.scan import Reading
from hpcbert.logs.setting import Setting
from tests.recipes.kit import NAMES, TEMPLATES, Reader, grammar, sample, setting

# What a README must say of every program: that it is read, or that it is not printed.
NEEDED = (
    "nodes",
    "gpus",
    "batch_size_per_device",
    "global_batch_size",
    "precision",
    "sequence_length",
    "model",
    "version",
)
# Of texts, the first one in a log stands: runs that differ in them are told apart by `collect`.
TEXTS = ("version", "device")
# Lines of facts that the sample's run had no reason to print, each with what it states.
OTHERS: dict[str, dict[str, dict[str, int | str]]] = {
    "deepspeed": {
        "[INFO] DeepSpeed info: version=0.3.1, git-hash=1afca8f": {"version": "0.3.1"},
        "DeepSpeed Transformer config is  {'hidden_size': 768, 'num_hidden_layers': 12}": {
            "hidden_size": 768,
            "layers": 12,
        },
    },
    "mindspore": {
        "args_opt: Namespace(accum_bits=1, distribute='false', do_shuffle='true')": {"gpus": 1},
        "args_opt: Namespace(device_num=4, distribute='true')": {"gpus": 4},
    },
    "mlperf-bert": {
        "Namespace(average_packing_rate=2, max_predictions_per_seq=76)": {"packing": 2},
        "python run_pretraining.py --packed_samples --fp16": {"packing": 2},
        "Namespace(bert_model='bert-large-uncased', max_predictions_per_seq=76)": {
            "model": "bert-large"
        },
    },
    "ngc-pytorch": {
        "device: cuda n_gpu: 4, distributed training: False, 16-bits training: False": {"gpus": 4},
        **{
            f"PARAMETER Config : [\"Namespace(bert_model='{model}-uncased', config_file='{file}')": {
                "model": stated
            }
            for model, file, stated in (
                ("bert-large", "bert_config.json", "bert-large"),
                ("bert-large", "bert_config_base.json", "bert-base"),
                ("bert-base", "/workspace/bert/bert_configs/large.json", "bert-large"),
            )
        },
    },
    "ngc-tf1": {
        "Container nvidia build =  13409399": {"version": "13409399"},
        "StreamExecutor device (0): Tesla V100-SXM2-32GB, Compute": {
            "device": "Tesla V100-SXM2-32GB"
        },
        "+ num_accumulation_steps_phase1=2112": {"accumulation": 2112},
        "+ bert_model=large": {"model": "bert-large"},
        "INFO:tensorflow:  bert_config_file: data/bert_tf_squad11_base_128/bert_config.json": {
            "model": "bert-base"
        },
        "INFO:tensorflow:  bert_config_file: data/uncased_L-24_H-1024_A-16/bert_config.json": {
            "hidden_size": 1024,
            "layers": 24,
        },
        "  use_fp16: True": {"precision": "fp16"},
        "  manual_fp16: True": {"precision": "fp16"},
        "avg_loss_step : 11.1661  learning_rate : 3e-06": {"precision": "fp32"},
        "INFO:tensorflow:  name = input_ids, shape = (32, 512)": {
            "batch_size_per_device": 32,
            "sequence_length": 512,
        },
    },
    "oneflow": {
        "seq_length = 512": {"sequence_length": 512},
        "num_accumulation_steps = 2": {"accumulation": 2},
        "num_hidden_layers = 24": {"layers": 24},
    },
    "paddle": {
        "training_script_args: ['--model_name_or_path', 'bert-large-cased']": {
            "model": "bert-large"
        },
        "training_script_args: ['--batch_size', '32', '--use_amp', 'False']": {
            "batch_size_per_device": 32,
            "precision": "fp32",
        },
        "gpus: 0,1,2,3": {"gpus_per_node": 4},
        "python -m paddle.distributed.launch --log_dir=./mylog --gpus=0,1 run_pretrain.py -x": {
            "gpus": 2,
        },
        "python -u ../examples/static//run_pretrain.py --max_predictions_per_seq 80": {"gpus": 1},
        "[0] NCCL INFO comm 0x7f61 rank 0 nranks 32 cudaDev 0 nvmlDev 0": {"gpus": 32},
    },
    "paddle18": {
        "max_seq_len: 512": {"sequence_length": 512},
        "args.is_distributed: False": {"nodes": 1},
    },
    "perfzero": {
        "MultiWorkerMirroredStrategy with cluster_spec = {}, task_type = 'worker', task_id = 0, "
        "num_workers = 2, local_devices = ('/GPU:0',)": {"nodes": 2},
        "Collective batch_all_reduce: 206 all-reduces, num_devices = 4, group_size = 16, x": {
            "gpus_per_node": 4,
            "gpus": 16,
        },
        "MultiWorkerMirroredStrategy with 16 devices": {"gpus": 16},
        "Mixed precision compatibility check (mixed_bfloat16): OK": {"precision": "bf16"},
    },
}
_MLLOG = ':::MLLOG {"namespace": "", "key": "%s", "value": %d}'
OTHERS["tf2"] = {
    **OTHERS["perfzero"],
    _MLLOG % ("global_batch_size", 760): {"global_batch_size": 760},
    _MLLOG % ("opt_gradient_accumulation_steps", 19): {"accumulation": 19},
    _MLLOG % ("max_sequence_length", 512): {"sequence_length": 512},
}


class Said(NamedTuple):
    """A fact in a line of a recipe's log."""

    line: bytes
    fact: Fact
    name: str
    value: int | str

    def __str__(self) -> str:
        return f"{self.name}={self.value}"


def said(name: str) -> list[Said]:
    """Return what the lines of a recipe's sample state, and those that it lacks."""
    lines = [*OTHERS.get(name, {}), *sample(name).decode(errors="replace").splitlines()]
    found: dict[tuple[Fact, str], Said] = {}
    for text in lines:
        line = text.encode()
        for fact in grammar(name).facts:
            match = fact.pattern.search(line) if fact.contains in line else None
            for group, value in _stated(fact, line).items() if match else ():
                found.setdefault((fact, group), Said(line, fact, group, value))
    return list(found.values())


def _stated(fact: Fact, line: bytes) -> dict[str, int | str]:
    from hpcbert.logs.facts import Stated

    stated = Stated()
    stated.add(fact, Line(line))
    return stated.values


def refusal(name: str, tmp_path: Path, data: bytes, known: Setting) -> str:
    """Return what a reading by the default rule says against the configuration; empty if nothing."""
    reading: Reading = Reader(name, tmp_path).read(data, known=known)
    assert reading.throughput is None or not reading.reasons
    return "; ".join(one.detail for one in reading.reasons if one.code == "config")


# --- The README ---------------------------------------------------------------------------------


def listed(name: str) -> dict[str, str]:
    """Return the rows of a README's table of facts."""
    text = (TEMPLATES / name / "README.md").read_text()
    _, _, table = text.partition("\n## What a log says of its run\n")
    found: dict[str, str] = {}
    for fact, line in re.findall(
        r"^\| `(\w+)` \| (.*) \|$", table.partition("\n## ")[0], re.MULTILINE
    ):
        assert fact not in found, f"{fact} is listed twice"
        found[fact] = line
    return found


def test_the_table_of_a_readme_is_what_the_grammar_reads(name: str) -> None:
    read: dict[str, list[str]] = {}
    for fact in grammar(name).facts:
        text = fact.contains.decode().strip().replace("|", r"\|")
        for group in fact.pattern.groupindex:
            read.setdefault(group, []).append(f"`{text}`")
        if fact.counts:
            read.setdefault(fact.counts, []).append(f"`{text}` from every rank")
    rows = listed(name)
    told = {fact: line for fact, line in rows.items() if not line.startswith("not printed")}
    assert told == {fact: ", ".join(dict.fromkeys(lines)) for fact, lines in read.items()}
    assert list(rows) == [fact for fact in FACTS if fact in rows], "in the order of the facts"


def test_a_readme_says_of_each_label_whether_the_program_prints_it(name: str) -> None:
    assert set(NEEDED) <= set(listed(name))


# --- Contradictions -----------------------------------------------------------------------------


def test_lines_state_what_they_are_read_as(name: str) -> None:
    for text, values in OTHERS.get(name, {}).items():
        line = text.encode()
        facts = [fact for fact in grammar(name).facts if fact.contains in line]
        assert {k: v for fact in facts for k, v in _stated(fact, line).items()} == values


def test_a_line_is_known_for_every_fact(name: str) -> None:
    known = {(one.fact, one.name) for one in said(name)}
    missing = [
        (fact.contains, group)
        for fact in grammar(name).facts
        for group in fact.pattern.groupindex
        if (fact, group) not in known
    ]
    assert not missing


@pytest.mark.parametrize(
    ("recipe", "one"),
    [
        pytest.param(recipe, one, id=f"{recipe}-{number}-{one}")
        for recipe in NAMES
        for number, one in enumerate(said(recipe))
        if one.name not in TEXTS
    ],
)
def test_a_line_that_says_otherwise_refuses_the_run(recipe: str, one: Said, tmp_path: Path) -> None:
    """A log with the line is no run with another value, and both are named."""
    wrong = "tf32" if isinstance(one.value, str) else one.value * 2 + 1
    known = setting(recipe)._replace(**{one.name: wrong})  # type: ignore[arg-type]
    detail = refusal(recipe, tmp_path, one.line + b"\n" + sample(recipe), known)
    if one.line in sample(recipe):
        assert str(one.value) in detail
        assert str(wrong) in detail
    else:
        assert detail


@pytest.mark.parametrize(
    ("recipe", "one"),
    [
        pytest.param(recipe, one, id=f"{recipe}-{number}-{one}")
        for recipe in NAMES
        for number, one in enumerate(said(recipe))
        if isinstance(one.value, int) and one.line in sample(recipe)
    ],
)
def test_a_header_with_another_number_refuses_the_run(
    recipe: str, one: Said, tmp_path: Path
) -> None:
    """The sample with one number of its header doubled is not the run that was asked for."""
    match = one.fact.pattern.search(one.line)
    assert match is not None
    start, end = match.span(one.name)
    doubled = b"%d" % (2 * int(match[one.name]))
    changed = sample(recipe).replace(one.line, one.line[:start] + doubled + one.line[end:])
    assert isinstance(one.value, int)
    known = setting(recipe)._replace(**_asked(recipe))
    detail = refusal(recipe, tmp_path, changed, known)
    assert str(2 * one.value) in detail
    if one.name != "global_batch_size":
        assert re.search(rf"\b{one.value}\b", detail)


def _asked(name: str) -> dict[str, Any]:
    """Return what a campaign expects: the sample's own, where its program prints it."""
    asked = ("sequence_length", "hidden_size", "layers")
    own = [one for one in said(name) if one.line in sample(name)]
    return {one.name: one.value for one in own if one.name in asked}


@pytest.mark.parametrize(
    ("recipe", "fact"),
    [
        pytest.param(recipe, fact, id=f"{recipe}-{fact.contains.decode().strip()}")
        for recipe in NAMES
        for fact in grammar(recipe).facts
        if fact.counts
    ],
)
def test_ranks_that_speak_are_counted(recipe: str, fact: Fact, tmp_path: Path) -> None:
    """A log with half or twice the ranks is not the run that was asked for."""
    lines = sample(recipe).splitlines(keepends=True)
    own = [line for line in lines if fact.contains in line and fact.pattern.search(line)]
    known = setting(recipe)
    assert len(own) == (known.gpus or len(own)) > 1
    others = b"".join(line for line in lines if line not in own)
    twice = _by_count(recipe, tmp_path, b"".join(own * 2) + others)
    assert {str(len(own)), str(2 * len(own))} <= {*re.findall(r"\d+", twice)}
    if len(own) // 2 >= fact.least:
        half = _by_count(recipe, tmp_path, b"".join(own[::2]) + others)
        assert {str(len(own)), str(len(own) // 2)} <= {*re.findall(r"\d+", half)}
    if not fact.pattern.pattern.startswith(b"^") and b".*" not in fact.pattern.pattern:
        glued = b"".join(line.rstrip(b"\n") for line in own) + b"\n"
        assert not _by_count(recipe, tmp_path, glued + others)


def _by_count(recipe: str, tmp_path: Path, data: bytes) -> str:
    known = setting(recipe)
    count = sum(1 for fact in grammar(recipe).facts if fact.counts)
    assert count == 1
    if known.gpus is None:
        own = len([one for one in sample(recipe).splitlines() if one.startswith(b"#  Rank ")])
        known = known._replace(gpus=own)
    return refusal(recipe, tmp_path, data, known)


def test_versions_and_devices_tell_experiments_apart(tmp_path: Path) -> None:
    reading = Reader("pytorch", tmp_path).read(sample("pytorch"))
    assert (reading.setting.version, reading.setting.device) == ("2.13.0+cpu", "AMD EPYC")
    twice = sample("nccl-tests").replace(b"NVIDIA A100-SXM4-40GB", b"NVIDIA H200", 1)
    mixed = Reader("nccl-tests", tmp_path).read(twice)
    assert mixed.setting.device == "NVIDIA H200"
    assert {one.code for one in mixed.reasons} == {"rule"}


def test_a_campaign_expects_the_sequence_length_of_its_script(name: str) -> None:
    """Where a rank script has the length written into it, the grammar has the same."""
    script = (TEMPLATES / name / "run.sh.j2").read_text()
    fixed = re.search(r"--(?:max_)?seq(?:_length|_len|-length)=(\d+)", script)
    assert grammar(name).sequence_length == int(fixed[1] if fixed else 0)
