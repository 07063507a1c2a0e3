# SPDX-License-Identifier: MIT
"""The module's ledger and NVIDIA's resource manager after random sequences of passed calls (fuzz.py), briefly."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest
from fuzz import STEPS, Machine, Step, World, draw, rounds
from ledger import Ledger, Memory, Object
from rm import BRANCHES

ROUNDS, LENGTH = 10, 60
MACHINES = [(branch, chip) for branch in BRANCHES for chip in ("TU104", "GA100")]


@pytest.fixture(params=MACHINES, ids=lambda p: "-".join(p))
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    machine = Machine(*request.param)
    yield machine
    machine.stop()


@pytest.fixture
def one_machine() -> Iterator[Machine]:
    machine = Machine(*MACHINES[0])
    yield machine
    machine.stop()


def test_the_ledger_has_what_rm_has(machine: Machine):
    """And each kind of step succeeds: a sequence that RM refuses throughout would show nothing."""
    wrong, steps, done = rounds(machine, 17, ROUNDS, LENGTH)
    assert not wrong, f"{wrong}\n{steps}"
    assert {work.__name__ for work in STEPS if not done[work.__name__, True]} <= {"engine_object", "unmap_cpu"}


def test_a_sequence_is_repeated_by_its_seed():
    assert draw(random.Random(3), LENGTH) == draw(random.Random(3), LENGTH)


FAULTS = {
    "a dup without a reference": (Ledger, "get", lambda _self, memory: memory),
    "a charge that is too small": (Ledger, "charge", None),
    "what is below that stays": (Ledger, "remove", None),
}


def small_charge(self: Ledger, bytes_: int, host_bytes: int = 0) -> Memory:
    return charge(self, bytes_ // 2, host_bytes)


def leaves_children(self: Ledger, root: Object) -> None:
    del self.objects[root.name]


charge = Ledger.charge
REPLACED = {"charge": small_charge, "remove": leaves_children}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_ledger_is_found(one_machine: Machine, fault: str, monkeypatch: pytest.MonkeyPatch):
    """And shortened to what it takes."""
    cls, name, function = FAULTS[fault]
    monkeypatch.setattr(cls, name, function or REPLACED[name])
    wrong, steps, _ = rounds(one_machine, 5, 40, LENGTH)
    assert wrong
    assert len(steps) <= 12, steps


def test_a_difference_ends_the_sequence(one_machine: Machine, monkeypatch: pytest.MonkeyPatch):
    """The machine is not used again after it."""
    assert one_machine.run([(0, *[0] * 6)]) == ("", Counter({("open", True): 1}))
    before = one_machine.rm
    monkeypatch.setattr(World, "taken", lambda _self: 1)
    steps: list[Step] = [(0, *[0] * 6)]
    assert one_machine.run(steps)[0]
    assert one_machine.rm is None is not before
