# SPDX-License-Identifier: MIT
"""PURE: what is remembered, what the kernel has, what is alive -> what to do.

Runs when the daemon starts, every minute, and after lost events. A container without one of our cookies was made by a
person through inst_ctl: it is counted, never touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cgpud.model import Container, Phase, Record
from cgpud.state import Sign

# The upper 16 bits of every cookie the daemon gives out; the other 48 are random.
COOKIE_MARK = 0xC69D
COOKIE_BITS = 48
LEASE_S = 120.0
# An orphan that cannot be watched is given up when it used nothing whenever it was looked at for so long.
IDLE_S = 10.0


def make_cookie(random_bits: int) -> int:
    return (COOKIE_MARK << COOKIE_BITS) | (random_bits & ((1 << COOKIE_BITS) - 1))


def is_our_cookie(cookie: int) -> bool:
    return cookie >> COOKIE_BITS == COOKIE_MARK


@dataclass(frozen=True, slots=True)
class Signal:
    """Feed this sign to the state machine of a known record."""

    record: Record
    sign: Sign


@dataclass(frozen=True, slots=True)
class Orphan:
    """Ours by its cookie, but nobody remembers it: adopt it, if its cgroup is found; if not, see idle_since()."""

    container: Container


Finding = Signal | Orphan


def idle_since(container: Container, before: float | None, now: float) -> float | None:
    """Since which look an orphan has used nothing; None: it does. Cgroups may have any name, so one that is not found
    tells nothing; memory in use does: somebody has the GPU open."""
    if any(slot.used for slot in container.slots):
        return None
    return now if before is None else before


def reconcile(
    records: Iterable[Record],
    kernel: Iterable[Container],
    *,
    boot_id: str,
    now: float,
    alive: Callable[[Record], bool],
) -> list[Finding]:
    """`alive` looks at the cgroup (same inode, populated) or, without one, at the process (same start time): of a
    container that is prepared, at the runtime, which ends when the start has worked or failed."""
    there = {(container.id, container.cookie): container for container in kernel}
    known: set[tuple[str, int]] = set()
    findings: list[Finding] = []
    for record in records:
        known.add(record.key)
        container = there.get(record.key)
        if container is None or container.dying:
            # An intent whose CREATE has not been answered yet is not in the kernel either.
            waits = record.phase is Phase.PREPARED and now <= record.deadline and record.boot_id == boot_id
            if not waits or not alive(record):
                findings.append(Signal(record, Sign.KERNEL_GONE))
        elif record.phase in (Phase.RELEASING, Phase.STUCK):
            findings.append(Signal(record, Sign.TICK))
        elif record.boot_id != boot_id:
            findings.append(Signal(record, Sign.LOST))
        elif record.phase is Phase.PREPARED and now > record.deadline:
            findings.append(Signal(record, Sign.LEASE_OVER))
        elif not alive(record):
            findings.append(Signal(record, Sign.LOST))
    findings.extend(
        Orphan(container)
        for key, container in there.items()
        if key not in known and is_our_cookie(container.cookie) and not container.dying
    )
    return findings
