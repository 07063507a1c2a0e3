# SPDX-License-Identifier: MIT
"""The state of a node, as frozen values: what netlink, the tree of /proc/cgpu_km and NVML have of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from cgpu_common import policies
from cgpu_common.kernel_abi import MAX_INST_DEFAULT, OVERCOMMIT_MIN, PRIO_RATIO_DEFAULT, UVM_NAMES
from cgpu_common.kernel_abi import MIB as MIB

#: Names in N/C/stat, and what they count the objects of.
VIDEO_ENGINES = {
    "nvdec": "video decoder",
    "nvenc": "video encoder",
    "nvjpg": "JPEG decoder",
    "ofa": "optical flow accelerator",
}


# ---- the kernel's ----


@dataclass(frozen=True, slots=True)
class SlotWant:
    """One slot to be made: a container's part of one GPU."""

    gpu: int  # kernel index
    nv_minor: int  # the kernel must use the same, see check_grant()
    limit: int  # bytes
    weight: int = 1
    highprio: bool = False
    ceiling: int = 0  # under burst, in slices per round; 0: none


@dataclass(frozen=True, slots=True)
class Slot:
    """One container on one GPU. The fields from `id` on are of its folder, /proc/cgpu_km/N/C/, alone."""

    gpu: int
    minor: int = 0
    nv_minor: int = 0
    limit: int = 0  # bytes
    used: int = 0
    weight: int = 0
    highprio: bool = False
    ceiling: int = 0  # under burst, in slices per round; 0: none
    host_limit: int = 0  # bytes of system memory by the driver, of the whole container; 0: none
    id: str = ""
    dir: str = ""
    pids: tuple[tuple[int, int], ...] = ()  # (pid, bytes)
    stat: Mapping[str, int] = field(default_factory=dict)
    dying: bool = False
    name: str | None = None  # the engine's
    at_ns: int = 0  # when stat was read

    @property
    def opened(self) -> bool:
        return self.stat.get("opened", 0) != 0

    @property
    def running(self) -> bool:
        return self.stat.get("running", 0) != 0


@dataclass(frozen=True, slots=True)
class Container:
    """One container as netlink or a line of inst_ctl has it; there its slots have the numbers of GPU and node alone."""

    id: str
    cookie: int = 0
    dir: str = ""
    major: int = 0
    ctl_minor: int = 0
    uvm_minor: int = 0
    dying: bool = False
    slots: tuple[Slot, ...] = ()

    @property
    def gpus(self) -> tuple[tuple[int, int], ...]:
        """(N, minor) of each slot."""
        return tuple((slot.gpu, slot.minor) for slot in self.slots)


@dataclass(frozen=True, slots=True)
class KernelGpu:
    """One GPU as the kernel module has it; a default is the module's own. The fields from `name` on are of its folder,
    /proc/cgpu_km/N/, alone."""

    index: int  # N of /proc/cgpu_km/N
    uuid: str = ""
    pci: str = ""
    nv_minor: int = 0  # M of /dev/nvidiaM
    total: int = 0  # bytes; 0 while not yet known
    policy: int = policies.DEFAULT
    max_inst: int = MAX_INST_DEFAULT
    free_weight: int = MAX_INST_DEFAULT
    prio_ratio: int = PRIO_RATIO_DEFAULT
    slice_us: int = 0
    instances: int = 0
    uvm: int = 0
    default_memsize: int = 8 << 30  # bytes
    overcommit: int = OVERCOMMIT_MIN  # percent
    slice_is_set: bool = False
    used: int = 0  # bytes, of its containers
    driver_free: int | None = None  # bytes; None while the module is not attached
    born: int = 0  # changes when the kernel resets the GPU's values; 0: not from the kernel
    limits: int | None = None  # bytes, of its containers together, dying ones included; None: an older module
    name: str = "-"  # the model
    stat: Mapping[str, int] = field(default_factory=dict)
    control: str = "none"
    control_seen: str = "none"
    slots: tuple[Slot, ...] = ()

    @property
    def facts(self) -> policies.Facts:
        """Of the policy in force."""
        return policies.of(self.policy)

    @property
    def uvm_name(self) -> str:
        return UVM_NAMES[self.uvm] if 0 <= self.uvm < len(UVM_NAMES) else "unknown"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole tree at one moment."""

    module: str
    gpus: tuple[KernelGpu, ...]
    containers: tuple[Container, ...]
    at_ns: int = 0  # when its reading began


@dataclass(frozen=True, slots=True)
class KernelEvent:
    """One multicast event; `kind` is of kernel_abi.Event, `values` are the attributes of kernel_abi.A from PID on."""

    kind: int
    container: Container | None = None  # without slots if the event is about one GPU
    gpu: KernelGpu | None = None  # index, uuid, pci, nv_minor and total only
    values: Mapping[str, Any] = field(default_factory=dict)  # numbers; text where the attribute is a string


def slot_state(gpu: KernelGpu, slot: Slot) -> str:
    """One word: dying, frozen, idle, running or waiting."""
    if slot.dying:
        return "dying"
    if slot.weight == 0 and gpu.facts.limits:
        return "frozen"
    if not slot.opened:
        return "idle"
    return "running" if slot.running else "waiting"


# ---- NVML's ----


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """One process on one GPU, over the driver's latest sample of it; percent."""

    pid: int
    sm_pct: int
    memory_pct: int


@dataclass(frozen=True, slots=True)
class Sensors:
    """What a GPU measures; None: it does not measure this."""

    utilization_pct: int | None = None  # of the last sample period of the driver, 1/6 s to 1 s (nvml.h)
    temperature_c: int | None = None
    power_mw: int | None = None
    power_limit_mw: int | None = None
    memory_utilization_pct: int | None = None  # part of that period in which memory was read or written
    sm_active_pct: float | None = None  # multiprocessors with work; by GPM, from Hopper on
    dram_active_pct: float | None = None  # of the bandwidth to the card's memory; the same
    processes: tuple[ProcessUse, ...] = ()


#: The values of Sensors, by the names that cgpud's answer and --json have for them too.
MEASURED = tuple(one.name for one in fields(Sensors) if one.name != "processes")


@dataclass(frozen=True, slots=True)
class Card(Sensors):
    """One GPU in cgpud's answer to `gpus`; None: not known."""

    uuid: str = ""
    pci: str = ""
    name: str = ""
    total_bytes: int | None = None
    used_bytes: int | None = None  # by all processes and the driver
    lost: str = ""
    age_s: int | None = None  # of these values, where NVML does not answer now


@dataclass(frozen=True, slots=True)
class Names:
    """What an engine or Kubernetes calls a container."""

    name: str = ""
    pod: str = ""
    namespace: str = ""
