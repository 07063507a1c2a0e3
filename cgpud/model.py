# SPDX-License-Identifier: MIT
"""The nouns, as frozen values. Nothing here does anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class KernelGpu:
    """One GPU as the kernel module lists it."""

    index: int  # N of /proc/cgpu_km/N
    uuid: str
    pci: str
    nv_minor: int  # M of /dev/nvidiaM
    total: int  # bytes; 0 while not yet known
    policy: int = 5
    max_inst: int = 20
    free_weight: int = 20
    prio_ratio: int = 80
    slice_us: int = 0
    instances: int = 0
    uvm: int = 0
    default_memsize: int = 8 << 30  # bytes
    overcommit: int = 100  # percent
    slice_is_set: bool = False
    used: int = 0  # bytes, of its containers
    driver_free: int | None = None  # bytes; None while the module is not attached
    born: int = 0  # changes when the kernel forgot its values; 0: not the kernel's word
    limits: int | None = None  # bytes, of its containers together, dying ones included; None: an older module


@dataclass(frozen=True, slots=True)
class NvmlGpu:
    """One GPU as NVML lists it."""

    index: int  # what `nvidia-smi -L` calls it
    uuid: str
    pci: str
    nv_minor: int
    total_mib: int
    name: str = ""
    mig: bool = False
    used_mib: int | None = None  # of everybody, the driver's own included
    compute_mode: str = ""  # "" = any number of processes may use it
    lost: str = ""  # why NVML does not tell all of this; "" = it does


@dataclass(frozen=True, slots=True)
class Gpu:
    """Both views of one GPU. `number` is what users write, `index` what the kernel wants."""

    number: int
    index: int
    uuid: str
    pci: str
    nv_minor: int
    total_mib: int
    max_inst: int
    free_weight: int
    mig: bool = False
    compute_mode: str = ""
    lost: str = ""  # why NVML does not answer for it
    room_mib: int | None = None  # total less what the driver and processes outside of containers have; None: not known
    overcommit: int = 100  # percent of room_mib that limits may add up to
    default_mib: int = 0  # for a container that says no size; 0: none
    instances: int = 0
    limits: int | None = None  # bytes, of its containers together; None: only their list tells, and their number
    kernel: KernelGpu | None = None


@dataclass(frozen=True, slots=True)
class SlotWant:
    """One slot to be made: a container's part of one GPU."""

    gpu: int  # kernel index
    nv_minor: int  # what the kernel must answer, or the maps disagree
    limit: int  # bytes
    weight: int = 1
    highprio: bool = False


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot as the kernel has it."""

    gpu: int
    minor: int
    nv_minor: int
    limit: int
    used: int = 0
    weight: int = 1
    highprio: bool = False


@dataclass(frozen=True, slots=True)
class Container:
    """One container as the kernel has it."""

    id: str
    cookie: int
    dir: str
    major: int
    ctl_minor: int
    uvm_minor: int
    dying: bool = False
    slots: tuple[Slot, ...] = ()


@dataclass(frozen=True, slots=True)
class KernelEvent:
    """One multicast event; `kind` is of kernel_abi.Event, `values` what else it says (kernel_abi.A, from PID on)."""

    kind: int
    container: Container | None = None  # without slots where the event is about one GPU
    gpu: KernelGpu | None = None  # where it is about one: index, uuid, pci, nv_minor and total only
    values: Mapping[str, Any] = field(default_factory=dict)  # numbers; text where the attribute is a string


@dataclass(frozen=True, slots=True)
class Devices:
    """Which GPUs a container asks for: everything, or a list of numbers and UUID prefixes."""

    source: str  # the variable that said so, for messages
    all: bool = False
    items: tuple[int | str, ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """What the variables of a container ask for."""

    devices: Devices
    sizes: tuple[int, ...]  # of ALIYUN_COM_GPU_MEM_CONTAINER, GiB units; empty = default_memsize
    total: int  # ALIYUN_COM_GPU_MEM_DEV
    weight: int | None = None  # None = not given
    highprio: bool = False
    native: Devices | None = None  # an explicit NVIDIA_VISIBLE_DEVICES beside the cGPU one


@dataclass(frozen=True, slots=True)
class NotSliced:
    """The variables say: no cGPU for this container. `why` is for the log."""

    why: str


@dataclass(frozen=True, slots=True)
class Plan:
    """An admitted request."""

    slots: tuple[SlotWant, ...]
    warnings: tuple[str, ...] = ()


class Phase(Enum):
    """Where a container of ours is in its life. See state.py."""

    PREPARED = "prepared"
    BOUND = "bound"
    RELEASING = "releasing"
    STUCK = "stuck"
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class Process:
    """A process that can be told from a later one with the same pid."""

    pid: int
    starttime: int  # field 22 of /proc/<pid>/stat


@dataclass(frozen=True, slots=True)
class Cgroup:
    """A cgroup's directory that can be told from a later one of the same name."""

    path: str  # below the mount of the hierarchy (watch.py says which), with a leading slash
    inode: int


@dataclass(frozen=True, slots=True)
class Record:
    """What the daemon remembers of one container across its own restarts."""

    id: str
    cookie: int
    boot_id: str
    bundle: str
    phase: Phase
    deadline: float  # CLOCK_BOOTTIME seconds; while PREPARED
    process: Process | None = None  # init; while PREPARED the runtime that starts it
    cgroup: Cgroup | None = None

    @property
    def key(self) -> tuple[str, int]:
        return (self.id, self.cookie)
