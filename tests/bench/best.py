# SPDX-License-Identifier: MIT
"""The best that any rule could do beside high priority, computed and not simulated: what a bar can ask of ours.

best.py prints the figures of docs/develop/compared.md, "Gaps of high priority". tests/bench/test_best.py compares
them with a search of all schedules, with a simulated queue, and with what ours has.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import exp, log
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from cgpu_cli.sim.model import profile

STEP_MS = 0.005
GRID_MS = 14.0  # a backlog that is longer is so too far from the tail to matter


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def beside_gaps(high: float, work: float, gaps: Sequence[float], switch: float, foresight: bool = True) -> float:
    """The most that others can have of the GPU beside high priority that has so much of its rate alone.

    Between two of its pieces high priority needs a piece and a gap, and if others have L in between, a piece, two
    switches and L: max(work + gap, work + 2 * switch + L). So with n pieces in a time T they have at most what is left
    of T, and of each gap what exceeds two switches. Without @foresight a rule does not know a gap's length as it
    begins, and lends all or none: right for gaps of which what is left never grows while they last.
    """
    kept = work + mean(gaps)
    pays = mean([max(0.0, gap - 2 * switch) for gap in (gaps if foresight else [mean(gaps)])])
    return 1 - high * (1 - pays / kept)


@dataclass(frozen=True)
class Requests:
    """Requests of high priority that arrive by chance, so many in a millisecond, each so long.

    Others have the GPU while there are none. One that arrives then waits for a delay, which is what a rule chooses: the
    rest of a timeslice, a reading and a call, and always a switch. Arrivals by chance tell a rule nothing, and a
    channel shows that it has work, not how much. So each delay is drawn alike, and by the renewal theorem both the
    part of the others and the share of late requests follow from the delays of one busy period each.
    """

    per_ms: float
    length_ms: float

    @property
    def load(self) -> float:
        return self.per_ms * self.length_ms

    def part(self, delay_ms: float, switch_ms: float) -> float:
        """Of the others, with such a delay on average: a busy period costs them two switches, each longer one fewer."""
        return (1 - self.load) * (1 - 2 * switch_ms / (1 / self.per_ms + delay_ms))

    def late(self, delays_ms: Sequence[float], deadline_ms: float) -> float:
        """The share of requests that take longer, with these delays in turn."""
        above = time_above(self, round((deadline_ms - self.length_ms) / STEP_MS))
        starts = [round((delay + self.length_ms) / STEP_MS) for delay in delays_ms]
        first = [delay + self.length_ms > deadline_ms for delay in delays_ms]
        count = mean([1 + self.per_ms * delay for delay in delays_ms]) / (1 - self.load)
        return mean([one + self.per_ms * above[start] for one, start in zip(first, starts, strict=True)]) / count

    def p99_alone_ms(self) -> float:
        least, most = self.length_ms, GRID_MS / 2
        while most - least > STEP_MS:
            middle = (least + most) / 2
            least, most = (middle, most) if self.late([0.0], middle) > 0.01 else (least, middle)
        return most

    def best_part(self, switch_ms: float, p99_of_alone: float = 1.1) -> float:
        """The most that others can have at such a p99. Late requests grow faster than the delay, so equal delays are
        best; the test checks it.
        """
        deadline, delay = self.p99_alone_ms() * p99_of_alone, switch_ms
        while self.late([delay + STEP_MS], deadline) <= 0.01:
            delay += STEP_MS
        return self.part(delay, switch_ms)

    def foreseen_part(self, switch_ms: float) -> float:
        """Of the others under a rule that knows each arrival and delays none: what exceeds two switches of each gap."""
        return (1 - self.load) * exp(-2 * switch_ms * self.per_ms)

    def timeslices(self, switch_ms: float, timeslice_ms: float) -> list[float]:
        """The delays of a timeslice of the others: of what is left of it, each length alike."""
        return [switch_ms + timeslice_ms * (i + 0.5) / 64 for i in range(64)]


@cache
def time_above(requests: Requests, level: int) -> list[float]:
    """How long a backlog is above so many steps until it is worked off, from each backlog in steps, on average.

    In a step the backlog is a step less, or one request more by chance. Far above it falls by what the load leaves.
    """
    steps, more = round(GRID_MS / STEP_MS), round(requests.length_ms / STEP_MS)
    chance = requests.per_ms * STEP_MS
    slope = STEP_MS / (1 - requests.load)
    above = [max(0.0, (i - level) * slope) for i in range(steps + more + 1)]
    change = 1.0
    while change > 1e-9:
        change = 0.0
        for i in range(1, steps + 1):
            value = STEP_MS * (i > level) + (1 - chance) * above[i - 1] + chance * above[i - 1 + more]
            change = max(change, abs(value - above[i]))
            above[i] = value
        for i in range(steps + 1, steps + more + 1):
            above[i] = above[steps] + (i - steps) * slope
    return above


def by_chance(gap: float) -> list[float]:
    """The lengths of gaps that follow each other by chance, by their quantiles."""
    return [-gap * log(1 - (i + 0.5) / 4000) for i in range(4000)]


def main() -> int:
    requests = Requests(0.3, 1.0)
    for card in ("h100", "a100"):
        switch = profile(card).ctxsw_us / 1000
        print(f"{card}: a switch is {switch} ms, so gaps of less than {2 * switch:.2f} ms give nothing")
        for gap in (0.1, 0.2, 0.4, 0.7, 1.0):
            even = 100 * beside_gaps(0.8, 0.3, [gap], switch)
            chance = [100 * beside_gaps(0.8, 0.3, by_chance(gap), switch, foresight) for foresight in (False, True)]
            print(f"  0.3 ms and a gap of {gap}, at 80 % of its rate: the others have {even:.1f} % at most; by chance "
                  f"{chance[0]:.1f}, with foresight {chance[1]:.1f}")  # fmt: skip
        plain, deadline = requests.timeslices(switch, 0.512), 1.1 * requests.p99_alone_ms()
        most, has = 100 * requests.best_part(switch), 100 * requests.part(mean(plain), switch)
        print(f"  1 ms at 300/s: {most:.2f} % at most with a p99 of 110 % of alone; plain 16:1 has {has:.2f}, "
              f"{100 * requests.late(plain, deadline):.2f} % are later than that; none delayed, each arrival known: "
              f"{100 * requests.foreseen_part(switch):.2f}")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
