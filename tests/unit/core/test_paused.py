# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""While the system sleeps nothing is frozen and no timeslice is set; afterwards everything is as before."""

import pytest
from corelib import BURST, NATIVE, NEVER, POLICIES, SOFT, WEIGHTED, C, Turn, ffi, lib


def full(policy):
    """Containers of every kind: in turn, out of turn, of high priority, without weight, not opened."""
    turn = Turn(policy, slice_ms=10, max_inst=10)
    one, two = turn.add(1, channels=2), turn.add(2, channels=1)
    high = turn.add(1, highprio=1, channels=1)
    none, idle = turn.add(1, channels=1), turn.add(1)
    turn.set("weight", none, 0)
    turn.timeline(55)
    return turn, (one, two, high, none, idle)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_pause_thaws_everything_and_has_no_end(policy):
    turn, all_ = full(policy)
    turn.set("paused", 1)
    plan = turn.step()
    assert (plan.until_ns, plan.poll_ns) == (NEVER, 0)
    assert plan.run_mask & turn.opened_mask() == turn.opened_mask()
    assert not any(turn.frozen(slot) for slot in all_)
    assert [turn.t.slot[slot].timeslice_us for slot in all_] == [0] * len(all_)


@pytest.mark.parametrize("policy", POLICIES)
def test_afterwards_the_same_are_frozen_and_shares_are_as_before(policy):
    turn, all_ = full(policy)
    other, _ = full(policy)
    turn.set("paused", 1)
    turn.step()
    turn.now += 3_000_000_000
    turn.set("paused", 0)
    plan = turn.step()
    assert turn.frozen(all_[3]) == (policy != NATIVE)
    assert plan.until_ns < NEVER or policy in (SOFT, NATIVE)
    got, want = turn.shares(6000), other.shares(6000)
    assert got.keys() == want.keys()
    for slot, share in want.items():
        assert got[slot] == pytest.approx(share, abs=0.01)


def test_a_pause_uses_up_no_ceiling_and_no_budget():
    """Everything may run for the length of the pause; afterwards none pays for it."""
    turn = Turn(BURST, slice_ms=6, max_inst=100)
    one = turn.add(20, channels=1)
    turn.add(20, highprio=1, channels=1)
    assert lib.cgpu_sched_set_ceiling(turn.t, one, 50, turn.now) == 0
    turn.timeline(1000)
    turn.set("paused", 1)
    turn.step()
    used, budget = turn.t.slot[one].ceiling_budget_ns, turn.t.prio_budget_ns
    turn.now += 3_000_000_000
    turn.set("paused", 0)
    turn.step()
    assert turn.t.slot[one].ceiling_budget_ns >= used
    assert turn.t.prio_budget_ns >= budget


def test_a_pause_is_no_work():
    """Nothing runs while the driver sleeps: no GPU time, no wait, and after it each has what it had lately."""
    turn, all_ = full(WEIGHTED)
    turn.set("paused", 1)
    turn.step()

    def seen():
        recent = [turn.t.slot[slot].recent_ns[0] for slot in all_], turn.t.recent_all_ns[0]
        return [(turn.stat(slot).gpu_ns, turn.stat(slot).wait_ns) for slot in all_], recent

    before = seen()
    turn.now += 3_000_000_000
    assert seen() == before
    turn.set("paused", 0)
    assert seen() == before
    turn.step()
    turn.timeline(100)
    assert seen() != before


def test_a_pause_during_a_hold_has_no_end():
    """A sample that is due freezes none, and is no reason for another plan."""
    turn, (one, two, *_) = full(WEIGHTED)
    lib.cgpu_hold_at_samples(turn.t, 1 << one, turn.now, 200_000_000)
    turn.step()
    turn.set("paused", 1)
    for _ in range(50):
        plan = turn.step()
        assert plan.until_ns == NEVER
        assert plan.run_mask >> one & plan.run_mask >> two & 1
        turn.now += 5_000_000


def test_a_container_that_opens_the_gpu_meanwhile_is_frozen_afterwards():
    turn, _ = full(WEIGHTED)
    turn.set("paused", 1)
    turn.step()
    new = turn.add(1)
    turn.set("weight", new, 0)
    turn.channels(new, 1)
    assert not turn.frozen(new)
    turn.set("paused", 0)
    plan = turn.next()
    assert plan.freeze_mask >> new & 1
    turn.ack(plan)
    assert turn.frozen(new)


def test_one_whose_ceiling_is_used_up_is_thawed_too():
    turn = Turn(BURST, slice_ms=10, max_inst=100)
    one = turn.add(1, channels=1)
    turn.set("ceiling", one, 1)
    turn.timeline(2000)
    while not turn.frozen(one):
        turn.timeline(1)
    turn.set("paused", 1)
    plan = turn.step()
    assert (plan.run_mask >> one & 1, plan.until_ns) == (1, NEVER)


def test_a_thaw_that_fails_is_repeated():
    turn, (_, _, _, none, _) = full(WEIGHTED)
    turn.set("paused", 1)
    plan = turn.next()
    assert plan.thaw_mask >> none & 1
    turn.ack(plan, run_mask=plan.run_mask & ~(1 << none))
    assert not turn.next().thaw_mask
    turn.now = turn.next().until_ns
    assert turn.next().thaw_mask == 1 << none


def test_a_pause_moves_to_another_core():
    turn, _ = full(WEIGHTED)
    turn.set("paused", 1)
    fresh = ffi.new("struct cgpu_sched *")
    assert lib.cgpu_sched_migrate(fresh, turn.t, C.CGPU_SCHED_VERSION) == 0
    assert fresh.paused == 1
    turn.t.paused = 2
    assert lib.cgpu_sched_migrate(ffi.new("struct cgpu_sched *"), turn.t, C.CGPU_SCHED_VERSION) != 0
