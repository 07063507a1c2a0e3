# SPDX-License-Identifier: MIT
"""One cell of make bench-sched in the simulator: a scenario under a rule, as a row of figures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from beside import RULES
from rivals import Rule
from scenarios import PERSONALITIES, SCENARIOS, Scenario

from cgpu_cli.sim import figures
from cgpu_cli.sim.gpu import Gpu, Stretch
from cgpu_cli.sim.model import MS, US, Container, Personality, S, Setup, profile
from cgpu_cli.sim.requests import Request, Requests
from cgpu_cli.sim.run import Waits
from cgpu_cli.sim.turns import Turns
from cgpu_common import policies
from cgpu_common.exits import CgpuError

# Fields of every row, from the simulator or a machine; the rest of a row may be missing.
FIELDS = (
    "scenario", "where", "rule", "policy", "control", "profile", "personality", "ratio_error_pct", "share_error_1s_pp",
    "share_bound_1s_pp", "aggregate_pct", "wait_p99_us", "takeover_us", "cap_excess_pp", "simulated",
)  # fmt: skip
OURS = "ours"
WARM_NS = 1 * S
SLACK_PP = 0.2
CONTROLS = {0: "freeze", 1: "freeze", 2: "freeze", 3: "freeze", 4: "timeslice", 5: None, 6: "freeze"}
NAMED_CARDS = ("a100", "h200", "t4")  # of a scenario that names none
TURNS = (0, 1, 2, 3, 6)  # by freezes, in slices
WORSE_IS_MORE = ("ratio_error_pct", "wait_p50_us", "wait_p99_us", "takeover_us", "takeover_throttled_us", "reclaim_us",
                 "cap_excess_pp", "sched_thread_cpu_pct", "request_p50_us", "request_p99_us",
                 "request_p99_of_alone_pct", "idle_loss_pct", "switch_pct", "share_from_fair_pp",
                 "run_state_cpu_pct")  # fmt: skip
WORSE_IS_LESS = ("aggregate_pct", "vs_driver_pct", "low_of_rest_pct", "part_got_pct", "least_second_pct", "low_pct")
# There is none in a run in which high priority did not use up its quota.
NOT_IN_EVERY_RUN = ("takeover_throttled_us",)

Scheduler = Turns | Rule


@dataclass(frozen=True)
class Cell:
    """A scenario, the card, and the scheduler: a policy of ours or a rival."""

    scenario: Scenario
    card: str
    rule: str
    policy: int | None = None
    slice_us: int | None = None

    @property
    def name(self) -> str:
        who = f"policy-{self.policy}" if self.rule == OURS else self.rule
        words = [self.scenario.name, self.scenario.personality, self.card, who, str(self.slice_us or "")]
        return "-".join(word.replace(" ", "-").replace(":", "-").replace("%", "pct") for word in words if word)

    def setup(self) -> Setup:
        personality = PERSONALITIES[self.scenario.personality]
        policy = 5 if self.policy is None else self.policy
        trace = self.scenario
        return Setup(
            profile(self.card), policy, self.slice_us, trace.max_inst, trace.prio_ratio,
            freeze_restart=bool(personality.disable_needs_restart), personality=personality,
        )  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """A row, and the containers' stretches of running."""

    row: dict[str, Any]
    line: tuple[Stretch, ...] = ()
    line_ms: tuple[float, float] = (0.0, 0.0)
    buckets: tuple[tuple[int, ...], ...] = ()
    requests: tuple[tuple[Request, ...], ...] = ()


@dataclass(frozen=True)
class Alone:
    """The parts of the time that a load's kernels run and that it holds the card when it has it alone."""

    busy: float
    held: float


@cache
def alone(card: str, load: Container) -> Alone:
    """From start to stop."""
    load = replace(load, start_ms=0.0, stop_ms=None, churn_ms=0.0)
    gpu = Gpu(profile(card), Personality(), (load,), 2 * S, 1)
    gpu.advance(2 * S)
    return Alone(gpu.busy()[0] / gpu.now, gpu.held()[0] / gpu.now)


@cache
def felt_alone(card: str, load: Container, seed: int, length_ns: int) -> tuple[float, Requests]:
    """The same measurement without the others: the part of the time it holds the card, and its requests."""
    gpu = Gpu(profile(card), Personality(), (load,), length_ns + 2 * S, seed)
    who = RULES[0](gpu, (load,))
    who.run(WARM_NS)
    gpu.mark()
    began = gpu.now
    who.run(WARM_NS + length_ns)
    gpu.close()
    wall = gpu.now - began
    return gpu.held()[0] / wall, Requests.of(gpu.requests(0), wall)


