# SPDX-License-Identifier: MIT
"""What the daemon knows of a container, as frozen values: its request, the plan for it, its record."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from cgpu_common.model import SlotWant


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
