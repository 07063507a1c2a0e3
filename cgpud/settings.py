# SPDX-License-Identifier: MIT
"""PURE: what the administrator wants of a GPU, what the kernel has, and the difference.

A key that no file gives is nobody's wish: the kernel's value stays, whatever it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace

from cgpud.kernel_abi import MAX_INST_DEFAULT, PRIO_RATIO_DEFAULT, G, Policy
from cgpud.model import MIB, Gpu, KernelGpu

POLICY_NAMES = ("fair", "preemptive", "weighted", "fixed", "soft", "native")
UVM_NAMES = ("deny", "account")
SLICE_AUTO = 0


@dataclass(frozen=True, slots=True)
class GpuSettings:
    """One table of [gpu]; None: the table does not say."""

    policy: int | None = None
    max_inst: int | None = None
    prio_ratio: int | None = None  # percent
    slice_us: int | None = None  # SLICE_AUTO: chosen by the kernel from the lever
    uvm: int | None = None  # 0 deny, 1 account
    overcommit: int | None = None  # percent
    default_memsize_mib: int | None = None  # 0: who says no size gets no slice
    unsliced: str | None = None  # allow | refuse; not the kernel's business


@dataclass(frozen=True, slots=True)
class Caps:
    """[container]: what a container may ask for at most, on each GPU; None: no cap."""

    max_memory_mib: int | None = None
    max_memory_fraction: float | None = None
    max_weight: int | None = None
    highprio: str = "allow"  # allow | refuse
    files: Mapping[str, str] = field(default_factory=dict, compare=False)  # key -> the file that has it

    def source(self, key: str) -> str:
        return f"{key} = {_toml(getattr(self, key))} in [container] of {self.files.get(key, 'cgpu.toml')}"


def _toml(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


@dataclass(frozen=True, slots=True)
class _Key:
    """How a key of the file is told to the kernel and compared with it."""

    attr: G
    default: int  # the kernel's own


KERNEL_KEYS = {
    "policy": _Key(G.POLICY, int(Policy.NATIVE)),
    "max_inst": _Key(G.MAX_INST, MAX_INST_DEFAULT),
    "prio_ratio": _Key(G.PRIO_RATIO, PRIO_RATIO_DEFAULT),
    "slice_us": _Key(G.SLICE_US, SLICE_AUTO),
    "uvm": _Key(G.UVM, 0),
    "overcommit": _Key(G.OVERCOMMIT, 100),
    "default_memsize_mib": _Key(G.DEFAULT_MEMSIZE, 0),
}


def overlay(base: GpuSettings, over: GpuSettings) -> GpuSettings:
    given = {f.name: getattr(over, f.name) for f in fields(over) if getattr(over, f.name) is not None}
    return replace(base, **given)


def names_of(gpu: Gpu) -> tuple[str, ...]:
    """What a table may call this GPU, the most particular last: it wins."""
    return (str(gpu.number), gpu.pci.lower(), gpu.uuid.lower())


def resolve(base: GpuSettings, tables: Mapping[str, GpuSettings], gpu: Gpu) -> GpuSettings:
    """The node's table with this GPU's own over it."""
    for name in names_of(gpu):
        if name in tables:
            base = overlay(base, tables[name])
    return base


def unmatched(tables: Mapping[str, GpuSettings], inventory: Iterable[Gpu]) -> tuple[str, ...]:
    known = {name for gpu in inventory for name in names_of(gpu)}
    return tuple(name for name in tables if name not in known)


def wanted(settings: GpuSettings) -> dict[str, int]:
    """What the kernel is to have, by key, in its own units."""
    given = {key: getattr(settings, key) for key in KERNEL_KEYS if getattr(settings, key) is not None}
    if "default_memsize_mib" in given:
        given["default_memsize_mib"] *= MIB
        if not given["default_memsize_mib"]:  # no slice is no size for the kernel
            del given["default_memsize_mib"]
    return given


def live(gpu: KernelGpu) -> dict[str, int]:
    """What the kernel has, the same way."""
    return {
        "policy": gpu.policy,
        "max_inst": gpu.max_inst,
        "prio_ratio": gpu.prio_ratio,
        "slice_us": gpu.slice_us if gpu.slice_is_set else SLICE_AUTO,
        "uvm": gpu.uvm,
        "overcommit": gpu.overcommit,
        "default_memsize_mib": gpu.default_memsize,
    }


def target(new: GpuSettings, old: GpuSettings) -> dict[str, int]:
    """What to set when files changed: what they give, and the kernel's default for what they give no more."""
    left = {key: KERNEL_KEYS[key].default for key in wanted(old)}
    return left | wanted(new)


def show(key: str, value: int) -> str:
    """A kernel's value as the file would have it."""
    match key:
        case "policy":
            return POLICY_NAMES[value] if value < len(POLICY_NAMES) else str(value)
        case "uvm":
            return UVM_NAMES[value]
        case "slice_us" if value == SLICE_AUTO:
            return "auto"
        case "overcommit":
            return f"{value / 100:g}"
        case "default_memsize_mib":
            return f"{value / MIB:g}" if value else "that of all GPUs"
    return str(value)


def drift(base: GpuSettings, tables: Mapping[str, GpuSettings], inventory: Iterable[Gpu]) -> list[dict[str, object]]:
    """Where the kernel has something else than the files: somebody wrote it, or it was refused."""
    rows: list[dict[str, object]] = []
    for gpu in inventory:
        if gpu.kernel is None or not gpu.kernel.born:
            continue
        has = live(gpu.kernel)
        for key, want in wanted(resolve(base, tables, gpu)).items():
            if has[key] != want:
                row = {"gpu": gpu.number, "index": gpu.index, "key": key}
                rows.append(row | {"configured": show(key, want), "live": show(key, has[key])})
    return rows
