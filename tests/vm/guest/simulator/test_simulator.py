# SPDX-License-Identifier: MIT
"""The prediction of `cgpu simulate` matches the containers' shares within 1 pp each (`make test-vm KIND=icount`).

The machine: the real module on the simulated GPU, by what that GPU spent on each. The simulator: the module's core on
its own engine, with the machine's control (what a call takes, and how much of it the processor is taken), its source of
the run state and, for short queues, with the gap that one leaves between two kernels while the other is frozen. Nothing
else is taken over. Of the machine one run of some seconds, of the simulator the mean of several.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace

import pytest
from runstatebox import state
from sharebox import (
    FIXED,
    KERNEL_US,
    MAX_INST,
    PREEMPTIVE,
    SLICE_US,
    WEIGHTED,
    Looked,
    Tenant,
    crowd,
    look,
    put,
    stat,
)
from slicebox import REPO

pytestmark = pytest.mark.icount

WITHIN_PP = 1.0
SETTLE_S = 0.3
WINDOW_S = 2.4
LEARNT_S = 8.0  # by then what one with high priority used before it worked all the time makes no difference
BURSTS_S = 4.1  # of the high-priority one's 82 ms and of the quota's 100 a whole number each
SEEDS = (1, 2)
PRIO_RATIO = 80
SECOND_NS = 10**9
PLAIN = {"kernel_us": KERNEL_US, "depth": 64}  # what Tenant.start() does by itself
SHORT = ("--kernel-us", 100, "--depth", 1, "--poll-us", 40)
BURSTS = ("--kernel-us", 1000, "--depth", 4, "--busy-ms", 15, "--idle-ms", 67, "--poll-us", 100)


@pytest.fixture
def tenants(monkeypatch):
    monkeypatch.setenv("CGPU_CACHE", str(REPO / "build/sim"))  # built with the tools
    with crowd() as make:
        yield make


@dataclass
class Seen:
    """The machine's figures for a window."""

    shares: list[float]
    call_us: int
    spin_us: int
    run_state: str


def percent(tenant: Tenant, begin: Looked, end: Looked) -> float:
    return 100 * tenant.spent(begin, end)[0] / 1e9 / (end[0] - begin[0])


def machine(*who: Tenant, round_slices: int = 0, settle_s: float = SETTLE_S, window_s: float = WINDOW_S) -> Seen:
    """Over whole rounds, or over BURSTS_S."""
    time.sleep(settle_s)
    round_s = round_slices * SLICE_US / 1e6
    begin, calls, spun = look(), stat("control_calls"), stat("thread_cpu_ns")
    time.sleep(round(window_s / round_s) * round_s if round_slices else BURSTS_S)
    end, calls, spun = look(), stat("control_calls") - calls, stat("thread_cpu_ns") - spun
    shares = [percent(tenant, begin, end) for tenant in who]
    # A call spins twice. Where timeslices do it all there is none.
    return Seen(shares, stat("control_p50_us"), round(spun / calls / 2 / 1000) if calls else 0, state()[0])


def simulator(policy: int, seen: Seen, *loads: dict[str, float], settle_s: float = 1) -> list[float]:
    """Each is a container of cgpu_cli.sim.model. Imported here: every boot reads this file, one runs it."""
    from cgpu_cli.sim.gpu import Gpu
    from cgpu_cli.sim.model import Container, Personality, Setup, profile
    from cgpu_cli.sim.turns import Turns

    containers = [Container(f"c{n}", **load) for n, load in enumerate(loads)]
    card = profile(os.environ["PROFILE"] or "t4")
    card = replace(card, control_us=seen.call_us, control_spin_us=seen.spin_us)
    setup = Setup(card, policy, SLICE_US, MAX_INST, PRIO_RATIO, run_state=seen.run_state, one_cpu=True)
    got = [0.0] * len(containers)
    for seed in SEEDS:
        gpu = Gpu(card, Personality(), containers, 14 * SECOND_NS, seed, one_cpu=True)
        turns = Turns(gpu, setup, containers)
        turns.run(round(settle_s * SECOND_NS))
        gpu.mark()
        begin = gpu.now
        turns.run(begin + round(BURSTS_S * SECOND_NS))
        for i, busy in enumerate(gpu.busy()):
            got[i] += 100 * busy / (gpu.now - begin) / len(SEEDS)
    return got


