# SPDX-License-Identifier: MIT
"""A scenario -> the figures of each container."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from cgpu_common import effect, policies
from cgpu_common.model import KernelGpu, Slot
from cgpu_common.policies import Policy
from cgpu_common.share import allowed_pct

from .draw import Mark
from .figures import BUCKET_NS, Waits, fair_shares, low_of_rest_pct, max_min
from .gpu import Gpu, Stretch
from .model import MS, Change, Container, S, Scenario, Setup, in_digits
from .requests import Request, Requests, wrong
from .turns import Turns

AUTO_MS = 200.0
LINE_MOST = 500_000  # intervals of an exact time line
WHOLE_MS = 60_000.0


@dataclass(frozen=True)
class Alone:
    """The figures of a container that has the GPU to itself, under native, with the same seed."""

    share_pct: float
    p99_us: float | None


@dataclass(frozen=True)
class Got:
    """One container's figures. share_pct is of the wall clock: its kernels, and switches among its own processes.

    weight and highprio are the values at the end, after all changes."""

    container: Container
    weight: int
    highprio: bool
    allowed_pct: float | None
    share_pct: float
    works_per_s: float
    waits: Waits
    takeover_us: float | None  # from waking to running, 99 of 100; only with highprio
    takeover_throttled_us: float | None  # the same where it was frozen meanwhile
    buckets: tuple[int, ...]
    requests: Requests | None = None
    seen: tuple[Request, ...] = ()
    alone: Alone | None = None
    fair_pct: float | None = None

    @property
    def p99_of_alone_pct(self) -> float | None:
        """The latency of 99 of 100 requests, in percent of the latency alone."""
        if not self.alone or not self.alone.p99_us or not self.requests or self.requests.p99_us is None:
            return None
        return 100 * self.requests.p99_us / self.alone.p99_us

    @property
    def from_fair_pp(self) -> float | None:
        """How far its share is above its max-min fair share."""
        return None if self.fair_pct is None else self.share_pct - self.fair_pct


@dataclass(frozen=True)
class Result:
    """One GPU's figures. The policy and its values in setup, and slice_us, are the values at the end."""

    setup: Setup
    seconds: float
    slice_us: int
    got: tuple[Got, ...]
    idle_pct: float
    turns_per_s: float
    control_calls_per_s: float
    polls_per_s: float
    sched_thread_pct: float
    line_ms: tuple[float, float]
    line: tuple[Stretch, ...]
    notes: tuple[str, ...]
    idle_loss_pct: float = 0.0
    switch_pct: float = 0.0
    low_of_rest_pct: float | None = None
    marks: tuple[Mark, ...] = ()  # the changes during the run
    first_policy: int | None = None  # at the start; None: that in setup

    @property
    def from_fair_pp(self) -> float | None:
        """The largest distance of a container from its max-min fair share."""
        found = [abs(got.from_fair_pp) for got in self.got if got.from_fair_pp is not None]
        return max(found) if found else None


def at_the_end(setup: Setup, turns: Turns) -> Setup:
    t = turns.t
    return replace(setup, policy=int(t.policy), max_inst=int(t.max_inst), prio_ratio=int(t.prio_ratio))


def shown_slots(containers: Sequence[Container], turns: Turns) -> tuple[Slot, ...]:
    """The slots at the end of the run for cgpu-smi's rules, all with the GPU open."""
    found = [turns.t.slot[number] for number in turns.slot]
    return tuple(
        Slot(
            gpu=0,
            dir=one.name,
            id=one.name,
            weight=int(slot.weight),
            highprio=bool(slot.highprio),
            ceiling=int(slot.ceiling),
            stat={"opened": 1},
        )
        for one, slot in zip(containers, found, strict=True)
    )


def allowed(setup: Setup, slots: tuple[Slot, ...], slice_us: int) -> list[float | None]:
    """The upper bound of each while all containers have work, by cgpu-smi's rules."""
    free = max(0, setup.max_inst - sum(slot.weight for slot in slots))
    shown = KernelGpu(
        0,
        policy=setup.policy,
        max_inst=setup.max_inst,
        free_weight=free,
        prio_ratio=setup.prio_ratio,
        slice_us=slice_us,
        slots=slots,
    )
    return [allowed_pct(shown, slot) for slot in slots]


