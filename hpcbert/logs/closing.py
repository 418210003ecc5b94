"""The rates that well-known programs print of the whole run when they end.

They are compared with the number of any rule, so that a recipe that misreads a log is found out
even if it has no second rule.
"""

from __future__ import annotations

import re
from functools import cache

from hpcbert.logs.grammar import Grammar, Record, Rule

_RATE = rb"(?P<rate>\d[\d.]*(?:[eE][+-]?\d+)?)"
_UNIT = rb"(?:samples?|seqs?|sequences?|sentences?|examples?)(?: ?/ ?|[ _]per[ _])s(?:ec|econd)?\b"
# A text of the line, and its form. Sources:
# Hugging Face transformers, trainer_utils.py (speed_metrics) and trainer_pt_utils.py (log_metrics);
# NVIDIA/DeepLearningExamples, PyTorch and TensorFlow BERT (DLLogger), TensorFlow (Throughput
# Average); tensorflow/benchmarks, PerfZero; hpcbert's own PyTorch program; the rest is usual.
_CLOSING_FORMS = (
    (b"train_samples_per_second", rb"\btrain_samples_per_second['\"]?\s*[:=]\s*['\"]?" + _RATE),
    (b" -  throughput_train : ", rb" -  throughput_train : " + _RATE + rb" " + _UNIT),
    (
        b"training_sequences_per_second : ",
        rb"\btraining_sequences_per_second : " + _RATE,
    ),
    (b"Throughput Average (", rb"Throughput Average \(" + _UNIT + rb"\) = " + _RATE),
    (b'"samples_per_second": ', rb'^hpcbert-result \{.*"samples_per_second": ' + _RATE),
    (b'"exp_per_second"', rb'"name": "exp_per_second",\s*"value": ' + _RATE),
    *(
        (word, rb"(?i)\b" + word + rb"[ _](?:train(?:ing)?[ _])?" + tail)
        for word in (b"Total", b"total", b"Overall", b"overall", b"Average", b"average")
        for tail in (
            _UNIT + rb" *[:=] *" + _RATE,
            rb"(?:throughput|speed) *[:=] *" + _RATE + rb" *" + _UNIT,
        )
    ),
)
# A closing rate includes what the steps don't: compilation, evaluation, checkpoints.
_CLOSING_TOLERANCE = 0.3


@cache
def _all_closing_rules() -> tuple[Rule, ...]:
    rules = []
    for text, pattern in _CLOSING_FORMS:
        lines = 3 if text == b'"exp_per_second"' else 1
        name = text.strip(b" -:\"'(").decode()
        record = Record(text, re.compile(pattern, re.MULTILINE), name, lines=lines)
        rules.append(
            Rule(name, "footer", record, "rate", tolerance=_CLOSING_TOLERANCE, side="below")
        )
    return tuple(rules)


def closing_rules(grammar: Grammar, chosen: Rule) -> tuple[Rule, ...]:
    """Return rules for the closing lines that a grammar itself does not read.

    Args:
        grammar: How the framework's logs are read. What it says of a line holds.
        chosen: The rule that gives the number.
    """
    if not chosen.is_comparable:
        return ()
    texts = [record.contains for record in grammar.records]
    return tuple(
        rule
        for rule in _all_closing_rules()
        if not any(text in rule.record.contains or rule.record.contains in text for text in texts)
    )
