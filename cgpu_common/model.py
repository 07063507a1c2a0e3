# SPDX-License-Identifier: MIT
"""The data types, as frozen values without behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from cgpu_common import policies
from cgpu_common.kernel_abi import MAX_INST_DEFAULT, OVERCOMMIT_MIN, PRIO_RATIO_DEFAULT

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class KernelGpu:
    """One GPU as the kernel module lists it."""

    index: int  # N of /proc/cgpu_km/N
    uuid: str
    pci: str
    nv_minor: int  # M of /dev/nvidiaM
    total: int  # bytes; 0 while not yet known
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


@dataclass(frozen=True, slots=True)
class NvmlGpu:
    """One GPU as NVML lists it."""

    index: int  # number in `nvidia-smi -L`
    uuid: str
    pci: str
    nv_minor: int
    total_mib: int
    name: str = ""
    mig: bool = False
    confidential: bool = False  # Confidential Computing is on in this machine
    used_mib: int | None = None  # by all processes and the driver
    compute_mode: str = ""  # "" = any number of processes may use it
    lost: str = ""  # the error, if NVML does not return all of this
    peers: tuple[str, ...] = ()  # of each active NVLink the other end's PCI address, or links.SWITCH
    bridges: tuple[str, ...] = ()  # of PCIe above it, the root first
    sensors: Sensors | None = None  # only of a query for them
    read_at: float | None = field(default=None, compare=False)  # CLOCK_MONOTONIC seconds; None: just now


@dataclass(frozen=True, slots=True)
class NvmlView:
    """The latest answer of NVML."""

    gpus: tuple[NvmlGpu, ...] = ()  # one that NVML did not answer for has the values of an earlier answer and is lost
    absent: str = ""  # the reason, if there is no NVML
    silent: str = ""  # the reason, if there was no answer for all GPUs


@dataclass(frozen=True, slots=True)
class Gpu:
    """Both views of one GPU. Users write `number`, requests to the kernel have `index`."""

    number: int
    index: int
    uuid: str
    pci: str
    nv_minor: int
    total_mib: int
    max_inst: int
    free_weight: int
    mig: bool = False
    confidential: bool = False
    compute_mode: str = ""
    lost: str = ""  # the error of NVML
    room_mib: int | None = None  # total minus the use by driver and other processes; None: unknown
    overcommit: int = 100  # the sum of limits may be this percentage of room_mib
    default_mib: int = 0  # for a container without a size; 0: none
    instances: int = 0
    limits: int | None = None  # bytes, of its containers together; None: to be summed up from their list
    kernel: KernelGpu | None = None
    name: str = ""  # the product, of NVML
    context_mib: int = 0  # what one context takes, as far as the module has seen
    mps: str = ""  # not empty: it has an MPS server, or clients of one, in words
    links: tuple[tuple[int, int], ...] = ()  # minor of another GPU, and the rank of the link to it: links.rank()


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
    """One slot as the kernel has it."""

    gpu: int
    minor: int
    nv_minor: int
    limit: int
    used: int = 0
    weight: int = 1
    highprio: bool = False
    ceiling: int = 0  # under burst, in slices per round; 0: none
    host_limit: int = 0  # bytes of system memory by the driver, of the whole container; 0: none


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
    """One multicast event; `kind` is of kernel_abi.Event, `values` are the attributes of kernel_abi.A from PID on."""

    kind: int
    container: Container | None = None  # without slots if the event is about one GPU
    gpu: KernelGpu | None = None  # index, uuid, pci, nv_minor and total only
    values: Mapping[str, Any] = field(default_factory=dict)  # numbers; text where the attribute is a string


@dataclass(frozen=True, slots=True)
class Devices:
    """The GPUs a container requests: all, or a list of numbers and UUID prefixes."""

    source: str  # the variable, for messages
    all: bool = False
    items: tuple[int | str, ...] = ()
    minors: tuple[int, ...] = ()  # in place of items: M of /dev/nvidiaM


@dataclass(frozen=True, slots=True)
class SlotRequest:
    """One slot of a grant. The variables have one DEV for all GPUs and whole units of it; this is exact."""

    gpu: str  # UUID
    mib: int
    weight: int = 1
    highprio: bool = False
    ceiling: int | None = None  # None = not given


@dataclass(frozen=True, slots=True)
class NamedLimit:
    """Memory of each GPU, by one variable."""

    variable: str
    mib: int


@dataclass(frozen=True, slots=True)
class Request:
    """The request in the variables of a container, or in its grant."""

    devices: Devices
    sizes: tuple[int, ...]  # of ALIYUN_COM_GPU_MEM_CONTAINER, GiB units; empty = default_memsize
    total: int  # ALIYUN_COM_GPU_MEM_DEV
    weight: int | None = None  # None = not given
    highprio: bool = False
    ceiling: int | None = None  # None = not given; at least the weight
    native: Devices | None = None  # an explicit NVIDIA_VISIBLE_DEVICES in addition
    exact: tuple[SlotRequest, ...] = ()  # of a grant; then one for each of `devices`, and nothing else counts
    nvidia: NamedLimit | None = None  # by NVIDIA's own variables: no slice is larger
    by_nvidia: bool = False  # `nvidia` is the size of each slice, and no variable of ours gives one


@dataclass(frozen=True, slots=True)
class NotSliced:
    """The variables request no slice. `why` is for the log, `warning` for the user too."""

    why: str
    warning: str = ""
    switched_off: bool = False  # by a variable, as opposed to one that is not set


@dataclass(frozen=True, slots=True)
class Plan:
    """An admitted request."""

    slots: tuple[SlotWant, ...]
    warnings: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()  # values of the request that have no effect now; for the log


class Phase(Enum):
    """The states of a container of this daemon. See state.py."""

    PREPARED = "prepared"
    BOUND = "bound"
    RELEASING = "releasing"
    STUCK = "stuck"
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class Process:
    """A process, identified even if its pid is reused."""

    pid: int
    starttime: int  # field 22 of /proc/<pid>/stat


@dataclass(frozen=True, slots=True)
class Cgroup:
    """A cgroup, identified even if a later one has the same path."""

    path: str  # below the mount of the hierarchy (see watch.py), with a leading slash
    inode: int


@dataclass(frozen=True, slots=True)
class MpsClient:
    """What a container without a slice has of a GPU with an MPS server."""

    uuid: str
    mib: int  # the grant
    uid: int  # user of its first process
    name: str = ""  # of the container in its pod, if a grant named the pod


@dataclass(frozen=True, slots=True)
class Record:
    """The state of one container that survives a restart of the daemon."""

    id: str
    cookie: int
    boot_id: str
    bundle: str
    phase: Phase
    deadline: float  # CLOCK_BOOTTIME seconds; while PREPARED
    process: Process | None = None  # init; while PREPARED the runtime
    cgroup: Cgroup | None = None
    slice: tuple[str, int] | None = None  # id and cookie of the kernel's container, if several containers share it
    pod: str = ""  # namespace/name, if a grant named the pod
    pod_uid: str = ""
    container: str = ""  # its name in the pod
    mps: MpsClient | None = None  # the kernel has no container of it

    @property
    def key(self) -> tuple[str, int]:
        return (self.id, self.cookie)

    @property
    def kernel_key(self) -> tuple[str, int]:
        """Id and cookie of the kernel's container."""
        return self.slice or self.key