def round_ms(setup: Setup, containers: tuple[Container, ...], slice_us: int) -> float:
    """A round: each container has its slices once. 0 under a policy without slices."""
    facts = policies.of(setup.policy)
    if facts.control != "freeze" or facts.ceilings:  # with ceilings max_inst counts percentages, not slices in turn
        return 0.0
    slices = sum(one.weight for one in containers) if facts.weights else len(containers)
    return (setup.max_inst if facts.fixed_round else slices) * slice_us / 1000


def line_window(
    scenario: Scenario, containers: tuple[Container, ...], gpu: int, changes: Sequence[Change], slice_us: int = 0
) -> tuple[float, float]:
    """The default time line: up to a minute if anything changes during the run, else from its middle 200 ms, or a
    round and a tenth where that is longer: each container has a turn in it. @changes: of this GPU and these."""
    whole_ms = scenario.seconds * 1000
    moving = any(one.start_ms or one.stop_ms is not None or one.off_ms or one.churn_ms for one in containers)
    if moving or changes:
        return 0.0, min(whole_ms, WHOLE_MS)
    length_ms = max(AUTO_MS, 50 * ceil(1.1 * round_ms(scenario.gpus[gpu], containers, slice_us) / 50))
    return 0.5 * whole_ms, min(whole_ms, 0.5 * whole_ms + length_ms)


def change_notes(changes: Sequence[Change], end_ms: float) -> list[str]:
    found = []
    if any(one.at_ms < end_ms for one in changes):
        found.append("policy, slice, Weight and Allowed are the values at the end: there are changes during the run")
    for one in changes:
        if one.at_ms >= end_ms:
            owner = f" of {one.container}" if one.container else ""
            late = f"{one.node}{owner} is not changed, the run ends at {in_digits(end_ms)} ms"
            found.append(f"at {in_digits(one.at_ms)} ms: {late}")
    return found


def ceiling_notes(containers: Sequence[Container], policies_used: Sequence[int]) -> list[str]:
    """Ceilings that no policy of the run has."""
    if any(policies.of(one).ceilings for one in policies_used):
        return []
    why = effect.of_ceiling(policies_used[-1])
    return [f"{one.name}: ceiling {one.ceiling}: {why}" for one in containers if one.ceiling]


def change_marks(changes: Sequence[Change], end_ms: float) -> tuple[Mark, ...]:
    found = []
    for one in changes:
        if one.at_ms < end_ms:
            value = policies.of(one.value).name if one.node == "policy" else str(one.value)
            owner = f"{one.container}: " if one.container else ""
            found.append(Mark(one.at_ms, f"{owner}{one.node} {value}"))
    return tuple(found)