def requests_of(cell: Cell, gpu: Gpu, seed: int, wall: int) -> dict[str, float | None]:
    """Of the container with the p99 furthest from its value alone; only those with high priority, if there are any."""
    loads = cell.scenario.containers
    first = [i for i, one in enumerate(loads) if one.serves and one.highprio]
    rows = []
    for number in first or [i for i, one in enumerate(loads) if one.serves]:
        found = Requests.of(gpu.requests(number), wall)
        alone_us = felt_alone(cell.card, loads[number], seed, cell.scenario.length_ns)[1].p99_us
        of_alone = 100 * found.p99_us / alone_us if found.p99_us and alone_us else None
        rows.append({"request_p50_us": found.p50_us, "request_p99_us": found.p99_us,
                     "request_p99_of_alone_pct": of_alone})  # fmt: skip
    empty = dict.fromkeys(("request_p50_us", "request_p99_us", "request_p99_of_alone_pct"))
    return max(rows, key=furthest, default=empty)


def furthest(row: dict[str, float | None]) -> float:
    """One of which no request ended is the furthest of all."""
    return math.inf if row["request_p99_us"] is None else row["request_p99_of_alone_pct"] or 0.0


def from_fair(cell: Cell, seed: int, shares: Sequence[float]) -> float | None:
    """The largest distance from a max-min fair share, in points. Without a policy of ours all count the same."""
    if cell.scenario.changes:
        return None
    loads = cell.scenario.containers
    wants = [felt_alone(cell.card, one, seed if one.serves else 1, cell.scenario.length_ns)[0] for one in loads]
    by_weight = cell.rule == OURS and policies.of(cell.policy).weights
    high = [one.highprio and cell.rule == OURS and policies.of(cell.policy).limits for one in loads]
    weights = [one.weight if by_weight else 1 for one in loads]
    fair = figures.fair_shares(wants, weights, high, cell.scenario.prio_ratio / 100)
    return max(100 * abs(share - part) for share, part in zip(shares, fair, strict=True))


def most(cell: Cell) -> int:
    """The container with the most weight, the last of several."""
    loads = cell.scenario.containers
    return max(range(len(loads)), key=lambda number: (loads[number].weight, number))


def of_its_part(cell: Cell, held: Sequence[int], found: Sequence[Sequence[int]], wall: int) -> dict[str, float | None]:
    """What the container with the most weight got of its part, or of its demand if that is less; and in a second."""
    low = [ns for ns, one in zip(held, cell.scenario.containers, strict=True) if not one.highprio]
    empty = {"part_got_pct": None, "least_second_pct": None, "low_pct": 100 * sum(low) / wall if low else None}
    if cell.scenario.saturating or cell.scenario.changes or len(low) < len(held):
        return empty
    number = most(cell)
    demand = felt_alone(cell.card, cell.scenario.containers[number], 1, cell.scenario.length_ns)[0]
    part = min(parts(cell)[number], demand)
    seconds = [window[number] / S for window in found]
    return empty | {"part_got_pct": 100 * held[number] / wall / part, "least_second_pct": 100 * min(seconds) / part}


def felt(cell: Cell, gpu: Gpu, seed: int, wall: int) -> dict[str, Any]:
    """Figures of users' experience."""
    shares = [ns / wall for ns in gpu.held()]
    bars = cell.scenario.bars
    return {
        **requests_of(cell, gpu, seed, wall),
        "bar_request_p99": bars.request_p99 and bars.enforced and cell.rule == OURS and cell.policy in (1, 2),
        "low_of_rest_pct": figures.low_of_rest_pct(shares, [one.highprio for one in cell.scenario.containers]),
        "idle_loss_pct": 100 * gpu.idle_loss_ns / wall,
        "switch_pct": 100 * gpu.switching_ns / wall,
        "share_from_fair_pp": from_fair(cell, seed, shares),
    }


def progress(card: str, containers: Sequence[Container], busy: Sequence[int], wall_ns: int) -> float:
    """Work done, each container's in units of what it would have done alone."""
    parts = [ns / wall_ns / alone(card, one).busy for one, ns in zip(containers, busy, strict=True)]
    return sum(parts)


def scheduler(cell: Cell, gpu: Gpu) -> Scheduler:
    if cell.rule == OURS:
        return Turns(gpu, cell.setup(), cell.scenario.containers, cell.scenario.changes)
    kind = next(one for one in RULES if one.name == cell.rule)
    return kind(gpu, cell.scenario.containers, cell.slice_us)


def weights(cell: Cell) -> list[int]:
    """The ratio that the rule promises: policies 0 and 1 promise equal parts."""
    same = cell.rule == OURS and cell.policy in (0, 1)
    return [1 if same else one.weight for one in cell.scenario.containers]


