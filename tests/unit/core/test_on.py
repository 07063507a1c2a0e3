# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""Which slot the hardware runs is worked out from who has work, and work is charged its length."""

from __future__ import annotations

import pytest
from corelib import BURST, MS, NATIVE, PREEMPTIVE, WEIGHTED, Turn
from demandgpu import Load, every
from test_gaps import Steps
from test_run_state import BOTH, Closed, gpu

US = 1_000
READ_US = 50


class Readings:
    """Slots that have slept, so that they run beside each other, at timeslices of 8 ms; and what is read of them."""

    def __init__(self, count: int = 2, slice_ms: int = 9, policy: int = PREEMPTIVE) -> None:
        self.turn = Turn(policy, slice_ms=slice_ms, controls=BOTH)
        self.all = [self.turn.add(1, channels=1) for _ in range(count)]
        self.known = (1 << count) - 1
        self.read(2, 0)
        self.read(2, self.known)
        self.read(2, 0)
        assert [self.turn.t.slot[i].timeslice_us for i in self.all] == [8000] * count
        self.began = [self.turn.stat(i).gpu_ns for i in self.all]

    def read(self, length_ms: float, busy: int) -> None:
        """So long @busy is what each reading shows."""
        for _ in range(round(1000 * length_ms / READ_US)):
            self.turn.now += READ_US * US
            self.turn.set_run_state(self.known, busy)
            self.turn.step()

    @property
    def got_ms(self) -> list[float]:
        return [(self.turn.stat(i).gpu_ns - ns) / MS for i, ns in zip(self.all, self.began, strict=True)]


def near(*ms: float) -> object:
    return pytest.approx(list(ms), abs=0.1)


def test_the_first_keeps_the_gpu_while_another_one_waits():
    one = Readings()
    one.read(3, 0b01)
    one.read(3, 0b11)
    one.read(2, 0b10)
    assert one.got_ms == near(6, 2)


def test_after_its_timeslice_the_other_one_has_it():
    one = Readings()
    one.read(1, 0b01)
    one.read(10, 0b11)
    one.read(2, 0b01)
    assert one.got_ms == near(10, 3)


def test_with_two_processes_another_one_may_come_after_either():
    """One of both has it after the first timeslice: it is divided."""
    one = Readings()
    one.turn.channels(0, 2)
    one.turn.t.slot[0].timeslice_us = 4000
    one.read(1, 0b01)
    one.read(3, 0b11)
    assert one.got_ms == near(4, 0)
    one.read(2, 0b11)
    assert one.turn.t.on_mask == 0b11


@pytest.mark.parametrize("first", [0, 1])
def test_which_of_two_came_first_is_known_when_its_work_is_over(first):
    """Until then neither time goes on that is shown: it could go back."""
    one, other = Readings(), 1 << 1 - first
    one.read(3, 0b11)
    assert one.got_ms == near(0, 0)
    one.read(4, other)
    assert one.got_ms == near(*(4, 3)[:: 1 if first else -1])


def test_turns_are_charged_the_same():
    """Of all, whichever is corrected first."""
    for first in (0, 1):
        one = Readings(slice_ms=60)
        before = [one.turn.t.slot[i].deficit_ns for i in one.all]
        one.read(3, 0b11)
        one.read(1, 1 << 1 - first)
        charged = [(ns - one.turn.t.slot[i].deficit_ns) / MS for i, ns in zip(one.all, before, strict=True)]
        assert charged == near(*(1, 3)[:: 1 if first else -1])


def test_what_one_policy_charged_is_not_corrected_under_the_next():
    """That begins without credit or debt."""
    one = Readings(slice_ms=60)
    one.read(6, 0b11)
    one.turn.set("policy", WEIGHTED)
    one.turn.now += READ_US * US
    one.turn.set_run_state(one.known, 0b10)
    assert abs(one.turn.t.slot[0].deficit_ns) <= READ_US * US


def test_longer_than_a_timeslice_it_stays_divided():
    one = Readings()
    """What it had of the timeslice under way is known again."""
    one = Readings()
    one.read(20, 0b11)
    assert one.got_ms == near(8, 8)
    one.read(3, 0b10)
    assert one.got_ms == near(12, 11)


def test_of_three_the_one_that_woke_last_cannot_have_been_first():
    one = Readings(3)
    one.read(2, 0b011)
    one.read(2, 0b111)
    one.read(2, 0b101)
    one.read(1, 0b100)
    assert one.got_ms == near(2, 4, 1)


def test_one_with_gaps_that_readings_miss_may_have_lost_it():
    one = Readings()
    one.turn.t.slot[0].flicker = 200
    one.read(2, 0b01)
    one.read(4, 0b11)
    one.read(1, 0b01)
    assert one.got_ms == pytest.approx([5, 2], abs=0.5)


