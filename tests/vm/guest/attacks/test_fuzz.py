# SPDX-License-Identifier: MIT
"""A part of a minute of the fuzzer; docs/develop/testing.md has the commands to run it for hours.

The floors below prove that the run was useful: rows of the call table that were answered with success, objects made.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[4]
sys.path.insert(0, str(REPO / "tests/fuzz"))

import fuzzed  # noqa: E402

pytestmark = pytest.mark.once

DEBUG = os.environ["KERNEL"].endswith("debug")
SECONDS = 12
SEED = 2
#: The debug kernel is here for its own checks. It makes a fiftieth of the calls, fewer on a slow machine. Its small
#: counts are random (a free 5 times of 6, once), so the floors only require that the fuzzer works at all.
SHARE, LEAST = (0.005, 2) if DEBUG else (1, 1)

MADE = {"calls": 10000, "mutated": 1500, "allocs": 500, "maps": 200, "gpu_maps": 200, "dups": 200, "imports": 30}
MADE |= {"exports": 100, "frees": 300, "forks": 30, "kills": 30, "disturbed": 300}
CONTEXTS = {"channels": 20, "works": 50}
#: Rows answered with success at least once, of those the simulated driver can answer.
ANSWERED = {"escape": 15, "control": 35, "class": 12, "uvm": 12}


def check_floors(found: dict, floors: dict[str, int], answered: dict[str, int]) -> None:
    kinds = fuzzed.coverage(found)
    print({name: value for name, value in found.items() if name != "rows"}, kinds)
    floors = {name: floor * SHARE for name, floor in floors.items() if floor * SHARE >= LEAST}
    short = {name: found[name] for name, floor in floors.items() if found[name] < floor}
    assert not short, f"hardly anything of {short} was made (seed {found['seed']})"
    few = {kind: kinds[kind] for kind, floor in answered.items() if kinds[kind]["ok"] < floor * (0.2 if DEBUG else 1)}
    assert not few, f"hardly any row was answered with success: {few} (seed {found['seed']})"
    assert found["quiets"] >= 1


@pytest.mark.checked
def test_wrong_calls():
    check_floors(fuzzed.fuzz(SECONDS, SEED), MADE | CONTEXTS, ANSWERED)


@pytest.mark.more
def test_other_wrong_calls_for_longer():
    check_floors(fuzzed.fuzz(5 * SECONDS, SEED + 1), MADE | CONTEXTS, ANSWERED)


@pytest.mark.more
@pytest.mark.checked
def test_wrong_calls_by_the_byte():
    """Without contexts the card's account and ours are equal at every quiet point."""
    check_floors(fuzzed.fuzz(SECONDS, SEED, "--no-contexts"), {"allocs": 250}, {"escape": 15})


@pytest.mark.more
@pytest.mark.stock_only
def test_shares_beside_wrong_calls():
    """Equal weights: extra work of the fuzzed container is charged to its own half, not to the neighbour's."""
    victims, own = fuzzed.works_beside(15, SEED)
    print(victims, own)
    assert own > 100
    assert victims >= 0.8 * own


@pytest.mark.stock_only  # the debug kernel has no userfaultfd
@pytest.mark.parametrize("contexts", [(), ("--no-contexts",)], ids=["contexts", "by the byte"])
def test_every_word_of_every_argument_in_flight(contexts: tuple[str, ...]):
    found = fuzzed.fuzz(90, SEED, "--rewrite", *contexts)
    print({name: value for name, value in found.items() if name != "rows"})
    rows = [row for row in found["rows"] if row["rewritable"]]
    left = {row["name"]: (row["rewritten"], row["rewritable"]) for row in rows if row["rewritten"] < row["rewritable"]}
    print("left:", left)
    calls = {row["name"] for row in rows if row["kind"] in ("escape", "uvm")}
    assert len(calls) > 60
    assert not (calls | {"NV01_MEMORY_LOCAL_USER"}) & set(left)
