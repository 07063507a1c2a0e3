# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""What each policy means, as tables. Controls take no time here; test_sim.py is where they do."""

import errno

import pytest
from corelib import (
    FAIR,
    FIXED,
    FREEZE,
    MS,
    NATIVE,
    NEVER,
    NO_SLOT,
    POLICIES,
    PREEMPTIVE,
    SOFT,
    TIMESLICE,
    WEIGHTED,
    C,
    CoreError,
    Turn,
    ffi,
    lib,
    openers,
    slots,
)

FREEZING = [FAIR, PREEMPTIVE, WEIGHTED, FIXED]
ENFORCED = [*FREEZING, SOFT]


def refused(err, call, *args):
    with pytest.raises(CoreError) as caught:
        call(*args)
    assert caught.value.errno == err


# ---- what is lost, what is given away -------------------------------------------------------

# Beside what test_policy_table.py has: policy, [(weight, opened)], share of each in 12 s with max_inst 20
SHARES = [
    ("0: a lone container keeps to 1/max_inst", FAIR, [(1, 1)], [0.05]),
    ("1: a lone opener has everything", PREEMPTIVE, [(1, 1), (1, 0)], [1, 0]),
    ("1: channels and processes change nothing", PREEMPTIVE, [(1, 1), (1, 40)], [0.5, 0.5]),
    ("1: weight 0 alone is frozen", PREEMPTIVE, [(0, 1)], [0]),
    ("2: a lone container has everything", WEIGHTED, [(3, 1)], [1]),
    ("2: 8:4 is 2:1", WEIGHTED, [(8, 1), (4, 1)], [2 / 3, 1 / 3]),
    ("2: also when it is the only other", WEIGHTED, [(1, 1), (1, 0)], [0.5, 0]),
    ("3: a lone container keeps to its cap", FIXED, [(5, 1)], [0.25]),
    ("3: all slices is everything", FIXED, [(20, 1)], [1]),
]


def opened_turn(policy, spec, **kw):
    turn = Turn(policy, **kw)
    ids = []
    for weight, channels in spec:
        ids.append(turn.add(max(weight, 1)))
        if not weight:
            turn.set("weight", ids[-1], 0)
        if channels:
            turn.channels(ids[-1], channels)
    return turn, ids


@pytest.mark.parametrize(("policy", "spec", "want"), [c[1:] for c in SHARES], ids=[c[0] for c in SHARES])
def test_shares(policy, spec, want):
    turn, ids = opened_turn(policy, spec, slice_ms=10)
    turn.timeline(200)
    got = turn.shares(12_000)
    assert [got.get(i, 0) for i in ids] == pytest.approx(want, abs=0.002)


# ---- without contention nothing is done -------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "spec"),
    [
        (PREEMPTIVE, [(1, 1)]),
        (PREEMPTIVE, [(1, 1), (1, 0), (0, 1)]),
        (WEIGHTED, [(3, 1)]),
        (WEIGHTED, [(3, 1), (0, 1)]),
        (SOFT, [(1, 1), (1, 1)]),
        (NATIVE, [(1, 1), (1, 1)]),
    ],
)
def test_no_calls_and_no_wake_up(policy, spec):
    turn, _ = opened_turn(policy, spec)
    turn.step()
    for _ in range(3):
        plan = turn.next()
        assert plan.until_ns == NEVER
        assert not (plan.freeze_mask or plan.thaw_mask or plan.timeslice_mask)
        turn.now += 1_000 * MS


def test_the_first_to_open_runs_without_waiting_for_a_call():
    turn = Turn(PREEMPTIVE)
    a, b = turn.add(), turn.add()
    turn.step()
    assert not turn.frozen(a)
    turn.channels(a, 1)
    plan = turn.next()
    assert not plan.thaw_mask
    assert turn.frozen(b), "from now on the second one waits its turn"


def test_a_container_without_channels_costs_no_call():
    turn, _ = opened_turn(WEIGHTED, [(1, 1), (1, 0), (1, 0)])
    calls = 0
    for _ in range(30):
        plan = turn.step()
        calls += len(slots(plan.freeze_mask | plan.thaw_mask))
        assert not (plan.freeze_mask | plan.thaw_mask) & ~1
        turn.now = plan.until_ns
    assert calls == 20, "freeze and thaw of the one that has, per round"


# ---- arrivals, exits, live changes -----------------------------------------------------------


def test_coming_and_going_gains_nothing():
    turn, (a, b) = opened_turn(PREEMPTIVE, [(1, 1), (1, 1)], slice_ms=10)
    got = {a: 0.0, b: 0.0}
    for _ in range(60):
        for running, ms in turn.timeline(7):
            for i in running:
                got[i] += ms
        turn.channels(b, 0)
        turn.step()
        turn.channels(b, 1)
    assert got[b] <= got[a]


def test_the_last_other_leaves():
    turn, (a, b) = opened_turn(PREEMPTIVE, [(1, 1), (1, 1)])
    turn.timeline(70)
    turn.channels(b, 0)
    plan = turn.step()
    assert (plan.run_mask, plan.until_ns) == (1 << a, NEVER)


def test_policy_native_thaws_every_slot():
    for policy in ENFORCED:
        turn, ids = opened_turn(policy, [(1, 1), (1, 1), (0, 1)])
        turn.timeline(50)
        turn.set("policy", NATIVE)
        assert not any(turn.frozen(i) for i in ids)
        plan = turn.step()
        assert plan.run_mask == 0b111
        assert list(plan.timeslice_us[0:3]) == [0, 0, 0]
        assert turn.t.timesliced == 0


@pytest.mark.parametrize("before", POLICIES)
@pytest.mark.parametrize("after", POLICIES)
def test_any_policy_to_any_policy(before, after):
    turn, ids = opened_turn(before, [(1, 1), (2, 1)], slice_ms=10)
    turn.timeline(333)
    turn.set("policy", after)
    fresh, _ = opened_turn(after, [(1, 1), (2, 1)], slice_ms=10)
    got, want = turn.shares(12_000), fresh.shares(12_000)
    assert [got[i] for i in ids] == pytest.approx([want[i] for i in ids], abs=0.002)


def test_weight_changes_repack_and_move_the_shares():
    turn, (a, b) = opened_turn(FIXED, [(5, 1), (5, 1)], slice_ms=10)
    turn.timeline(123)
    turn.set("weight", a, 15)
    assert turn.t.slot[b].first_slice == 15
    turn.timeline(400)
    got = turn.shares(4_000)
    assert [got[a], got[b]] == pytest.approx([0.75, 0.25], abs=0.001)


