# SPDX-License-Identifier: MIT
"""PURE: the state machine of one container.

      create            bind               any end trigger            kernel: destroyed or not there
   --------> PREPARED --------> BOUND --------------------> RELEASING ----------------------------> RELEASED
                 |                                           ^ ^   |                                   ^
                 +-- runtime exited, poststop, lease over, … + |   | no answer to DESTROY              |
                                                      next tick|   v                                   |
                                                               STUCK ---------- kernel: gone -----------+

End triggers come from four sources (the pidfd, cgroup.events, the poststop hook, reconcile). Each
may come late, early, twice or never, in any order. Hence one rule: the first end trigger moves the
container to RELEASING and issues one DESTROY; further triggers change nothing; RELEASED is final.
The exit of init does not end a container whose cgroup is known: with a shared pid namespace its
children may live on, so it only causes a check of the cgroup.

The key is (id, cookie): an engine reuses an id when a stopped container starts again, a cookie is
never reused, so a late poststop of one run cannot end the next run.
"""

from __future__ import annotations

import math
from dataclasses import replace
from enum import Enum, auto
from typing import Any

from cgpu_common.kernel_abi import ID_MAX
from cgpud.values import Cgroup, Phase, Process, Record

PID_MAX = 1 << 22  # the largest kernel.pid_max


class Trigger(Enum):
    """What may change a container's phase."""

    ABORTED = auto()  # prepare failed after the kernel had made the container
    LEASE_OVER = auto()  # prepared, but not bound in time
    RUNTIME_EXITED = auto()  # the process that requested the start: an unbound start has failed
    INIT_EXITED = auto()  # pidfd readable
    CGROUP_EMPTY = auto()  # populated 0, or the directory is gone
    POSTSTOP = auto()  # the hook
    LOST = auto()  # reconcile found no live process
    KERNEL_GONE = auto()  # destroyed by other means than our DESTROY
    DESTROYED = auto()  # answer to our DESTROY: done, or ENOENT
    DESTROY_FAILED = auto()  # no answer to our DESTROY
    TICK = auto()  # reconcile's period


class Action(Enum):
    """The daemon's actions after a trigger, in this order."""

    DESTROY = auto()  # kernel DESTROY(id, cookie)
    CHECK_CGROUP = auto()  # read cgroup.events; triggers CGROUP_EMPTY
    SAVE = auto()  # write the record
    WATCH = auto()  # pidfd and cgroup.events
    UNWATCH = auto()
    FORGET = auto()  # remove the record


Step = tuple[Record, tuple[Action, ...]]

_ENDS = frozenset({Trigger.ABORTED, Trigger.CGROUP_EMPTY, Trigger.POSTSTOP, Trigger.LOST})


def bind(record: Record, process: Process, cgroup: Cgroup | None) -> Step | None:
    """The bind hook reports the init process. None: the container has ended, or another process is
    bound already; the start must fail. A repeated request for the same process succeeds: the daemon
    may have been restarted before its first answer arrived."""
    if record.phase is Phase.BOUND and record.process == process:
        return record, (Action.WATCH,)
    if record.phase is not Phase.PREPARED:
        return None
    return replace(record, phase=Phase.BOUND, process=process, cgroup=cgroup), (Action.SAVE, Action.WATCH)


def is_valid(record: Record) -> bool:
    """Can the daemon have written this record? Kernel requests with arbitrary names and numbers fail in
    ways the daemon does not handle. A released record is never written, and no trigger would end it."""
    process, cgroup = record.process, record.cgroup
    return (
        record.phase is not Phase.RELEASED
        and 0 < len(record.id.encode()) <= ID_MAX
        and 0 <= record.cookie < 1 << 64
        and math.isfinite(record.deadline)
        and "\0" not in record.id + record.bundle + record.kernel_key[0]
        and 0 < len(record.kernel_key[0].encode()) <= ID_MAX
        and 0 <= record.kernel_key[1] < 1 << 64
        and (process is None or (0 < process.pid <= PID_MAX and process.starttime >= 0))
        and (cgroup is None or (cgroup.path.startswith("/") and "\0" not in cgroup.path and cgroup.inode >= 0))
    )


def resume(record: Record) -> Record:
    """A record read from disk after a restart: the answer to a DESTROY in flight then is lost."""
    return replace(record, phase=Phase.STUCK) if record.phase is Phase.RELEASING else record


def _ended(record: Record, trigger: Trigger) -> bool:
    if trigger in (Trigger.LEASE_OVER, Trigger.RUNTIME_EXITED):
        return record.phase is Phase.PREPARED
    if trigger is Trigger.INIT_EXITED:
        return record.phase is Phase.BOUND and record.cgroup is None
    return trigger in _ENDS


def step(record: Record, trigger: Trigger) -> Step:
    """The next record and the actions for a trigger. Total: every trigger is allowed in every phase."""
    if record.phase is Phase.RELEASED:
        return record, ()
    if trigger in (Trigger.KERNEL_GONE, Trigger.DESTROYED):
        return replace(record, phase=Phase.RELEASED), (Action.UNWATCH, Action.FORGET)
    if record.phase is Phase.RELEASING:
        return (
            (replace(record, phase=Phase.STUCK), (Action.SAVE,)) if trigger is Trigger.DESTROY_FAILED else (record, ())
        )
    if record.phase is Phase.STUCK:
        return (replace(record, phase=Phase.RELEASING), (Action.DESTROY,)) if trigger is Trigger.TICK else (record, ())
    if _ended(record, trigger):
        return replace(record, phase=Phase.RELEASING), (Action.SAVE, Action.UNWATCH, Action.DESTROY)
    if trigger is Trigger.INIT_EXITED and record.phase is Phase.BOUND:
        return record, (Action.CHECK_CGROUP,)
    return record, ()


def shown(record: Record) -> dict[str, Any]:
    """The record in the answer to `status`. Without the cookie, with which `release` ends a container."""
    return {
        "id": record.id,
        "phase": record.phase.value,
        "pid": record.process.pid if record.process and record.phase is not Phase.PREPARED else None,
        "cgroup": record.cgroup.path if record.cgroup else None,
        "bundle": record.bundle,
        **({"slice": record.slice[0]} if record.slice else {}),
    }
