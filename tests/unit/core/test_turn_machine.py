# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""Anything in any order: what must hold of the scheduler whatever happens to it.

As sentences, each an assertion below: under 0 and 3 no slot runs outside its turn; shares converge; no slot starves;
the deficit is bounded; no time is counted twice or lost; what is not enforced is not reported as isolation.
"""

import os

from corelib import (
    BURST,
    FAIR,
    FIXED,
    FREEZE,
    MS,
    NATIVE,
    NEVER,
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
    slots,
)
from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from statepage import broken

slot = st.integers(0, C.CGPU_SLOTS - 1)
US = 1_000
SWITCH_NS_MAX = 1_000_000
BUDGET_MS = 1_000  # high priority runs for so long without a break while its budget is full
NEED_MAX_US = 2_000  # so long without work, a slot sleeps
ALL = 2**32 - 1
masks = st.one_of(st.sampled_from([0, ALL, 1, 2, 6]), st.integers(0, ALL))


class TurnMachine(RuleBasedStateMachine):
    @initialize(
        policy=st.sampled_from(POLICIES),
        controls=st.sampled_from([FREEZE, FREEZE | TIMESLICE]),
        slice_ms=st.sampled_from([1, 5, 8, 20]),
    )
    def begin(self, policy, controls, slice_ms):
        self.turn = Turn(
            policy if policy != SOFT or controls & TIMESLICE else FAIR, slice_ms=slice_ms, controls=controls
        )
        self.pending = None  # a plan whose calls are being made
        self.last = {}
        self.most_grant = 0
        self.switches = 0
        self.effect_check = ffi.new("struct cgpu_check *")
        lib.cgpu_check_init(self.effect_check, self.turn.now)

    def attempt(self, call, *args):
        try:
            call(*args)
        except CoreError:
            pass

    def live(self):
        return [i for i in range(C.CGPU_SLOTS) if self.turn.t.slot[i].cookie]

    # ---- what administrators and tenants do

    @rule(weight=st.integers(1, 25), highprio=st.sampled_from([0, 0, 0, 1]), channels=st.integers(0, 3))
    def add(self, weight, highprio, channels):
        self.attempt(self.turn.add, weight if weight > 20 else 1 + weight % 5, highprio, channels)

    @rule(i=slot)
    def delete(self, i):
        self.turn.delete(i)
        for key in [k for k in self.last if k[0] == i]:
            del self.last[key]

    @rule(i=slot, channels=st.integers(0, 3), tsgs=st.integers(0, 5))
    def channels(self, i, channels, tsgs):
        self.turn.channels(i, channels, tsgs)

    @rule(i=slot, weight=st.integers(0, 6))
    def weight(self, i, weight):
        self.attempt(self.turn.set, "weight", i, weight)

    @rule(i=slot, ceiling=st.integers(0, 12))
    def ceiling(self, i, ceiling):
        self.attempt(self.turn.set, "ceiling", i, ceiling)

    @rule(i=slot, highprio=st.integers(0, 1))
    def highprio(self, i, highprio):
        self.attempt(self.turn.set, "highprio", i, highprio)

    @rule(what=st.sampled_from([("policy", 6), ("max_inst", 26), ("max_inst", 101)]), part=st.floats(0, 1))
    def administer(self, what, part):
        self.attempt(self.turn.set, what[0], int(part * what[1]))

    @rule(percent=st.sampled_from([20, 50, 80, 90]))
    def prio_ratio(self, percent):
        self.turn.set("prio_ratio", percent)

    @rule(us=st.sampled_from([1_000, 5_000, 8_000, 20_000]))
    def slice(self, us):
        self.turn.set("slice_us", us)

    @rule(controls=st.sampled_from([0, FREEZE, TIMESLICE, 3, 3, 3]))
    def controls(self, controls):
        lib.cgpu_sched_set_controls(self.turn.t, controls, self.turn.now)

    @rule(control=st.sampled_from([FREEZE, TIMESLICE]), moved=st.sampled_from([0, 0, 1]))
    def check_the_share(self, control, moved):
        turn = self.turn
        had = turn.t.controls
        policy = lib.cgpu_sched_control_moved(turn.t, control, moved, turn.now)
        assert policy in (turn.t.policy, NATIVE)
        lost = had & ~turn.t.controls
        assert lost in (0, control) and not (lost and moved)
        assert turn.t.ineffective & lost == lost

    @rule(us=st.sampled_from([0, 70, SWITCH_NS_MAX // US]))
    def switch_cost(self, us):
        self.turn.t.switch_ns = us * US

    # ---- what the shell does

    @rule(known=masks, busy=masks)
    def run_state_is_read(self, known, busy):
        """Any masks, also of slots that do not exist, also while calls are under way."""
        turn = self.turn
        turn.set_run_state(known, busy)
        assert turn.t.known_mask == known & turn.opened_mask()
        assert not turn.t.asleep_mask & busy, "one with work is asleep"

    @rule(
        on=st.sampled_from([C.CGPU_CHECK_IDLE, C.CGPU_CHECK_FOREIGN, C.CGPU_CHECK_LOW, 0, 1, 2]),
        count=st.integers(1, 8),
        i=slot,
        held=st.booleans(),
    )
    def samples_are_read(self, on, count, i, held):
        """The driver's, 200 ms apart; one may be held for the check, which ends before anything else is asserted."""
        lib.cgpu_check_touched(self.effect_check, self.turn.t, i, self.turn.now)
        for _ in range(count):
            self.turn.now += 200 * MS
            lib.cgpu_check_sample(self.effect_check, self.turn.t, self.turn.now - MS, on)
        if held:
            lib.cgpu_check_hold(self.effect_check, self.turn.t, 1 << i, self.turn.now)
            assert broken(self.turn.t) == []
        lib.cgpu_check_hold(self.effect_check, self.turn.t, 0, self.turn.now)

    @rule(i=slot, idle_us=st.sampled_from([1, 100, 2_100]))
    def one_sleeps(self, i, idle_us):
        """Two readings in a row without work, all others having some."""
        for us in (0, idle_us):
            self.turn.now += us * US
            self.turn.set_run_state(ALL, ALL & ~(1 << i))

    @rule(us=st.integers(0, 40_000))
    def time_passes(self, us):
        self.turn.now += us * US

    @rule(s=st.integers(1, 3_600))
    def the_clock_jumps(self, s):
        """No plan was made for so long: the machine slept, or the thread was held up."""
        self.turn.now += s * 1_000 * MS

    @precondition(lambda self: self.pending is None)
    @rule()
    def plan(self):
        turn, t = self.turn, self.turn.t
        plan = turn.next()
        self.check(plan)
        self.check_credit()
        assert lib.cgpu_sched_migrate(ffi.new("struct cgpu_sched *"), t, C.CGPU_SCHED_VERSION) == 0, "not taken over"
        again = turn.next()
        assert bytes(ffi.buffer(again)) == bytes(ffi.buffer(plan)), "asked twice, another answer"
        if plan.freeze_mask | plan.thaw_mask | plan.timeslice_mask:
            self.pending = (plan, turn.now)
        else:
            assert plan.until_ns > turn.now
            assert t.planned_mask == plan.run_mask

    @precondition(lambda self: self.pending is not None)
    @rule(
        frozen_us=st.integers(0, 5_000), thawed_us=st.integers(0, 5_000), failed=st.sampled_from([0] * 6 + [1, 6, -1])
    )
    def acknowledge(self, frozen_us, thawed_us, failed):
        plan, begin = self.pending
        self.pending = None
        failed &= plan.freeze_mask | plan.thaw_mask
        frozen, thawed = begin + frozen_us * US, begin + thawed_us * US
        self.turn.now = max(self.turn.now, frozen, thawed)
        came = self.turn.t.new_mask  # since the plan, into a slot that it has a call for: the call was not for it
        self.turn.ack(plan, begin, frozen, thawed, plan.run_mask ^ failed, plan.timeslice_mask & ~failed)
        # A switch is refunded when it comes, within the turn or in the overlap before it.
        self.switches = min(self.switches + 1, 8)
        for i in slots(failed & ~came) & set(self.live()):
            assert not self.turn.stat(i).enforced, "a failed call was reported as isolation"

    @precondition(lambda self: self.pending is None)
    @rule()
    def nobody_starves(self):
        """With controls that work and nothing changing, every slot that may run does."""
        turn = self.turn
        t = turn.t
        assume(t.policy != NATIVE and t.controls & FREEZE and t.slice_ns <= 20 * MS)
        wanted = {i for i in self.live() if t.slot[i].weight and t.slot[i].channels}
        rounds_ms = 4 * 25 * t.slice_ns / MS / (1 - t.prio_ratio / 100) + 500 + BUDGET_MS
        if t.ceiling_mask:  # a debt of a second, and 7 ms at one part in a hundred
            rounds_ms += 2000 + 4 * 25 * 4 * t.slice_ns / MS
        end, got = turn.now + int(rounds_ms * MS), set()
        while turn.now < end and not wanted <= got:
            plan = turn.next()
            if plan.freeze_mask | plan.thaw_mask | plan.timeslice_mask:
                turn.ack(plan)
                continue
            got |= slots(plan.run_mask)
            drowsy = t.known_mask & ~t.busy_mask & ~t.asleep_mask
            if drowsy and plan.poll_ns:  # readings go on: it sleeps soon
                turn.now = min(plan.until_ns, turn.now + NEED_MAX_US * US)
                turn.set_run_state(t.known_mask, t.busy_mask)
                continue
            if plan.until_ns == NEVER:
                break
            turn.now = plan.until_ns
        assert wanted <= got, f"{wanted - got} starved for {rounds_ms} ms"

    def play(self, length_ns):
        """So long with controls that work at once; yields (slots that run, for how long)."""
        turn, end = self.turn, self.turn.now + length_ns
        while turn.now < end:
            plan = turn.next()
            if plan.freeze_mask | plan.thaw_mask | plan.timeslice_mask:
                turn.ack(plan)
                continue
            until = min(plan.until_ns, end)
            assert until > turn.now
            length, turn.now = until - turn.now, until
            yield slots(plan.run_mask & turn.opened_mask()), length

    def round_ns(self):
        """No round is longer."""
        t = self.turn.t
        return C.CGPU_SLOTS * (t.slice_ns + t.switch_ns)

    def parts(self):
        """What each of them should get of the time, once nothing changes."""
        t = self.turn.t
        weight = {i: t.slot[i].weight for i in self.live() if t.slot[i].weight}
        opened = [i for i in weight if t.slot[i].channels]
        if t.policy == FAIR:
            return dict.fromkeys(opened, 1 / t.max_inst)
        if t.policy == FIXED:
            return {i: weight[i] / t.max_inst for i in opened}
        if t.policy == PREEMPTIVE:
            return {i: 1 / len(opened) for i in opened}
        low = {i: w for i, w in weight.items() if not t.slot[i].highprio}
        return {i: weight[i] / sum(low.values()) for i in opened}

    @precondition(lambda self: self.pending is None and self.turn.t.policy in (FAIR, PREEMPTIVE, WEIGHTED, FIXED))
    @rule(known=st.sampled_from([0, ALL]))
    def it_settles(self, known):
        """Shares converge, and every nanosecond of the GPU is one container's. None of them sleeps."""
        turn = self.turn
        t = turn.t
        turn.set_run_state(known, ALL)
        assume(not any(t.slot[i].highprio and t.slot[i].channels for i in self.live()))
        wanted = self.parts()
        assume(wanted)
        switch_us, t.switch_ns = t.switch_ns, 0
        # A debt of a round is paid with a grant a round. What is owed is paid with half of one, for up to a minute.
        for _ in range(2 * C.CGPU_SLOTS):
            for _ in self.play(self.round_ns()):
                pass
            for i in self.live():
                t.slot[i].owed_ns[0] = 0  # test_turn.py follows it
            if all(t.slot[i].deficit_ns > -t.slice_ns for i in wanted):
                break
        before, began = {i: turn.stat(i) for i in self.live()}, turn.now
        # The order of the rest of the time does not matter: whole rounds, nearly.
        got, busy = dict.fromkeys(self.live(), 0), 0
        for running, length in self.play(8 * self.round_ns()):
            assert len(running) <= 1
            if t.policy in (FAIR, FIXED):
                assert running <= {t.rr[0].curr}, "no slot runs outside its turn"
            busy += length if running else 0
            for i in running:
                got[i] += length
        t.switch_ns = switch_us
        span = turn.now - began
        biggest = max(1 if t.policy in (FAIR, PREEMPTIVE) else t.slot[i].weight for i in wanted) * t.slice_ns
        for i, part in wanted.items():
            assert abs(got[i] - part * span) <= 2.1 * biggest, f"{i}: {got[i] / span:.3f} of the time, not {part:.3f}"
            ran = turn.stat(i).gpu_ns - before[i].gpu_ns
            waited = turn.stat(i).wait_ns - before[i].wait_ns
            assert (ran, ran + waited) == (got[i], span), "time was counted twice or lost"
        assert sum(got.values()) == busy

    # ---- what must hold

    def check_credit(self):
        """A claim is at most two grants, and a slot that begins is in debt by no more than a round."""
        t = self.turn.t
        grant = max([t.slot[i].weight for i in self.live()], default=0) * t.slice_ns
        self.most_grant = max(self.most_grant, grant, t.slice_ns)
        for i in self.live():
            for credit in (t.slot[i].deficit_ns, t.slot[i].bg_deficit_ns):
                assert credit <= 2 * self.most_grant + self.switches * SWITCH_NS_MAX
        for rr in t.rr:
            # One that this plan does not ask ends its turn when it is asked next.
            if rr.running & C.CGPU_RR_PLANNED and rr.contended and rr.curr < C.CGPU_SLOTS:
                assert rr.deadline_ns >= rr.clock_ns, "a turn goes on after its end"
                assert rr.deadline_ns - rr.clock_ns <= 3 * self.most_grant + t.slice_ns * 20

    def check(self, plan):
        turn, t = self.turn, self.turn.t
        live = sum(1 << i for i in self.live())
        opened = turn.opened_mask()
        calls = plan.freeze_mask | plan.thaw_mask
        assert not plan.run_mask & ~live
        assert not calls & ~opened and not plan.timeslice_mask & ~opened
        assert not plan.freeze_mask & plan.run_mask
        assert not plan.thaw_mask & ~plan.run_mask
        missing = (t.run_mask ^ plan.run_mask) & opened & ~t.freeze_unknown_mask
        assert missing == missing & calls, "the calls do not lead to the plan"
        if t.policy == NATIVE or not t.controls & FREEZE:
            assert plan.run_mask == live
            return
        may = sum(1 << i for i in self.live() if t.slot[i].weight)
        assert not plan.run_mask & ~may, "weight 0 may not run"
        high = sum(1 << i for i in self.live() if t.slot[i].highprio)
        if t.policy != SOFT:
            # One that sleeps stays thawed: it takes nothing.
            awake = plan.run_mask & opened & ~t.asleep_mask
            brief = sum(1 << i for i in self.live() if t.slot[i].woken_ns and t.slot[i].full_turns < 3) & t.known_mask
            for group in (awake & ~high, awake & high):
                assert len(slots(group)) <= 1 or not group & ~brief, "one at a time, but for those that sleep often"
        assert not plan.run_mask & t.capped_mask, "it has used up its ceiling"
        present = high & may & opened
        # Until it has worked for a while, the others run beside it at short timeslices.
        works = present & ~t.asleep_mask & ~t.capped_mask & t.dense_mask
        if works and not present & ~t.known_mask and not t.prio_throttled:
            assert not plan.run_mask & opened & ~high & ~t.asleep_mask, "high priority that goes on working runs alone"

    @invariant()
    def what_the_page_of_the_state_says(self):
        assert broken(self.turn.t) == []

    @invariant()
    def sums(self):
        t = self.turn.t
        assert sum(t.slot[i].weight for i in self.live()) <= t.max_inst
        assert len(self.live()) <= min(t.max_inst, C.CGPU_SLOTS)
        assert t.max_inst <= (100 if t.policy in (BURST, NATIVE) else C.CGPU_SLOTS)

    @invariant()
    def ceilings_are_in_force_under_burst_only(self):
        t = self.turn.t
        for i in self.live():
            slot = t.slot[i]
            assert not slot.ceiling or slot.weight <= slot.ceiling
            assert (t.ceiling_mask >> i & 1) == (t.policy == BURST and 0 < slot.ceiling < t.max_inst)
            assert slot.ceiling_budget_ns <= 7 * MS

    @invariant()
    def who_sleeps_is_known_to_be_idle(self):
        t = self.turn.t
        assert t.opened_mask == self.turn.opened_mask()
        for i in slots(t.asleep_mask):
            assert t.slot[i].idle_since_ns
        most = 1_000 * MS // 100 * (100 - t.prio_ratio)
        assert not t.prio_budgeted or t.prio_budget_ns <= max(most, 800 * MS)

    @invariant()
    def times_never_go_back_and_no_slot_gets_more_than_there_is(self):
        turn = self.turn
        now, total = {}, 0
        for i in self.live():
            st_ = turn.stat(i)
            for name in ("gpu_ns", "wait_ns", "throttled_ns", "turns", "overruns"):
                now[i, name] = getattr(st_, name)
            assert st_.gpu_ns + st_.wait_ns <= turn.now - 1_000 * MS
            assert st_.throttled_ns <= st_.wait_ns
            total += st_.gpu_ns - self.last.get((i, "gpu_ns"), 0)
        for key, value in now.items():
            assert value >= self.last.get(key, 0), f"{key} went back"
        since, native = self.last.get("now", 1_000 * MS), self.last.get("native", True)
        # What was counted late, at an acknowledgement, belongs to the time since the last count.
        slack = self.last.get("slack", 0) + (turn.now - since)
        if not native and turn.t.policy != NATIVE:
            assert total <= slack
        if turn.t.policy == NATIVE:
            assert not any(turn.stat(i).enforced for i in self.live())
        self.last = {**now, "now": turn.now, "native": turn.t.policy == NATIVE, "slack": max(0, slack - total)}


TestTurnMachine = TurnMachine.TestCase
TestTurnMachine.settings = settings(
    max_examples=min(120, int(os.environ.get("HYPOTHESIS_MAX_EXAMPLES", "120"))), stateful_step_count=50, deadline=None
)