@pytest.mark.parametrize("weights", [[1], [1, 1, 1], [3, 2, 1], [5, 5, 5, 5], [7, 0, 2], [20]])
@pytest.mark.parametrize("policy", [FAIR, FIXED])
def test_unassigned_slices_lie_between_the_others(policy, weights):
    turn, ids = opened_turn(policy, [(weight, 1) for weight in weights])
    taken = [
        (turn.t.slot[i].first_slice, min(w, 1) if policy == FAIR else w) for i, w in zip(ids, weights, strict=True)
    ]
    owners = sorted(own for own in taken if own[1])
    ends = [begin for begin, _ in owners[1:]] + [20]
    gaps = [end - begin - count for (begin, count), end in zip(owners, ends, strict=True)]
    assert min(gaps) >= 0
    assert max(gaps) - min(gaps) <= 1
    assert owners[0][0] == 0


def test_moving_slices_gives_no_second_turn_in_a_round():
    """b's place moves to where the round has yet to come."""
    turn, (a, b, c) = opened_turn(FIXED, [(2, 1), (2, 1), (9, 1)], slice_ms=10)
    assert turn.timeline(65) == [({a}, 20), (set(), 20), ({b}, 20), (set(), 5)]
    turn.delete(c)
    assert turn.t.slot[b].first_slice == 10
    assert turn.timeline(175) == [(set(), 135), ({a}, 20), (set(), 20)]
    assert turn.timeline(200) == [(set(), 60), ({b}, 20), (set(), 80), ({a}, 20), (set(), 20)]


@pytest.mark.parametrize(("policy", "cap"), [(FAIR, 0.05), (FIXED, 0.1)])
@pytest.mark.parametrize(("period_ms", "life_ms"), [(200, 100), (201, 100), (300, 150), (90, 40), (1_333, 500)])
@pytest.mark.parametrize("first", [True, False])
def test_opening_and_closing_costs_no_other_slot_a_turn(policy, cap, period_ms, life_ms, first):
    """Slices are moved each time; a round is 200 ms."""
    turn = Turn(policy, slice_ms=10, max_inst=20)
    guest = turn.add(9, channels=1) if first else None
    others = [turn.add(2, channels=1) for _ in range(3)]
    got, began = dict.fromkeys(others, 0.0), turn.now
    guest = turn.add(9, channels=1) if guest is None else guest
    while turn.now < began + 20_000 * MS:
        for length_ms in (life_ms, period_ms - life_ms):
            for running, ms in turn.timeline(length_ms):
                for i in running & set(others):
                    got[i] += ms
            if turn.t.slot[guest].cookie:
                turn.delete(guest)
            else:
                guest = turn.add(9, channels=1)
    parts = [ms / ((turn.now - began) / MS) for ms in got.values()]
    assert parts == pytest.approx([cap] * 3, rel=0.025)


# ---- highprio --------------------------------------------------------------------------------

# Beside what test_policy_table.py has: policy, controls, highprio ones, others [(weight, opened)], shares in periods of
# 100 ms, prio_ratio 80
HIGHPRIO = [
    ("1: idle highprio is out", PREEMPTIVE, 3, [(1, 0)], [(1, 1), (1, 1)], [0, 0.5, 0.5]),
    ("1: no ceiling while no other has opened the GPU", PREEMPTIVE, 3, [(1, 1)], [(1, 0)], [1, 0]),
    ("1: several share by the policy", PREEMPTIVE, 1, [(1, 1), (3, 1)], [(1, 1)], [0.4, 0.4, 0.2]),
    ("1: weight 0 with highprio is frozen", PREEMPTIVE, 3, [(0, 1)], [(1, 1)], [0, 1]),
    ("2: several share by weight", WEIGHTED, 1, [(1, 1), (3, 1)], [(1, 1)], [0.2, 0.6, 0.2]),
    ("3: a cap above what is kept runs beside", FIXED, 3, [(1, 1)], [(10, 1)], [0.8, 0.5]),
    ("3: the others keep what the ceiling leaves", FIXED, 1, [(1, 1)], [(10, 1)], [0.8, 0.2]),
    ("0: the others keep to 1/max_inst", FAIR, 3, [(1, 1)], [(1, 1), (9, 1)], [0.8, 0.05, 0.05]),
    ("4: without freezes there is no ceiling", SOFT, 2, [(1, 1)], [(1, 1)], [1, 1]),
    ("5: highprio means nothing", NATIVE, 3, [(1, 1)], [(1, 1)], [1, 1]),
]


@pytest.mark.parametrize(
    ("policy", "controls", "high", "low", "want"), [c[1:] for c in HIGHPRIO], ids=[c[0] for c in HIGHPRIO]
)
def test_highprio(policy, controls, high, low, want):
    turn, ids = opened_turn(policy, high + low, slice_ms=10, controls=controls)
    for i in ids[: len(high)]:
        turn.set("highprio", i, 1)
    turn.timeline(1_000)
    got = turn.shares(6_000)
    assert [got.get(i, 0) for i in ids] == pytest.approx(want, abs=0.004)


def test_highprio_is_thawed_before_it_opens():
    turn = Turn(PREEMPTIVE)
    low, high = turn.add(channels=1), turn.add(highprio=1)
    turn.step()
    assert not turn.frozen(high)
    turn.channels(high, 1)
    plan = turn.next()
    assert plan.run_mask >> high & 1
    assert not plan.thaw_mask >> high & 1
    assert plan.timeslice_us[high] >= 10 * plan.timeslice_us[low] > 0


@pytest.mark.parametrize("policy", [FAIR, PREEMPTIVE, WEIGHTED, FIXED, SOFT])
def test_a_crowd_waits_while_highprio_may_run(policy):
    """From the fifth TSG on, for as long as it has so many; the others still run beside it."""
    turn = Turn(policy, slice_ms=10, max_inst=10)
    turn.set("prio_ratio", 90)
    high, crowd, other = turn.add(highprio=1, channels=1), turn.add(5, channels=4), turn.add(3, channels=1)

    def beside():
        line = turn.timeline(1_000)
        return {slot for ran, _ in line if high in ran for slot in ran}

    assert crowd in beside()
    turn.channels(crowd, 8, tsgs=5)
    turn.step()
    assert beside() == {high, other}
    assert turn.shares(1_000)[crowd] > 0.03, "it has its part of what the ceiling leaves"
    own = turn.t.slot[crowd].timeslice_us
    assert own > 0 if policy == SOFT else own == 0, "and where that is its own, not by short timeslices"
    turn.channels(crowd, 8, tsgs=4)
    turn.step()
    assert crowd in beside()


# policy, prio_ratio, TSGs of the others -> timeslice of one with high priority
LONG_US = [
    (FIXED, 80, [1, 1, 1, 1], 8192),
    (FIXED, 80, [2], 8192),
    (FIXED, 80, [3], 16_384),
    (FIXED, 80, [1, 4], 16_384),
    (FIXED, 80, [1, 5], 8192),
    (PREEMPTIVE, 95, [1, 1, 1, 1], 8192),
    (PREEMPTIVE, 95, [2], 8192),
    (PREEMPTIVE, 80, [1, 1, 1, 1], 65_536),
    (PREEMPTIVE, 95, [1, 5], 65_536),
    (SOFT, 95, [1, 1], 65_536),
    (SOFT, 95, [4] * 20, 65_536),
]


