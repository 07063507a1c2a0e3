# SPDX-License-Identifier: MIT
"""Shares of containers under each policy, in exact guest time (`make test-vm KIND=icount`).

A share is the time the simulated GPU spent on a container's work (busy_ns), checked against its completed works;
cgpu_km's own figures are not used. Tolerances, in percentage points (pp) of the GPU, over 2.4 s at slices of 8 ms:

    0.3   the window begins and ends anywhere in a turn (one slice / 2.4 s)
    0.4   3 in 100 control calls take 5 ms; where in them they act is not known (some 5 calls x 2 ms / 2.4 s)
    0.4   a switch costs 0.1 ms of a turn of 8 ms (at a share of 1/3; two turns beside each other lose the same)

So 1.5 pp holds with room, and each test differs from what any other policy would give by far more.
"""

from __future__ import annotations

import asyncio
import subprocess
import threading
import time

import pytest
from sharebox import BURST, FAIR, FIXED, NATIVE, NEAR, PREEMPTIVE, SOFT, WEIGHTED, look, near, put, shares, stat
from slicebox import CLIENTS

from cgpu_common.kernel_abi import S
from cgpu_common.netlink import NetlinkLink

pytestmark = pytest.mark.icount

SHORT_WORK = ("--busy-ms", 10, "--idle-ms", 130, "--depth", 8, "--poll-us", 2000)


def test_fair_gives_a_slice_to_each(tenants):
    """1/max_inst, whatever the weights and however many are there; an empty slice stays empty."""
    put("max_inst", 4)
    a, b, _unopened = tenants().start(), tenants(weight=2).start(), tenants()
    put("policy", FAIR)
    assert shares(a, b) == near(25, 25)
    b.stop()
    assert shares(a) == near(25)


def test_preemptive_divides_among_those_who_opened(tenants):
    """Equal parts whatever the weights. Containers that have not opened the GPU are skipped; a lone one has it all."""
    a, b, c = tenants().start(), tenants(weight=3).start(), tenants()
    put("policy", PREEMPTIVE)
    assert shares(a, b) == near(50, 50)
    c.start()
    assert shares(a, b, c) == near(100 / 3, 100 / 3, 100 / 3)
    b.stop()
    c.stop()
    calls = stat("control_calls")
    assert shares(a, seconds=1, settle=0.1)[0] > 99
    assert stat("control_calls") - calls < 10, "without contention no control is used"


def test_weighted_ratio_holds_and_changes_live(tenants):
    a, b = tenants().start(), tenants(weight=2).start()
    put("policy", WEIGHTED)
    one, two = shares(a, b)
    assert [one, two] == near(100 / 3, 200 / 3)
    # 0.8 pp of 33: the edges of the window and the slow calls, on the smaller side.
    assert two / one == pytest.approx(2, rel=0.04)
    b.write("weight", 4)
    # The turn under way ends as it began; from the next on it is 1:4.
    assert shares(a, b, settle=0.05) == near(20, 80)
    put("max_inst", 8)
    unopened = tenants(weight=3)
    assert unopened.box.stat("opened") == 0
    assert shares(a, b) == near(100 / 8, 400 / 8), "its slices are consumed"


def test_fixed_caps_the_busy_and_the_lone(tenants):
    a, b = tenants(weight=2).start(), tenants(weight=3).start()
    put("policy", FIXED)
    assert shares(a, b) == near(25, 37.5)
    b.stop()
    assert shares(a) == near(25)


def test_a_ceiling_bounds_the_lone_and_leaves_the_rest(tenants):
    """2 of 8 at most. What the other one does is unknown, so overlaps are charged in full: up to 3 pp less."""
    put("policy", BURST)
    a, b = tenants(ceiling=2).start(), tenants()
    began, throttled = time.monotonic_ns(), a.box.stat("throttled_ns")
    assert shares(a) == near(25)
    part = (a.box.stat("throttled_ns") - throttled) / (time.monotonic_ns() - began)
    assert [100 * part] == near(75, within=3), "the rest it waited for its ceiling, but for the calls"
    b.start()
    assert b.box.stat("throttled_ns") == 0
    got = shares(a, b)
    assert 25 - 3 - NEAR < got[0] < 25 + NEAR
    assert sum(got) > 95
    a.write("ceiling", 0)
    assert shares(a, b) == near(50, 50)


def test_a_set_of_weight_and_ceiling_gives_no_new_budget(tenants):
    """A full budget is 7 ms: with each of a hundred in a second it would have all of the GPU."""
    put("policy", BURST)
    a = tenants(ceiling=2).start()
    both, stop, done = {0: {S.WEIGHT: 1, S.CEILING: 2}}, threading.Event(), []

    def again():
        while not stop.wait(0.01):
            asyncio.run(NetlinkLink().set(a.box.name, 0, both))
            done.append(both)

    thread = threading.Thread(target=again)
    thread.start()
    try:
        assert shares(a) == near(25)
    finally:
        stop.set()
        thread.join()
    assert len(done) > 50


def test_soft_is_about_equal_and_native_is_not(tenants):
    """Three processes against one: the driver gives each of them a part, soft gives each container one."""
    a, b = tenants().start(), tenants().start("--processes", 3)
    put("policy", NATIVE)
    one, three = shares(a, b)
    # The switches cost a tenth of each timeslice of 1 ms.
    assert three / one == pytest.approx(3, rel=0.1) and one + three > 85
    put("policy", SOFT)
    one, three = shares(a, b)
    # No ratio is promised; a quarter off would no longer be "about".
    assert three / one == pytest.approx(1, rel=0.25) and one + three > 70


