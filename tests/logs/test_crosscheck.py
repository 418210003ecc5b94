"""Two ways to one number must agree, slow steps are told, and a restart in the window is no run."""

import re
from functools import partial
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcbert.logs.grammar import find_number_groups
from hpcbert.logs.setting import Setting
from tests.kit import recipes
from tests.kit.cases import cases, read_constant
from tests.kit.logs import GRAMMARS, codes, step, steps

ONE = Setting(nodes=1, gpus_per_node=1, gpus=1, batch_size_per_device=32, accumulation=1)
BATCH = ONE._replace(batch_size_per_device=512)
TOML = (GRAMMARS / "steps.toml").read_text().replace('"epoch"', '"epoch"\nrepeated = "count"')
RULES = ("clock", "rate", "footer")
CLOSING = "result: 32.0\n"
LOG = steps(120, rate=32.0) + CLOSING
HEADERS = read_constant(__file__, "HEADERS")
FORMS = ("steps", "tf2", "megatron", "paddle")
line = partial(step, rate=32.0)


@pytest.mark.parametrize("rule", RULES)
def test_ways_that_agree_give_the_number_and_wrong_settings_contradict_it(read, rule):
    reading = read(TOML, LOG, rule, ONE)
    assert (reading.throughput, reading.flags) == (pytest.approx(32), ())
    for gpus, batch in ((2, 32), (1, 16)):
        wrong = ONE._replace(gpus=gpus, gpus_per_node=gpus, batch_size_per_device=batch)
        reading = read(TOML, LOG, rule, wrong)
        assert set(codes(reading)) == {"contradiction"}
        assert "32" in str(reading.reasons[0])
    # A window that is nearly gone is none.
    gone = "".join(line(n) for n in (*range(1, 21), 120)) + CLOSING
    assert set(codes(read(TOML, gone, rule, ONE))) == {"window"}
    assert set(codes(read(TOML, gone, rule, ONE._replace(reach=120)))) == {"window"}
    short = ONE._replace(skip=4, iters=6, reach=6)
    log = steps(6, rate=32.0) + CLOSING
    assert read(TOML, log, rule, short).flags == ("short-window",)
    shorter = TOML.replace("[log]\n", "[log]\nshortest = 2\n")
    assert read(shorter, log, rule, short).flags == ()


def test_a_checkpoint_takes_its_time_and_accumulation_that_nobody_states_is_not_one(read):
    toml = TOML + read_constant(__file__, "ACCUMULATION")
    lines = [line(n, at=n + 60 * (n > 70), rate=32.0 if n != 71 else 0.52) for n in range(1, 121)]
    reading = read(toml, "".join(lines), "clock", ONE)
    assert codes(reading) == ["window"]
    assert "iteration 71 is at 0.52" in str(reading.reasons[0])
    lines.insert(70, "saving a checkpoint\n")
    assert read(toml, "".join(lines), "clock", ONE).throughput == pytest.approx(3200 / 160)
    unknown = ONE._replace(accumulation=None)
    assert read(toml, LOG, "clock", unknown).throughput == pytest.approx(32)
    log = LOG.replace("32.0", "6400.0")
    reading = read(toml, log, "clock", unknown)
    assert set(codes(reading)) == {"contradiction"}
    assert "accumulation" in str(reading.reasons[0])
    assert read(toml, log, "rate", unknown).throughput == 6400
    assert read(toml, f"accumulation: 200\n{log}", "clock", unknown).throughput == 6400
    assert codes(read(toml, steps(120, rate="-"), "clock", unknown)) == ["rule"]


def test_steps_that_are_taken_back_and_copies_of_a_line_are_no_second_run(read):
    places = [0, 1, 1, 0, 0, *range(1, 121)]
    log = "".join(line(n, at=at) for at, n in enumerate(places))
    assert read(TOML, log, "clock", ONE).throughput == pytest.approx(32)
    again = "".join(line(n, at=at) for at, n in enumerate([*range(1, 40), *range(1, 121)]))
    assert "more than one run" in str(read(TOML, again, "clock", ONE).reasons)
    whole = line(50).rstrip("\n")
    for end in (len(whole), whole.index("samples/s: ") + 12, whole.index("time") + 12):
        copied = LOG.replace(line(50), f"{line(50)}{whole[:end]}\n")
        assert read(TOML, copied, "clock", ONE).throughput == pytest.approx(32)


