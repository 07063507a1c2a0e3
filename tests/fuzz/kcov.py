# SPDX-License-Identifier: MIT
"""Which functions of cgpu_km a run of abifuzz has reached, by file: where the kernel has KCOV, as the debug kernel."""

from __future__ import annotations

import os
import subprocess
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from slicebox import module_functions

KCOV = Path("/sys/kernel/debug/kcov")
LINKED_AT = 0xFFFFFFFF81000000  # of _text, on x86-64
MADE = ("__pfx_", "__cfi_", "_sub_")  # by the compiler beside functions: padding, and KASAN's constructors


@dataclass
class Reached:
    """Of one source file."""

    functions: set[str] = field(default_factory=set)
    missed: set[str] = field(default_factory=set)

    @property
    def total(self) -> int:
        return len(self.functions) + len(self.missed)


def shift() -> int:
    """What KASLR has added to every address, modules' too. KCOV takes it off (kernel/kcov.c, canonicalize_ip())."""
    lines = Path("/proc/kallsyms").read_text().splitlines()
    return next(int(line.split()[0], 16) for line in lines if line.endswith(" _text")) - LINKED_AT


def option() -> list[str]:
    """abifuzz's option for the addresses of the module, as KCOV has them; none where the kernel has no KCOV."""
    there = module_functions() if KCOV.exists() else []
    if not there:
        return []
    off = shift()
    return ["--module", f"{there[0][0] - off:x}-{there[-1][0] + 0x1000 - off:x}"]


def by_file(reached: Iterable[int]) -> dict[str, Reached]:
    """The functions of each file below cgpu_km, by the objects that the module was linked from."""
    there, off = module_functions(), shift()
    addresses = [address - off for address, _ in there]
    names = {there[bisect_right(addresses, address) - 1][1].partition(".")[0] for address in reached}
    files: dict[str, Reached] = {}
    source = Path(os.environ["CGPU_MODULES"], "src/cgpu_km")
    for path in sorted(source.rglob("*.o")):
        if path.parent.name == "core":  # another module
            continue
        listing = subprocess.run(["nm", "--defined-only", path], capture_output=True, text=True, check=True).stdout
        words = [line.split() for line in listing.splitlines()]
        own = {name.partition(".")[0] for _, kind, name in words if kind in "tT" and not name.startswith(MADE)}
        own -= {"init_module", "cleanup_module"}
        if own:
            files[str(path.relative_to(source).with_suffix(".c"))] = Reached(own & names, own - names)
    return files


def table(files: dict[str, Reached]) -> str:
    """For people: the files, least reached first, with the functions that no call of the run came to."""
    lines = []
    for name, one in sorted(files.items(), key=lambda item: len(item[1].functions) / item[1].total):
        lines.append(f"{name:<36}{len(one.functions):>4} of {one.total:<4} {' '.join(sorted(one.missed))}".rstrip())
    return "\n".join(lines)