def parts(cell: Cell) -> list[float]:
    """Each container's part: of the wall clock under 0 and 3, else of the time of all."""
    promised = weights(cell)
    whole = cell.scenario.max_inst if capped(cell) else sum(promised)
    return [weight / whole for weight in promised]


def due(cell: Cell) -> list[float]:
    """The part of parts() that a load can hold: a queue that runs empty between kernels leaves holes in its turns.

    Switches among its own processes are no holes: this is compared with held time.
    """
    if not capped(cell):
        return parts(cell)
    return [part * alone(cell.card, one).held for part, one in zip(parts(cell), cell.scenario.containers, strict=True)]


def capped(cell: Cell) -> bool:
    return cell.rule == OURS and cell.policy in (0, 3)


def promises(cell: Cell) -> bool:
    """Whether the rule promises a ratio: ours under 0 to 3, every rival."""
    return cell.scenario.saturating and (cell.rule != OURS or cell.policy in (0, 1, 2, 3))


def ratio_error(cell: Cell, who: Scheduler, held: Sequence[int]) -> float | None:
    if not promises(cell):
        return None
    found = figures.whole_rounds(who.rounds, WARM_NS, cell.scenario.length_ns)
    if found:
        held = [after - before for before, after in zip(found[0][1], found[1][1], strict=True)]
    return figures.ratio_error_pct(held, weights(cell))


def share_error(cell: Cell, found: Sequence[Sequence[int]], slice_us: int) -> tuple[float | None, float | None]:
    if not promises(cell):
        return None, None
    part = due(cell)
    turns = [slice_us * US * weight for weight in weights(cell)]
    worst = figures.worst_share_error(found, part, figures.share_bounds_pp(turns, part, SLACK_PP), capped(cell))
    if not worst:
        return None, None
    return worst[0], worst[1] if slice_us else None


def cap_excess(cell: Cell, found: Sequence[Sequence[int]]) -> float | None:
    """A container with high priority has no cap."""
    if not capped(cell):
        return None
    caps = [1.0 if one.highprio else part for one, part in zip(cell.scenario.containers, parts(cell), strict=True)]
    return figures.cap_excess_pp(found, caps)


def waits(cell: Cell, gpu: Gpu) -> Waits:
    """Of the one with high priority if there is one, else the worst of all."""
    high = cell.scenario.high
    everyone = [Waits.of(gpu, i) for i in range(len(cell.scenario.containers))]
    return everyone[high] if high is not None else max(everyone, key=lambda one: one.p99_us or 0.0)


def coming_and_going(cell: Cell, gpu: Gpu) -> dict[str, float | None]:
    """How long until one that wakes or joins runs, and until the others have what it leaves. The worst of all."""
    one = cell.scenario.high
    if one is None:
        one = next((i for i, c in enumerate(cell.scenario.containers) if c.start_ms), None)
    if one is None:
        return {"takeover_us": None, "takeover_throttled_us": None, "reclaim_us": None}
    client = gpu.client(one)
    worst = {"takeover_us": client.wake, "takeover_throttled_us": client.wake_frozen, "reclaim_us": client.reclaim}
    if cell.scenario.high is None:
        worst["takeover_us"] = client.wake if client.wake.count else client.wake_frozen
    return {name: hist.max_ns / US if hist.count else None for name, hist in worst.items()}


def controls(cell: Cell) -> str | None:
    if cell.rule != OURS:
        return next(one for one in RULES if one.name == cell.rule).control
    found = CONTROLS[cell.policy or 0]
    return "freeze,timeslice" if found == "freeze" and cell.scenario.high is not None else found


def head(cell: Cell) -> dict[str, Any]:
    return {
        "scenario": cell.scenario.name,
        "where": "sim",
        "rule": cell.rule,
        "policy": cell.policy,
        "control": controls(cell),
        "profile": cell.card,
        "personality": cell.scenario.personality,
        **dict.fromkeys(FIELDS[7:-1]),
        "simulated": True,
        "slice_us": cell.slice_us,
        "default_slice": cell.rule == OURS and cell.slice_us is None,
    }


def reading_ns(who: Scheduler) -> int:
    """The thread's time for reading the run state."""
    return who.source.spent_ns if isinstance(who, Turns) and who.source else 0


