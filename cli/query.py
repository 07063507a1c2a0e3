# SPDX-License-Identifier: MIT
"""--query-gpu and --query-container: fields by name, as CSV with units in the head, as nvidia-smi has them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cgpu_common.exits import CgpuError, Exit
from cgpu_common.model import MIB, VIDEO_ENGINES, KernelGpu

from .columns import printable
from .overview import container_json, gpu_json
from .render import unit_of
from .view import View

NOT_KNOWN = "[N/A]"
Row = tuple[KernelGpu, Mapping[str, Any]]  #: a GPU, and the part of the document that the fields are of


@dataclass(frozen=True)
class Field:
    """One field. @place: where the value is in the document of --json, whose name has its unit; or what makes it of
    (view, gpu). @unit: where the name has none, or nvidia-smi prints another."""

    about: str
    place: str | Callable[[View, KernelGpu], Any]
    unit: str | None = None

    @property
    def shown_unit(self) -> str:
        if self.unit is not None or callable(self.place):
            return self.unit or ""
        return unit_of(self.place)[1]

    def cell(self, view: View, gpu: KernelGpu, data: Mapping[str, Any], units: bool) -> str:
        value: Any = self.place(view, gpu) if callable(self.place) else data
        if not callable(self.place):
            for key in self.place.split("/"):
                value = None if value is None else value[key]
        if value is None:
            return NOT_KNOWN
        unit = f" {self.shown_unit}" if units and self.shown_unit else ""
        return f"{self._text(value)}{unit}"

    def _text(self, value: Any) -> str:
        if isinstance(value, list):
            return str(len(value))
        if not isinstance(value, (int, float)):
            return printable(str(value))
        _, _, scale, digits = unit_of(self.place) if isinstance(self.place, str) else ("", "", 1, 0)
        return f"{value / scale:.{0 if isinstance(value, int) and scale == 1 else digits}f}"


#: Of a GPU. Names that nvidia-smi has mean the same here.
GPU_FIELDS: Mapping[str, Field] = {
    "index": Field("N of /proc/cgpu_km/N", "index"),
    "name": Field("the model", "name"),
    "uuid": Field("the UUID, as nvidia-smi has it", "uuid"),
    "pci.bus_id": Field("the PCI address", "pci"),
    "driver_version": Field("of NVIDIA's driver", lambda view, gpu: view.driver),
    "policy": Field("the policy's name", "policy/name"),
    "slice": Field("length of a slice of weight 1", "slice_us"),
    "weight.free": Field("slices per round that no container has", "free_weight"),
    "weight.max": Field("slices per round", "max_inst"),
    "prio_ratio": Field("quota of high priority", "prio_ratio", "%"),
    "containers": Field("containers, with dying ones", lambda view, gpu: view.instances(gpu)),
    "memory.total": Field("of the card", lambda view, gpu: view.total_bytes(gpu) // MIB or None, "MiB"),
    "memory.limits": Field("sum of the limits", "memory/limits_bytes"),
    "memory.charged": Field("charged to containers", "memory/used_bytes"),
    "memory.used": Field("in use on the card, by NVML", "nvml/used_bytes"),
    "utilization.gpu": Field("by NVML", "nvml/utilization_pct"),
    "utilization.memory": Field("by NVML", "nvml/memory_utilization_pct"),
    "sm.active": Field("multiprocessors with work, by NVML (Hopper and later)", "nvml/sm_active_pct"),
    "dram.active": Field("of the memory's bandwidth, by NVML (Hopper and later)", "nvml/dram_active_pct"),
    "temperature.gpu": Field("degrees Celsius, by NVML", "nvml/temperature_c", ""),
    "power.draw": Field("by NVML", "nvml/power_mw"),
    "power.limit": Field("by NVML", "nvml/power_limit_mw"),
}

#: Of a container on a GPU.
CONTAINER_FIELDS: Mapping[str, Field] = {
    "gpu": Field("N of /proc/cgpu_km/N", lambda view, gpu: gpu.index),
    "gpu_uuid": Field("the GPU's UUID", lambda view, gpu: gpu.uuid),
    "id": Field("the full id", "id"),
    "name": Field("the engine's name", "name"),
    "pod": Field("the pod, where there is one", "pod"),
    "namespace": Field("the pod's namespace", "namespace"),
    "state": Field("running, waiting, idle, frozen, dying", "state"),
    "weight": Field("slices per round", "weight"),
    "ceiling": Field("most slices per round under burst; 0: none", "ceiling"),
    "highprio": Field("1: high priority", "highprio"),
    "share.allowed": Field("the part that it may have now", "share_allowed_pct"),
    "share.got": Field("over the sample", "share_got_pct"),
    "share.got_10s": Field("over ten seconds", "share_got_10s_pct"),
    "throttled": Field("time out of turn, of the time with the GPU open", "throttled_pct"),
    "throttled.ceiling": Field("the part of it in which its ceiling was used up", "throttled_by_ceiling_pct"),
    "wait": Field("mean time out of turn before a turn", "wait_per_turn_us"),
    "wait.p99": Field("99 of 100 waits for a turn were shorter, over the sample", "wait_p99_us"),
    "wait.p99_10s": Field("the same over ten seconds", "wait_p99_10s_us"),
    "memory.used": Field("charged", "memory/used_bytes"),
    "memory.limit": Field("the limit", "memory/limit_bytes"),
    "memory.peak": Field("most charged", "memory/peak_bytes"),
    "processes": Field("processes with memory", "pids"),
    "refused.allocations": Field("over the limit", "refused_allocs"),
    "refused.calls": Field("by the call table", "refused_calls"),
    **{f"sessions.{name}": Field(f"objects of {about}", f"sessions/{name}") for name, about in VIDEO_ENGINES.items()},
}


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


def _csv(view: View, names: Sequence[str], known: Mapping[str, Field], rows: Sequence[Row], form: Format) -> str:
    """A cell with a comma or a quote is quoted; after each comma is a blank, as nvidia-smi writes it."""
    import csv  # only a query needs them
    import io

    heads = [f"{name} [{known[name].shown_unit}]" if known[name].shown_unit else name for name in names]
    lines = [heads] * form.header + [
        [known[name].cell(view, gpu, data, form.units) for name in names] for gpu, data in rows
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
    return _csv(view, fields, GPU_FIELDS, [(gpu, gpu_json(view, gpu)) for gpu in view.snapshot.gpus], form)


def container_csv(view: View, fields: Sequence[str], form: Format) -> str:
    rows = [(gpu, container_json(view, gpu, slot)) for gpu in view.snapshot.gpus for slot in gpu.slots]
    return _csv(view, fields, CONTAINER_FIELDS, rows, form)


def help_text(known: Mapping[str, Field]) -> str:
    width = max(map(len, known))
    return "\n".join(
        f"{name:<{width}}  {field.about}{f' [{field.shown_unit}]' if field.shown_unit else ''}"
        for name, field in known.items()
    )
