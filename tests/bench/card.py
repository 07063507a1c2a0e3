# SPDX-License-Identifier: MIT
"""Simulated beside measured: each row of tests/hardware/results that the simulator can make, on the profile h100.

card.py prints the table of docs/develop/hardware.md; --write puts it there. tests/bench/test_card.py compares the page
with it. The loads follow from what was measured alone, but for a training's time on the GPU: that follows from two
trainings under the driver.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).resolve().parent))

from rivals import Rule  # noqa: E402

from cgpu_cli.sim.gpu import Gpu  # noqa: E402
from cgpu_cli.sim.model import Container, Personality, S, Setup, profile  # noqa: E402
from cgpu_cli.sim.requests import Requests  # noqa: E402
from cgpu_cli.sim.turns import Turns  # noqa: E402

RESULTS = REPO / "tests/hardware/results/2026-11-23-h100-80gb-hbm3-580.159.04"
PAGE = REPO / "docs/develop/hardware.md"
BEGIN, END = "<!-- tests/bench/card.py --write -->\n", "<!-- end -->"
CARD = "h100"
SLICE_US, PRIO_RATIO = 20_000, 95
WARM_NS = 2 * S
SEED = 1
# SET_TIMESLICE needs no restart there.
DRIVER = Personality(commit_required=0)

# gpuload: kernels of 1 ms, queued; 1003 works a second alone.
LOAD = Container("load", kernel_us=1000, depth=16)
# 8 tokens a request, each a CUDA graph; alone a median of 23.8 ms.
SERVICE = Container("service", request_us=(148.0,) * 160, depth=160, requests_per_s=8)
# resnet50. Alone it is held up by its CPU, which launches a step while the GPU works on it: beside another one the GPU
# is slower and the CPU is not waited for. Two of them do 45.15 steps a second under the driver, of which switches take
# a tenth: 20.2 ms a step.
STEPS_PER_S, TORCH_STEPS_PER_S, KERNELS, STEP_MS = 42.5, 41.68, 100, 20.2


def training(per_s: float) -> Container:
    return Container("training", request_us=(1000 * STEP_MS / KERNELS,) * KERNELS, depth=KERNELS, cpu_ms=1000 / per_s)


@dataclass(frozen=True)
class Ran:
    """Kernels a second of each, and the first one's requests."""

    works: tuple[float, ...]
    requests: Requests


@dataclass(frozen=True)
class Figure:
    """Of a row of the card: what was measured, what is simulated."""

    row: str
    name: str
    measured: float
    simulated: float

    @property
    def off_pct(self) -> float:
        return 100 * (self.simulated / self.measured - 1)


def ran(
    containers: Sequence[Container],
    policy: int | None = None,
    timeslices_us: Sequence[int] = (),
    run_state: str = "none",
    seconds: int = 100,
    max_inst: int = 25,
    restart: bool = True,
) -> Ran:
    """policy None: the driver's turns, by @timeslices_us if there are any. Ours with a restart at each hand-over, as
    the measurements had it."""
    end = WARM_NS + seconds * S
    gpu = Gpu(profile(CARD), DRIVER, tuple(containers), end + S, SEED)
    who: Rule | Turns
    if policy is None:
        who = Rule(gpu, containers)
        for number, us in enumerate(timeslices_us):
            gpu.set_timeslice(number, us)
    else:
        setup = Setup(
            profile(CARD), policy, SLICE_US, max_inst, PRIO_RATIO, freeze_restart=restart, run_state=run_state,
            personality=DRIVER,
        )  # fmt: skip
        who = Turns(gpu, setup, tuple(containers), ())
    who.run(WARM_NS)
    gpu.mark()
    began = gpu.now
    who.run(end)
    gpu.close()
    wall = gpu.now - began
    works = tuple(gpu.client(number).works * S / wall for number in range(len(containers)))
    return Ran(works, Requests.of(gpu.requests(0), wall))


@cache
def results(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())["numbers"]
    return found


def loads(weights: Sequence[int]) -> list[Container]:
    return [replace(LOAD, name=f"load{i}", weight=weight) for i, weight in enumerate(weights)]


def works(row: str, measured: Sequence[float], found: Ran, per: int = 1) -> Iterator[Figure]:
    for number, per_s in enumerate(measured):
        yield Figure(row, f"works/s of {number + 1}", per_s, found.works[number] / per)