@cases
def test_a_number_of_few_seconds_on_gpus_says_so(read, device, seconds, flags):
    """The window has 100 iterations of a second."""
    toml = TOML.replace("[log]\n", f"[log]\nshortest_seconds = {seconds}\n")
    log = (f"device: {device}\n" if device else "") + LOG
    assert read(toml, log, "clock", ONE).flags == flags


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_goes_wrong_a_number_is_right_to_the_tolerance(read, data):
    places = data.draw(st.lists(st.integers(1, 120), max_size=3), "places")
    factor = data.draw(st.sampled_from([0.001, 0.01, 0.5, 1, 2, 100, 1e4]), "factor")
    jump = data.draw(st.integers(-4000, 4000), "jump")
    width = data.draw(st.sampled_from([1, 2, 4]), "width")
    lost = data.draw(st.sets(st.integers(21, 119)), "lost")
    rule = data.draw(st.sampled_from(RULES), "rule")
    if width > 1:
        places, jump = [], 0  # Two faults may make up for each other.
    after = places[0] if places else 121
    log = "".join(
        line(n, at=n + jump * (n > after), rate=32.0 * (factor if n in places else 1))
        for n in range(1, 121)
        if n not in lost
    )
    reading = read(TOML, log + CLOSING, rule, ONE._replace(gpus=width, gpus_per_node=width))
    if reading.throughput is None:
        assert reading.reasons or reading.missing
    else:
        assert reading.throughput == pytest.approx(32, rel=0.3)
        assert not lost
        assert width == 1


@cases
def test_a_number_is_taken_with_all_that_it_runs_into(text, expected):
    pattern = r"rate -?(?P<rate>[\d.]+)"
    (number,) = find_number_groups(pattern, ("rate",))
    match = re.search(pattern.encode(), text.encode())
    assert match
    assert number.read(match) == expected.encode()


@cases
def test_what_the_pattern_itself_has_beside_a_number_is_its_own(pattern, *, before, after):
    (number,) = find_number_groups(pattern, ("rate",))
    assert (number.before, number.after) == (before, after)


@cases
def test_a_rule_may_be_off_to_one_side(read, kind, text, *, rate, closing, agrees):
    log = steps(120, rate=rate or 32.0) + (f"result: {closing}\n" if closing else "")
    toml = TOML.replace(f'kind = "{kind}"', f'kind = "{kind}"\n{text}', 1)
    for rule in RULES[: 3 if closing else 2]:
        assert codes(read(toml, log, rule, ONE))[:1] == ([] if agrees else ["contradiction"])


def test_a_closing_rate_contradicts_a_forced_grammar_and_not_the_right_number(read):
    # A log of the Hugging Face Trainer, read as if its tokens were iterations and its runtime a clock.
    forced, four = read_constant(__file__, "FORCED"), ONE._replace(batch_size_per_device=4)
    tokens = four._replace(skip=512 * 20, iters=512 * 120)

    def render_trainer(closing, tokens=512):
        lines = [
            f"{{'loss': 9.5, 'epoch': 0.1, 'num_input_tokens_seen': {tokens * n}, "
            f"'train_runtime': {n * 4 / 42:.6f}}}\n"
            for n in range(1, 121)
        ]
        return "".join([*lines, closing, "\n"])

    toml = forced.replace("every = 512", "every = 1")
    for closing in read_constant(__file__, "CLOSINGS"):
        reading = read(forced, render_trainer(closing), "", tokens)
        assert codes(reading) == ["contradiction"], closing
        assert "gives 21504 samples/s" in str(reading.reasons[0]), closing
        assert " 42 for the same log" in str(reading.reasons[0]), closing
        right = read(toml, render_trainer(closing, 1), "", four)
        assert right.throughput == pytest.approx(42, rel=1e-4), closing
    for closing in read_constant(__file__, "OTHER_RATES"):
        reading = read(forced, render_trainer(closing), "", tokens)
        assert reading.throughput == pytest.approx(21504, rel=1e-4), closing
    # It may be somewhat lower, and hardly higher.
    for name in ("oneflow", "megatron"):
        for rate, agrees in ((512, True), (430, True), (350, False), (700, False)):
            closing = f"{{'train_samples_per_second': {rate}}}"
            reading = read_program(read, name, after=120, text=closing)
            assert (codes(reading) == []) is agrees, (name, rate)
    # A recipe decides whether its own closing line is compared.
    log = steps(120, rate=32.0) + "{'train_samples_per_second': 9}\n"
    assert codes(read(TOML, log, "rate", ONE)) == ["contradiction"]
    silent = TOML.replace('"result: "', '"train_samples_per_second"')
    silent = silent.replace("result: (?P", "train_samples_per_second.: (?P")
    silent = silent.replace('kind = "footer"', 'kind = "footer"\ncross_check = false')
    assert read(silent, log, "rate", ONE).throughput == pytest.approx(32)


