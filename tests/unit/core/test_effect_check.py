# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""Whether the share moves: findings about a control, and that no tenant can make it look ineffective."""

import pytest
from checkgpu import FOREIGN, IDLE, LOW, CheckGpu
from corelib import FAIR, FIXED, FREEZE, MS, NATIVE, PREEMPTIVE, SOFT, TIMESLICE, WEIGHTED, C, ffi, lib
from hypothesis import given, settings
from hypothesis import strategies as st

SEEDS = range(3)


def saturated(policy, *weights, **more):
    gpu = CheckGpu(policy, **more)
    return gpu, [gpu.add(weight) for weight in weights]


# ---- an ineffective control is found out ----


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("slice_ms", [5, 10, 30])
@pytest.mark.parametrize("policy", [FAIR, PREEMPTIVE, WEIGHTED, FIXED])
def test_ineffective_freezes_are_doubted_then_taken_away(policy, slice_ms, seed):
    gpu, _ = saturated(policy, 1, 2, ineffective=FREEZE, slice_ms=slice_ms, seed=seed)
    doubted = gpu.run(90, lambda: (FREEZE, 0) in gpu.findings)
    assert doubted < 40
    assert gpu.enforced() == [0, 0]
    assert gpu.policy == policy, "one look is not enough to take it away"
    lost = gpu.run(90, lambda: gpu.policy == NATIVE)
    assert doubted + lost < 60
    assert gpu.turn.t.ineffective == FREEZE and not gpu.check.seen & FREEZE
    assert (FREEZE, 1) not in gpu.findings
    gpu.run(5)
    assert gpu.turn.t.run_mask & 0b11 == 0b11 and not gpu.turn.t.held_mask


@pytest.mark.parametrize("switching", [0, 0.09])
@pytest.mark.parametrize("seed", SEEDS)
def test_ineffective_timeslices_are_found_where_the_contrast_is_enough(seed, switching):
    """1 TSG against 7: half of the GPU by timeslices, an eighth without."""
    gpu = CheckGpu(SOFT, ineffective=TIMESLICE, seed=seed, switching=switching)
    gpu.add(tsgs=1)
    gpu.add(tsgs=7)
    assert gpu.run(120, lambda: (TIMESLICE, 0) in gpu.findings) < 30
    assert set(gpu.findings) <= {(TIMESLICE, 0), (FREEZE, 1)} and gpu.enforced() == [0, 0]
    gpu.run(180)
    assert gpu.policy == SOFT and gpu.enforced() == [0, 0], "in doubt, and not taken away"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("policy", [SOFT, PREEMPTIVE])
@pytest.mark.parametrize("short", [1, 2])
def test_short_kernels_take_no_timeslices_away(policy, seed, short):
    """Beside others it leaves the GPU before its timeslice ends, and alone it is nearly always there: as if timeslices
    had no effect.
    """
    gpu = CheckGpu(policy, seed=seed)
    gpu.turn.set("prio_ratio", 80)
    for _ in range(short):
        gpu.add(kernel_us=500, highprio=int(policy == PREEMPTIVE))
    gpu.add(tsgs=3 * short)
    gpu.run(300)
    assert gpu.policy == policy and gpu.turn.t.controls == FREEZE | TIMESLICE
    assert sum(gpu.held_ms.values()) < 0.02 * 300_000


def test_equal_ones_cannot_tell_about_timeslices():
    for ineffective in (0, TIMESLICE):
        gpu, _ = saturated(SOFT, 1, 1, ineffective=ineffective)
        gpu.run(120)
        assert gpu.findings == [] and gpu.held_ms == {} and gpu.check.seen == 0


# ---- a working one is never taken away ----


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("policy", [FAIR, PREEMPTIVE, WEIGHTED, FIXED])
def test_working_freezes_are_seen_without_a_hold(policy, seed):
    gpu, _ = saturated(policy, 1, 2, seed=seed)
    gpu.run(120)
    assert gpu.check.seen == FREEZE
    assert set(gpu.findings) == {(FREEZE, 1)}
    assert gpu.held_ms == {}


@pytest.mark.parametrize("seed", SEEDS)
def test_working_timeslices_are_not_suspect(seed):
    gpu = CheckGpu(SOFT, seed=seed)
    gpu.add(tsgs=1)
    gpu.add(tsgs=3)
    gpu.run(300)
    assert (TIMESLICE, 0) not in gpu.findings and gpu.enforced() == [1, 1]


