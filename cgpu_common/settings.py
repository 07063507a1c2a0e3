# SPDX-License-Identifier: MIT
"""PURE: the configured settings of a GPU, the kernel's current ones, and the difference.

The daemon does not change the kernel's value of a key that no file sets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from cgpu_common import keys, policies
from cgpu_common.cards import Gpu
from cgpu_common.kernel_abi import UVM_NAMES, G
from cgpu_common.keys import SLICE_AUTO
from cgpu_common.model import MIB, KernelGpu


@dataclass(frozen=True, slots=True)
class GpuSettings:
    """One table of [gpu]; None: not set in this table."""

    policy: int | None = None
    max_inst: int | None = None
    prio_ratio: int | None = None  # percent
    slice_us: int | None = None  # SLICE_AUTO: the kernel chooses by the control's latency
    uvm: int | None = None  # 0 deny, 1 account
    overcommit: int | None = None  # percent
    default_memsize_mib: int | None = None  # 0: no slice without a requested size
    unsliced: str | None = None  # allow | refuse; for the daemon only


@dataclass(frozen=True, slots=True)
class Caps:
    """[container]: the most a container may request on each GPU; None: no cap."""

    max_memory_mib: int | None = None
    max_memory_fraction: float | None = None
    max_weight: int | None = None
    highprio: str = keys.CONTAINER["highprio"].default
    disable: str | None = None  # None: deny if there is a limit
    grants: str = keys.CONTAINER["grants"].default
    ceiling: int | None = None  # in slices per round; at least the container's weight
    nvidia_memory_limit: str = keys.CONTAINER["nvidia_memory_limit"].default
    files: Mapping[str, str] = field(default_factory=dict, compare=False)  # key -> the file that sets it

    def source(self, key: str) -> str:
        if getattr(self, key) is None:
            return (
                f"{key} is not set in [container] of {self.files.get(self.limits()[0], 'cgpu.toml')}, which has limits"
            )
        return f"{key} = {keys.toml(getattr(self, key))} in [container] of {self.files.get(key, 'cgpu.toml')}"

    def limits(self) -> list[str]:
        """The keys that limit a container."""
        found = [
            key
            for key in ("max_memory_mib", "max_memory_fraction", "max_weight", "ceiling")
            if getattr(self, key) is not None
        ]
        return found + ["highprio"] * (self.highprio == "refuse")

    def denies_disable(self) -> bool:
        return self.disable == "deny" or (self.disable is None and bool(self.limits()))


def encoded(key: str, value: Any) -> Any:
    """A value of the file in the kernel's numbers, sizes still in MiB."""
    match key:
        case "policy" if isinstance(value, str):
            return policies.NAMES.index(value)
        case "slice_us" if value == "auto":
            return SLICE_AUTO
        case "uvm":
            return UVM_NAMES.index(value)
    return value


@dataclass(frozen=True, slots=True)
class _Key:
    """The netlink attribute of a key of the file, and the kernel's default."""

    attr: G
    default: int


KERNEL_KEYS = {
    name: _Key(key.attr, encoded(name, key.default)) for name, key in keys.GPU.items() if key.attr is not None
}


def overlay(base: GpuSettings, over: GpuSettings) -> GpuSettings:
    given = {f.name: getattr(over, f.name) for f in fields(over) if getattr(over, f.name) is not None}
    return replace(base, **given)


def names_of(gpu: Gpu) -> tuple[str, ...]:
    """Names of this GPU in tables, the most specific last: it takes precedence."""
    return (str(gpu.number), gpu.pci.lower(), gpu.uuid.lower())


def resolve(base: GpuSettings, tables: Mapping[str, GpuSettings], gpu: Gpu) -> GpuSettings:
    """The table for all GPUs, overlaid with those of this GPU."""
    for name in names_of(gpu):
        if name in tables:
            base = overlay(base, tables[name])
    return base


def unmatched(tables: Mapping[str, GpuSettings], inventory: Iterable[Gpu]) -> tuple[str, ...]:
    known = {name for gpu in inventory for name in names_of(gpu)}
    return tuple(name for name in tables if name not in known)


def configured(settings: GpuSettings) -> dict[str, int]:
    """The configured values by key, in the kernel's units."""
    given = {key: getattr(settings, key) for key in KERNEL_KEYS if getattr(settings, key) is not None}
    if "default_memsize_mib" in given:
        given["default_memsize_mib"] *= MIB
        if not given["default_memsize_mib"]:  # 0 is for the daemon only: the kernel has no such size
            del given["default_memsize_mib"]
    return given


def current(gpu: KernelGpu) -> dict[str, int]:
    """The kernel's values by key."""
    return {
        "policy": gpu.policy,
        "max_inst": gpu.max_inst,
        "prio_ratio": gpu.prio_ratio,
        "slice_us": gpu.slice_us if gpu.slice_is_set else SLICE_AUTO,
        "uvm": gpu.uvm,
        "overcommit": gpu.overcommit,
        "default_memsize_mib": gpu.default_memsize,
    }


def desired(new: GpuSettings, old: GpuSettings) -> dict[str, int]:
    """The values after a change of the files: theirs, and the kernel's default for keys they no longer set."""
    left = {key: KERNEL_KEYS[key].default for key in configured(old)}
    return left | configured(new)


def format_value(key: str, value: int) -> str:
    """A kernel value as it is written in the file."""
    match key:
        case "policy":
            return policies.NAMES[value] if value < len(policies.NAMES) else str(value)
        case "uvm":
            return UVM_NAMES[value]
        case "slice_us" if value == SLICE_AUTO:
            return "auto"
        case "default_memsize_mib":
            return f"{value / MIB:g}" if value else "that of all GPUs"
    return str(value)


def drift(base: GpuSettings, tables: Mapping[str, GpuSettings], inventory: Iterable[Gpu]) -> list[dict[str, object]]:
    """The keys whose value in the kernel differs from the files: written by hand, or refused by the kernel."""
    rows: list[dict[str, object]] = []
    for gpu in inventory:
        if gpu.kernel is None or not gpu.kernel.born:
            continue
        has = current(gpu.kernel)
        for key, want in configured(resolve(base, tables, gpu)).items():
            if has[key] != want:
                row = {"gpu": gpu.number, "index": gpu.index, "key": key}
                rows.append(row | {"configured": format_value(key, want), "live": format_value(key, has[key])})
    return rows
