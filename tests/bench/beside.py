# SPDX-License-Identifier: MIT
"""Published rules of others for a service beside training, on the same simulated GPU as ours.

As in rivals.py: written from descriptions, without their code, open choices in the rival's favour.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from rivals import RIVALS, Rule

from cgpu_cli.sim.gpu import Gpu
from cgpu_cli.sim.model import MS, US, Container, S


class MpsOverlap(Rule):
    """One daemon launches the kernels of all clients into one context: they run at once and nothing is switched.

    Two kernels together have 1.25 of the speed of one, measured on an H100 (docs/develop/hardware.md): an LLM's
    decode steps took 1.74 times as long beside training, a rate of 0.57. They were on the card for a third of the
    time, in which the training lost a tenth of all its steps: a rate of 0.68. The speed of more than two was not
    measured: 1.25 as well.
    """

    name = "mps-overlap"
    source = "NVIDIA MPS user guide (concurrent kernels); the overlap is measured, docs/develop/hardware.md"
    weights = False
    OVERLAP_PCT = 125

    def __init__(self, gpu: Gpu, containers: Sequence[Container], slice_us: int | None = None) -> None:
        super().__init__(gpu, containers, slice_us)
        gpu.overlap(self.OVERLAP_PCT)

    @classmethod
    def fits(cls, containers: Sequence[Container]) -> bool:
        return any(one.serves or one.highprio for one in containers)


class Plain8(Rule):
    """Timeslices that never change: 8.192 ms for each TSG of the favoured ones, an eighth of it for the others.

    Favoured are those with high priority, where there are none those of the greatest weight. What an administrator
    could set without any daemon, if the driver's tools let one.
    """

    name = "timeslices-8-1"
    source = "NVIDIA open-gpu-kernel-modules, NVA06C_CTRL_CMD_SET_TIMESLICE; measured, docs/develop/hardware.md row 4"
    control = "timeslice"
    weights = False
    LONG_US, PARTS = 8192, 8

    @staticmethod
    def rank(one: Container) -> tuple[bool, int]:
        return one.highprio, one.weight

    @classmethod
    def fits(cls, containers: Sequence[Container]) -> bool:
        return len({cls.rank(one) for one in containers}) > 1

    def opened(self, number: int) -> None:
        favoured = self.rank(self.containers[number]) == max(map(self.rank, self.containers))
        self.gpu.set_timeslice(number, self.LONG_US // (1 if favoured else self.PARTS))
        super().opened(number)


class Plain16(Plain8):
    """The same, a sixteenth for the others."""

    name = "timeslices-16-1"
    PARTS = 16


class TallyPriority(Rule):
    """A server launches all kernels; those of best-effort clients only while no kernel of high priority is there.

    They are launched in slices or look at a flag after each block, so that they leave the GPU within the turnaround
    threshold of the paper, 31.6 us. In its favour: the changed kernels take no longer, and nothing is lost to calls
    that pass through the server.
    """

    name = "tally-priority"
    source = "Tally (ASPLOS'25): block-level priority scheduling, sliced and preemptible kernels"
    control = "launch"
    weights = False
    TURNAROUND_US = 31.6

    def __init__(self, gpu: Gpu, containers: Sequence[Container], slice_us: int | None = None) -> None:
        super().__init__(gpu, containers, slice_us)
        gpu.overlap(100, self.TURNAROUND_US)
        for number, one in enumerate(containers):
            gpu.client(number).first = one.highprio

    @classmethod
    def fits(cls, containers: Sequence[Container]) -> bool:
        return any(one.highprio for one in containers) and not all(one.highprio for one in containers)


class TgsRateControl(TallyPriority):
    """Launches of the opportunistic jobs have a rate, which follows the rate at which the productive ones launch.

    It grows by a step where the productive jobs launch as fast as alone, and is halved where they do not. Kernels
    share the GPU by the driver's timeslices, and queued ones cannot be withdrawn. Assumed: a decision each 100 ms over
    the last second, 20 steps to full speed, 5 % of tolerance. In its favour: it knows what the productive jobs would
    have launched alone with the same arrivals; theirs has to be estimated.
    """

    name = "tgs-rate-control"
    source = "TGS (NSDI'23): adaptive rate control of opportunistic jobs by the productive job's launches"
    INTERVAL_NS, WINDOW, STEPS, TOLERANCE, POLL_NS = 100 * MS, 10, 20, 0.05, 100 * US

    def __init__(self, gpu: Gpu, containers: Sequence[Container], slice_us: int | None = None) -> None:
        Rule.__init__(self, gpu, containers, slice_us)
        self.low = [i for i, one in enumerate(containers) if not one.highprio]
        self.high = [i for i, one in enumerate(containers) if one.highprio]
        alone = [containers[i] for i in self.high]
        self.alone = Gpu(gpu.profile, gpu.personality, alone, gpu.length_ns, gpu.seed)
        self.last = [0] * len(containers)
        self.launched = 0
        self.seen = deque([(0, 0)], maxlen=self.WINDOW + 1)  # launched by the productive ones, and alone
        # Launches in an interval, of each opportunistic job: at full speed, and allowed.
        self.full = {i: self.INTERVAL_NS / US / self._kernel_us(containers[i]) for i in self.low}
        self.rate = {i: full / self.STEPS for i, full in self.full.items()}
        self.next_ns = 0
        for i in self.low:
            gpu.client(i).gate_poll_ns = self.POLL_NS
            gpu.client(i).token_cost = 1

    @staticmethod
    def _kernel_us(one: Container) -> float:
        return sum(one.request_us) / len(one.request_us) if one.request_us else one.kernel_us

    def _count(self) -> None:
        """The figures of a client start again in between."""
        for i in self.high:
            works = int(self.gpu.client(i).works)
            self.launched += works - self.last[i] if works >= self.last[i] else works
            self.last[i] = works
        self.alone.advance(self.gpu.now)
        self.seen.append((self.launched, sum(int(self.alone.client(i).works) for i in range(len(self.high)))))

    def _decide(self) -> None:
        self._count()
        (launched, alone), (launched_now, alone_now) = self.seen[0], self.seen[-1]
        slower = launched_now - launched < (1 - self.TOLERANCE) * (alone_now - alone)
        for i, full in self.full.items():
            self.rate[i] = self.rate[i] / 2 if slower else min(full, self.rate[i] + full / self.STEPS)
            client = self.gpu.client(i)
            client.tokens = min(0, client.tokens) + round(self.rate[i])

    def step(self, until_ns: int) -> None:
        if self.gpu.now >= self.next_ns:
            self._decide()
            self.next_ns += self.INTERVAL_NS
        self.gpu.advance(min(until_ns, self.next_ns))


RULES = (*RIVALS, Plain8, Plain16, MpsOverlap, TgsRateControl, TallyPriority)
assert TgsRateControl.WINDOW * TgsRateControl.INTERVAL_NS == S
