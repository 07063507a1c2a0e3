# SPDX-License-Identifier: MIT
"""What of cgpu_km a run of abifuzz has reached, by file: where the kernel has KCOV, as uml-debug and debug."""

from __future__ import annotations

import os
import subprocess
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from slicebox import module_functions

KCOV = Path("/sys/kernel/debug/kcov")
LINKED_AT = 0xFFFFFFFF81000000  # of _text, on x86-64
CALL = "__sanitizer_cov_trace_pc"  # made by the compiler at the beginning of each block
MADE = ("__pfx_", "__cfi_", "_sub_")  # by the compiler beside functions: padding, and KASAN's constructors


@dataclass
class Reached:
    """Of one source file."""

    functions: set[str] = field(default_factory=set)
    missed: set[str] = field(default_factory=set)
    blocks: int = 0
    of_blocks: int = 0  #: how many the compiler has made
    edges: int = 0  #: from one block to another

    @property
    def total(self) -> int:
        return len(self.functions) + len(self.missed)


def shift() -> int:
    """What KASLR has added to every address, modules' too. KCOV takes it off (kernel/kcov.c, canonicalize_ip()).

    User-Mode Linux is linked at an address of user programs and is not moved.
    """
    lines = Path("/proc/kallsyms").read_text().splitlines()
    text = next((int(line.split()[0], 16) for line in lines if line.endswith((" _text", " _stext"))), 0)
    return max(text - LINKED_AT, 0)


def option() -> list[str]:
    """abifuzz's option for the addresses of the module, as KCOV has them; none where the kernel has no KCOV."""
    there = module_functions() if KCOV.exists() else []
    if not there:
        return []
    off = shift()
    return ["--module", f"{there[0][0] - off:x}-{there[-1][0] + 0x1000 - off:x}"]


def by_file(reached: Iterable[tuple[int, int]]) -> dict[str, Reached]:
    """Of each file below cgpu_km, by the objects that the module was linked from: addresses, with the edges to each."""
    there, off = module_functions(), shift()
    addresses = [address - off for address, _ in there]
    blocks: Counter[str] = Counter()
    edges: Counter[str] = Counter()
    for address, leading_there in reached:
        name = there[bisect_right(addresses, address) - 1][1].partition(".")[0]
        blocks[name] += 1
        edges[name] += leading_there
    source = Path(os.environ["CGPU_MODULES"], "src/cgpu_km")
    objects = [path for path in sorted(source.rglob("*.o")) if path.parent.name != "core"]  # another module
    made = _blocks_made(objects)
    files: dict[str, Reached] = {}
    for path, own in _functions(objects).items():
        here = own & blocks.keys()
        files[str(path.relative_to(source).with_suffix(".c"))] = Reached(
            here,
            own - here,
            sum(blocks[name] for name in here),
            made[path],
            sum(edges[name] for name in here),
        )
    return files


def _functions(objects: Iterable[Path]) -> dict[Path, set[str]]:
    """Of each object that has one. One program reads all: under KASAN the start of one takes seconds."""
    found: dict[Path, set[str]] = {}
    for line in _lines("nm", "-A", "--defined-only", *objects):
        where, kind, name = line.rsplit(maxsplit=2)
        if kind in "tT" and not name.startswith(MADE) and name not in ("init_module", "cleanup_module"):
            found.setdefault(Path(where.rpartition(":")[0]), set()).add(name.partition(".")[0])
    return found


def _blocks_made(objects: Iterable[Path]) -> Counter[Path]:
    """How many blocks the compiler has made in each object."""
    found: Counter[Path] = Counter()
    path = Path()
    for line in _lines("objdump", "-r", *objects):
        if ":     file format " in line:
            path = Path(line.partition(":     file format ")[0])
        found[path] += CALL in line
    return found


def _lines(*words: object) -> list[str]:
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, check=True).stdout.splitlines()


def by_name(files: dict[str, Reached]) -> dict[str, list[int]]:
    """For a report: functions, blocks, all blocks and edges, by file; the sum is in "all"."""
    found = {name: [len(one.functions), one.blocks, one.of_blocks, one.edges] for name, one in files.items()}
    return {"all": [sum(column) for column in zip(*found.values(), strict=True)], **found}


def table(files: dict[str, Reached]) -> str:
    """For people: the files, least reached first: functions, blocks, edges, and the functions that no call came to."""
    lines = []
    for name, one in sorted(files.items(), key=lambda item: len(item[1].functions) / item[1].total):
        counts = f"{len(one.functions):>4} of {one.total:<4}{one.blocks:>5} of {one.of_blocks:<5}{one.edges:>5}"
        lines.append(f"{name:<36}{counts}  {' '.join(sorted(one.missed))}".rstrip())
    return "\n".join(lines)
