# SPDX-License-Identifier: MIT
"""--query-gpu and --query-container: fields by name, as CSV with units in the head, as nvidia-smi has them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cgpu_common.exits import CgpuError, Exit
from cgpu_common.tree import MIB, slot_state

from .columns import printable
from .view import View

NOT_KNOWN = "[N/A]"


@dataclass(frozen=True)
class Field:
    """One field. @value returns None for what is not known."""

    about: str
    value: Callable[..., Any]
    unit: str = ""
    digits: int = 0


def _watt(milliwatt: int | None) -> float | None:
    return None if milliwatt is None else milliwatt / 1000


def _mib(size: int | None) -> float | None:
    return None if size is None else size / MIB


#: Of (view, gpu). Names that nvidia-smi has mean the same here.
GPU_FIELDS: Mapping[str, Field] = {
    "index": Field("N of /proc/cgpu_km/N", lambda view, gpu: gpu.index),
    "name": Field("the model", lambda view, gpu: view.card_name(gpu)),
    "uuid": Field("the UUID, as nvidia-smi has it", lambda view, gpu: gpu.uuid),
    "pci.bus_id": Field("the PCI address", lambda view, gpu: gpu.pci),
    "driver_version": Field("of NVIDIA's driver", lambda view, gpu: view.driver),
    "policy": Field("the policy's name", lambda view, gpu: gpu.facts.name),
    "slice": Field("length of a slice of weight 1", lambda view, gpu: gpu.slice_us, "us"),
    "weight.free": Field("slices per round that no container has", lambda view, gpu: gpu.free_weight),
    "weight.max": Field("slices per round", lambda view, gpu: gpu.max_inst),
    "prio_ratio": Field("ceiling of high priority", lambda view, gpu: gpu.prio_ratio, "%"),
    "containers": Field("containers, with dying ones", lambda view, gpu: view.instances(gpu)),
    "memory.total": Field("of the card", lambda view, gpu: _mib(view.total_bytes(gpu) or None), "MiB"),
    "memory.limits": Field("sum of the limits", lambda view, gpu: _mib(gpu.stat.get("limits_bytes", 0)), "MiB"),
    "memory.charged": Field("charged to containers", lambda view, gpu: _mib(gpu.stat.get("used_bytes", 0)), "MiB"),
    "memory.used": Field("in use on the card, by NVML", lambda view, gpu: _mib(view.sensors_of(gpu).used_bytes), "MiB"),
    "utilization.gpu": Field("by NVML", lambda view, gpu: view.sensors_of(gpu).utilization_pct, "%"),
    "utilization.memory": Field("by NVML", lambda view, gpu: view.sensors_of(gpu).memory_utilization_pct, "%"),
    "sm.active": Field("multiprocessors with work, by NVML (Hopper and later)",
                       lambda view, gpu: view.sensors_of(gpu).sm_active_pct, "%", 1),
    "dram.active": Field("of the memory's bandwidth, by NVML (Hopper and later)",
                         lambda view, gpu: view.sensors_of(gpu).dram_active_pct, "%", 1),
    "temperature.gpu": Field("degrees Celsius, by NVML", lambda view, gpu: view.sensors_of(gpu).temperature_c),
    "power.draw": Field("by NVML", lambda view, gpu: _watt(view.sensors_of(gpu).power_mw), "W", 2),
    "power.limit": Field("by NVML", lambda view, gpu: _watt(view.sensors_of(gpu).power_limit_mw), "W", 2),
}  # fmt: skip

#: Of (view, gpu, slot).
CONTAINER_FIELDS: Mapping[str, Field] = {
    "gpu": Field("N of /proc/cgpu_km/N", lambda view, gpu, slot: gpu.index),
    "gpu_uuid": Field("the GPU's UUID", lambda view, gpu, slot: gpu.uuid),
    "id": Field("the full id", lambda view, gpu, slot: slot.id),
    "name": Field("the engine's name", lambda view, gpu, slot: view.names_of(slot).name or None),
    "pod": Field("the pod, where there is one", lambda view, gpu, slot: view.names_of(slot).pod or None),
    "namespace": Field("the pod's namespace", lambda view, gpu, slot: view.names_of(slot).namespace or None),
    "state": Field("running, waiting, idle, frozen, dying", lambda view, gpu, slot: slot_state(gpu, slot)),
    "weight": Field("slices per round", lambda view, gpu, slot: slot.weight),
    "ceiling": Field("most slices per round under burst; 0: none", lambda view, gpu, slot: slot.ceiling),
    "highprio": Field("1: high priority", lambda view, gpu, slot: int(slot.highprio)),
    "share.allowed": Field("the ceiling now", lambda view, gpu, slot: view.allowed_pct(slot), "%", 1),
    "share.got": Field("over the sample", lambda view, gpu, slot: view.rates_of(slot).got_pct, "%", 1),
    "share.got_10s": Field("over ten seconds", lambda view, gpu, slot: view.rates_of(slot).got_10s_pct, "%", 1),
    "throttled": Field(
        "time out of turn, of the time with the GPU open", lambda view, gpu, slot: view.rates_of(slot).throttled_pct,
        "%", 1,
    ),
    "throttled.ceiling": Field(
        "the part of it in which its ceiling was used up",
        lambda view, gpu, slot: view.rates_of(slot).throttled_by_ceiling_pct, "%", 1,
    ),
    "wait": Field("mean time out of turn before a turn", lambda view, gpu, slot: view.rates_of(slot).wait_per_turn_us,
                  "us"),
    "wait.p99": Field("99 of 100 waits for a turn were shorter, over the sample",
                      lambda view, gpu, slot: view.rates_of(slot).wait_p99_us, "us"),
    "wait.p99_10s": Field("the same over ten seconds", lambda view, gpu, slot: view.rates_of(slot).wait_p99_10s_us,
                          "us"),
    "memory.used": Field("charged", lambda view, gpu, slot: _mib(slot.used), "MiB"),
    "memory.limit": Field("the limit", lambda view, gpu, slot: _mib(slot.memsize), "MiB"),
    "memory.peak": Field("most charged", lambda view, gpu, slot: _mib(slot.stat.get("peak_bytes", slot.used)), "MiB"),
    "processes": Field("processes with memory", lambda view, gpu, slot: len(slot.pids)),
    "refused.allocations": Field("over the limit", lambda view, gpu, slot: slot.stat.get("refused_allocs", 0)),
    "refused.calls": Field("by the call table", lambda view, gpu, slot: slot.stat.get("refused_calls", 0)),
    "sessions.nvdec": Field("decoders' objects", lambda view, gpu, slot: slot.stat.get("nvdec", 0)),
    "sessions.nvenc": Field("encoders' objects", lambda view, gpu, slot: slot.stat.get("nvenc", 0)),
    "sessions.nvjpg": Field("JPEG decoders' objects", lambda view, gpu, slot: slot.stat.get("nvjpg", 0)),
    "sessions.ofa": Field("optical flow accelerators' objects", lambda view, gpu, slot: slot.stat.get("ofa", 0)),
}  # fmt: skip


@dataclass(frozen=True)
class Format:
    header: bool = True
    units: bool = True


def parse_format(text: str) -> Format:
    """csv, then noheader and nounits in any order."""
    words = text.split(",")
    unknown = [word for word in words[1:] if word not in ("noheader", "nounits")]
    if words[0] != "csv" or unknown:
        raise CgpuError(Exit.USAGE, "usage", f"--format: {text!r} is no format", "csv[,noheader][,nounits]")
    return Format("noheader" not in words, "nounits" not in words)


def parse_fields(text: str, known: Mapping[str, Field], option: str) -> list[str]:
    if not text.strip():
        raise CgpuError(Exit.USAGE, "usage", f"{option}: no field is named", f"--help-{option[2:]}")
    names = [word.strip() for word in text.split(",")]
    for name in names:
        if name not in known:
            raise CgpuError(Exit.USAGE, "usage", f"{option}: there is no field {name!r}", f"--help-{option[2:]}")
    return names


def _cell(field: Field, value: Any, units: bool) -> str:
    if value is None:
        return NOT_KNOWN
    text = f"{value:.{field.digits}f}" if isinstance(value, (int, float)) else printable(str(value))
    return f"{text} {field.unit}" if units and field.unit else text


def _csv(names: Sequence[str], known: Mapping[str, Field], rows: Sequence[Sequence[Any]], form: Format) -> str:
    """A cell with a comma or a quote is quoted; after each comma is a blank, as nvidia-smi writes it."""
    import csv  # only a query needs them
    import io

    heads = [f"{name} [{known[name].unit}]" if known[name].unit else name for name in names]
    lines = [heads] * form.header + [
        [_cell(known[name], known[name].value(*row), form.units) for name in names] for row in rows
    ]
    out = []
    for line in lines:
        cells = []
        for cell in line:
            stream = io.StringIO()
            csv.writer(stream, lineterminator="").writerow([cell])
            cells.append(stream.getvalue())
        out.append(", ".join(cells))
    return "\n".join(out)


def gpu_csv(view: View, fields: Sequence[str], form: Format) -> str:
    return _csv(fields, GPU_FIELDS, [(view, gpu) for gpu in view.snapshot.gpus], form)


def container_csv(view: View, fields: Sequence[str], form: Format) -> str:
    rows = [(view, gpu, slot) for gpu in view.snapshot.gpus for slot in gpu.slots]
    return _csv(fields, CONTAINER_FIELDS, rows, form)


def help_text(known: Mapping[str, Field]) -> str:
    width = max(map(len, known))
    return "\n".join(
        f"{name:<{width}}  {field.about}{f' [{field.unit}]' if field.unit else ''}" for name, field in known.items()
    )
