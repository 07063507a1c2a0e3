# SPDX-License-Identifier: MIT
"""--query-gpu and --query-container: fields by name, as CSV with units in the head, as nvidia-smi has them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from cgpu_common import figures
from cgpu_common.exits import CgpuError, Exit
from cgpu_common.figures import NO_UNIT, UNITS, Figure, Unit
from cgpu_common.model import KernelGpu

from .columns import printable
from .overview import container_json, gpu_json
from .view import View

NOT_KNOWN = "[N/A]"
Row = tuple[KernelGpu, Mapping[str, Any]]  #: a GPU, and the part of the document that the fields are of


class Field(NamedTuple):
    """One field. @place: where the value is in the document of --json, or what makes it of (view, gpu)."""

    about: str
    place: str | Callable[[View, KernelGpu], Any]
    unit: Unit = NO_UNIT

    def cell(self, view: View, gpu: KernelGpu, data: Mapping[str, Any], units: bool) -> str:
        value: Any = self.place(view, gpu) if callable(self.place) else data
        if not callable(self.place):
            for key in self.place.split("/"):
                value = None if value is None else value[key]
        if value is None:
            return NOT_KNOWN
        unit = f" {self.unit.name}" if units and self.unit.name else ""
        return f"{self._text(value)}{unit}"

    def _text(self, value: Any) -> str:
        if isinstance(value, list):
            return str(len(value))
        if not isinstance(value, (int, float)):
            return printable(str(value))
        whole = isinstance(value, int) and self.unit.per == 1
        return f"{value / self.unit.per:.{0 if whole else self.unit.digits}f}"


def _fields(rows: Iterable[Figure], folder: str = "") -> dict[str, Field]:
    """Of the rows that a query names."""
    shown = {one.query: one.measure if one.shown is None else one.measure._replace(name=one.shown) for one in rows}
    return {one.query: Field(one.about, folder + one.key, shown[one.query]) for one in rows if one.query}


#: Of a GPU. Names that nvidia-smi has mean the same here.
GPU_FIELDS: Mapping[str, Field] = {
    **_fields(figures.GPU),
    "memory.total": Field("of the card", lambda view, gpu: view.total_bytes(gpu) or None, UNITS["_bytes"]),
    "driver_version": Field("of NVIDIA's driver", lambda view, gpu: view.driver),
    "containers": Field("containers, with dying ones", lambda view, gpu: view.instances(gpu)),
    **_fields(figures.CARD, "nvml/"),
}

#: Of a container on a GPU.
CONTAINER_FIELDS: Mapping[str, Field] = {
    "gpu": Field("N of /proc/cgpu_km/N", lambda view, gpu: gpu.index),
    "gpu_uuid": Field("the GPU's UUID", lambda view, gpu: gpu.uuid),
    **_fields((*figures.SLOT, *figures.POD, *figures.RATES)),
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

    heads = [f"{name} [{known[name].unit.name}]" if known[name].unit.name else name for name in names]
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
        f"{name:<{width}}  {field.about}{f' [{field.unit.name}]' if field.unit.name else ''}"
        for name, field in known.items()
    )