@pytest.mark.parametrize(("policy", "prio_ratio", "tsgs", "want_us"), LONG_US)
def test_highprio_timeslices(policy, prio_ratio, tsgs, want_us):
    """Sixteen times the round of those that may run beside it, in powers of two; where periods hold it the longest."""
    turn = Turn(policy, slice_ms=10, max_inst=25)
    turn.set("prio_ratio", prio_ratio)
    high = turn.add(highprio=1, channels=1)
    for count in tsgs:
        turn.add(1, channels=count)
    assert turn.next().timeslice_us[high] == want_us
    turn.channels(high, 4)
    assert turn.next().timeslice_us[high] == want_us // 4


@pytest.mark.parametrize("policy", [PREEMPTIVE, SOFT])
def test_a_crowd_runs_where_highprio_has_not_opened(policy):
    turn = Turn(policy, slice_ms=10, max_inst=10)
    high, crowd = turn.add(highprio=1), turn.add(channels=64)
    assert turn.shares(400)[crowd] == pytest.approx(1, abs=0.001)
    turn.channels(high, 1)
    turn.timeline(100)
    assert turn.shares(1_000)[crowd] == pytest.approx(0.2, abs=0.001)


def test_closing_and_opening_gives_highprio_no_new_budget():
    turn, (a, _b) = opened_turn(PREEMPTIVE, [(1, 1), (1, 1)], controls=FREEZE)
    turn.set("highprio", a, 1)
    got = 0.0
    for _ in range(100):
        for running, ms in turn.timeline(19):
            got += ms * (a in running)
        turn.channels(a, 0)
        turn.step()
        turn.channels(a, 1)
    assert got / 1900 <= 0.81


def test_a_cap_is_kept_for_the_time_without_highprio():
    turn, (high, low) = opened_turn(FIXED, [(1, 1), (10, 1)])
    turn.set("highprio", high, 1)
    turn.timeline(200)
    assert turn.timeline(100) == [({high, low}, 30), ({high}, 50), ({low}, 20)]


@pytest.mark.parametrize("policy", [FAIR, FIXED])
def test_nothing_is_kept_for_a_time_that_cannot_come(policy):
    """Closed for a while, it will not use up its ceiling of 95 ms: there is no time without it to keep for."""
    turn, (high, *low) = opened_turn(policy, [(1, 1)] * 11, slice_ms=5)
    turn.set("highprio", high, 1)
    turn.set("prio_ratio", 95)
    turn.timeline(200)
    got = dict.fromkeys(low, 0.0)

    def run(length_ms):
        for running, ms in turn.timeline(length_ms):
            for i in running - {high}:
                got[i] += ms / 2_000

    for _ in range(20):
        run(20)
        turn.channels(high, 0)
        run(20)
        turn.channels(high, 1)
        run(60)
    assert sum(got.values()) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(("policy", "weight"), [(FAIR, 1), (FIXED, 2)])
@pytest.mark.parametrize("count", [1, 8])
@pytest.mark.parametrize(
    ("open_ms", "period_ms", "prio_ratio"), [(25, 101, 20), (80, 100, 95), (85, 101, 80), (95, 180, 80), (300, 450, 80)]
)
def test_caps_while_highprio_opens_and_closes(policy, weight, count, open_ms, period_ms, prio_ratio):
    """A fixed round that began anew each time would give its first ones twice their caps and the last nothing."""
    turn, (high, *low) = opened_turn(policy, [(1, 1)] + [(weight, 1)] * count, slice_ms=10)
    turn.set("highprio", high, 1)
    turn.set("prio_ratio", prio_ratio)
    got, began = dict.fromkeys(low, 0.0), turn.now
    while turn.now < began + 20_000 * MS:
        for length_ms in (open_ms, period_ms - open_ms):
            for running, ms in turn.timeline(length_ms):
                for i in running & set(low):
                    got[i] += ms / 20_000
            turn.channels(high, 0 if turn.t.slot[high].channels else 1)
    cap = weight / 20
    assert all(0.85 * cap <= part <= 1.15 * cap for part in got.values()), got


def test_what_highprio_overran_counts_in_the_next_period():
    turn, (high, low) = opened_turn(PREEMPTIVE, [(1, 1), (1, 1)], controls=FREEZE)
    turn.set("highprio", high, 1)
    assert turn.timeline(80) == [({high}, 80)]
    plan = turn.next()
    assert plan.freeze_mask == 1 << high
    turn.ack(plan, thawed=turn.now, frozen=turn.now + 12 * MS)
    turn.now += 12 * MS
    assert turn.timeline(108) == [({low}, 8), ({high}, 68), ({low}, 32)]


def test_prio_ratio_live():
    turn, (a, _) = opened_turn(PREEMPTIVE, [(1, 1), (1, 1)], controls=FREEZE)
    turn.set("highprio", a, 1)
    turn.timeline(250)
    turn.set("prio_ratio", 30)
    turn.timeline(300)
    assert turn.shares(2_000)[a] == pytest.approx(0.3, abs=0.005)


# ---- timeslices ------------------------------------------------------------------------------


def test_soft_divides_a_containers_quantum_by_its_tsgs():
    turn = Turn(SOFT)
    one, four = turn.add(channels=1), turn.add(channels=8, tsgs=4)
    plan = turn.step()
    assert plan.timeslice_us[one] == 4 * plan.timeslice_us[four] >= 2_000


@pytest.mark.parametrize("tsgs", [1, 2, 7, 60, 61, 5_000, 2**32 - 1])
def test_soft_timeslices_stay_sane(tsgs):
    turn = Turn(SOFT)
    for n in (1, tsgs):
        plan_slot = turn.add(channels=1, tsgs=n)
    plan = turn.step()
    assert all(500 <= plan.timeslice_us[i] <= 30_000 for i in range(plan_slot + 1))


def test_a_new_tsg_gets_its_timeslice():
    turn = Turn(SOFT)
    a = turn.add(channels=1)
    assert turn.step().timeslice_mask == 1 << a
    turn.channels(a, 1)  # one went, one came
    assert turn.next().timeslice_mask == 1 << a
    plan = turn.next()
    turn.channels(a, 1)  # another, while the calls are under way
    turn.ack(plan)
    assert turn.next().timeslice_mask == 1 << a


def test_a_timeslice_that_some_tsgs_have_is_planned_again_at_once():
    """A hand-over that is due does not wait for all TSGs of a crowd: the rest is no failure."""
    turn = Turn(SOFT)
    a, b = turn.add(2), turn.add(1)
    turn.channels(a, 900, 900)
    turn.channels(b, 1)
    plan = turn.next()
    assert plan.timeslice_mask >> a & 1
    for _ in range(56):
        turn.ack(plan, timeslices=plan.timeslice_mask & ~(1 << a), more=1 << a)
        plan = turn.next()
        assert plan.timeslice_mask == 1 << a and plan.until_ns > turn.now
    turn.ack(plan)
    assert turn.next().timeslice_mask == 0
    assert turn.stat(a).failed == 0


