# SPDX-License-Identifier: MIT
"""The scenario: GPUs, containers with their load, changes during the run. Plain data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from cgpu_common.exits import CgpuError, Exit
from cgpu_common.toml import tomllib

HERE = Path(__file__).resolve().parent
NEVER_NS = 2**64 - 1
US, MS, S = 1_000, 1_000_000, 1_000_000_000
RUN_STATES = ("chram", "pccsr", "none")


def in_digits(value: float) -> str:
    """A number of six digits without an exponent: 5109.33, 1800000, 0.0001."""
    text = f"{value:.6g}"
    return text if "e" not in text else f"{value:.6f}".rstrip("0").rstrip(".")


@dataclass(frozen=True)
class Profile:
    """Costs of a card; each number's source is in its file."""

    key: str
    name: str
    sm_count: int
    timeslice_us: int
    ctxsw_us: int
    control_us: int
    control_spin_us: int
    tail_us: int
    tail_pct: float
    arch: str = "ampere"
    # Of cards where they were measured apart; else every control takes control_us.
    thaw_us: int | None = None
    restart_us: int | None = None
    set_timeslice_us: int | None = None

    @property
    def run_state(self) -> str:
        """Channel RAM from Ampere on; on Turing the registers PCCSR, which the module maps itself."""
        return "pccsr" if self.arch == "turing" else "chram"


def _profile_dir() -> Path:
    found = HERE / "profiles"
    return found if found.is_dir() else HERE.parents[1] / "tests/nvsim/profiles"


def profile_names() -> list[str]:
    return sorted(path.stem for path in _profile_dir().glob("*.toml"))


@cache
def profile(key: str) -> Profile:
    if key not in profile_names():
        raise CgpuError(Exit.USAGE, "usage", f"there is no profile {key!r}", ", ".join(profile_names()))
    values = tomllib.loads((_profile_dir() / f"{key}.toml").read_text())
    known = Profile.__dataclass_fields__
    apart = {f"{name}_us": us for name, us in values.get("simulate", {}).items()}
    return Profile(key, **{name: value for name, value in (values | apart).items() if name in known})


@dataclass(frozen=True)
class Personality:
    """Faults of a driver (docs/develop/nvsim.md section 5). None: the profile's value."""

    control_ineffective: int = 0
    commit_required: int = 1
    err40_pct: float = 0
    tail_us: int | None = None
    tail_pct: float | None = None
    disable_needs_restart: int = 0
    no_preempt: int = 0
    stubborn_ms: int = 1000


@dataclass(frozen=True)
class Setup:
    """A GPU and its settings. slice_us None: chosen by the module from the measured control. freeze_restart: the
    module's parameter of that name. one_cpu: clients share a processor with the scheduler thread, so that none of them
    submits while a call spins. run_state: where the module reads which containers have work; None: as the card has
    it."""

    profile: Profile
    policy: int = 2
    slice_us: int | None = None
    max_inst: int = 20
    prio_ratio: int = 80
    freeze_restart: bool = False
    one_cpu: bool = False
    run_state: str | None = None
    personality: Personality = field(default_factory=Personality)

    @property
    def source(self) -> str:
        """The run-state source in use."""
        return self.run_state or self.profile.run_state


@dataclass(frozen=True)
class Arrival:
    """A request of a trace: when it arrives after the container's start, and the lengths of its kernels."""

    at_ms: float
    request_us: tuple[float, ...]


@dataclass(frozen=True)
class Container:
    """A container on one GPU, with the load of each of its processes.

    With request_us or a trace its kernels come in requests: at a rate, from the trace, or think_ms after an end, and
    then no sooner than cpu_ms after the last one: a CPU that launches a step while the GPU works on it.
    """

    name: str
    weight: int = 1
    highprio: bool = False
    ceiling: int = 0
    kernel_us: float = 300.0
    spread_us: float = 0.0
    depth: int = 32
    gap_us: float = 20.0
    gap_spread_us: float = 0.0
    rate: float = 0.0
    on_ms: float = 0.0
    off_ms: float = 0.0
    processes: int = 1
    start_ms: float = 0.0
    stop_ms: float | None = None
    stubborn: bool = False
    gpu: int = 0
    request_us: tuple[float, ...] = ()
    requests_per_s: float = 0.0
    think_ms: float = 0.0
    think_spread_ms: float = 0.0
    cpu_ms: float = 0.0
    trace: tuple[Arrival, ...] = ()
    churn_ms: float = 0.0

    @property
    def serves(self) -> bool:
        """Has it requests?"""
        return bool(self.request_us or self.trace)

    def moments(self, length_ns: int) -> Iterator[tuple[int, bool]]:
        """When it opens (True) and closes the GPU: at the start and the end, and with churn_ms so often between."""
        at, is_open = self.start_ns, False
        while self.churn_ms and at < min(self.stop_ns, length_ns):
            is_open = not is_open
            yield at, is_open
            at += round(self.churn_ms * MS)
        if not self.churn_ms:
            is_open = True
            yield at, is_open
        if self.stop_ms is not None and is_open:
            yield self.stop_ns, False

    @property
    def start_ns(self) -> int:
        return round(self.start_ms * MS)

    @property
    def stop_ns(self) -> int:
        return NEVER_NS if self.stop_ms is None else round(self.stop_ms * MS)


@dataclass(frozen=True)
class Change:
    """A write by the administrator during the run, to a node of a GPU or of a container."""

    at_ms: float
    node: str
    value: int
    container: str | None = None
    gpu: int = 0


@dataclass(frozen=True)
class Scenario:
    gpus: tuple[Setup, ...]
    containers: tuple[Container, ...]
    changes: tuple[Change, ...] = ()
    seconds: float = 10.0
    seed: int = 1

    def on_gpu(self, gpu: int) -> tuple[Container, ...]:
        return tuple(one for one in self.containers if one.gpu == gpu)