def read_program(read, name, seconds=lambda _: 1.0, *, after=0, text="", job=""):
    """Read a log of 120 iterations with a text after one of them; no rate contradicts their clock."""
    now, lines, form = 0.0, [], read_constant(__file__, "LINES")[name]
    for n in range(1, 121):
        now += seconds(n)
        values = {"n": n, "before": n - 1, "now": 1763717655.25 + now, "rate": 512 / seconds(n)}
        clock = f"{22 + int(now) // 3600:02}:{int(now) // 60 % 60:02}:{now % 60:09.6f}"
        lines.append(form.format(**values, clock=clock, ms=1000 * seconds(n)))
    lines.insert(after, text)
    toml = TOML if name == "steps" else recipes.grammar(name)
    return read(toml, "\n".join([job, *HEADERS.get(name, ()), *lines, ""]), "", BATCH)


@cases
def test_a_mean_of_unlike_steps_is_flagged(read, first, last, seconds):
    """Some iterations take so many seconds, the others one."""
    for form in FORMS:
        result = read_program(read, form, lambda n: seconds if first <= n <= last else 1.0)
        assert (result.reasons, result.flags) == ((), ("uneven",)), form
        (note,) = result.notes
        assert note.flag == "uneven"
        assert f"{result.throughput:,.2f} samples/s" in note.detail
        assert "512" in note.detail or f"{512 / 4.2:,.2f}" in note.detail


@pytest.mark.parametrize("form", FORMS)
def test_steps_that_are_alike_or_take_turns_are_not_and_one_long_step_is_named(read, form):
    for others in (lambda _: 1.0, lambda n: 1.2 if n % 2 else 1.0):
        result = read_program(read, form, others)
        assert result.throughput
        assert (result.flags, result.notes) == ((), ())
    if form != "paddle":
        (note,) = read_program(read, form, lambda n: 14.0 if n == 70 else 1.0).notes
        assert note.detail.endswith("see iteration 70")


def test_loops_of_which_one_evaluates_are_flagged_and_a_median_hides_nothing(read):
    moments = [0, 10, 20, 90, 100, 110]
    log = "".join(f"loop {20 + 10 * n} {1763717655 + at}\n" for n, at in enumerate(moments))
    loops = read_constant(__file__, "LOOPS")
    result = read(loops, log, "", BATCH._replace(skip=20, iters=70))
    assert (result.throughput, result.flags) == (pytest.approx(232.727, rel=1e-5), ("uneven",))
    assert result.notes[0].detail == (
        "232.73 samples/s in all, 512.00 at the median step; see iterations 41 to 50"
    )
    toml = TOML.replace('kind = "rate"', 'kind = "rate"\naverage = "median"')
    log = "".join(step(n, rate=51.2 if n <= 30 else 512) for n in range(1, 121))
    result = read(toml, log, "rate", BATCH._replace(batch_size_per_device=None))
    assert (result.throughput, result.flags) == (512, ())
    # Steps that scatter a little are not uneven.
    random = Random(7)
    for count in (2, 5, 12, 100) * 20:
        log = "".join(step(n, rate=random.gauss(32, 0.32)) for n in range(1, 21 + count))
        result = read(TOML, log, "rate", ONE._replace(iters=20 + count))
        assert result.throughput
        assert "uneven" not in result.flags


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_inside_the_window_is_a_restart(read, name):
    header = "\n".join(HEADERS[name])
    job = "hpcbert: ranks start with batch_size_per_device=512 accumulation=1"
    for reading in (read_program(read, name), read_program(read, name, after=10, text=header)):
        assert reading.throughput == pytest.approx(512, rel=1e-3)
    # A program that a launcher starts again does not print the line of the job.
    for reading in (
        read_program(read, name, lambda n: 13.0 if n == 61 else 1.0, after=60, text=header),
        read_program(read, name, after=60, text=header, job=job),
        read_program(read, name, after=60, text=job, job=job),
    ):
        assert codes(reading) == ["window"]
        assert "printed again after iteration 60" in str(reading.reasons[0])
    # A rank may print a part of its header late.
    late = read_program(read, "oneflow", after=60, text=HEADERS["oneflow"][0])
    assert late.throughput == pytest.approx(512)