def test_timeslices_go_back_to_the_drivers_own():
    turn = Turn(SOFT)
    a = turn.add(channels=1)
    turn.step()
    assert turn.t.timesliced == 1 << a
    turn.set("policy", PREEMPTIVE)
    plan = turn.next()
    assert (plan.timeslice_mask, plan.timeslice_us[a]) == (1 << a, 0)


# ---- failing calls ---------------------------------------------------------------------------


def test_a_failed_freeze_is_tried_again_with_a_pause():
    turn, (a, b) = opened_turn(PREEMPTIVE, [(1, 1), (1, 1)], slice_ms=100)
    turn.step()
    turn.now = turn.next().until_ns
    plan = turn.next()
    assert (plan.freeze_mask, plan.thaw_mask) == (1 << a, 1 << b)
    turn.ack(plan, run_mask=1 << a | 1 << b)
    at = []
    for _ in range(4):
        held = turn.next()
        assert not held.freeze_mask
        at.append((held.until_ns - turn.now) / MS)
        turn.now = held.until_ns
        plan = turn.next()
        assert plan.freeze_mask == 1 << a
        turn.ack(plan, run_mask=1 << a | 1 << b)
    assert at == [1, 2, 4, 8]
    assert turn.stat(a).gpu_ns > 0, "it ran, and it is charged"


def test_a_container_that_cannot_be_thawed_does_not_hold_up_the_others():
    turn, (a, b) = opened_turn(PREEMPTIVE, [(1, 1), (1, 1)], slice_ms=10)
    got = 0
    end = turn.now + 2_000 * MS
    while turn.now < end:
        plan = turn.next()
        if plan.freeze_mask or plan.thaw_mask:
            turn.ack(plan, run_mask=plan.run_mask & ~(1 << a))
            continue
        until = min(plan.until_ns, end)
        got += (until - turn.now) * bool(turn.t.run_mask >> b & 1)
        turn.now = until
    assert got / (2_000 * MS) > 0.6


@pytest.mark.parametrize("failed", [0, 0b01, 0b10, 0b11])
def test_an_acknowledgement_counts_once(failed):
    turn, _ = opened_turn(PREEMPTIVE, [(1, 1), (1, 1)], slice_ms=10)
    turn.step()
    turn.now = turn.next().until_ns
    plan = turn.next()
    when = {"begin": turn.now, "thawed": turn.now + 1 * MS, "frozen": turn.now + 3 * MS}
    turn.ack(plan, **when, run_mask=plan.run_mask ^ failed)
    once = bytes(ffi.buffer(turn.t))
    turn.ack(plan, **when, run_mask=plan.run_mask ^ failed)
    assert bytes(ffi.buffer(turn.t)) == once
    turn.now += 4 * MS
    assert [turn.stat(i).failed for i in range(2)] == [failed & 1, failed >> 1]


def test_a_failed_thaw_is_frozen_for_safety():
    turn, (a, b) = opened_turn(PREEMPTIVE, [(1, 1), (1, 1)], slice_ms=10)
    turn.step()
    turn.now = turn.next().until_ns
    plan = turn.next()
    turn.ack(plan, run_mask=0)  # the thaw failed halfway: some channels may run
    turn.delete(a)
    turn.set("weight", b, 0)
    turn.now += 5 * MS
    assert turn.next().freeze_mask == 1 << b


def test_a_failed_timeslice_does_not_delay_a_freeze():
    turn, (a, b) = opened_turn(PREEMPTIVE, [(1, 1), (1, 1)], slice_ms=10)
    turn.set("highprio", a, 1)
    plan = turn.next()
    assert plan.timeslice_mask
    turn.ack(plan, timeslices=0)
    turn.set("weight", b, 0)
    assert turn.next().freeze_mask == 1 << b
    assert turn.next().timeslice_mask == 0


def test_a_change_while_calls_are_under_way_is_charged_at_the_ack():
    turn, (a, b) = opened_turn(PREEMPTIVE, [(1, 1), (1, 1)], slice_ms=10)
    turn.step()
    began = turn.now = turn.next().until_ns
    plan = turn.next()
    turn.now = began + 3 * MS
    turn.channels(b, 1)
    assert turn.stat(b).gpu_ns == 0, "not known yet"
    turn.ack(plan, begin=began, thawed=began + 1 * MS, frozen=began + 2 * MS)
    assert (turn.stat(a).gpu_ns, turn.stat(b).gpu_ns) == (
        pytest.approx(11.264 * MS, abs=MS / 1000),
        pytest.approx(1.736 * MS, abs=MS / 1000),
    ), "a has it until its timeslice ends, the eleventh of 1.024 ms"


def test_an_ack_leaves_a_new_slot_alone():
    turn, (_a, b) = opened_turn(PREEMPTIVE, [(1, 1), (1, 1)], slice_ms=10)
    turn.step()
    turn.now = turn.next().until_ns
    plan = turn.next()
    assert plan.thaw_mask == 1 << b
    turn.delete(b)
    again = turn.add(channels=1)
    assert again == b
    assert turn.frozen(again), "its new channel is frozen in its own ioctl"
    turn.ack(plan)
    assert not turn.t.run_mask >> again & 1


@pytest.mark.parametrize(("policy", "span"), [(PREEMPTIVE, 1.024), (WEIGHTED, 1.024), (FAIR, 0), (FIXED, 0)])
def test_turns_end_anywhere_in_a_timeslice_of_the_driver(policy, span):
    """Or they would meet the hardware's timeslices at the same place each time, to the gain of the same container."""
    turn, (a, _b) = opened_turn(policy, [(1, 1), (1, 1)], slice_ms=10)
    late = []
    for _ in range(200):
        turn.step()
        plan = turn.next()
        if plan.curr == a:
            late.append(plan.late_ns / MS)
        turn.now = plan.until_ns
    assert len(late) > 20
    assert 0 <= min(late) <= 0.1 * span and 0.9 * span <= max(late) <= span
    assert sum(late) / len(late) == pytest.approx(span / 2, rel=0.1)


# ---- where the time of a switch goes ---------------------------------------------------------


def switch(turn, thawed_us, frozen_us):
    """The next switch of owners, so long after it began; the ack's times and what each got since then."""
    turn.now = turn.next().until_ns
    plan, before = turn.next(), [turn.stat(i).gpu_ns for i in range(2)]
    ack = ffi.new("struct cgpu_sched_ack *")
    ack.begin_ns, ack.run_mask, ack.timeslice_mask = turn.now, plan.run_mask, plan.timeslice_mask
    ack.thawed_ns, ack.frozen_ns = turn.now + thawed_us * 1000, turn.now + frozen_us * 1000
    lib.cgpu_sched_ack(turn.t, plan, ack)
    turn.now = ack.frozen_ns
    return [round((turn.stat(i).gpu_ns - ns) / 1000) for i, ns in enumerate(before)]


