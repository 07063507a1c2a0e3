# SPDX-License-Identifier: MIT
"""Makes the nth allocation, or copy to or from user space, that cgpu_km makes for one process fail (tests/vm/faults).

`below`: the nth allocation in a call of cgpu_km, the module's own, the kernel's or the driver's.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import traceback
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

from slicebox import Box, command, fb_used, module_functions, nvclient, until

from cgpu_common.errors import KernelMissing, KernelRefused

PARAMETERS = Path("/sys/module/cgpu_faults/parameters")
DEBUGFS = Path("/sys/kernel/debug")
SLABS = DEBUGFS / "slab"
KINDS = {"allocations": 0, "copies": 1, "below": 2}
#: Functions to probe that a kernel must have, by kind.
LEAST = (10, 2, 2)
#: What a call that failed raises here. IndexError: nvclient has no card whose node can be opened.
ERRORS = (OSError, nvclient.RmError, KernelRefused, KernelMissing, IndexError)
LIMIT_S = 120
LEAK_S = 30

#: Allocations of the kernel's own on behalf of the caller: what belongs to an address space, which an idle processor
#: keeps after its last process; a page of a slab, which is kept for the next object.
KERNELS = ("mmu_notifier", "memcg_alloc_slab_cgroups")

Step = Generator[None, None, None]


@dataclass(frozen=True)
class Outcome:
    """Of one run with one fault."""

    unused: bool  #: fewer calls than the fault's number
    at: str  #: the function of the module whose call failed
    error: str  #: what the process got
    charged: int  #: then
    on_card: int


class Injector:
    """The module that makes calls fail, while it is loaded."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.symbols = module_functions()
        self.begin = self.symbols[0][0]
        self.end = self.symbols[-1][0] + 0x1000

    def name(self, address: int) -> str:
        """The function at an address."""
        before = [name for at, name in self.symbols if at <= address]
        return before[-1].partition(".")[0] if before else "?"

    def __enter__(self) -> Injector:
        module = Path(os.environ["CGPU_MODULES"], "cgpu_faults.ko")
        subprocess.run(
            ["insmod", module, f"from={self.begin}", f"to={self.end}", f"kind={KINDS[self.kind]}"], check=True
        )
        found = tuple(map(int, (PARAMETERS / "probes").read_text().split(",")))
        assert all(n >= least for n, least in zip(found, LEAST, strict=True)), f"this kernel has {found} of them"
        return self

    def __exit__(self, *exc: object) -> None:
        subprocess.run(["rmmod", "cgpu_faults"], check=True)

    def arm(self, nth: int, task: int | None = None) -> None:
        """For calls of this process, or of another task; 0: of all, and of kernel threads."""
        (PARAMETERS / "task").write_text(str(os.getpid() if task is None else task))
        (PARAMETERS / "nth").write_text(str(nth))

    def disarm(self) -> tuple[bool, str]:
        """Whether it was not used up, and what failed."""
        unused = int((PARAMETERS / "nth").read_text()) > 0
        (PARAMETERS / "nth").write_text("0")
        (PARAMETERS / "task").write_text("0")
        if unused:
            return True, ""
        function, _, offset = (PARAMETERS / "last").read_text().rpartition(" from ")
        at = self.name(self.begin + int(offset, 16))
        return False, f"{function} in {at}" if self.kind == "below" else at


def live() -> dict[str, int]:
    """Allocations that are there, by the functions that made them, for cgpu_km (slub_debug=U). Empty without it."""
    found: dict[str, int] = {}
    for path in SLABS.glob("*/alloc_traces"):
        if not path.parent.name.startswith(("kmalloc-", "cgpu_", "ckm_")):
            continue
        for block in re.split(r"\n(?=\s+\d+ )", path.read_text()):
            # The innermost function of a module made it: nvsim's own lie below our redirections.
            caller, count = re.search(r"(\S+)\+0x\S+ \[(\w+)\]", block), re.match(r"\s*(\d+) ", block)
            if caller and count and caller[2] == "cgpu_km" and not any(name in block for name in KERNELS):
                name = f"{block.split()[1].partition('+')[0]} in {caller[1]}"
                found[name] = found.get(name, 0) + int(count[1])
    return found


def grown(before: dict[str, int]) -> dict[str, int]:
    """Functions of which more allocations are there than before."""
    return {name: n - before.get(name, 0) for name, n in live().items() if n > before.get(name, 0)}


def settled() -> dict[str, int]:
    """Allocations once those that wait for a grace period are gone: two readings alike."""
    last = live()
    while True:
        time.sleep(1)
        if last == (now := live()):
            return now
        last = now


def _child(injector: Injector, step: Step, box: Box | None, nth: int) -> Outcome:
    next(step)
    error = ""
    if nth:
        injector.arm(nth)
    try:
        next(step, None)
    except ERRORS as caught:
        error = f"{type(caught).__name__}: {caught}"
    unused, at = injector.disarm() if nth else (True, "")
    return Outcome(unused, at, error, box.used if box else 0, fb_used())


def once(injector: Injector, make: Callable[[], Step], box: Box | None, nth: int) -> Outcome:
    """Run the step in a process of its own. All that it opened and mapped ends with the process."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(LIMIT_S)
            outcome = _child(injector, make(), box, nth)
            os.write(write_end, json.dumps(vars(outcome)).encode())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as report:
        text = report.read()
    _, status = os.waitpid(pid, 0)
    assert not status, f"fault {nth}: the process was ended by signal {status}: a call hangs or crashed it"
    assert text, f"fault {nth}: see above"
    return Outcome(**json.loads(text))


def destroy_all(but: Box | None) -> None:
    for line in Box.listed():
        name = line.split()[0]
        if but is None or name != but.name:
            try:
                command(f"destroy {name}")
            except FileNotFoundError:
                pass
    left = 0 if but is None else 1
    until(lambda: len(Box.listed()) == left)


def each(injector: Injector, make: Callable[[], Step], box: Box | None, most: int = 3000) -> tuple[int, dict[str, int]]:
    """Let call after call of a step fail, until the step makes no further call.

    Returns how many failed, and how often the step succeeded although a call of this function failed. After each fault
    nothing may be charged, on the card or left; no allocation either at the end.
    """
    unnoticed: dict[str, int] = {}
    before = fb_used()
    once(injector, make, box, 0)  # what is made at the first use and kept
    destroy_all(box)
    until(lambda: fb_used() == before)
    allocated = settled()
    for nth in range(1, most):
        outcome = once(injector, make, box, nth)
        if box:
            assert outcome.charged >= outcome.on_card - before, f"fault {nth} in {outcome.at}: too little is charged"
        destroy_all(box)
        until(lambda: fb_used() == before)
        until(lambda: box is None or box.used == 0)
        if outcome.unused:
            assert not outcome.error, f"without a fault: {outcome.error}"
            end = time.monotonic() + LEAK_S
            while (more := grown(allocated)) and time.monotonic() < end:
                time.sleep(0.5)
            assert not more, f"allocations that are left, by function: {more}"
            return nth - 1, unnoticed
        if not outcome.error:
            unnoticed[outcome.at] = unnoticed.get(outcome.at, 0) + 1
    raise AssertionError(f"more than {most} calls")