def trace(gpu: Gpu, line_ms: tuple[float, float], exact: bool) -> None:
    """Record the time line, exact or as finely as it can be drawn."""
    begin_ns, end_ns = (round(ms * MS) for ms in line_ms)
    if exact:
        gpu.trace(begin_ns, end_ns, 0, LINE_MOST)
    else:
        gpu.trace(begin_ns, end_ns, (end_ns - begin_ns) // 5000)


def traced(gpu: Gpu, line_ms: tuple[float, float], exact: bool, chosen: bool) -> tuple[list[Stretch], float, list[str]]:
    """The time line, its end in ms, and a note if that is sooner than wanted. CgpuError: a chosen one is too long."""
    line = gpu.traced()
    if not exact or len(line) <= LINE_MOST:
        return line, line_ms[1], []
    if chosen:
        raise wrong(f"the time line has more than {LINE_MOST} intervals", "--line-ms, a shorter one")
    del line[LINE_MOST:]
    end_ms = line[-1].end_ns / MS
    return line, end_ms, [f"the time line ends at {in_digits(end_ms)} ms: it has more than {LINE_MOST} intervals"]


def run_gpu(scenario: Scenario, number: int, line_ms: tuple[float, float] | None = None, exact: bool = False) -> Result:
    setup, containers = scenario.gpus[number], scenario.on_gpu(number)
    length_ns = round(scenario.seconds * S)
    gpu = Gpu(setup.profile, setup.personality, containers, length_ns, scenario.seed + number, setup.one_cpu)
    names = {one.name for one in containers}
    changes = [c for c in scenario.changes if (c.container in names if c.container else c.gpu == number)]
    turns = Turns(gpu, setup, containers, changes)
    chosen = line_ms is not None
    line_ms = line_ms or line_window(scenario, containers, number, changes, turns.slice_us)
    trace(gpu, line_ms, exact)
    turns.run(length_ns)
    line, end_ms, line_notes = traced(gpu, line_ms, exact, chosen)
    gpu.close()
    wall_ns, busy, held = gpu.now, gpu.busy(), gpu.held()
    counted = max(1, min(wall_ns, length_ns) // BUCKET_NS)
    setup, slots = at_the_end(setup, turns), shown_slots(containers, turns)
    most = allowed(setup, slots, turns.slice_us)
    used = [scenario.gpus[number].policy, *(one.value for one in changes if one.node == "policy")]
    got = [
        Got(
            container=one,
            weight=slots[i].weight,
            highprio=slots[i].highprio,
            allowed_pct=allowed_pct,
            share_pct=100 * held[i] / wall_ns,
            works_per_s=int(gpu.client(i).works) * S / wall_ns,
            waits=Waits.of(gpu, i),
            takeover_us=gpu.quantile_us(gpu.client(i).wake, 990) if slots[i].highprio else None,
            takeover_throttled_us=gpu.quantile_us(gpu.client(i).wake_frozen, 990) if slots[i].highprio else None,
            buckets=tuple(gpu.buckets(i, counted)),
            requests=Requests.of(gpu.requests(i), wall_ns) if one.serves else None,
            seen=tuple(gpu.requests(i)),
        )
        for i, (one, allowed_pct) in enumerate(zip(containers, most, strict=True))
    ]
    return Result(
        setup=setup,
        seconds=wall_ns / S,
        slice_us=turns.slice_us,
        got=tuple(got),
        idle_pct=100 * (1 - sum(busy) / wall_ns),
        turns_per_s=turns.turns * S / wall_ns,
        control_calls_per_s=gpu.calls * S / wall_ns,
        polls_per_s=turns.polls * S / wall_ns,
        sched_thread_pct=100 * turns.thread_ns / wall_ns,
        line_ms=(line_ms[0], end_ms),
        line=tuple(line),
        notes=(
            *turns.notes,
            *ceiling_notes(containers, used),
            *line_notes,
            *change_notes(changes, 1000 * scenario.seconds),
        ),
        idle_loss_pct=100 * gpu.idle_loss_ns / wall_ns,
        switch_pct=100 * gpu.switching_ns / wall_ns,
        first_policy=scenario.gpus[number].policy,
        marks=change_marks(changes, 1000 * scenario.seconds),
        low_of_rest_pct=low_of_rest_pct([ns / wall_ns for ns in held], [one.highprio for one in got]),
    )


def run_alone(scenario: Scenario, number: int, one: Container) -> Alone:
    """The container on that GPU without the others."""
    setup = replace(scenario.gpus[number], policy=Policy.NATIVE, max_inst=1)
    load = replace(one, gpu=0, weight=1, ceiling=0)
    got = run_gpu(Scenario((setup,), (load,), (), scenario.seconds, scenario.seed + number), 0, (0.0, 0.0)).got[0]
    return Alone(got.share_pct, got.requests.p99_us if got.requests else None)


def fair_of(result: Result, alone: Sequence[Alone]) -> list[float]:
    """The max-min fair shares: by weight where the policy has weights, and without priority under native."""
    policy, wants = result.setup.policy, [one.share_pct / 100 for one in alone]
    if not policies.of(policy).limits:
        return max_min(wants, [1] * len(wants))
    weights = [got.weight if policies.of(policy).weights else min(1, got.weight) for got in result.got]
    high = [got.highprio for got in result.got]
    return fair_shares(wants, weights, high, result.setup.prio_ratio / 100)


def beside_alone(scenario: Scenario, number: int, result: Result) -> Result:
    alone = [run_alone(scenario, number, got.container) for got in result.got]
    fair = fair_of(result, alone)
    got = [replace(got, alone=one, fair_pct=100 * part) for got, one, part in zip(result.got, alone, fair, strict=True)]
    return replace(result, got=tuple(got))


def run(
    scenario: Scenario, line_ms: tuple[float, float] | None = None, alone: bool = False, exact: bool = False
) -> list[Result]:
    """alone: run each container alone too, and compare. exact: the time line's gaps are not merged."""
    found = [run_gpu(scenario, number, line_ms, exact) for number in range(len(scenario.gpus))]
    return [beside_alone(scenario, number, one) for number, one in enumerate(found)] if alone else found