def differences(what: str, seen: Seen, foretold: list[float]) -> list[str]:
    """In words, those beyond WITHIN_PP; all of them are printed."""
    pairs = list(zip(seen.shares, foretold, strict=True))
    text = "  ".join(f"{one:.2f} ({other:.2f})" for one, other in pairs)
    print(f"{what}: {text}; a call {seen.call_us} us, 2 x {seen.spin_us} of the processor")
    return [f"{what}: {text}"] if any(abs(one - other) > WITHIN_PP for one, other in pairs) else []


def rounds(policy: int, weights: list[int]) -> int:
    return {PREEMPTIVE: len(weights), WEIGHTED: sum(weights), FIXED: MAX_INST}[policy]


def of_all(shares: list[float]) -> list[float]:
    return [100 * share / sum(shares) for share in shares]


def weighted(load: dict[str, float], weights: list[int]) -> list[dict[str, float]]:
    return [load | {"weight": weight} for weight in weights]


@pytest.mark.parametrize("weights", [[1, 2], [3, 2, 1]], ids=lambda mix: ":".join(map(str, mix)))
def test_queues_that_never_empty(tenants, weights):
    who = [tenants(weight=weight).start() for weight in weights]
    wrong = []
    for policy in (PREEMPTIVE, WEIGHTED, FIXED):
        put("policy", policy)
        seen = machine(*who, round_slices=rounds(policy, weights))
        assert min(seen.shares) > 5, "every container runs"
        wrong += differences(f"policy {policy}", seen, simulator(policy, seen, *weighted(PLAIN, weights)))
    assert not wrong


def test_short_queues(tenants):
    """Kernels of 100 us, one at a time. The client and the doorbell cause the gap between two kernels. It is measured
    on one container while the other, which polls as often, is frozen. Each look of a client costs the machine that runs
    this test: fifty rounds, in which the two are as near as in a hundred.
    """
    weights = [1, 2]
    one, two = (tenants(weight=weight).start(*SHORT) for weight in weights)
    put("policy", PREEMPTIVE)
    two.write("weight", 0)
    begin = look()
    time.sleep(0.5)
    gap_us = 100 * (100 / percent(one, begin, look()) - 1)
    assert 5 < gap_us < 100
    two.write("weight", weights[1])
    put("policy", WEIGHTED)
    seen = machine(one, two, round_slices=sum(weights), window_s=WINDOW_S / 2)
    load = {"kernel_us": 100, "depth": 1, "gap_us": gap_us, "gap_spread_us": gap_us / 2}
    foretold = simulator(WEIGHTED, seen, *weighted(load, weights))
    print(f"of the clock: {seen.shares}, foretold {foretold}")
    seen.shares, foretold = of_all(seen.shares), of_all(foretold)
    assert not differences(f"gap {gap_us:.0f} us", seen, foretold)


def test_high_priority_beside_others(tenants):
    """It works 15 ms in 82, then all the time: by its short bursts the others have the rest, then the quota holds."""
    high, low = tenants(highprio=1), tenants().start()
    bursts, wrong = {"kernel_us": 1000, "depth": 4, "on_ms": 15, "off_ms": 67}, []
    put("policy", WEIGHTED)
    put("prio_ratio", PRIO_RATIO)
    for what, load, options, settle_s in ("bursts", bursts, BURSTS, 1), ("always", PLAIN, (), LEARNT_S):
        high.stop()
        high.start(*options)
        seen = machine(high, low, settle_s=settle_s)
        foretold = simulator(WEIGHTED, seen, load | {"highprio": True}, PLAIN, settle_s=settle_s)
        wrong += differences(what, seen, foretold)
    assert not wrong