@pytest.mark.parametrize(
    ("tsgs", "slice_ms", "frozen_us", "got"),
    [
        # The overlap is from 150 to 450 us of 600. Then a has had 9 timeslices of 1024 us and all but 90 us of another.
        ((1, 1), 10, 600, [240, 360]),
        ((1, 40), 10, 600, [240, 360]),
        ((1, 1), 9.5, 600, [450, 150]),
        # Of two TSGs the second is at the end of its timeslice, or the first: then it goes on with the second.
        ((2, 1), 10, 600, [240, 360]),
        ((2, 1), 9, 600, [450, 150]),
        ((40, 1), 10, 600, [450, 150]),
        # A slow call: an overlap of 2750. The rest of a timeslice, one of b's, one of a's, and what is left.
        ((1, 1), 10, 5500, [240 + 1024, 1024 + 612 + 2600]),
        ((1, 40), 10, 5500, [240, 2660 + 2600]),
    ],
)
def test_an_overlap_is_charged_by_timeslices(tsgs, slice_ms, frozen_us, got):
    turn = Turn(PREEMPTIVE, slice_ms=slice_ms)
    for count in tsgs:
        turn.add(channels=count)
    turn.step()
    assert switch(turn, 300, frozen_us) == got
    assert sum(got) == frozen_us


@pytest.mark.parametrize(("restarted_us", "got"), [(0, [240, 360]), (500, [450, 150]), (90, [330, 270])])
def test_a_restart_begins_a_timeslice(restarted_us, got):
    """The turn's timeslices follow each other from the restart on that came after its thaw."""
    turn = openers(2, PREEMPTIVE, slice_ms=10)
    plan = turn.next()
    turn.ack(plan, restarted=restarted_us and turn.now + restarted_us * 1000)
    assert switch(turn, 300, 600) == got


@pytest.mark.parametrize(
    ("policy", "max_inst", "want"),
    [
        (PREEMPTIVE, 4, [10, 10]),
        (WEIGHTED, 4, [10.05, 29.95]),
        (FIXED, 4, [10.05, 29.95]),
        (FIXED, 5, [10.1, 30.1]),
    ],
)
def test_a_turn_is_longer_by_the_switch_it_begins_with(policy, max_inst, want):
    """Less its part of all switches of the round; in a fixed round an empty slice makes room for them."""
    turn = Turn(policy, slice_ms=10, max_inst=max_inst, switch_us=100)
    a, b = turn.add(weight=1, channels=1), turn.add(weight=3, channels=1)
    turn.step()
    lengths = {a: [], b: []}
    for running, ms in turn.timeline(200)[2:]:
        for i in running:
            lengths[i].append(ms)
    assert [lengths[i][:3] for i in (a, b)] == [pytest.approx([ms] * 3, abs=1e-5) for ms in want]


@pytest.mark.parametrize("policy", [FAIR, FIXED])
@pytest.mark.parametrize(("count", "late"), [(3, False), (4, True)])
def test_a_fixed_round_thaws_first_only_while_it_is_late(policy, count, late):
    """A full house: each hand-over of 2 ms makes it later, and no empty slice absorbs it."""
    turn = openers(count, policy, slice_ms=10, max_inst=4)
    turn.step()
    first = []
    for _ in range(40):
        turn.now = turn.next().until_ns
        plan = turn.next()
        if plan.thaw_mask and plan.freeze_mask:
            first.append(plan.thaw_first)
            ends = [turn.now + 1 * MS, turn.now + 2 * MS]
            turn.ack(plan, thawed=ends[not plan.thaw_first], frozen=ends[plan.thaw_first])
            turn.now += 2 * MS
        elif plan.thaw_mask | plan.freeze_mask:
            turn.ack(plan)
    assert first[0] == 0
    assert any(first) == late
    assert all(first[-10:]) == late


def test_what_is_left_of_a_round_is_shared_by_weight():
    turn = Turn(WEIGHTED, slice_ms=5, max_inst=20, switch_us=500)
    ids = [turn.add(weight=weight, channels=1) for weight in (16, 1)]
    turn.step()
    turn.timeline(200)
    lengths = [sum(turn_lengths(turn, i, 850)) / 10 for i in ids]
    assert sum(lengths) == pytest.approx(85, abs=0.01), "a round is as long as its slices"
    assert (lengths[0] - 0.5) / (lengths[1] - 0.5) == pytest.approx(16, rel=1e-3)


def test_no_switch_no_refund():
    """A turn that follows its own last one, as when the other is passed over, has the length of its grant."""
    turn = Turn(PREEMPTIVE, slice_ms=10, switch_us=100)
    a, b = turn.add(channels=1), turn.add(channels=1)
    turn.step()
    turn.t.slot[b].deficit_ns = -19 * MS
    assert turn.timeline(60)[:3] == [({a}, pytest.approx(29.8)), ({b}, pytest.approx(10.8)), ({a}, 10)]


@pytest.mark.parametrize("policy", FREEZING)
def test_a_slice_no_longer_than_a_switch(policy):
    """All of a round would go to switches: something is left, by which debts are paid, and nothing is divided by it."""
    turn = Turn(policy, slice_ms=1, max_inst=2, switch_us=1000)
    ids = [turn.add(channels=1) for _ in range(2)]
    turn.t.slot[ids[0]].deficit_ns = -50 * MS
    turn.timeline(1_000)
    got = turn.shares(1_000)
    assert [got[i] for i in ids] == pytest.approx([0.5, 0.5], abs=0.01)


# ---- what is known of the controls -------------------------------------------------------------


def enforced(turn, *ids):
    return [turn.stat(i).enforced for i in ids]


@pytest.mark.parametrize("policy", POLICIES)
def test_native_is_never_reported_as_enforced(policy):
    turn, (a, b) = opened_turn(policy, [(1, 1), (0, 1)])
    turn.timeline(100)
    assert enforced(turn, a, b) == [policy != NATIVE] * 2


def test_soft_without_freezes_holds_only_what_timeslices_hold():
    turn, (a, b, c) = opened_turn(SOFT, [(1, 1), (0, 1), (1, 1)], controls=TIMESLICE)
    turn.set("highprio", c, 1)
    turn.timeline(100)
    assert enforced(turn, a, b, c) == [1, 0, 0], "neither weight 0 nor the ceiling"


def test_a_failed_call_is_not_isolation_and_is_counted():
    turn, (a, b) = opened_turn(PREEMPTIVE, [(1, 1), (1, 1)], slice_ms=10)
    turn.step()
    turn.now = turn.next().until_ns
    plan = turn.next()
    turn.ack(plan, run_mask=0b11)  # the freeze of a failed
    turn.now += 5 * MS
    assert enforced(turn, a, b) == [0, 1]
    assert (turn.stat(a).failed, turn.stat(a).unsure_ns) == (1, 5 * MS)
    turn.step()
    assert enforced(turn, a, b) == [1, 1]
    turn.now += 5 * MS
    assert (turn.stat(a).failed, turn.stat(a).unsure_ns, turn.stat(b).failed) == (1, 5 * MS, 0)


