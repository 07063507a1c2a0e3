# SPDX-License-Identifier: MIT
"""The GPUs of a node as NVML has them, and as NVML and the kernel together have them, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass, field

from cgpu_common.model import KernelGpu, Sensors


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
