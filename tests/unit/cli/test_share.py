# SPDX-License-Identifier: MIT
"""What each policy allows, from plain words to percent."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cgpu_cli import rates
from cgpu_common.model import KernelGpu, Slot, Snapshot, slot_state
from cgpu_common.share import allowed_pct, got_pct

GPU = KernelGpu(0, policy=2, max_inst=20, prio_ratio=80, slice_us=5000)


def slot(name: str, weight: int = 1, opened: int = 1, highprio: bool = False, ceiling: int = 0) -> Slot:
    stat = {"opened": opened, "gpu_ns": 0}
    return Slot(0, weight=weight, highprio=highprio, ceiling=ceiling, id=name, dir=name, stat=stat)


def two_lords() -> list[Slot]:
    return [slot("h", highprio=True), slot("i", 3, highprio=True)]


def allowed(policy: int, *slots: Slot) -> list[float | None]:
    gpu = replace(GPU, policy=policy, slots=slots)
    return [None if (got := allowed_pct(gpu, one)) is None else round(got, 1) for one in slots]


CASES = [
    ("fair: 1/max_inst, alone or not", 0, [slot("a"), slot("b", 9)], [5.0, 5.0]),
    ("preemptive: 1/openers", 1, [slot("a"), slot("b", 5)], [50.0, 50.0]),
    ("preemptive: one that has not opened does not count", 1, [slot("a"), slot("b", opened=0)], [100.0, 50.0]),
    ("weighted: 1:2", 2, [slot("a"), slot("b", 2)], [33.3, 66.7]),
    ("weighted: not opened still consumes", 2, [slot("a"), slot("b", opened=0)], [50.0, 50.0]),
    ("weighted: alone has everything", 2, [slot("a")], [100.0]),
    ("fixed: weight/max_inst", 3, [slot("a"), slot("b", 10)], [5.0, 50.0]),
    ("soft: about equal", 4, [slot("a"), slot("b", 3), slot("c", opened=0)], [50.0, 50.0, 33.3]),
    ("burst: by weight of those that have opened", 6, [slot("a"), slot("b", 3), slot("c", 4, 0)], [25.0, 75.0, 50.0]),
    ("burst: high priority by weight", 6, [*two_lords(), slot("a")], [20, 60, 20]),
    ("burst: a ceiling of the lone one", 6, [slot("a", ceiling=6)], [30.0]),
    ("burst: above a ceiling by weight", 6, [slot("a", ceiling=4), slot("b"), slot("c", 3)], [20.0, 20.0, 60.0]),
    ("burst: one ceiling brings another", 6, [slot("a", ceiling=4), slot("b", 3, ceiling=10), slot("c")], [20, 50, 30]),
    ("burst: a ceiling above its part", 6, [slot("a", ceiling=19), slot("b")], [50.0, 50.0]),
    ("burst: more than max_inst", 6, [slot("a", ceiling=30)], [100.0]),
    ("burst: high priority has its ceiling", 6, [slot("h", 1, 1, True, 4), slot("a")], [20.0, 20.0]),
    ("weighted: no ceilings", 2, [slot("a", ceiling=4), slot("b")], [50.0, 50.0]),
    ("native: no ceiling, weight 0 or not", 5, [slot("a", 0), slot("b")], [None, None]),
    ("weight 0 is frozen and takes nothing", 2, [slot("a", 0), slot("b", 2)], [0.0, 100.0]),
    ("high priority: prio_ratio", 2, [slot("h", highprio=True), slot("a"), slot("b", 3)], [80.0, 5.0, 15.0]),
    ("high priority not open: out of the way", 1, [slot("h", 1, 0, True), slot("a")], [80.0, 100.0]),
    ("two of high priority share it", 1, [slot("h", highprio=True), slot("i", highprio=True), slot("a")], [40, 40, 20]),
    ("two of high priority, fair: no caps", 0, [*two_lords(), slot("a")], [40, 40, 5]),
    ("two of high priority, weighted", 2, [*two_lords(), slot("a")], [20, 60, 20]),
    ("two of high priority, fixed: no caps", 3, two_lords(), [25, 75]),
    ("two of high priority, soft", 4, [*two_lords(), slot("a")], [40, 40, 20]),
    ("high priority, fixed, the other not open", 3, [slot("h", highprio=True), slot("i", 3, 0, True)], [100, 75]),
    ("high priority alone: everything", 2, [slot("h", highprio=True)], [100.0]),
    ("high priority: fixed caps stay", 3, [slot("h", highprio=True), slot("a", 10)], [80.0, 20.0]),
    ("high priority: small fixed caps stay", 3, [slot("h", highprio=True), slot("a", 1)], [80.0, 5.0]),
]


@pytest.mark.parametrize(("policy", "slots", "want"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_allowed(policy: int, slots: list[Slot], want: list[float | None]) -> None:
    assert allowed(policy, *slots) == want


def test_got() -> None:
    before, after = slot("a"), replace(slot("a"), stat={"gpu_ns": 300, "wait_ns": 100}, at_ns=1000)
    assert got_pct(GPU, before, after) == 30.0
    assert got_pct(GPU, before, replace(after, at_ns=0)) is None
    assert got_pct(replace(GPU, policy=5), before, after) is None
    assert got_pct(GPU, replace(after, at_ns=0), replace(before, at_ns=1000)) == 0.0


def reading(at_s: float, policy: int, ran_s: float, waited_s: float = 0.0) -> Snapshot:
    stat = {"opened": 1, "gpu_ns": round(ran_s * 1e9), "wait_ns": round(waited_s * 1e9), "turns": round(at_s * 10)}
    one = replace(slot("a"), stat=stat, at_ns=round(at_s * 1e9))
    return Snapshot("0.1.0", (replace(GPU, policy=policy, slots=(one,)),), (), round(at_s * 1e9))


def test_a_window_begins_with_the_policy() -> None:
    """Native time counts as 100 %: after native -> weighted a share of 50 % was shown as 97.3."""
    native = [reading(at, 5, at) for at in range(10)]
    weighted = [reading(10 + at, 2, 10 + at / 2, at / 2) for at in range(3)]
    key = (0, "a")
    assert rates.rates(native)[key] == rates.Rates()
    first = rates.rates([*native, weighted[0]])[key]
    assert first == rates.Rates(), "no reading of this policy yet"
    later = rates.rates([*native, *weighted])[key]
    assert (later.share_got_pct, later.throttled_pct, later.share_got_10s_pct) == (50.0, 50.0, None)
    slow = rates.rates([*native, *weighted], 10**10)[key]
    assert slow.share_got_pct == 50.0, "a sample that is longer than the policy is in force"
    again = rates.rates([*weighted, *[reading(13, 5, 12)], reading(14, 2, 12.1)])[key]
    assert again == rates.Rates(), "another policy in between"


def test_one_reading_has_no_share() -> None:
    """A share since the container opened the GPU would be of every policy that it ran under."""
    assert rates.rates([reading(5, 2, 5, 1)]) == {(0, "a"): rates.Rates()}


def test_states() -> None:
    running = replace(slot("a"), stat={"opened": 1, "running": 1})
    assert slot_state(GPU, running) == "running"
    assert slot_state(GPU, slot("a")) == "waiting"
    assert slot_state(GPU, slot("a", opened=0)) == "idle"
    assert slot_state(GPU, slot("a", 0)) == "frozen"
    assert slot_state(replace(GPU, policy=5), slot("a", 0)) == "waiting"
    assert slot_state(GPU, replace(running, dying=True)) == "dying"