def test_a_new_channel_that_is_not_frozen_is_not_isolation():
    turn, (a, b) = opened_turn(PREEMPTIVE, [(1, 1), (1, 1)], slice_ms=100)
    turn.step()
    running, waiting = (a, b) if turn.t.run_mask >> a & 1 else (b, a)
    turn.now += 5 * MS
    before = turn.stat(waiting).gpu_ns
    lib.cgpu_sched_freeze_failed(turn.t, waiting, turn.now)
    assert enforced(turn, running, waiting) == [1, 0]
    assert turn.stat(waiting).failed == 1
    assert turn.next().freeze_mask == 0, "not at once again"
    turn.now += 1 * MS
    assert turn.stat(waiting).gpu_ns > before, "it may run, and it is charged"
    plan = turn.next()
    assert (plan.freeze_mask, plan.thaw_mask) == (1 << waiting, 0)
    turn.ack(plan)
    assert enforced(turn, running, waiting) == [1, 1]
    assert turn.stat(waiting).unsure_ns == 1 * MS
    # A slot without channels has none that could run.
    turn.channels(waiting, 0)
    for slot in (waiting, 25, 40):
        lib.cgpu_sched_freeze_failed(turn.t, slot, turn.now)
    assert turn.stat(waiting).failed == 1


def test_a_failed_timeslice_is_not_isolation():
    turn, (a, b) = opened_turn(SOFT, [(1, 1), (1, 1)])
    plan = turn.next()
    turn.ack(plan, timeslices=1 << b)
    assert enforced(turn, a, b) == [0, 1]


def moved(turn, control, yes):
    return lib.cgpu_sched_control_moved(turn.t, control, yes, turn.now)


@pytest.mark.parametrize("policy", FREEZING)
def test_ineffective_freezing_is_doubted_then_taken_away(policy, control=FREEZE):
    turn, (a, b) = opened_turn(policy, [(1, 1), (1, 1)])
    turn.step()
    assert moved(turn, control, 0) == policy
    assert enforced(turn, a, b) == [0, 0], "from the first doubt on"
    assert moved(turn, control, 1) == policy
    assert enforced(turn, a, b) == [1, 1]
    assert [moved(turn, control, 0) for _ in range(3)] == [policy, policy, NATIVE]
    assert turn.step().run_mask == 0b11, "every slot is thawed"
    assert turn.t.ineffective == control
    refused(errno.EOPNOTSUPP, turn.set, "policy", policy)
    lib.cgpu_sched_set_controls(turn.t, FREEZE | TIMESLICE, turn.now)  # probed again, and it moves
    turn.set("policy", policy)
    turn.step()
    assert enforced(turn, a, b) == [1, 1]
    assert turn.t.ineffective == 0


def test_one_control_says_nothing_of_the_other():
    turn, (a, b) = opened_turn(PREEMPTIVE, [(1, 1), (1, 1)])
    turn.step()
    assert [moved(turn, TIMESLICE, 0) for _ in range(4)] == [PREEMPTIVE] * 4
    assert enforced(turn, a, b) == [1, 1]


def test_timeslices_are_doubted_and_not_taken_away():
    """A container that leaves the GPU by itself shows the same."""
    turn, (a, b) = opened_turn(SOFT, [(1, 1), (1, 1)])
    turn.step()
    for _ in range(5):
        assert moved(turn, TIMESLICE, 0) == SOFT
        assert enforced(turn, a, b) == [0, 0]
    assert (turn.t.controls, turn.t.ineffective) == (FREEZE | TIMESLICE, 0)
    assert moved(turn, TIMESLICE, 1) == SOFT
    assert enforced(turn, a, b) == [1, 1]


# ---- every nanosecond is charged once ----------------------------------------------------------


@pytest.mark.parametrize("policy", FREEZING)
def test_time_is_counted_once(policy):
    """Between two instants each that has the GPU open ran or waited, and those that ran make up the time."""
    turn, ids = opened_turn(policy, [(3, 1), (1, 1), (2, 0), (5, 1)], slice_ms=7, max_inst=11, switch_us=70)
    turn.step()
    opened = [i for i in ids if turn.t.slot[i].channels]
    before, began = {i: turn.stat(i) for i in opened}, turn.now
    used = sum(ms for running, ms in turn.timeline(1_234) if running)
    after = {i: turn.stat(i) for i in opened}
    ran = {i: after[i].gpu_ns - before[i].gpu_ns for i in opened}
    assert sum(ran.values()) == pytest.approx(used * MS, abs=1)
    for i in opened:
        assert ran[i] + after[i].wait_ns - before[i].wait_ns == turn.now - began


@pytest.mark.parametrize("debts_ms", [[95, 95, 95], [400, 20, 55], [33, 4_000, 4_000], [29, 31, 30]])
def test_skipped_rounds_are_granted_to_all(debts_ms):
    """All are in debt: as many rounds pass as it takes the first of them to begin, and each is granted them."""
    grants, round_ms = [10, 20, 30], 60
    turn, ids = opened_turn(WEIGHTED, [(1, 1), (2, 1), (3, 1)], slice_ms=10)
    turn.step()
    for i, debt in zip(ids, debts_ms, strict=True):
        turn.t.slot[i].deficit_ns = -debt * MS
    debts = [min(debt, 2_000 * grant / round_ms) for debt, grant in zip(debts_ms, grants, strict=True)]
    credit, slot = [-d for d in debts], 0
    while credit[slot := (slot + 1) % 3] + grants[slot] < 2.5:
        credit[slot] += grants[slot]
    turn.t.rr[0].curr = NO_SLOT
    turn.t.rr[0].cursor = 0
    turn.next()
    assert turn.t.rr[0].curr == ids[slot]
    owed = [min(have - debt, 1_000) for have, debt in zip(debts_ms, debts, strict=True)]
    credit[slot] += grants[slot]
    pays = min(owed[slot], grants[slot] / 2, credit[slot] - 2.5)
    credit[slot], owed[slot] = credit[slot] - pays, owed[slot] - pays
    assert [turn.t.slot[i].deficit_ns / MS for i in ids] == pytest.approx(credit, abs=1e-5)
    assert [turn.t.slot[i].owed_ns[0] / MS for i in ids] == pytest.approx(owed, abs=1e-5)


# ---- how far credit goes ----------------------------------------------------------------------


def turn_lengths(turn, slot, length_ms):
    return [ms for running, ms in turn.timeline(length_ms) if running == {slot}]