def test_a_high_priority_one_shows_that_timeslices_move():
    """8 ms against 0.5; while its ceiling holds the other one is alone, and is seen to have work always."""
    gpu = CheckGpu(PREEMPTIVE)
    gpu.add(highprio=1)
    gpu.add()
    gpu.run(120)
    assert gpu.check.seen & TIMESLICE and (TIMESLICE, 0) not in gpu.findings


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("work", [0.3, 0.4, 0.5, 0.6, 0.7])
def test_a_hold_for_timeslices_is_around_samples_only(work, seed):
    """High priority in bursts has no more of the GPU than without timeslices; nobody is frozen for a second for it."""
    gpu = CheckGpu(PREEMPTIVE, seed=seed)
    gpu.turn.set("prio_ratio", 80)
    gpu.add(highprio=1, work=work)
    low = gpu.add()
    longest, since = 0, gpu.turn.now
    for _ in range(15_000):
        gpu.run(0.002)
        if gpu.turn.t.run_mask >> low & 1:
            since = gpu.turn.now
        longest = max(longest, gpu.turn.now - since)
    assert longest < 25 * MS
    assert gpu.held_ms.get(low, 0) < 400 and (TIMESLICE, 0) not in gpu.findings
    assert low in gpu.held_ms or work > 0.5, "it has so much that the control is not suspect"


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("work", [0.6, 0.65, 0.7])
def test_most_work_is_not_taken_for_always_having_it(work, seed):
    """Four samples of one that works for 0.7 of the time all show work in a quarter of the runs."""
    gpu = CheckGpu(PREEMPTIVE, seed=seed)
    gpu.turn.set("prio_ratio", 80)
    gpu.add(highprio=1, work=work)
    gpu.add()
    gpu.run(60)
    assert (TIMESLICE, 0) not in gpu.findings


@pytest.mark.parametrize("seed", SEEDS)
def test_ineffective_timeslices_beside_high_priority_are_found(seed):
    """It always has work: held around samples, the others show that it is on the engine in each."""
    gpu = CheckGpu(PREEMPTIVE, ineffective=TIMESLICE, seed=seed)
    gpu.turn.set("prio_ratio", 80)
    gpu.add(highprio=1)
    gpu.add()
    assert gpu.run(300, lambda: (TIMESLICE, 0) in gpu.findings) < 60


@pytest.mark.parametrize("seed", SEEDS)
def test_little_work_is_no_proof_against_timeslices(seed):
    """It gets a quarter, as without the control, because it asks for no more: held alone, it is seen to idle."""
    gpu = CheckGpu(SOFT, seed=seed)
    gpu.add(tsgs=1, work=0.25)
    gpu.add(tsgs=3)
    gpu.run(600)
    assert gpu.policy == SOFT and (TIMESLICE, 0) not in gpu.findings
    assert sum(gpu.held_ms.values()) < 0.02 * 600_000


@pytest.mark.parametrize("wrong", [0.05, 0.3])
@pytest.mark.parametrize("policy", [PREEMPTIVE, WEIGHTED, FIXED])
def test_wrong_samples_take_nothing_away(policy, wrong):
    """A sampler that is wrong now and then or often. Pure noise looks as ineffective as a control can."""
    gpu, _ = saturated(policy, 1, 2, wrong=wrong)
    gpu.run(600)
    assert gpu.policy == policy
    assert gpu.turn.t.controls == FREEZE | TIMESLICE


@pytest.mark.parametrize("seed", SEEDS)
def test_a_few_wrong_samples_of_a_long_freeze_are_too_few(seed):
    """Slices of 100 ms in a round of a second: the wrong samples fall where it was off and seems to come back."""
    gpu, _ = saturated(FIXED, 1, 1, wrong=0.1, slice_ms=100, seed=seed)
    gpu.run(300)
    assert gpu.policy == FIXED and (FREEZE, 0) not in gpu.findings


@pytest.mark.parametrize("resists_ms", [20, 1000, 5000])
@pytest.mark.parametrize("all_of_them", [False, True])
@pytest.mark.parametrize("policy", [PREEMPTIVE, WEIGHTED])
def test_kernels_that_resist_do_not_make_it_look_ineffective(policy, all_of_them, resists_ms):
    """The freeze is answered at once, and the kernel runs on: what a driver would look like that does not wait."""
    gpu = CheckGpu(policy)
    bad = gpu.add(resists_ms=resists_ms)
    gpu.add(2, resists_ms=resists_ms if all_of_them else 0)
    gpu.run(600)
    assert gpu.policy == policy and (FREEZE, 0) not in gpu.findings
    if not all_of_them:
        assert set(gpu.held_ms) <= {bad}, "only the slot sampled while frozen is held"


