# SPDX-License-Identifier: MIT
"""The C headers that describe NVIDIA's driver, read by Python: #defines as numbers, structs as ctypes.

cgpu_km/core/nv_abi.h has the numbers and cgpu_km/core/nv_struct.h the structs that the module reads;
tests/nvsim/module/nvabi.h has what only the simulated driver and the test clients need. Only the standard library.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NUMBERS = ROOT / "cgpu_km/core/nv_abi.h"
STRUCTS = ROOT / "cgpu_km/core/nv_struct.h"
CONTROLS = ROOT / "cgpu_km/core/nv_struct_control.h"  # included by it
NVSIM = ROOT / "tests/nvsim/module/nvabi.h"
ALL = (NUMBERS, CONTROLS, STRUCTS, NVSIM)

TYPES = {
    "u8": ctypes.c_uint8,
    "u16": ctypes.c_uint16,
    "u32": ctypes.c_uint32,
    "u64": ctypes.c_uint64,
    "s16": ctypes.c_int16,
    "s32": ctypes.c_int32,
    "char": ctypes.c_char,
}
NEWEST = 1 << 30  # a branch behind all


@dataclass
class Struct:
    """A struct of a header, and the branches of NVIDIA's that it is the layout of."""

    tag: str
    nvidia: str  # "": a part of another one
    since: int
    before: int
    grows: bool  # later branches have more fields at the end
    header: Path
    ctype: type[ctypes.Structure] = field(repr=False)

    def holds(self, branch: int) -> bool:
        return self.since <= branch < self.before


def defines(*paths: Path) -> dict[str, int]:
    """The #defines that are a number, a character or made of those before it, as (3 << SHIFT)."""
    found: dict[str, int] = {}
    for path in paths:
        for name, text in re.findall(r"^#define[ \t]+(\w+)[ \t]+([^\n]*?)[ \t]*(?:/\*.*)?$", path.read_text(), re.M):
            text = re.sub(r"\b(0x[0-9a-fA-F]+|\d+)[uUlL]+\b", r"\1", text)
            if re.fullmatch(r"'.'", text):
                found[name] = ord(text[1])
            elif re.fullmatch(r"[\w ()|<+-]+", text) and all(
                w in found or w[0].isdigit() for w in re.findall(r"\w+", text)
            ):
                found[name] = eval(text, {"__builtins__": {}}, found)  # numbers, names of numbers, operators
    return found


def length(text: str, names: dict[str, int]) -> int:
    return names[text] if text in names else int(text, 0)


def members(body: str, known: dict[str, type], names: dict[str, int]) -> list[tuple[str, type]]:
    """Name and type of each member, in order."""
    found: list[tuple[str, type]] = []
    for union, outer, kind, rest in re.findall(r"union \{(.*?)\} (\w+);|((?:struct )?\w+)\s+([^;{]+);", body, re.S):
        if outer:
            found.append((outer, type(outer, (ctypes.Union,), {"_fields_": members(union, known, names)})))
            continue
        base = known.get(kind.removeprefix("struct "))
        for item in rest.split(","):
            name, *counts = re.findall(r"\w+", item)
            ctype = ctypes.c_void_p if "*" in item else base
            for count in reversed(counts):
                ctype = ctype * length(count, names)
            found.append((name, ctype))
    return found


def structs(*paths: Path) -> dict[str, Struct]:
    """The structs of the headers by their tag. A header may use what those before it have."""
    found: dict[str, Struct] = {}
    names = defines(*paths)
    for path in paths:
        text = path.read_text()
        for tag, mark, body in re.findall(r"^struct (\w+) \{[ \t]*(?:/\* (.*?) \*/)?\n(.*?)^\};", text, re.M | re.S):
            known = TYPES | {name: one.ctype for name, one in found.items()}
            body = re.sub(r"/\*.*?\*/", "", body, flags=re.S)
            ctype = type(tag, (ctypes.Structure,), {"_fields_": members(body, known, names)})
            said = re.match(r"(\w+)(?: from (\d+))?(?: before (\d+))?( grows)?", mark)
            nvidia, since, before, grows = said.groups() if said else ("", None, None, None)
            ctype.nvidia = nvidia
            assert tag not in found, f"struct {tag} is in {found[tag].header.name} and in {path.name}"
            found[tag] = Struct(tag, nvidia, int(since or 0), int(before or NEWEST), bool(grows), path, ctype)
    return found


def offsets(ctype: type[ctypes.Structure], path: str = "", at: int = 0) -> Iterator[tuple[str, int]]:
    """Path and offset of each field, and of those of unnamed parts, but of padding and older forms."""
    for name, kind, *_ in ctype._fields_:
        if name.startswith("_") or name.endswith("_v1"):
            continue
        here = at + getattr(ctype, name).offset
        yield path + name, here
        if issubclass(kind, (ctypes.Structure, ctypes.Union)) and not getattr(kind, "nvidia", ""):
            yield from offsets(kind, f"{path}{name}.", here)
