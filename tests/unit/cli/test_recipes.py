# SPDX-License-Identifier: MIT
"""docs/user/recipes.md: each figure of its tables is what `cgpu simulate` says to the line above the table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from commands import simulated

PAGE = Path(__file__).resolve().parents[3] / "docs/user/recipes.md"


def cases() -> list[tuple[str, str]]:
    """Each line with `cgpu simulate`, and each row of the tables below it that names a policy."""
    found: list[tuple[str, str]] = []
    line = ""
    for text in PAGE.read_text().splitlines():
        if text.startswith("cgpu simulate "):
            line = text
        elif text.startswith("## "):
            line = ""
        elif line and re.match(r"\| `(weighted|native)`", text):
            found.append((line, text))
    return found


def figures_of(line: str, policy: str) -> list[float]:
    """Every figure of that run that a table may have, in the units of the tables: ms and %."""
    words = line.split()[2:]
    (gpu,) = simulated(*words, *(() if "--policy" in words else ("--policy", policy)))
    figures = [gpu["idle_pct"]]
    for one in gpu["containers"]:
        figures.append(one["share_got_pct"])
        figures += [one[key] for key in ("request_p99_of_alone_pct",) if one.get(key)]
        figures += [one[key] / 1000 for key in ("request_p50_us", "request_p99_us") if one.get(key)]
    return figures


@pytest.mark.parametrize(("line", "row"), cases(), ids=lambda text: text[:24])
def test_a_row_has_the_simulators_figures(line: str, row: str) -> None:
    policy, *cells = [cell.strip() for cell in row.strip("|").split("|")]
    there = figures_of(line, policy.split("`")[1])
    figures = [float(number) for cell in cells for number in re.findall(r"\d+(?:\.\d+)?", cell)]
    assert len(figures) >= 3
    for figure in figures:
        assert any(abs(figure - one) <= 0.03 * one + 0.1 for one in there), (figure, there)


def test_there_is_a_row_for_each_policy_and_run_state() -> None:
    assert len(cases()) == 10


@pytest.mark.parametrize(
    ("begin", "figures"),
    [
        (
            "cgpu simulate --profile h100 --alone --seconds 20 --policy burst",
            ((r"A cell of 300 ms takes ([0-9.]+) s", 1000), (r"the job has ([0-9.]+) %", 1)),
        ),
        (
            "cgpu simulate --profile t4 --alone --seconds 20 --policy weighted",
            ((r"the longest of twenty seconds, both in step, ([0-9]+) ms", 1),),
        ),
    ],
    ids=("burst", "t4"),
)
def test_the_figures_of_a_sentence(begin: str, figures: tuple[tuple[str, int], ...]) -> None:
    """Recipes whose figures are in no table."""
    text = PAGE.read_text()
    (line,) = [one for one in text.splitlines() if one.startswith(begin)]
    there = figures_of(line, "")
    for pattern, factor in figures:
        (figure,) = re.findall(pattern, text)
        wanted = float(figure) * factor
        assert any(abs(wanted - one) <= 0.03 * one + 0.1 for one in there), (pattern, there)


def test_a_line_has_the_prio_ratio_that_its_recipe_sets() -> None:
    for section in PAGE.read_text().split("\n## "):
        for ratio in re.findall(r"cgpu set gpu 0 prio_ratio (\d+)", section):
            assert f" --prio-ratio {ratio} " in section