@pytest.mark.parametrize("policy", [FAIR, PREEMPTIVE, WEIGHTED, FIXED, SOFT])
def test_weight_zero_is_frozen(tenants, policy):
    a, b = tenants().start(), tenants(weight=2).start()
    put("policy", policy)
    a.write("weight", 0)
    got = shares(a, b, seconds=1)
    assert got[0] == 0
    # Under 0 and 3 the other one is limited to its part, else it has everything.
    alone = {FAIR: 12.5, FIXED: 25}.get(policy, 100)
    assert got[1] == pytest.approx(alone, abs=2.5), "a second only"
    put("policy", NATIVE)
    assert shares(a, b, seconds=1)[0] > 40, "native ignores weights"


def test_highprio_has_its_ceiling_and_all_of_an_idle_gpu(tenants):
    high, a = tenants(highprio=1).start(), tenants().start()
    put("policy", PREEMPTIVE)
    put("prio_ratio", 60)
    got = shares(high, a)
    # Within its quota the others run beside it at a sixteenth of its timeslice: it has 60 % less a few.
    assert 50 < got[0] < 60 + NEAR
    assert got[1] > 40 - NEAR
    a.stop()
    assert shares(high, seconds=1)[0] > 99, "no quota while no other container has opened the GPU"


# Switches take a third of the time left by the quota at timeslices of 0.2 ms; five processes and more have the
# driver's timeslice, which is five times as long.
@pytest.mark.parametrize(("processes", "least", "most"), [(4, 13, 30), (12, 16, 20 + NEAR)])
def test_processes_take_no_time_from_highprio(tenants, processes, least, most):
    """Few run beside it at short timeslices; more than four have the time left by the quota and no more."""
    high, forks = tenants(highprio=1).start(), tenants().start("--processes", processes)
    put("policy", PREEMPTIVE)
    put("prio_ratio", 80)
    got = shares(high, forks)
    assert 65 < got[0] < 80 + NEAR
    assert least < got[1] < most


def test_what_an_idle_highprio_leaves_is_the_others(tenants):
    """10 ms of work in each 140: it has them at once, the other one has the rest.

    Not in each 100, the quota's own period: in step with that it would all the time, or never, wake in the part
    of it for which a high-priority container that could have run is frozen (docs/reference/policies.md, section 5).
    """
    high, a = tenants(highprio=1).start(*SHORT_WORK), tenants().start()
    put("policy", WEIGHTED)
    got = shares(high, a)
    # 10/140; at the worst of the phases, one in five, half of its work waits for the next period.
    assert got[0] == pytest.approx(100 / 14, abs=NEAR)
    # The rest is lost in switches between the two.
    assert sum(got) > 90


# ---- faults of a neighbour: no other container loses its share ----


def test_a_neighbour_that_does_not_let_itself_be_preempted(tenants):
    """50 ms kernels that ignore preemption overrun a slice of 8 ms six times. A debt is carried up to a round, 16 ms:
    the neighbour has 50 ms, then owes two slices and more, and the other one runs for three at least.
    """
    good, bad = tenants(), tenants()
    put("policy", PREEMPTIVE)
    good.start()
    bad.load = bad.box.simload("--seconds", 0, "--kernel-us", 50_000, "--depth", 4, "--stubborn", "--interval", 1000)
    bad.load.stdout.readline()
    time.sleep(1.0)
    begin, before = look()
    time.sleep(4.0)
    end, after = look()
    pid = good.load.pid
    share = 100 * (after[pid][0] - before[pid][0]) / 1e9 / (end - begin)
    assert share > 100 * 3 * 8 / (3 * 8 + 50 + 8) - NEAR


def test_a_neighbour_that_starts_and_dies_all_the_time(tenants):
    """New contexts, each with work: time is divided by container."""
    good, bad = tenants(), tenants()
    put("policy", PREEMPTIVE)
    good.start()
    script = 'while :; do timeout -s KILL 0.2 "$0" --dev "$1" --seconds 0 --kernel-us 2000 --depth 8 >/dev/null; done'
    bad.load = subprocess.Popen(["sh", "-c", script, CLIENTS / "simload", bad.box.dev])
    try:
        time.sleep(0.5)
        begin, before = look()
        time.sleep(4.0)
        end, after = look()
    finally:
        bad.load.kill()
        bad.load.wait()
        bad.load = None
        time.sleep(0.5)
    pid = good.load.pid
    share = 100 * (after[pid][0] - before[pid][0]) / 1e9 / (end - begin)
    assert share > 50 - NEAR


def test_a_neighbour_whose_channels_fault(tenants):
    """A page fault takes the neighbour's TSG down; again and again."""
    good, bad = tenants(), tenants()
    put("policy", PREEMPTIVE)
    good.start()
    begin, before = look()
    faults = 0
    while time.monotonic() < begin + 4.0:
        with bad.box.client() as client:
            channel = client.gpu(0).space().group().channel()
            channel.submit(kernel_ns=100_000, sem_va=1 << 39)
            until_fault = time.monotonic() + 0.5
            while not channel.group.fault() and time.monotonic() < until_fault:
                time.sleep(0.002)
            faults += bool(channel.group.fault())
    end, after = look()
    assert faults > 3
    pid = good.load.pid
    share = 100 * (after[pid][0] - before[pid][0]) / 1e9 / (end - begin)
    assert share > 50 - NEAR
