"""The moments that a log tells of itself, in every form that a recipe's program prints."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbert.logs import stamps as stamping
from hpcbert.logs.stamps import QUARTERS, Stamp, TimeSpan, explain_mismatch, nearest_moment
from tests.kit.cases import cases
from tests.kit.logs import write_file
from tests.kit.paths import REPOSITORY, TEMPLATES
from tests.kit.recipes import NAMES, grammar

HOUR, DAY = 3600.0, 86400.0
# 2020-08-23 11:37:15 UTC
T = 1598182635.0


def read_lines(folder, *lines):
    path = write_file(folder, "x.log", "\n".join([*lines, ""]))
    return stamping.read_stamps(path, grammar("mxnet"))


@pytest.mark.parametrize("recipe", NAMES)
def test_every_recipe_s_log_fits_its_own_run_and_no_other(recipe):
    stamps = stamping.read_stamps(TEMPLATES / recipe / "sample.log", grammar(recipe))
    without = {"composer", "hf-trainer", "mxnet", "nccl-tests", "paddle18"}
    assert bool(stamps) is (recipe not in without)
    dated = [stamp for stamp in stamps if stamp.form not in {"month-day", "time-of-day"}]
    near = nearest_moment(dated[0].form, dated[0].text, 0.0) if dated else T
    moments = [nearest_moment(stamp.form, stamp.text, near) for stamp in stamps] or [T]
    begin, end = min(moments), max(moments)
    assert not explain_mismatch(stamps, TimeSpan(begin, end))
    for apart in (-DAY, -HOUR, HOUR, 366 * DAY, -20 * 365 * DAY):
        # A stamp without its year fits any.
        if stamps and (dated or abs(apart) < 2 * DAY):
            assert explain_mismatch(stamps, TimeSpan(begin + apart, end + apart)), apart


@cases
def test_lines_that_begin_with_a_time_are_read(tmp_path, line):
    (stamp,) = read_lines(tmp_path, line)
    assert stamp.moment(TimeSpan(T - 60, T + 60), 0) == pytest.approx(T, abs=1)
    assert not explain_mismatch((stamp,), TimeSpan(T, T + 1))
    assert explain_mismatch((stamp,), TimeSpan(T + HOUR, T + 2 * HOUR))


@cases
def test_other_dates_are_not_the_log_s(tmp_path, line):
    assert read_lines(tmp_path, line) == ()
    # One line with another date refuses no log.
    lines = [f"2020-08-23 11:37:{second:02} x" for second in range(10, 20)]
    stamps = read_lines(tmp_path, "2001-01-01 00:00:00 a release", *lines)
    assert not explain_mismatch(stamps, TimeSpan(T - 10, T + 10))


def test_a_stamp_without_a_zone_is_read_in_the_node_s_or_in_utc_and_summer_time_is_no_duration():
    east = Stamp(b"2020-08-23 13:37:15", "date-time", of_record=True)
    utc = Stamp(b"2020-08-23 11:37:15", "date-time", of_record=True)
    # Its own, one that changed before it, UTC, and a container's, which may be any.
    fits_of_zones = {(7200, 7200): True, (3600, 7200): True, (0, 0): False, QUARTERS: True}
    for zones, fits in fits_of_zones.items():
        assert (explain_mismatch((east,), TimeSpan(T - 5, T + 5, zones)) == "") is fits
        assert not explain_mismatch((utc,), TimeSpan(T - 5, T + 5, zones))
    for first, last, zones in (
        (b"2020-03-29 01:59:40", b"2020-03-29 03:00:20", (3600, 7200)),
        (b"2020-10-25 02:59:40", b"2020-10-25 02:00:20", (7200, 3600)),
    ):
        begin = nearest_moment("date-time", first, 0) - zones[0]
        assert nearest_moment("date-time", last, 0) - zones[1] == begin + 40
        stamps = [Stamp(text, "date-time", of_record=True) for text in (first, last)]
        for span_zones in (zones, QUARTERS):  # of a node, and of a container
            span = TimeSpan(begin - 5, begin + 45, span_zones)
            assert explain_mismatch(stamps, span)
            # Only what stands on one side of it can be read.
            assert not explain_mismatch(stamps[:1], span)
            assert not explain_mismatch(stamps[1:], span)


def test_the_tolerance_is_what_the_page_says_and_a_missing_day_or_year_the_nearest():
    page = (REPOSITORY / "docs" / "explanation" / "numbers.md").read_text()
    tolerance = stamping.TOLERANCE
    assert f"more than {tolerance:g} seconds" in " ".join(page.split())
    stamp = (Stamp(b"%.1f" % T, "epoch", of_record=True),)
    assert not explain_mismatch(stamp, TimeSpan(T + tolerance, T + 60))
    early = explain_mismatch(stamp, TimeSpan(T + tolerance + 1, T + 60))
    assert f"{tolerance + 1:.0f} s before the measured step began" in early
    late = explain_mismatch(stamp, TimeSpan(T - 60, T - tolerance - 1))
    assert "after the measured step ended" in late
    # Stamps without a day or a year take the nearest.
    new_year = nearest_moment("date-time", b"2021-01-01 00:00:00", 0)
    eve = Stamp(b"1231 23:59:58.000000", "month-day", of_record=True)
    midnight = Stamp(b"00:00:03", "time-of-day", of_record=True)
    for partial in (eve, midnight):
        assert not explain_mismatch((partial,), TimeSpan(new_year - 5, new_year + 5))
    assert explain_mismatch((midnight,), TimeSpan(new_year + HOUR, new_year + 2 * HOUR))


@given(st.binary(max_size=300), st.floats(-1e12, 1e12))
def test_any_bytes_are_answered(tmp_path_factory, raw, at):
    path = tmp_path_factory.getbasetemp() / "any.log"
    path.write_bytes(raw + b"\n2020-08-23 11:37:15 x\nI0230 11:37:15.1 x\n")
    explain_mismatch(stamping.read_stamps(path, grammar("tf2")), TimeSpan(at, at + 60, (3600,)))
