# SPDX-License-Identifier: MIT
"""Figures, windows, rounds."""

import pytest
from hw import stats


def test_figures_are_by_nearest_rank():
    found = stats.figures(list(range(1, 1001)), "us")
    assert (found["n"], found["median"], found["p90"], found["p99"], found["max"]) == (1000, 500.5, 900, 990, 1000)
    assert stats.figures([7], "us")["p99"] == 7
    assert stats.figures([], "us") == {"n": 0, "unit": "us"}


def test_one_slow_call_in_a_hundred_is_not_the_p99_but_the_max():
    found = stats.figures([300.0] * 99 + [5200.0], "us")
    assert (found["p99"], found["max"]) == (300.0, 5200.0)


POINTS = [(10.0, 0), (11.0, 100), (13.0, 500)]


def test_work_between_two_reports_is_in_proportion():
    assert stats.done_at(POINTS, 10.5) == 50
    assert stats.done_at(POINTS, 12.0) == 300
    assert stats.done_at(POINTS, 13.0) == 500
    assert stats.rate(POINTS, 10.5, 12.0) == pytest.approx(250 / 1.5)


@pytest.mark.parametrize("when", [9.9, 13.1])
def test_outside_of_the_reports_nothing_is_made_up(when):
    with pytest.raises(ValueError, match="no report"):
        stats.done_at(POINTS, when)


def test_the_ratio_is_held_against_the_weights():
    assert stats.ratio_error([100, 200], [1, 2]) == pytest.approx(0)
    assert stats.ratio_error([110, 190], [1, 2]) == pytest.approx(0.1)
    assert stats.ratio_error([0, 0], [1, 2]) == 1.0
    assert stats.shares([1, 3]) == [0.25, 0.75]


def test_whole_rounds_are_those_nearest_to_the_time():
    rounds = [0.0, 0.5, 1.0, 1.6, 2.0, 2.6]
    assert stats.whole_rounds(rounds, 1.5) == (0.5, 2.0, 3)
    assert stats.whole_rounds(rounds, 99) == (0.5, 2.6, 4)
    with pytest.raises(ValueError, match="not one is whole"):
        stats.whole_rounds(rounds[:2], 1)