def shares() -> Iterator[Figure]:
    """12-shares.json: two loads, works a second."""
    numbers = results("12-shares")
    yield from works("alone", [numbers["alone_work_per_s"]], ran([LOAD], seconds=20))
    yield from works("driver", numbers["native_work_per_s"], ran(loads([1, 1]), seconds=20))
    for cell in numbers["cells"]:
        policy, weights = cell["policy"], cell["weights"]
        row = f"policy {policy}, {weights[0]}:{weights[1]}" + ("" if cell["restart"] else ", no restart")
        found = ran(
            loads(weights), policy, seconds=20, max_inst=sum(weights) + 1 if policy == 3 else 25,
            restart=cell["restart"],
        )  # fmt: skip
        yield from works(row, cell["work_per_s"], found)


def timeslices() -> Iterator[Figure]:
    """06-timeslice.json: two to four loads, the part of each and the works of all."""
    for cell in results("06-timeslice")["cells"]:
        found = ran(loads(cell["asked"]), timeslices_us=cell["timeslice_us"], seconds=20)
        row = f"timeslices {':'.join(map(str, cell['asked']))}"
        for number, part in enumerate(cell["shares_alone"]):
            yield Figure(row, f"% of {number + 1}", 100 * part, 100 * found.works[number] / sum(found.works))
        yield Figure(row, "works/s of all", cell["work_per_s_alone"], sum(found.works))


def torch() -> Iterator[Figure]:
    """20-torch.json: two trainings, steps a second."""
    numbers = results("20-torch")
    one = training(TORCH_STEPS_PER_S)
    yield from works("training alone", [numbers["alone_work_per_s"]], ran([one]), KERNELS)
    yield from works("trainings, driver", numbers["native_work_per_s"], ran([one, replace(one, name="b")]), KERNELS)
    cell = numbers["cell"]
    pair = [replace(one, name=f"t{i}", weight=weight) for i, weight in enumerate(cell["weights"])]
    yield from works("trainings, policy 2, 1:2", cell["work_per_s"], ran(pair, cell["policy"]), KERNELS)


HIGH = replace(SERVICE, highprio=True)
# The row's name in 05-serve.json, and how it is simulated. MPS runs kernels at once, which no row here measures.
SERVE: dict[str, Callable[[Container], Ran]] = {
    "driver": lambda train: ran([SERVICE, train]),
    "timeslices 8:1": lambda train: ran([SERVICE, train], timeslices_us=(8192, 1024)),
    "timeslices 16:1": lambda train: ran([SERVICE, train], timeslices_us=(8192, 512)),
    "weights 1:1": lambda train: ran([SERVICE, train], 2),
    "weights 4:1": lambda train: ran([replace(SERVICE, weight=4), train], 2),
    "high priority, run state unknown": lambda train: ran([HIGH, train], 1),
    "high priority, run state known": lambda train: ran([HIGH, train], 1, run_state="chram"),
    "weights 1:1, run state known": lambda train: ran([SERVICE, train], 2, run_state="chram"),
}
NOT_SIMULATED = {"service alone", "training alone", "MPS"}


def serve() -> Iterator[Figure]:
    """05-serve.json: a service's p50 and p99 of alone, and the training's steps in % of alone."""
    rows, train = results("05-serve")["rows"], training(STEPS_PER_S)
    alone, steps = rows["service alone"]["request_ms"], rows["training alone"]["steps_per_s"]
    sim, sim_steps = ran([SERVICE]).requests, ran([train]).works[0]
    for name, how in SERVE.items():
        found, measured = how(train), rows[name]
        for figure, key, us, base in (
            ("p50", "median", found.requests.p50_us, sim.p50_us), ("p99", "p99", found.requests.p99_us, sim.p99_us)
        ):  # fmt: skip
            assert us and base, name
            yield Figure(f"service, {name}", f"{figure} of alone", measured["request_ms"][key] / alone[key], us / base)
        part = 100 * found.works[1] / sim_steps
        yield Figure(f"service, {name}", "training %", 100 * measured["steps_per_s"] / steps, part)


def figures() -> list[Figure]:
    return [*shares(), *timeslices(), *torch(), *serve()]


def shown(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def table(found: Sequence[Figure]) -> str:
    """A line for each row of the card, its figures in the order of their names."""
    lines = ["| row | figures | measured | simulated | off by % |", "|---|---|---|---|---|"]
    for row in dict.fromkeys(one.row for one in found):
        those = [one for one in found if one.row == row]
        cells = [
            ", ".join(one.name for one in those),
            ", ".join(shown(one.measured) for one in those),
            ", ".join(shown(one.simulated) for one in those),
            ", ".join(f"{one.off_pct:+.0f}".replace("-0", "0").replace("+0", "0") for one in those),
        ]
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def on_page(text: str) -> str:
    return text.split(BEGIN)[1].split(END)[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the table into docs/develop/hardware.md")
    arguments = parser.parse_args()
    text = table(figures())
    if arguments.write:
        page = PAGE.read_text()
        PAGE.write_text(page.replace(BEGIN + on_page(page) + END, BEGIN + text + END))
    print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