@pytest.mark.parametrize(("work_ms", "may_have_it"), [(0.5, 0b11), (15, 0b01)])
def test_a_gap_now_and_then_loses_no_timeslice(work_ms, may_have_it):
    """With one of 60 us in 27 ms a container had 68 % of the GPU, and the other one, with pieces of 2 ms, was charged
    two thirds of its waiting: 51 % for 23."""
    one = Readings()
    for _ in range(20):
        one.read(work_ms, 0b01)
        one.read(READ_US / 1000, 0)
    one.read(1, 0b01)
    for _ in range(2):
        one.turn.now += READ_US * US
        one.turn.set_run_state(one.known, 0b11)
    assert one.turn.t.on_mask == may_have_it


def test_work_that_ends_while_it_should_have_waited_shows_that_nothing_is_known():
    one = Readings(3)
    one.read(2, 0b001)
    one.read(2, 0b111)
    one.read(READ_US / 1000, 0b101)
    assert one.turn.t.on_mask == 0b101


def test_work_that_ends_shows_who_left_the_gpu_to_it():
    """Readings miss gaps of 1 us, and one that waits has none: one with a ceiling of 10 had 75 % for a second."""
    one = Readings(policy=BURST)
    one.turn.set("ceiling", 1, 2)
    one.read(1, 0b01)
    budget_ns = one.turn.t.slot[1].ceiling_budget_ns
    one.read(1, 0b11)
    assert one.turn.t.on_mask == 0b01
    assert one.turn.t.slot[1].ceiling_budget_ns >= budget_ns
    one.read(READ_US / 1000, 0b01)
    one.read(1, 0b11)
    assert one.turn.t.slot[1].ceiling_budget_ns < budget_ns - 0.8 * MS


def test_an_unknown_run_state_ends_it():
    one = Readings()
    one.read(1, 0b01)
    assert one.turn.t.on_mask == 0b01
    one.turn.now += READ_US * US
    one.turn.set_run_state(0b01, 0b01)
    assert one.turn.t.on_mask == 0


def test_closing_the_gpu_ends_it():
    one = Readings()
    one.read(1, 0b01)
    one.turn.channels(0, 0)
    assert one.turn.t.on_mask == 0


def test_a_gap_in_which_it_was_frozen_is_none_that_readings_miss():
    """Its word is not read any more, and it may sleep for long."""
    turn = Turn(PREEMPTIVE, slice_ms=9, controls=BOTH)
    one, _ = turn.add(1, channels=1), turn.add(1, channels=1)
    turn.step()
    turn.t.run_mask = 0b11
    for run, busy in ((0b11, 0b11), (0b11, 0b10), (0b10, 0b10), (0b10, 0b11)):
        turn.t.run_mask = run
        turn.now += READ_US * US
        turn.set_run_state(0b11, busy)
    assert turn.t.slot[one].flicker == 0


PIECES = [((2, 3), (8, 10)), ((1, 3), (2, 2), (9, 6)), ((1, 6), (5, 3)), ((2, 2), (8, 4.5), (19, 20))]


@pytest.mark.parametrize("policy", [PREEMPTIVE, BURST])
@pytest.mark.parametrize("pieces", PIECES)
def test_small_pieces_beside_longer_ones_have_their_part(policy, pieces):
    """Or what the driver's timeslices leave them, beside one that always works. By timeslices the smallest were charged
    half of what they waited for."""
    got, account = parts(policy, pieces)
    driver, _ = parts(NATIVE, pieces)
    assert account == pytest.approx(got, abs=0.03)
    assert all(one > 0.8 * min(1 / len(got), two) for one, two in zip(got, driver, strict=True)), (got, driver)


def parts(policy: int, pieces: tuple[tuple[float, float], ...]) -> tuple[list[float], list[float]]:
    """Of the GPU, as they were and by the account."""
    sim = gpu(policy, Load(), *(Steps(*one) for one in pieces), slice_ms=9).run(1500)
    before = [(load.got_ns, sim.turn.stat(slot).gpu_ns) for slot, load in sim.loads.items()]
    sim.run(4000)
    got = [(load.got_ns - before[slot][0]) / (4000 * MS) for slot, load in sim.loads.items()]
    return got, [(sim.turn.stat(slot).gpu_ns - before[slot][1]) / (4000 * MS) for slot in sim.loads]


def test_requests_that_come_by_the_clock_are_charged_their_length():
    """Of three that share the GPU, none of them near its part."""
    sim = gpu(PREEMPTIVE, Load(every(30, 6)), Load(every(10, 1, 0.5)), Closed(300, 5000), slice_ms=9).run(3000)
    account = [sim.turn.stat(slot).gpu_ns for slot in sim.loads]
    assert account == pytest.approx([load.got_ns for load in sim.loads.values()], rel=0.1)
