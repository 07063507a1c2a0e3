# SPDX-License-Identifier: MIT
"""The simulated shell's acknowledgements to the core: failed calls, and the times of their beginning."""

from __future__ import annotations

import pytest

from cgpu_cli.sim.gpu import Gpu
from cgpu_cli.sim.model import MS, Container, Personality, S, Setup, profile
from cgpu_cli.sim.turns import Turns

A100 = profile("a100")


def shell(policy: int, containers: tuple[Container, ...], own: Personality, prio_ratio: int = 80) -> Turns:
    restarts = bool(own.disable_needs_restart)
    setup = Setup(A100, policy, 10_000, 20, prio_ratio=prio_ratio, freeze_restart=restarts, personality=own)
    return Turns(Gpu(A100, own, containers, 12 * S, 1), setup, containers)


@pytest.mark.parametrize("policy", [0, 3])
def test_a_cap_holds_where_restarts_fail(policy: int) -> None:
    """27 in 100 fail, on a driver that needs one for a freeze. A cap of 5 % was 15.8 % while they counted as done."""
    containers = (Container("a", 1, kernel_us=500, depth=32), Container("b", 2, kernel_us=500, depth=32))
    turns = shell(policy, containers, Personality(err40_pct=27, disable_needs_restart=1, tail_pct=0))
    turns.run(S)
    turns.gpu.mark()
    turns.run(11 * S)
    for got, weight, slot in zip(turns.gpu.held(), (1, 2 if policy else 1), turns.slot, strict=True):
        assert 0.85 * weight / 20 <= got / (10 * S) <= 1.05 * weight / 20
        assert turns.t.slot[slot].failed > 10, "and it is in the stat"


@pytest.mark.parametrize(("high", "other"), [(64, 1), (1, 64)])
def test_setting_timeslices_is_no_slow_call(high: int, other: int) -> None:
    """For 64 TSGs it takes 19 ms before any container is thawed or frozen."""
    load = {"kernel_us": 500, "depth": 32}
    containers = (
        Container("high", highprio=True, processes=high, **load),  # type: ignore[arg-type]
        Container("a", processes=other, **load),  # type: ignore[arg-type]
        Container("b", **load),  # type: ignore[arg-type]
    )
    turns = shell(1, containers, Personality(tail_pct=0), prio_ratio=50)
    many = 0 if high > 1 else 1

    def new_tsg() -> None:
        turns.lib.cgpu_sched_set_channels(turns.t, turns.slot[many], 64, 64, turns._clock())

    for number in range(1, 150):
        turns.at(number * 33 * MS, new_tsg)
    for number in range(len(containers)):
        turns._open(number)
    turns.run(5 * S)
    assert [turns.t.slot[slot].preempt_slow for slot in turns.slot] == [0, 0, 0]
    assert turns.t.slow_thaws == 0


@pytest.mark.parametrize("card", ["a100", "h200", "t4"])
@pytest.mark.parametrize("policy", [0, 3])
def test_a_small_full_house_loses_its_switches_only(policy: int, card: str) -> None:
    """Two slices, both owned and busy: each has its half, less the context switches."""
    containers = (Container("a", kernel_us=500, depth=64), Container("b", kernel_us=500, depth=64))
    gpu = Gpu(profile(card), Personality(), containers, 11 * S, 1)
    turns = Turns(gpu, Setup(profile(card), policy, 5000, 2), containers)
    turns.run(S)
    gpu.mark()
    turns.run(11 * S)
    part = (1 - profile(card).ctxsw_us / 5000) / 2
    for got in gpu.held():
        assert part - 0.002 <= got / (10 * S) <= 0.5
