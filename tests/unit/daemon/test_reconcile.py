# SPDX-License-Identifier: MIT
"""Reconcile: records, the kernel's list and live processes, in every combination that matters."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cgpu_common.cookie import is_our_cookie, make_cookie
from cgpu_common.model import Container, Slot
from cgpud import slices
from cgpud.reconcile import Finding, Orphan, Signal, idle_since, reconcile
from cgpud.state import Trigger
from cgpud.values import Phase, Process, Record

COOKIE = make_cookie(12345)
RECORD = Record("a" * 64, COOKIE, "boot", "/b", Phase.BOUND, 100.0, Process(1, 1))
PREPARED = replace(RECORD, phase=Phase.PREPARED, process=None)
KERNEL = Container("a" * 64, COOKIE, "a" * 12, 509, 1, 2)


def run(records: list[Record], kernel: list[Container], *, alive: bool = True, now: float = 50.0) -> list[Finding]:
    return reconcile(records, kernel, boot_id="boot", now=now, alive=lambda _: alive)


@pytest.mark.parametrize(
    ("name", "records", "kernel", "alive", "now", "expected"),
    [
        ("all well", [RECORD], [KERNEL], True, 50, []),
        ("died unseen", [RECORD], [KERNEL], False, 50, [Signal(RECORD, Trigger.LOST)]),
        ("destroyed by a person", [RECORD], [], True, 50, [Signal(RECORD, Trigger.KERNEL_GONE)]),
        ("dying", [RECORD], [replace(KERNEL, dying=True)], True, 50, [Signal(RECORD, Trigger.KERNEL_GONE)]),
        ("lease runs", [PREPARED], [KERNEL], True, 50, []),
        ("lease over", [PREPARED], [KERNEL], True, 101, [Signal(PREPARED, Trigger.LEASE_OVER)]),
        ("the start failed unheard", [PREPARED], [KERNEL], False, 50, [Signal(PREPARED, Trigger.LOST)]),
        ("intent without kernel", [PREPARED], [], True, 50, []),
        ("old intent without kernel", [PREPARED], [], True, 101, [Signal(PREPARED, Trigger.KERNEL_GONE)]),
        ("an intent without a slot in the kernel", [PREPARED], [], False, 50, [Signal(PREPARED, Trigger.KERNEL_GONE)]),
        ("a slot without a record", [], [KERNEL], True, 50, [Orphan(KERNEL)]),
        ("a dying slot without a record", [], [replace(KERNEL, dying=True)], True, 50, []),
        ("made by a person", [], [replace(KERNEL, cookie=99)], True, 50, []),
    ],
)
def test_findings(
    name: str, records: list[Record], kernel: list[Container], alive: bool, now: float, expected: list[Finding]
) -> None:
    assert run(records, kernel, alive=alive, now=now) == expected, name


def test_another_boot() -> None:
    old = replace(RECORD, boot_id="before")
    assert run([old], []) == [Signal(old, Trigger.KERNEL_GONE)]
    assert run([old], [KERNEL]) == [Signal(old, Trigger.LOST)]


def test_unanswered_destroy_is_repeated() -> None:
    stuck = replace(RECORD, phase=Phase.STUCK)
    assert run([stuck], [KERNEL]) == [Signal(stuck, Trigger.TICK)]


def test_the_same_id_in_a_new_life() -> None:
    new = replace(RECORD, cookie=make_cookie(777))
    there = replace(KERNEL, cookie=new.cookie)
    assert run([RECORD, new], [there]) == [Signal(RECORD, Trigger.KERNEL_GONE)]


@pytest.mark.parametrize(
    ("used", "idle"),
    [((0,), True), ((0, 0), True), ((1,), False), ((0, 1), False), ((), True)],
)
def test_an_orphan_is_idle_when_it_uses_no_gpu(used: tuple[int, ...], idle: bool) -> None:
    orphan = replace(KERNEL, slots=tuple(Slot(n, n, n, 10, used=bytes_) for n, bytes_ in enumerate(used)))
    assert idle_since(orphan, None, 7.0) == (7.0 if idle else None)
    assert idle_since(orphan, 3.0, 7.0) == (3.0 if idle else None)


def test_cookies() -> None:
    assert is_our_cookie(make_cookie(0))
    assert is_our_cookie(make_cookie((1 << 64) - 1))
    assert make_cookie((1 << 64) - 1) < 1 << 64
    assert not is_our_cookie(1)


# ---- the slice of a claim ----


def test_a_claims_slice_is_joined_while_it_lives() -> None:
    """One that is being destroyed, or that was created and has no slot yet, is none."""
    record = replace(RECORD, id="b" * 64, cookie=COOKIE + 9, slice=(KERNEL.id, COOKIE))
    live = replace(KERNEL, slots=(Slot(0, 1, 0, 10),))
    claim = KERNEL.id
    assert slices.joinable(claim, [record], [live]) == live
    for other in (replace(live, dying=True), replace(live, slots=()), replace(live, cookie=COOKIE + 1)):
        assert slices.joinable(claim, [record], [other]) is None
    for gone in (replace(record, phase=Phase.RELEASING), replace(record, slice=None)):
        assert slices.joinable(claim, [gone], [live]) is None
    assert slices.joinable("another", [record], [live]) is None