def stall(turn, length_ms):
    """A kernel of the slot at the end of its turn ignores the freeze for so long."""
    turn.now = turn.next().until_ns
    stalled = turn.now + length_ms * MS
    turn.ack(turn.next(), begin=turn.now, thawed=turn.now, frozen=stalled)
    turn.now = stalled


def test_a_debt_beyond_a_round_is_paid_back():
    turn, (a, b) = opened_turn(PREEMPTIVE, [(1, 1), (1, 1)], slice_ms=10)
    turn.step()
    stall(turn, 200)
    assert turn.timeline(400)[:3] == [({b}, pytest.approx(210, abs=2)), ({a}, 10), ({b}, 10)]


@pytest.mark.parametrize(("slice_ms", "count"), [(10, 2), (10, 25), (100, 25), (1, 25)])
def test_no_slot_waits_for_more_than_two_seconds(slice_ms, count):
    """A kernel resists for 5 s. Whole grants are withheld for two seconds or a turn, then halves for a while."""
    turn = Turn(PREEMPTIVE, slice_ms=slice_ms, max_inst=25)
    a, *_ = [turn.add(channels=1) for _ in range(count)]
    turn.step()
    stall(turn, 5_000)
    others = turn.timeline(6_000)
    began = next(i for i, (running, _) in enumerate(others) if running == {a})
    waited = sum(ms for _, ms in others[:began])
    share = 1 if slice_ms == 100 else 1 - 1 / count
    assert waited == pytest.approx(max(2_000 * share, 2 * (count - 1) * slice_ms), abs=2 * count * slice_ms)
    turns = [ms for running, ms in others[began : began + 40] if running == {a}]
    assert all(slice_ms / 4 <= ms <= 0.75 * slice_ms for ms in turns)


@pytest.mark.parametrize(("policy", "count"), [(FAIR, 1), (FIXED, 2), (PREEMPTIVE, 3), (WEIGHTED, 2)])
def test_a_late_thread_costs_few_turns(policy, count):
    """The clock jumps by 460 ms in a turn of a: 16 slices are withheld, then its turns are half a slice until all is
    paid."""
    turn = Turn(policy, slice_ms=10, max_inst=4)
    a, *_ = [turn.add(channels=1) for _ in range(count)]
    turn.step()
    turn.now += 470 * MS
    turn.step()
    assert 260 * MS <= turn.t.slot[a].owed_ns[0] <= 300 * MS + 1_000
    line = turn.timeline(5_000)
    first = next(i for i, (running, _) in enumerate(line) if running == {a})
    round_ms = 40 if policy in (FAIR, FIXED) else 10 * count
    assert sum(ms for _, ms in line[:first]) <= 18 * round_ms
    turns = [ms for running, ms in line if running == {a}]
    halves = next(i for i, ms in enumerate(turns) if ms > 9)
    assert turns[: halves - 1] == pytest.approx([5] * (halves - 1), abs=1e-3), "neither less nor none"
    assert 50 <= halves <= 62
    assert turn.t.slot[a].owed_ns[0] == 0


def test_a_turn_that_passes_unused_costs_no_turn():
    """a has not opened the GPU: the clock jumps in its turn, and a opens then."""
    turn, (a, b) = opened_turn(WEIGHTED, [(1, 0), (1, 1)], slice_ms=10)
    turn.timeline(23)
    assert turn.t.rr[0].curr == a
    turn.now += 300 * MS
    turn.step()
    turn.channels(a, 1)
    assert turn.timeline(30) == [({b}, 10), ({a}, 5), ({b}, 10), ({a}, 5)]


@pytest.mark.parametrize("end", ["policy", "highprio", "alone"])
def test_what_ends_a_debt(end):
    turn, (a, b) = opened_turn(PREEMPTIVE, [(1, 1), (1, 1)], slice_ms=10)
    turn.step()
    turn.now += 310 * MS
    turn.step()
    assert turn.t.slot[a].owed_ns[0] > 0
    if end == "policy":
        turn.set("policy", WEIGHTED)
    elif end == "highprio":
        turn.set("highprio", a, 1)
    else:
        turn.delete(b)
        turn.step()
    assert turn.t.slot[a].owed_ns[0] == 0


def test_a_claim_is_at_most_a_turn():
    turn, (_a, b) = opened_turn(PREEMPTIVE, [(1, 1), (1, 1)], slice_ms=10)
    turn.step()
    for _ in range(40):  # b cannot be thawed
        turn.now = turn.next().until_ns
        plan = turn.next()
        if plan.freeze_mask | plan.thaw_mask:
            turn.ack(plan, run_mask=plan.run_mask & ~(1 << b))
    assert turn.t.slot[b].turns > 5
    lengths = turn_lengths(turn, b, 200)
    assert max(lengths) <= 22
    assert lengths[-2] == 10


def test_closing_the_gpu_forfeits_what_was_left_of_the_turn():
    turn, (a, b, c) = opened_turn(PREEMPTIVE, [(1, 1), (1, 1), (1, 1)], slice_ms=10)
    turn.timeline(12)
    turn.channels(b, 0)
    turn.step()
    turn.channels(b, 1)
    assert turn.timeline(40) == [({c}, 10), ({a}, 10), ({b}, 10), ({c}, 10)]


# ---- admission and errors --------------------------------------------------------------------


def test_admission():
    turn = Turn(WEIGHTED, max_inst=4)
    refused(errno.EINVAL, turn.add, 0)
    refused(errno.EINVAL, turn.add, 5)
    refused(errno.EINVAL, turn.add, 1, 2)
    a = turn.add(3)
    refused(errno.ENOSPC, turn.add, 2)
    b = turn.add(1)
    assert lib.cgpu_sched_free_weight(turn.t) == 0
    c = turn.add(1)
    assert turn.t.slot[c].weight == 0, "documented: no slice left, weight 0"
    turn.cookies = turn.t.slot[a].cookie - 1
    refused(errno.EEXIST, turn.add)
    turn.cookies = 10
    turn.add()
    refused(errno.ENOSPC, turn.add)
    assert lib.cgpu_sched_instances(turn.t) == 4
    refused(errno.ENOSPC, turn.set, "weight", b, 2)
    refused(errno.EINVAL, turn.set, "weight", b, 5)
    refused(errno.EINVAL, turn.set, "weight", b, 2**32 + 1)
    turn.set("weight", a, 2)
    turn.set("weight", b, 2)
    refused(errno.EBUSY, turn.set, "max_inst", 3)
    turn.delete(c)
    turn.set("weight", a, 1)
    turn.set("max_inst", 3)


@pytest.mark.parametrize("slot", [0, 24, 25, NO_SLOT])
def test_a_free_slot(slot):
    turn = Turn()
    refused(errno.EINVAL, turn.set, "weight", slot, 1)
    refused(errno.EINVAL, turn.set, "highprio", slot, 1)
    turn.channels(slot, 1)
    turn.delete(slot)
    assert not turn.frozen(slot)
    assert turn.stat(slot).gpu_ns == 0


