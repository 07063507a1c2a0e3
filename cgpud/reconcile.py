# SPDX-License-Identifier: MIT
"""PURE: records, the kernel's containers and the live processes -> triggers and orphans.

Runs when the daemon starts, every minute, and after lost events. A container without a cookie of the daemon was created
by an administrator through inst_ctl: it is counted, never changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cgpu_common.cookie import is_our_cookie
from cgpu_common.model import Container
from cgpud.state import Trigger
from cgpud.values import Phase, Record

LEASE_S = 120.0
# An orphan without a cgroup to watch is destroyed after it used no memory in every check for this time.
IDLE_S = 10.0


@dataclass(frozen=True, slots=True)
class Signal:
    """A trigger for the state machine of a known record."""

    record: Record
    trigger: Trigger


@dataclass(frozen=True, slots=True)
class Orphan:
    """A container with our cookie but without a record: adopt it if its cgroup is found; if not, see idle_since()."""

    container: Container


Finding = Signal | Orphan


def idle_since(container: Container, before: float | None, now: float) -> float | None:
    """The check since which an orphan has used no memory; None: it uses memory, so a process has the GPU open.

    A cgroup that was not found proves nothing, since cgroups may have any name."""
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
    """`alive` checks the cgroup (same inode, populated) or, without one, the process (same start time): for a
    prepared container that of the runtime, which ends after the start."""
    there = {(container.id, container.cookie): container for container in kernel}
    known: set[tuple[str, int]] = set()
    findings: list[Finding] = []
    for record in records:
        known.add(record.kernel_key)
        container = there.get(record.kernel_key)
        if record.mps is None and (container is None or container.dying):
            # While CREATE is in progress the kernel does not list the container yet.
            waits = record.phase is Phase.PREPARED and now <= record.deadline and record.boot_id == boot_id
            if not waits or not alive(record):
                findings.append(Signal(record, Trigger.KERNEL_GONE))
        elif record.phase in (Phase.RELEASING, Phase.STUCK):
            findings.append(Signal(record, Trigger.TICK))
        elif record.boot_id != boot_id:
            findings.append(Signal(record, Trigger.LOST))
        elif record.phase is Phase.PREPARED and now > record.deadline:
            findings.append(Signal(record, Trigger.LEASE_OVER))
        elif not alive(record):
            findings.append(Signal(record, Trigger.LOST))
    findings.extend(
        Orphan(container)
        for key, container in there.items()
        if key not in known and is_our_cookie(container.cookie) and not container.dying
    )
    return findings