@pytest.mark.parametrize(("loose", "honest"), [(1, 1), (1, 3), (2, 1), (3, 2)])
@pytest.mark.parametrize("policy", [FAIR, WEIGHTED])
@pytest.mark.parametrize("seed", range(2))
def test_containers_that_freezes_do_not_reach_end_no_control(policy, loose, honest, seed):
    """What they do is attributed to them, however many: another container shows that the control works."""
    gpu = CheckGpu(policy, seed=seed)
    bad = [gpu.add(loose=20) for _ in range(loose)]
    good = [gpu.add() for _ in range(honest)]
    gpu.run(240)
    assert (FREEZE, 0) not in gpu.findings
    assert gpu.policy == policy and gpu.turn.t.controls & FREEZE
    assert all(gpu.enforced()[slot] for slot in good)
    assert not gpu.loose & set(good)
    assert gpu.loose <= set(bad) and (gpu.loose or policy == FAIR), "the finding names one"


@pytest.mark.parametrize("seed", range(2))
def test_one_that_freezes_do_not_reach_beside_idle_ones(seed):
    """The others have no work, so nothing shows whether the control is at fault: it stays."""
    gpu = CheckGpu(WEIGHTED, seed=seed)
    gpu.add(loose=20)
    gpu.add(work=0.0)
    gpu.run(600)
    assert (FREEZE, 0) not in gpu.findings and gpu.policy == WEIGHTED


@pytest.mark.parametrize("slot_churns", [0, 1])
def test_channels_that_come_and_go_tell_nothing(slot_churns):
    gpu, ids = saturated(PREEMPTIVE, 1, 1)
    for i in range(6000):
        gpu.turn.channels(ids[slot_churns], 1 + i % 2)
        gpu.touch(ids[slot_churns])
        gpu.tenants[ids[slot_churns]].on_until_ns = gpu.turn.now + 5 * MS  # until the call that made it has frozen it
        gpu.run(0.01)
    assert gpu.policy == PREEMPTIVE and (FREEZE, 0) not in gpu.findings


def test_a_restart_that_fails_is_no_freeze():
    gpu, _ = saturated(WEIGHTED, 1, 2, uncommitted=0.4)
    gpu.run(120)
    assert gpu.policy == WEIGHTED and (FREEZE, 0) not in gpu.findings
    gpu.c.uncommitted = 1.0
    gpu.run(0.1)
    marks = gpu.check.marks
    gpu.run(1)
    assert gpu.check.marks > marks
    assert {gpu.check.mark[i % C.CGPU_CHECK_MARKS].frozen for i in range(marks, gpu.check.marks)} == {0}


def test_a_lone_container_is_never_held():
    for ineffective in (0, FREEZE):
        gpu, _ = saturated(FIXED, 1, ineffective=ineffective)
        gpu.run(60)
        assert gpu.held_ms == {} and (FREEZE, 0) not in gpu.findings


@given(
    policy=st.sampled_from([FAIR, PREEMPTIVE, WEIGHTED, FIXED, SOFT]),
    tenants=st.lists(
        st.tuples(
            st.integers(1, 3),  # weight
            st.integers(1, 4),  # TSGs
            st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 1.0]),
            st.sampled_from([0, 0, 0, 30, 700]),
            st.integers(0, 1),
        ),
        min_size=1,
        max_size=4,
    ),
    slice_ms=st.sampled_from([2, 5, 10, 30]),
    seed=st.integers(0, 1000),
    wrong=st.sampled_from([0.0, 0.03]),
    jitter=st.sampled_from([0.0, 0.02, 0.2]),
)
@settings(max_examples=40)
def test_a_working_control_stays_whatever_the_tenants_do(policy, tenants, slice_ms, seed, wrong, jitter):
    gpu = CheckGpu(policy, max_inst=20, slice_ms=slice_ms, seed=seed, wrong=wrong, jitter=jitter)
    for weight, tsgs, work, resists_ms, highprio in tenants:
        gpu.add(weight, tsgs, work, resists_ms, highprio)
    gpu.run(60)
    assert gpu.policy == policy
    assert gpu.turn.t.controls == FREEZE | TIMESLICE
    assert sum(gpu.held_ms.values()) <= 10 * C.CGPU_CHECK_HOLD_MS * len(tenants)


# ---- what is taken in ----


def test_holding_is_as_weight_0():
    gpu, (a, b) = saturated(WEIGHTED, 1, 2)
    gpu.run(0.1)
    lib.cgpu_check_hold(gpu.check, gpu.turn.t, 1 << a, gpu.turn.now)
    assert gpu.turn.shares(300) == {b: pytest.approx(1)}
    assert gpu.turn.t.slot[a].weight == 1
    lib.cgpu_check_hold(gpu.check, gpu.turn.t, 0, gpu.turn.now)
    assert gpu.turn.shares(300)[a] == pytest.approx(1 / 3, abs=0.05)
    lib.cgpu_check_hold(gpu.check, gpu.turn.t, 1 << a, gpu.turn.now)
    gpu.turn.delete(a)
    assert gpu.turn.t.held_mask == 0