def test_a_lost_control_ends_in_native_and_thaws():
    turn, _ = opened_turn(PREEMPTIVE, [(1, 1), (1, 1)])
    turn.step()
    assert lib.cgpu_sched_set_controls(turn.t, 0, turn.now) == NATIVE
    assert turn.next().run_mask == 0b11
    assert turn.next().thaw_mask == 0b10


def test_auto_slice():
    assert [lib.cgpu_sched_auto_slice_ns(us * 1000) / MS for us in (0, 100, 250, 400, 1_000, 1_500, 9_000)] == [
        5,
        5,
        5,
        8,
        20,
        30,
        30,
    ]
    assert lib.cgpu_sched_auto_slice_ns(2**64 - 1) == 30 * MS


def waits(turn, slot):
    """({limit of the bucket: waits}, all waits, their sum)."""
    stat = turn.stat(slot)
    buckets = {lib.cgpu_wait_below_ns(i): n for i, n in enumerate(stat.wait.bucket) if n}
    return buckets, stat.wait.count, stat.wait.sum_ns


def test_a_wait_is_counted_when_the_turn_begins():
    turn, (a, b, c) = opened_turn(PREEMPTIVE, [(1, 1), (1, 1), (1, 1)])
    turn.timeline(59)
    assert waits(turn, c)[1:] == (1, 40 * MS)
    turn.timeline(541)
    for slot in (a, b, c):
        buckets, count, total = waits(turn, slot)
        assert max(buckets) == 51_200_000, "two slices of 20 ms, shorter for the first ones"
        assert sum(buckets.values()) == count
        assert count in (9, 10)
        assert turn.stat(slot).wait_ns - 40 * MS <= total <= turn.stat(slot).wait_ns


def test_a_wait_that_ends_without_a_turn_is_not_counted():
    turn, (_, b) = opened_turn(PREEMPTIVE, [(1, 1), (1, 1)])
    turn.timeline(19)
    assert turn.frozen(b)
    turn.channels(b, 0)
    turn.timeline(100)
    turn.channels(b, 1)
    turn.timeline(25)
    assert waits(turn, b)[1:] == (1, 20 * MS), "the 19 ms before it closed the GPU are not part of it"


def test_state_moves_to_another_core():
    turn, _ = opened_turn(WEIGHTED, [(1, 1), (2, 1)])
    turn.timeline(77)
    fresh = ffi.new("struct cgpu_sched *")
    assert lib.cgpu_sched_migrate(fresh, turn.t, C.CGPU_SCHED_VERSION + 1) == -errno.EINVAL
    assert lib.cgpu_sched_migrate(fresh, turn.t, C.CGPU_SCHED_VERSION) == 0
    want = turn.timeline(200)
    other = Turn()
    other.t, other.now = fresh, turn.now - 200 * MS
    assert other.stat(0).wait.count > 0
    assert other.timeline(200) == want


def group_owner(t):
    t.rr[1].curr = C.CGPU_SLOTS


def group_pos(t):
    t.rr[0].cursor = C.CGPU_SLOTS + 1


def group_members(t):
    t.rr[2].members = 1 << C.CGPU_SLOTS


def slot_highprio(t):
    t.slot[24].highprio = 2


def slot_weights(t):
    t.slot[0].weight = t.max_inst


def slot_retries(t):
    t.slot[0].retries = 7


def free_slot_with_weight(t):
    t.slot[5].channels = 1


UNSOUND = [
    *(("policy", bad) for bad in (len(POLICIES), 2**31)),
    *(("max_inst", bad) for bad in (0, 101)),
    *(("prio_ratio", bad) for bad in (0, 100)),
    *(("slice_ns", bad) for bad in (0, 999_999, 100 * MS + 1)),
    *((mask, 1 << 25) for mask in ("run_mask", "planned_mask", "freeze_unknown_mask", "new_mask", "touched_mask",
                                   "ts_dirty_mask", "ts_failed_mask", "held_mask", "known_mask", "busy_mask",
                                   "asleep_mask", "timesliced", "wait_mask", "unrestarted_mask",
                                   "part_thawed_mask", "on_mask")),
    ("controls", 4),
]  # fmt: skip


@pytest.mark.parametrize(
    "spoil",
    [lambda t, n=name, v=value: setattr(t, n, v) for name, value in UNSOUND]
    + [group_owner, group_pos, group_members, slot_highprio, slot_weights, slot_retries, free_slot_with_weight],
)
def test_a_state_out_of_range_is_not_taken_over(spoil):
    turn, _ = opened_turn(WEIGHTED, [(1, 1), (2, 1)])
    turn.timeline(77)
    spoil(turn.t)
    fresh = ffi.new("struct cgpu_sched *")
    assert lib.cgpu_sched_migrate(fresh, turn.t, C.CGPU_SCHED_VERSION) == -errno.EINVAL
    assert not any(bytes(ffi.buffer(fresh)))


def test_the_shell_sees_words_and_no_layout():
    turn, (a, _) = opened_turn(WEIGHTED, [(3, 1), (2, 1)])
    turn.timeline(77)
    gpu, slot = ffi.new("struct cgpu_sched_view *"), ffi.new("struct cgpu_sched_entity_view *")
    lib.cgpu_sched_view(turn.t, gpu)
    for name in ("policy", "max_inst", "prio_ratio", "controls", "ineffective", "opened_mask", "run_mask", "slice_ns"):
        assert getattr(gpu, name) == getattr(turn.t, name), name
    assert (gpu.free_weight, gpu.instances) == (lib.cgpu_sched_free_weight(turn.t), 2)
    lib.cgpu_sched_entity_view(turn.t, a, slot)
    for name in ("cookie", "weight", "highprio", "channels", "preempt_slow", "overruns", "turns", "gpu_ns"):
        assert getattr(slot, name) == getattr(turn.t.slot[a], name), name
    lib.cgpu_sched_entity_view(turn.t, 24, slot)
    assert not any(bytes(ffi.buffer(slot)))


def test_overruns_and_times():
    turn, (a, b) = opened_turn(PREEMPTIVE, [(1, 1), (1, 1)], slice_ms=10)
    turn.step()
    began = turn.now
    turn.now = turn.next().until_ns
    plan = turn.next()
    turn.ack(plan, thawed=turn.now + 1 * MS, frozen=turn.now + 5 * MS)
    turn.now += 5 * MS
    st_a, st_b = turn.stat(a), turn.stat(b)
    # A call acts in the middle of its length: thawed at 0.5, frozen at 3. In between timeslices end at 1.264 and 2.288.
    assert (st_a.gpu_ns, st_b.gpu_ns) == (11.976 * MS, 3.024 * MS)
    assert (st_a.overruns, st_b.overruns) == (1, 0)
    assert st_a.gpu_ns + st_b.gpu_ns == turn.now - began
    assert st_b.wait_ns == st_a.gpu_ns, "also while it may run and the hardware has not come to it"
    assert (st_a.running, st_b.running) == (0, 1)
