# SPDX-License-Identifier: MIT
"""PURE: the life of one container.

      create            bind             any sign of the end          kernel: destroyed or not there
   --------> PREPARED --------> BOUND --------------------> RELEASING ----------------------------> RELEASED
                 |                                           ^ ^   |                                   ^
                 +-- runtime exited, poststop, lease over, … + |   | kernel did not answer             |
                                                      next tick|   v                                   |
                                                               STUCK ----- kernel says it is gone -----+

Signs of the end come from four places (the pidfd, cgroup.events, the poststop hook, reconcile), each of them late,
early, twice or never, in any order. So there is one rule: the first sign moves the container to RELEASING and asks for
one DESTROY; further signs change nothing; RELEASED is final. An exit of init is no sign where a cgroup is known: with
a shared pid namespace its children may live on, so it only asks for a look at the cgroup.

The key is (id, cookie): an engine reuses an id when a stopped container starts again, the cookie is never reused, so a
late poststop of the last life cannot end the next one.
"""

from __future__ import annotations

import math
from dataclasses import replace
from enum import Enum, auto
from typing import Any

from cgpud.kernel_abi import ID_MAX
from cgpud.model import Cgroup, Phase, Process, Record

PID_MAX = 1 << 22  # of Linux, whatever kernel.pid_max says


class Sign(Enum):
    """What happened."""

    ABORTED = auto()  # prepare failed after the kernel had made the container
    LEASE_OVER = auto()  # prepared, but no runtime ever bound it
    RUNTIME_EXITED = auto()  # of what asked for it: a start that was not bound by then has failed
    INIT_EXITED = auto()  # pidfd readable
    CGROUP_EMPTY = auto()  # populated 0, or the directory is gone
    POSTSTOP = auto()  # the hook
    LOST = auto()  # reconcile found nothing alive
    KERNEL_GONE = auto()  # somebody else destroyed it
    DESTROYED = auto()  # our DESTROY was answered: done, or ENOENT
    DESTROY_FAILED = auto()  # our DESTROY was not answered
    TICK = auto()  # reconcile's period


class Do(Enum):
    """What to do about it, in this order."""

    DESTROY = auto()  # kernel DESTROY(id, cookie)
    LOOK = auto()  # read cgroup.events and come back with CGROUP_EMPTY
    SAVE = auto()  # write the record
    WATCH = auto()  # pidfd and cgroup.events
    UNWATCH = auto()
    FORGET = auto()  # remove the record


Step = tuple[Record, tuple[Do, ...]]

_ENDS = frozenset({Sign.ABORTED, Sign.CGROUP_EMPTY, Sign.POSTSTOP, Sign.LOST})


def bind(record: Record, process: Process, cgroup: Cgroup | None) -> Step | None:
    """The runtime showed the init process. None: too late, or another one; the start must fail. The same one twice is
    a runtime that did not hear the answer of a daemon that is no more."""
    if record.phase is Phase.BOUND and record.process == process:
        return record, (Do.WATCH,)
    if record.phase is not Phase.PREPARED:
        return None
    return replace(record, phase=Phase.BOUND, process=process, cgroup=cgroup), (Do.SAVE, Do.WATCH)


def makes_sense(record: Record) -> bool:
    """Whether a daemon can have written it: what is asked of the kernel with the numbers and names of another record
    fails in ways nobody waits for. A released one is never written, and no sign would end it."""
    process, cgroup = record.process, record.cgroup
    return (
        record.phase is not Phase.RELEASED
        and 0 < len(record.id.encode()) <= ID_MAX
        and 0 <= record.cookie < 1 << 64
        and math.isfinite(record.deadline)
        and "\0" not in record.id + record.bundle
        and (process is None or (0 < process.pid <= PID_MAX and process.starttime >= 0))
        and (cgroup is None or (cgroup.path.startswith("/") and "\0" not in cgroup.path and cgroup.inode >= 0))
    )


def resume(record: Record) -> Record:
    """As read from disk after a restart: a DESTROY that was under way then is under way no more."""
    return replace(record, phase=Phase.STUCK) if record.phase is Phase.RELEASING else record


def _ended(record: Record, sign: Sign) -> bool:
    if sign in (Sign.LEASE_OVER, Sign.RUNTIME_EXITED):
        return record.phase is Phase.PREPARED
    if sign is Sign.INIT_EXITED:
        return record.phase is Phase.BOUND and record.cgroup is None
    return sign in _ENDS


def step(record: Record, sign: Sign) -> Step:
    """One sign: the next record and what to do. Total: every sign is allowed in every phase."""
    if record.phase is Phase.RELEASED:
        return record, ()
    if sign in (Sign.KERNEL_GONE, Sign.DESTROYED):
        return replace(record, phase=Phase.RELEASED), (Do.UNWATCH, Do.FORGET)
    if record.phase is Phase.RELEASING:
        return (replace(record, phase=Phase.STUCK), (Do.SAVE,)) if sign is Sign.DESTROY_FAILED else (record, ())
    if record.phase is Phase.STUCK:
        return (replace(record, phase=Phase.RELEASING), (Do.DESTROY,)) if sign is Sign.TICK else (record, ())
    if _ended(record, sign):
        return replace(record, phase=Phase.RELEASING), (Do.SAVE, Do.UNWATCH, Do.DESTROY)
    if sign is Sign.INIT_EXITED and record.phase is Phase.BOUND:
        return record, (Do.LOOK,)
    return record, ()


def shown(record: Record) -> dict[str, Any]:
    """As `status` has it."""
    return {
        "id": record.id,
        "cookie": record.cookie,
        "phase": record.phase.value,
        "pid": record.process.pid if record.process and record.phase is not Phase.PREPARED else None,
        "cgroup": record.cgroup.path if record.cgroup else None,
        "bundle": record.bundle,
    }
