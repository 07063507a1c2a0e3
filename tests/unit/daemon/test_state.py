# SPDX-License-Identifier: MIT
"""In any order of the triggers the kernel answers one DESTROY, and RELEASED is final."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgpud import state
from cgpud.state import Action, Trigger
from cgpud.values import Cgroup, Phase, Process, Record

FRESH = Record("a" * 64, 7, "boot", "/b", Phase.PREPARED, 100.0)
PROCESS = Process(42, 1000)
CGROUP = Cgroup("/docker/a", 77)


def bound(cgroup: Cgroup | None = CGROUP) -> Record:
    step = state.bind(FRESH, PROCESS, cgroup)
    assert step is not None
    assert step[1] == (Action.SAVE, Action.WATCH)
    return step[0]


TABLE = [
    # (from, trigger, to, actions)
    (FRESH, Trigger.LEASE_OVER, Phase.RELEASING, (Action.SAVE, Action.UNWATCH, Action.DESTROY)),
    (FRESH, Trigger.ABORTED, Phase.RELEASING, (Action.SAVE, Action.UNWATCH, Action.DESTROY)),
    (FRESH, Trigger.POSTSTOP, Phase.RELEASING, (Action.SAVE, Action.UNWATCH, Action.DESTROY)),
    (FRESH, Trigger.KERNEL_GONE, Phase.RELEASED, (Action.UNWATCH, Action.FORGET)),
    (FRESH, Trigger.LOST, Phase.RELEASING, (Action.SAVE, Action.UNWATCH, Action.DESTROY)),
    (FRESH, Trigger.RUNTIME_EXITED, Phase.RELEASING, (Action.SAVE, Action.UNWATCH, Action.DESTROY)),
    (bound(), Trigger.RUNTIME_EXITED, Phase.BOUND, ()),
    (bound(None), Trigger.RUNTIME_EXITED, Phase.BOUND, ()),
    (FRESH, Trigger.INIT_EXITED, Phase.PREPARED, ()),
    (FRESH, Trigger.TICK, Phase.PREPARED, ()),
    (bound(), Trigger.LEASE_OVER, Phase.BOUND, ()),
    (bound(), Trigger.INIT_EXITED, Phase.BOUND, (Action.CHECK_CGROUP,)),
    (bound(None), Trigger.INIT_EXITED, Phase.RELEASING, (Action.SAVE, Action.UNWATCH, Action.DESTROY)),
    (bound(), Trigger.CGROUP_EMPTY, Phase.RELEASING, (Action.SAVE, Action.UNWATCH, Action.DESTROY)),
    (bound(), Trigger.POSTSTOP, Phase.RELEASING, (Action.SAVE, Action.UNWATCH, Action.DESTROY)),
    (bound(), Trigger.LOST, Phase.RELEASING, (Action.SAVE, Action.UNWATCH, Action.DESTROY)),
    (replace(FRESH, phase=Phase.RELEASING), Trigger.POSTSTOP, Phase.RELEASING, ()),
    (replace(FRESH, phase=Phase.RELEASING), Trigger.TICK, Phase.RELEASING, ()),
    (replace(FRESH, phase=Phase.RELEASING), Trigger.DESTROYED, Phase.RELEASED, (Action.UNWATCH, Action.FORGET)),
    (replace(FRESH, phase=Phase.RELEASING), Trigger.DESTROY_FAILED, Phase.STUCK, (Action.SAVE,)),
    (replace(FRESH, phase=Phase.STUCK), Trigger.POSTSTOP, Phase.STUCK, ()),
    (replace(FRESH, phase=Phase.STUCK), Trigger.TICK, Phase.RELEASING, (Action.DESTROY,)),
    (replace(FRESH, phase=Phase.STUCK), Trigger.KERNEL_GONE, Phase.RELEASED, (Action.UNWATCH, Action.FORGET)),
    (replace(FRESH, phase=Phase.RELEASED), Trigger.POSTSTOP, Phase.RELEASED, ()),
]


@pytest.mark.parametrize(("before", "trigger", "phase", "actions"), TABLE)
def test_table(before: Record, trigger: Trigger, phase: Phase, actions: tuple[Action, ...]) -> None:
    after, done = state.step(before, trigger)
    assert (after.phase, done) == (phase, actions)


def test_bind_works_once_and_only_before_the_end() -> None:
    assert state.bind(bound(), Process(43, 1000), CGROUP) is None
    for phase in (Phase.RELEASING, Phase.STUCK, Phase.RELEASED):
        assert state.bind(replace(FRESH, phase=phase), PROCESS, CGROUP) is None


def test_the_same_bind_twice_is_one() -> None:
    """The daemon ended before it sent the reply to the first one."""
    assert state.bind(bound(), PROCESS, CGROUP) == (bound(), (Action.WATCH,))
    assert state.bind(bound(), replace(PROCESS, starttime=1), CGROUP) is None


def test_resume() -> None:
    assert state.resume(replace(FRESH, phase=Phase.RELEASING)).phase is Phase.STUCK
    assert state.resume(FRESH) == FRESH


@pytest.mark.parametrize(
    ("change", "sense"),
    [
        ({}, True),
        ({"process": Process(1, 0)}, True),
        ({"process": Process(1 << 22, 5)}, True),
        ({"process": Process(0, 5)}, False),
        ({"process": Process(-1, 5)}, False),
        ({"process": Process((1 << 22) + 1, 5)}, False),
        ({"process": Process(1 << 40, 5)}, False),
        ({"process": Process(1, -5)}, False),
        ({"cookie": 0}, True),
        ({"cookie": (1 << 64) - 1}, True),
        ({"cookie": -1}, False),
        ({"cookie": 1 << 64}, False),
        ({"cgroup": Cgroup("/a", 7)}, True),
        ({"cgroup": Cgroup("/a\0b", 7)}, False),
        ({"cgroup": Cgroup("a", 7)}, False),
        ({"cgroup": Cgroup("/a", -7)}, False),
        ({"id": ""}, False),
        ({"id": "a\0"}, False),
        ({"id": "a" * 129}, False),
        ({"bundle": "/b\0"}, False),
        ({"bundle": ""}, True),  # of an adopted one
        ({"deadline": float("inf")}, False),
        ({"phase": Phase.RELEASED}, False),
        ({"phase": Phase.RELEASING}, True),
        ({"phase": Phase.STUCK}, True),
    ],
    ids=str,
)
def test_what_a_daemon_can_have_written(change: dict[str, Any], sense: bool) -> None:
    assert state.is_valid(replace(FRESH, **change)) is sense


OUTSIDE = [
    trigger for trigger in Trigger if trigger not in (Trigger.DESTROYED, Trigger.DESTROY_FAILED, Trigger.KERNEL_GONE)
]


@given(
    st.booleans(),
    st.lists(st.one_of(st.sampled_from(OUTSIDE), st.sampled_from(["bind", "restart"])), max_size=30),
    st.lists(st.booleans(), max_size=30),
)
def test_one_release_in_any_order(with_cgroup: bool, happenings: list[Trigger | str], answers: list[bool]) -> None:
    """The kernel is a model: it answers each DESTROY with the next of `answers` (true when they run out)."""
    record = FRESH
    exists = True  # in the kernel
    released = forgotten = 0
    reply = iter(answers)

    def play(trigger: Trigger) -> None:
        nonlocal record, exists, released, forgotten
        record, actions = state.step(record, trigger)
        assert actions.count(Action.DESTROY) <= 1
        for do in actions:
            if do is Action.DESTROY:
                if next(reply, True):
                    assert exists, "destroyed twice"
                    exists = False
                    released += 1
                    play(Trigger.DESTROYED)
                else:
                    play(Trigger.DESTROY_FAILED)
            elif do is Action.FORGET:
                forgotten += 1

    for happening in happenings:
        if happening == "bind":
            step = state.bind(record, PROCESS, CGROUP if with_cgroup else None)
            record = step[0] if step else record
        elif happening == "restart":
            record = state.resume(record)
        else:
            assert isinstance(happening, Trigger)
            play(happening)

    # When nothing is alive and the kernel answers, every record reaches its end.
    play(Trigger.LOST)
    for _ in range(len(answers) + 1):
        play(Trigger.TICK)
    assert record.phase is Phase.RELEASED
    assert (released, forgotten, exists) == (1, 1, False)
