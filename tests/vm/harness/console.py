# SPDX-License-Identifier: MIT
"""Reads a kernel log and reports the lines that must not be there.

Pure: text in, findings out. The same rules read the whole console of a boot on
the host and, in the guest, what one test added to /dev/kmsg.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile

#: What a line begins a finding with, first match wins. Each is one kind of
#: report of the kernel's own (or of boot/init, for the last two).
KINDS: tuple[tuple[str, re.Pattern], ...] = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("KASAN", r"BUG: KASAN: "),
        ("UBSAN", r"UBSAN: "),
        (
            "lockdep",
            (
                r"WARNING: (possible (circular|recursive|irq lock inversion)|suspicious RCU usage|"
                r"inconsistent lock state|bad unlock balance|lock held when returning|"
                r"held lock freed|SOFTIRQ-safe|HARDIRQ-safe|HARDIRQ-READ-safe|SOFTIRQ-READ-safe|nested lock)|"
                r"\[ BUG: |BUG: Invalid wait context|BUG: MAX_LOCKDEP|INFO: trying to register non-static key|"
                r"DEBUG_LOCKS_WARN_ON"
            ),
        ),
        ("atomic sleep", r"BUG: (sleeping function called from invalid context|scheduling while atomic)"),
        ("hung task", r"INFO: task .* blocked for more than"),
        (
            "stall",
            r"rcu: INFO: .* (detected|self-detected)|rcu_(sched|preempt) (self-)?detected|soft lockup|hard LOCKUP",
        ),
        ("leaked objects", r"BUG .*: Objects remaining in|kmem_cache_destroy .*: Slab cache still has objects"),
        ("slab", r"^BUG [\w.:-]+( \([^)]*\))?: |Slab .* corrupt|FIX [\w-]+: "),
        ("list", r"list_(add|del) corruption"),
        ("refcount", r"refcount_t: "),
        ("memory", r"BUG: Bad (page|rss-counter|page map|page state)|Bad page state|nonzero pgtables"),
        (
            "oops",
            r"Oops: |BUG: (kernel NULL pointer|unable to handle)|general protection fault|kernel BUG at|invalid opcode",
        ),
        ("other", r"unregister_netdevice: waiting for|stack guard page was hit|double fault"),
        ("deprecated", r"workqueue: work func \w+ \[cgpu_\w+\] enqueued on deprecated workqueue"),
        ("WARNING", r"WARNING: "),
        ("panic", r"Kernel panic - not syncing"),
        ("out of memory", r"Out of memory: Killed|invoked oom-killer"),
        ("kmemleak", r"^kmemleak: unreferenced object|kmemleak: \d+ new suspected memory leaks"),
        ("teardown", r"^guest: .* cannot be unloaded"),
        ("BUG", r"\bBUG: "),
    )
)

#: Lines that look like one of the above and are none of ours.
IGNORED: tuple[tuple[re.Pattern, str], ...] = (
    (re.compile(r"clocksource: .*(Long readout|unstable|skewed)"), "a busy host, not the kernel under test"),
    (re.compile(r"loading out-of-tree module taints kernel"), "what we do"),
    (re.compile(r"module verification failed: signature"), "our modules are not signed"),
    (re.compile(r"Memory cgroup out of memory"), "a container's own limit at work"),
)

#: In a report of the kernel's: the memory of a cgroup is used up, as IGNORED has it, and not the machine's.
OWN_LIMIT = "Memory cgroup stats for "

#: boot/init's last act, when the modules are gone. From here on the devices of the root are removed under running
#: programs; the kernel's reports about that are caused by this way to end a machine.
POWER_OFF = "sysrq: Power Off"

#: A report's block ends here, or after this many lines.
BLOCK_END = re.compile(r"---\[ end |^=+$")
BLOCK_LINES = 60

_STAMP = re.compile(r"^(<\d+>)?\[ *\d+\.\d+\](\[ *[TC]\d+\])? ?")


@dataclass(frozen=True)
class Finding:
    """One report of the kernel: its kind and its lines, stamps removed."""

    kind: str
    line: int
    lines: tuple[str, ...]

    @property
    def title(self) -> str:
        """The line by which a person recognises it."""
        return f"{self.kind}: {self.lines[0]}"

    def __str__(self) -> str:
        return "\n".join((f"--- {self.kind}, line {self.line} of the kernel log", *self.lines))


def findings(text: str) -> list[Finding]:
    """All reports in a kernel log up to its end or the power's, in order; an empty log has none."""
    lines = list(takewhile(lambda line: line != POWER_OFF, map(strip_stamp, text.splitlines())))
    found: list[Finding] = []
    number = 0
    while number < len(lines):
        kind = kind_of(lines[number])
        if kind is None:
            number += 1
            continue
        end = block_end(lines, number)
        if kind == "out of memory" and is_of_a_cgroup(lines, number):
            number += 1
            continue
        found.append(Finding(kind, number + 1, tuple(lines[number:end])))
        number = end
    return found


def strip_stamp(line: str) -> str:
    """The line without its `[   12.345678]`, carriage return and spaces."""
    return _STAMP.sub("", line.rstrip())


def kind_of(line: str) -> str | None:
    """The kind of report the line begins, or None."""
    if any(pattern.search(line) for pattern, _ in IGNORED):
        return None
    return next((kind for kind, pattern in KINDS if pattern.search(line)), None)


def block_end(lines: list[str], start: int) -> int:
    """Index after the last line of the report that begins at `start`."""
    limit = min(start + BLOCK_LINES, len(lines))
    one_liners = ("guest: ", "kmemleak: ")
    if lines[start].startswith(one_liners):
        prefix = lines[start].split(" ")[0]
        end = start + 1
        while end < limit and lines[end].startswith(prefix) and kind_of(lines[end]) is None:
            end += 1
        return end
    for number in range(start + 1, limit):
        # A banner right under the title belongs to the report.
        if BLOCK_END.search(lines[number]) and number > start + 3:
            return number + 1
    return limit


def is_of_a_cgroup(lines: list[str], start: int) -> bool:
    """Whether the out of memory that begins at `start` is a cgroup's; KASAN makes its stack longer than a block."""
    for line in lines[start + 1 : start + 5 * BLOCK_LINES]:
        if line.startswith(OWN_LIMIT):
            return True
        if kind_of(line) == "out of memory":
            return False
    return False


def report(found: Iterable[Finding]) -> str:
    """Findings as text for a person."""
    return "\n\n".join(str(finding) for finding in found)
