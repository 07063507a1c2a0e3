# SPDX-License-Identifier: MIT
"""cgpu-smi -q and -q -x: everything that --json has, as nvidia-smi lays its own out. Pure.

A field's name ends with its unit in JSON. The text has the unit behind the value; XML has JSON's names and values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cgpu_common.figures import NO_UNIT, Unit, unit_of
from cgpu_common.model import VIDEO_ENGINES

from .columns import printable

NOT_KNOWN = "N/A"
NAMED = 38  # cells of a name and its indent, as nvidia-smi has them
INDENT = "    "
#: Words of names that are no words.
SPELLED = {
    "gpu": "GPU", "uuid": "UUID", "pci": "PCI", "pid": "PID", "nvml": "NVML", "sm": "SM", "dram": "DRAM", "uvm": "UVM",
    "max": "Max", "inst": "Instances", "p99": "P99", "10s": "10 s", "allocs": "Allocations", "prio": "Priority",
    **{name: name.upper() for name in VIDEO_ENGINES},
    "highprio": "High Priority", "ns": "Time", "dir": "Directory", "id": "ID",
}  # fmt: skip
#: Names that the words of the field do not make clear.
TITLES = {
    "gpu_ns": "GPU Time In All", "wait_ns": "Wait Time In All", "throttled_ns": "Ceiling Time In All",
    "lost": "NVML Error",
}  # fmt: skip
#: A list -> the element of one of its members, and the field by which the text names it.
MEMBERS = {
    "gpus": ("gpu", "pci"),
    "containers": ("container", "id"),
    "pids": ("process", "pid"),
    "drift": ("value", "key"),
}


def _name(key: str) -> tuple[str, Unit]:
    """The name for people, and the unit of the value."""
    if key == "bytes":  # of a process
        key = "memory_bytes"
    rest, unit = unit_of(key)
    return TITLES.get(key) or " ".join(SPELLED.get(word, word.capitalize()) for word in rest.split("_")), unit


def _value(value: Any, unit: Unit = NO_UNIT) -> str:
    if value is None:
        return NOT_KNOWN
    if value == []:
        return "None"
    if isinstance(value, bool):
        return "Yes" if value else "No"
    if isinstance(value, list):
        return ", ".join(printable(str(one)) for one in value)
    if unit.name and isinstance(value, (int, float)):
        return f"{value / unit.per:.{unit.digits}f} {unit.name}"
    return printable(str(value))


def _lines(data: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in data.items():
        name, unit = _name(key)
        if key in MEMBERS and isinstance(value, list):
            element, title = MEMBERS[key]
            for one in value:
                yield f"{indent}{SPELLED.get(element, element.capitalize())} {printable(str(one[title]))}"
                yield from _lines({field: one[field] for field in one if field != title}, indent + INDENT)
            if not value:
                yield f"{indent}{name:<{NAMED - len(indent)}}: None"
        elif isinstance(value, Mapping):
            yield f"{indent}{name}"
            yield from _lines(value, indent + INDENT)
        else:
            yield f"{indent}{name:<{NAMED - len(indent)}}: {_value(value, unit)}"


def text(data: Mapping[str, Any]) -> str:
    """@data: the document of --json."""
    head = "==============CGPU-SMI LOG=============="
    return "\n".join([head, "", *_lines({key: data[key] for key in data if key != "schema_version"}, "")])


def xml(data: Mapping[str, Any]) -> str:
    import xml.etree.ElementTree as ET  # slow to import

    root = ET.Element("cgpu_smi_log")
    _fill(ET, root, data)
    ET.indent(root, "\t")
    return '<?xml version="1.0" ?>\n' + ET.tostring(root, encoding="unicode")


def _fill(module: Any, parent: Any, data: Mapping[str, Any]) -> None:
    for key, value in data.items():
        child = module.SubElement(parent, key)
        if isinstance(value, Mapping):
            _fill(module, child, value)
        elif isinstance(value, list) and key in MEMBERS:
            for one in value:
                _fill(module, module.SubElement(child, MEMBERS[key][0]), one)
        elif isinstance(value, bool):
            child.text = "true" if value else "false"
        else:
            child.text = NOT_KNOWN if value is None else _value(value) if value != [] else ""
