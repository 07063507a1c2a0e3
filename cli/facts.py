# SPDX-License-Identifier: MIT
"""What cgpu doctor reads of a node, and what a check finds. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from cgpu_common.model import Snapshot

#: Why cgpud gave no answer, where its socket may not be connected to.
ROOT_ONLY = "answers root only"
OK, PROBLEM, WARNING, SKIPPED = "ok", "problem", "warning", "skipped"


@dataclass(frozen=True)
class Finding:
    check: str
    status: str
    text: str
    remedy: str = ""


@dataclass(frozen=True)
class Engine:
    """An engine of cgpu setup: whether its program is there, its file's runtimes, why the file cannot be read."""

    name: str
    installed: bool
    ours: bool
    first: str = ""  # of the toolkit: the first low-level runtime
    error: str = ""


@dataclass(frozen=True)
class Card:
    """One GPU as NVML has it."""

    index: int
    mig: bool = False
    confidential: bool = False
    compute_mode: str = ""
    lost: str = ""
    uuid: str = ""


@dataclass(frozen=True)
class RefusedStart:
    """A container of Docker that is to run always, is stopped, and whose last start cgpu refused."""

    name: str
    why: str  # cgpu-runtime's sentence


@dataclass(frozen=True)
class OwnLimits:
    """The memory limits that NVIDIA's driver sets itself, from 615 on."""

    backend: str  # dmem: of the kernel's cgroups; misc: inside the driver, which no file shows; off
    cgroups: tuple[str, ...] = ()  # with a hard limit; of dmem
    leaked: tuple[tuple[str, int], ...] = ()  # that reserve more than what is left in them: bytes


@dataclass(frozen=True)
class Facts:
    """What cgpu doctor has read of the node; None: could not be read."""

    kernel: str = ""
    machine: str = ""
    kprobes: bool | None = None
    headers: bool = False
    dkms: bool = False  # the program
    dkms_kernels: tuple[str, ...] = ()  # for which DKMS built our modules
    module_file: bool = False  # below /lib/modules of this kernel
    signed_only: bool = False
    module: str | None = None
    core: str | None = None
    package: str = "unknown"
    nodes_missing: bool = False
    driver_text: str = ""  # first line of /proc/driver/nvidia/version
    any_driver: bool = False  # the module's parameter
    driver_nodes: tuple[str, ...] = ()  # of nvidiactl, nvidia-uvm: those that exist
    runtime: str | None = None
    toolkit: str | None = None
    toolkit_mode: str = ""
    toolkit_version: tuple[int, ...] = ()
    legacy_hook_config: str = ""
    engines: tuple[Engine, ...] = ()
    config_error: str = ""
    config_file: bool = True  # there is one; else the defaults hold
    daemon_silence: str = ""  # why it gave no answer; "": it gave one
    daemon_remedy: str = ""
    daemon_version: str | None = None
    config_is_read: bool | None = None  # whether cgpud has read the files as they are; None: not known
    drift: int | None = None  # values that differ from cgpu.toml
    unknown_gpus: tuple[str, ...] = ()  # tables of cgpu.toml that match no GPU
    draining: bool = False
    snapshot: Snapshot | None = None
    controls_ineffective: dict[int, str] = field(default_factory=dict)
    effect_check: dict[int, str] = field(default_factory=dict)
    run_state: dict[int, str] = field(default_factory=dict)  # the source in use
    run_state_errors: dict[int, str] = field(default_factory=dict)  # readings that could not be used
    cards: tuple[Card, ...] | None = None
    cards_error: str = ""
    mps: tuple[str, ...] = ()  # pipe directories of MPS daemons
    mps_units: tuple[str, ...] = ()  # UUIDs of the GPUs whose unit cgpu-mps@UUID serves MPS
    unfollowed: tuple[str, ...] = ()  # containers of the daemon's cookie without a record
    without_libcuda: tuple[str, ...] | None = None
    next_kernel: str = ""  # that boots next; "": not known
    next_lacks: tuple[str, ...] = ()  # of cgpu_km, nvidia and its headers
    past_us: tuple[str, ...] | None = None  # running containers with the variables and without a slice
    refused_starts: tuple[RefusedStart, ...] | None = None
    own_limits: OwnLimits | None = None
