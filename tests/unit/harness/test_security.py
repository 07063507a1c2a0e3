# SPDX-License-Identifier: MIT
"""docs/security.md: the numbers of the findings; "By mend": each row of the review names code and tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPO = next(p for p in Path(__file__).resolve().parents if (p / "VERSION").exists())
PAGE = (REPO / "docs/security.md").read_text()
ROWS = dict(re.findall(r"^\| ([KC]\d+) \| (.+) \|$", PAGE, re.M))
MEND = re.compile(r"`([\w/]+\.(?:c|py))`: ((?:`\w+(?:\(\))?`(?:, )?)+)")


def the_tests(text: str) -> set[str]:
    return set(re.findall(r"\btest_\w+", text))


def test_the_findings_are_numbered():
    table = PAGE.partition("## Findings")[2].partition("### By mend")[0]
    numbers = [int(number) for number in re.findall(r"^\| (\d+) \|", table, re.M)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert numbers


def test_each_row_of_the_review_is_there():
    assert list(ROWS) == [f"K{n}" for n in range(1, 12)] + [f"C{n}" for n in range(1, 9)]


@pytest.mark.parametrize("row", ROWS)
def test_its_mend_is_in_the_code(row: str):
    found = MEND.findall(ROWS[row])
    assert found
    for path, names in found:
        text = (REPO / path).read_text()
        for name in re.findall(r"\w+", names):
            assert re.search(rf"\b{name}\b", text), f"{path} has no {name}"


@pytest.mark.parametrize("row", ROWS)
def test_its_tests_exist(row: str):
    files = sorted((REPO / "tests").rglob("test_*.py"))
    there = {path.stem for path in files}
    there |= {name for path in files for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.M)}
    named = the_tests(ROWS[row].rpartition("|")[2])
    assert named and not named - there