def measure(cell: Cell, seed: int, draw: bool = False, own: Personality | None = None) -> Measured:
    """own: on a driver other than the scenario's."""
    containers = cell.scenario.containers
    own = own or PERSONALITIES[cell.scenario.personality]
    length_ns = cell.scenario.length_ns
    gpu = Gpu(profile(cell.card), own, containers, length_ns + 2 * S, seed)
    try:
        who = scheduler(cell, gpu)
    except CgpuError as err:
        return Measured(head(cell) | {"refused": str(err)})
    who.run(WARM_NS)
    gpu.mark()
    began, calls, turns, spun, read = gpu.now, gpu.calls, who.turns, who.thread_ns, reading_ns(who)
    moving = any(one.start_ms or one.off_ms for one in containers)
    line_ms = (1000.0, 11_000.0) if cell.scenario.name == "join and leave" else (5000.0, 5400.0 if moving else 5200.0)
    if draw:
        gpu.trace(round(line_ms[0] * MS), round(line_ms[1] * MS), round((line_ms[1] - line_ms[0]) * MS / 5000))
    who.run(WARM_NS + length_ns)
    busy, held, wall = gpu.busy(), gpu.held(), gpu.now - began
    calls, turns, read = gpu.calls - calls, who.turns - turns, reading_ns(who) - read
    spun = who.thread_ns - spun - read
    gpu.close()
    what_is_felt = felt(cell, gpu, seed, wall)
    seen = tuple(tuple(gpu.requests(i)) for i in range(len(containers)))
    buckets = [gpu.buckets(i, length_ns // figures.BUCKET_NS) for i in range(len(containers))]
    found = figures.windows(buckets)
    wait = waits(cell, gpu)
    # Ratios are over whole rounds: up to half a round beyond the end.
    who.run(WARM_NS + length_ns + S)
    slice_us = who.slice_us
    error, bound = share_error(cell, found, slice_us)
    done = progress(cell.card, containers, busy, wall)
    row = head(cell) | {
        "ratio_error_pct": ratio_error(cell, who, held),
        "share_error_1s_pp": error,
        "share_bound_1s_pp": bound,
        "aggregate_pct": 100 * done if cell.scenario.saturating and not capped(cell) else None,
        "wait_p99_us": wait.p99_us,
        **coming_and_going(cell, gpu),
        "cap_excess_pp": cap_excess(cell, found),
        "slice_us": slice_us or None,
        "wait_p50_us": wait.p50_us,
        "busy_pct": 100 * sum(busy) / wall,
        "vs_driver_pct": 100 * done,  # against one alone until the driver's own is known
        "turns_per_s": turns * S / wall,
        "control_calls_per_s": calls * S / wall,
        "sched_thread_cpu_pct": 100 * spun / wall,
        "run_state_cpu_pct": 100 * read / wall,
        **what_is_felt,
        **of_its_part(cell, held, found, wall),
    }
    return Measured(row, tuple(gpu.traced()), line_ms, tuple(map(tuple, buckets)), seen)


def worst_of(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One row of several seeds': each figure the worst of them. No figure in one of them is the worst."""
    refused = next((one for one in rows if one.get("refused")), None)
    if refused:
        return dict(refused)
    row = dict(rows[0])
    for name in row:
        found = [one[name] for one in rows]
        there = [value for value in found if value is not None]
        if name in NOT_IN_EVERY_RUN and there:
            found = there
        if name in (*WORSE_IS_MORE, *WORSE_IS_LESS):
            worse = max if name in WORSE_IS_MORE else min
            row[name] = None if None in found else worse(found)
    errors = [(one["share_error_1s_pp"], one["share_bound_1s_pp"]) for one in rows]
    row |= dict(zip(("share_error_1s_pp", "share_bound_1s_pp"), worst_share(errors), strict=True))
    return row


def worst_share(found: Sequence[tuple[float | None, float | None]]) -> tuple[float | None, float | None]:
    """The error furthest above its bound, and the bound. Without a bound, of rivals, the largest."""
    if any(error is None for error, _ in found):
        return None, next((bound for _, bound in found if bound is not None), None)
    return max(found, key=lambda pair: (pair[0] or 0.0) - (pair[1] or 0.0))


def cells(cards: Sequence[str], slices: Sequence[int | None], scenarios: Sequence[Scenario]) -> Iterator[list[Cell]]:
    """The cells of one scenario on one card; the driver's own comes first."""
    for card in cards:
        for scenario in scenarios:
            if card not in (scenario.cards or NAMED_CARDS):
                continue
            lengths = scenario.slices or slices
            # A rival's rule has no slice of ours, but for the one that is ours without credit.
            found = [Cell(scenario, card, rival.name, slice_us=5000 if rival.control == "freeze" else None)
                     for rival in RULES if rival.fits(scenario.containers)]  # fmt: skip
            for policy in scenario.policies:
                found += [Cell(scenario, card, OURS, policy, slice_us) for slice_us in lengths if policy in TURNS]
                if policy not in TURNS:
                    found.append(Cell(scenario, card, OURS, policy))
            yield found


def scenarios_named(names: set[str] | None) -> list[Scenario]:
    return [one for one in SCENARIOS if names is None or (one.name in names and one.personality == "default")]