def test_samples_while_calls_are_under_way_wait():
    gpu, _ = saturated(PREEMPTIVE, 1, 1)
    gpu.turn.next()
    planned = gpu.turn.now
    assert gpu.turn.t.inflight
    assert planned - 5 * MS < lib.cgpu_check_until_ns(gpu.turn.t, planned + 1000 * MS) < planned


@pytest.mark.parametrize("of_several", [FOREIGN, LOW])
def test_old_and_unknown_samples_are_left_out(of_several):
    gpu, (a, _) = saturated(PREEMPTIVE, 1, 1)
    gpu.run(0.5)
    n, seen = gpu.check.samples, gpu.check.seen_ns
    lib.cgpu_check_sample(gpu.check, gpu.turn.t, 5, a)
    assert (gpu.check.samples, gpu.check.seen_ns) == (n, seen), "before what was seen"
    lib.cgpu_check_sample(gpu.check, gpu.turn.t, gpu.turn.now - 3 * MS, of_several)
    assert gpu.check.samples == n
    for slot in (IDLE, 77):
        lib.cgpu_check_sample(gpu.check, gpu.turn.t, gpu.turn.now - 3 * MS + 1, slot)
    assert all(gpu.check.slot[i].on_engine == 0 for i in range(2, C.CGPU_SLOTS))


@pytest.mark.parametrize(("containers", "slice_ms", "blind"), [(2, 1, 1), (2, 2, 1), (2, 5, 0), (3, 1, 1), (3, 2, 0)])
def test_turns_too_short_for_samples_are_said(containers, slice_ms, blind):
    """Around each sample all of them change: it shows nothing, and ineffective freezes would go unnoticed."""
    gpu, _ = saturated(WEIGHTED, *[1] * containers, slice_ms=slice_ms)
    assert not lib.cgpu_check_is_blind(gpu.check), "not before the first samples"
    gpu.run(10)
    assert lib.cgpu_check_is_blind(gpu.check) == bool(blind)
    gpu.turn.set("slice_us", 10_000)
    gpu.run(30)
    assert not lib.cgpu_check_is_blind(gpu.check) and gpu.check.seen & FREEZE


def test_a_gpu_that_none_has_open_is_not_blind():
    """The driver's ring goes on meanwhile: its samples are read when the next container opens it."""
    gpu, slots_ = saturated(WEIGHTED, 1, 1)
    gpu.run(5)
    for slot in slots_:
        gpu.turn.channels(slot, 0)
        gpu.touch(slot)
    gpu.run(10)
    assert not lib.cgpu_check_is_blind(gpu.check)
    for slot in slots_:
        gpu.turn.channels(slot, 1)
        gpu.touch(slot)
    gpu.run(1.5)
    assert not lib.cgpu_check_is_blind(gpu.check)


def test_more_marks_than_are_kept():
    """What was in force before the oldest is not known: such samples say nothing."""
    gpu, (a, _) = saturated(PREEMPTIVE, 1, 1, slice_ms=1)
    begin = gpu.turn.now
    gpu.poll_at = 2**63
    gpu.run(5)
    assert gpu.check.marks > C.CGPU_CHECK_MARKS
    lib.cgpu_check_sample(gpu.check, gpu.turn.t, begin + 20 * MS, a)
    assert gpu.check.samples == 0


def test_a_container_that_is_gone_leaves_no_figures():
    gpu, (a, b) = saturated(PREEMPTIVE, 1, 1)
    gpu.run(3)
    assert gpu.check.slot[a].on_engine
    gpu.turn.delete(a)
    gpu.tenants.pop(a)
    gpu.touch(a)
    assert ffi.buffer(ffi.addressof(gpu.check.slot[a]))[:] == bytes(ffi.sizeof("struct cgpu_check_slot"))
    assert gpu.check.slot[b].on_engine
    lib.cgpu_check_touched(gpu.check, gpu.turn.t, C.CGPU_SLOTS, gpu.turn.now)


def test_new_channels_of_a_frozen_container_are_no_sign():
    """They may run until the call that made them has frozen them: a sample then shows no ineffective freeze."""
    gpu, (one, other) = saturated(PREEMPTIVE, 1, 1, slice_ms=100)
    gpu.run(0.5)
    frozen = other if gpu.turn.t.run_mask >> one & 1 else one
    counted = []
    for touched in (False, True):
        gpu.turn.now += 10 * MS
        if touched:
            gpu.touch(frozen)
        gpu.turn.now += 10 * MS
        lib.cgpu_check_sample(gpu.check, gpu.turn.t, gpu.turn.now - 5 * MS, frozen)
        counted.append(gpu.check.slot[frozen].hits)
    assert counted == [1, 1], "the first is one, the second is none"
