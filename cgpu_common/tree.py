# SPDX-License-Identifier: MIT
"""The contents of the tree. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cgpu_common import policies
from cgpu_common.kernel_abi import MAX_INST_DEFAULT, PRIO_RATIO_DEFAULT, UVM_NAMES

MIB = 1 << 20

#: Names in N/C/stat, and what they count the objects of.
VIDEO_ENGINES = {
    "nvdec": "decoders",
    "nvenc": "encoders",
    "nvjpg": "JPEG decoders",
    "ofa": "optical flow accelerators",
}


@dataclass(frozen=True)
class Slot:
    """One container on one GPU: /proc/cgpu_km/N/C/."""

    gpu: int
    dir: str
    id: str
    weight: int
    highprio: bool
    memsize: int
    pids: tuple[tuple[int, int], ...]  # (pid, bytes)
    stat: dict[str, int] = field(default_factory=dict)
    dying: bool = False
    name: str | None = None
    ceiling: int = 0  # under burst, in slices per round; 0: none
    at_ns: int = 0  # when stat was read

    @property
    def used(self) -> int:
        return self.stat.get("used_bytes", sum(size for _, size in self.pids))

    @property
    def opened(self) -> bool:
        return self.stat.get("opened", 0) != 0

    @property
    def running(self) -> bool:
        return self.stat.get("running", 0) != 0


@dataclass(frozen=True)
class Gpu:
    """One GPU: /proc/cgpu_km/N/. A number is what the file of its name has, which proc.py reads; index is N."""

    index: int
    name: str = "-"
    uuid: str = ""
    pci: str = ""
    minor: int = 0
    major: int = 0
    policy: int = policies.DEFAULT
    max_inst: int = MAX_INST_DEFAULT
    free_weight: int = 0
    prio_ratio: int = PRIO_RATIO_DEFAULT
    slice_us: int = 0
    uvm: str = UVM_NAMES[0]
    stat: dict[str, int] = field(default_factory=dict)
    control: str = "none"
    control_seen: str = "none"
    slots: tuple[Slot, ...] = ()

    @property
    def facts(self) -> policies.Facts:
        """Of the policy in force."""
        return policies.of(self.policy)


@dataclass(frozen=True)
class Sensors:
    """One GPU as NVML has it; None: not known."""

    uuid: str = ""
    pci: str = ""
    name: str = ""
    total_bytes: int | None = None
    used_bytes: int | None = None  # by all processes and the driver
    utilization_pct: int | None = None
    temperature_c: int | None = None
    power_mw: int | None = None
    power_limit_mw: int | None = None
    memory_utilization_pct: int | None = None
    sm_active_pct: float | None = None
    dram_active_pct: float | None = None
    lost: str = ""
    age_s: int | None = None  # of these values, where NVML does not answer now
    processes: Mapping[int, tuple[int, int]] = field(default_factory=dict)  # pid -> percent of SMs, of memory


@dataclass(frozen=True)
class Names:
    """What an engine or Kubernetes calls a container."""

    name: str = ""
    pod: str = ""
    namespace: str = ""


@dataclass(frozen=True)
class Container:
    """One line of inst_ctl."""

    id: str
    cookie: str
    dir: str
    major: int
    ctl_minor: int
    uvm_minor: int
    dying: bool
    gpus: tuple[tuple[int, int], ...]  # (N, minor)


@dataclass(frozen=True)
class Snapshot:
    """The whole tree at one moment."""

    module: str
    gpus: tuple[Gpu, ...]
    containers: tuple[Container, ...]
    at_ns: int = 0  # when its reading began


def slot_state(gpu: Gpu, slot: Slot) -> str:
    """One word: dying, frozen, idle, running or waiting."""
    if slot.dying:
        return "dying"
    if slot.weight == 0 and gpu.facts.limits:
        return "frozen"
    if not slot.opened:
        return "idle"
    return "running" if slot.running else "waiting"
