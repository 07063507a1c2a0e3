# SPDX-License-Identifier: MIT
"""docs/develop/hardware.md, simulated beside measured: the table is what card.py makes, of all rows, within bounds."""

from __future__ import annotations

import re

import card
import pytest

FOUND = card.figures()
MOST_PCT = 20
# The core that was measured is another one.
OTHER = {("service, weights 1:1, run state known", "p50 of alone")}


def test_the_page_has_the_table() -> None:
    """card.py --write puts it there."""
    assert card.on_page(card.PAGE.read_text()) == card.table(FOUND)


def test_each_row_of_the_results_is_simulated_or_named() -> None:
    rows = {one.row for one in FOUND}
    assert {f"service, {name}" for name in card.results("05-serve")["rows"] if name not in card.NOT_SIMULATED} <= rows
    assert len([row for row in rows if row.startswith("policy")]) == len(card.results("12-shares")["cells"])
    assert len([row for row in rows if row.startswith("timeslices")]) == len(card.results("06-timeslice")["cells"])


@pytest.mark.parametrize("one", FOUND, ids=lambda one: f"{one.row}, {one.name}")
def test_it_is_near_the_card(one: card.Figure) -> None:
    if (one.row, one.name) in OTHER:
        assert abs(one.off_pct) > MOST_PCT, "it is not an exception any more"
        name = one.row.removeprefix("service, ")
        assert f'"{name}" is another scheduler' in card.PAGE.read_text()
    else:
        assert abs(one.off_pct) <= MOST_PCT


def test_a_table_shows_what_is_off() -> None:
    found = [card.Figure("x", "p50", 2.0, 3.0), card.Figure("x", "p99", 10.0, 9.96), card.Figure("y", "%", 50.0, 25.0)]
    lines = card.table(found).splitlines()[2:]
    assert lines == ["| x | p50, p99 | 2.00, 10.0 | 3.00, 9.96 | +50, 0 |", "| y | % | 50.0 | 25.0 | -50 |"]
    assert not re.search(r"[+-]0\b", card.table(FOUND))
