# SPDX-License-Identifier: MIT
"""PURE: the log entry of a kernel event, what a change changed, and the throttling of repeated events."""

from __future__ import annotations

import errno
from collections.abc import Callable, Hashable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from cgpu_common import policies
from cgpu_common.kernel_abi import MIB, Event
from cgpu_common.model import VIDEO_ENGINES, Container, KernelEvent, Slot

CONTROLS = {1: "freeze", 2: "timeslice"}

_CALLS = {1: "freeze or thaw", 2: "set the timeslice of", 3: "restart the runlist for"}

#: Events that a tenant can cause every second.
NOISY = frozenset({Event.REFUSED, Event.OVERRUN, Event.CONTROL_FAILED, Event.QUOTA})

#: Name in JSON and log of a value, where it differs from the attribute's name; not of QUOTA, whose resource has a unit.
UNITS = {"asked": "asked_bytes", "limit": "limit_bytes", "used": "used_bytes"}


@dataclass(frozen=True, slots=True)
class LogEntry:
    """`fields` are those of docs/reference/cgpu-events.schema.json, without time and text."""

    level: str  # info, warning or error
    text: str
    fields: dict[str, Any]


def name_of(kind: int) -> str:
    try:
        return Event(kind).name.lower()
    except ValueError:
        return f"unknown_{kind}"


def _policy_text(number: int) -> str:
    return f"{number} ({policies.NAMES[number]})" if number < len(policies.NAMES) else str(number)


def control_names(controls: int) -> list[str]:
    return [name for bit, name in CONTROLS.items() if controls & bit]


def _mib(size: int) -> str:
    return f"{size / MIB:.0f} MiB" if size >= MIB else f"{size} bytes"


def _more(event: KernelEvent) -> str:
    count = event.values.get("suppressed", 0)
    return f"; {count} more like it" if count else ""


def _slots(container: Container) -> str:
    words = [f"GPU {slot.gpu}: {_mib(slot.limit)}, weight {slot.weight}{_slot_words(slot)}" for slot in container.slots]
    host = _host_limit(container)
    return "; ".join([*words, *([f"host memory {_mib(host)}"] if host else [])]) or "no GPU"


def _host_limit(container: Container) -> int:
    """Of the whole container; each of its slots has it."""
    return max((slot.host_limit for slot in container.slots), default=0)


def _slot_words(slot: Slot) -> str:
    return (", high priority" if slot.highprio else "") + (f", ceiling {slot.ceiling}" if slot.ceiling else "")


@dataclass(frozen=True, slots=True)
class Change:
    """A value of a container that differs from the one before. @gpu None: of the whole container."""

    gpu: int | None
    name: str  # as in the events' JSON
    old: int
    new: int


#: Fields of a slot that can be changed, by their names in JSON.
_VALUES = {"limit_bytes": "limit", "weight": "weight", "highprio": "highprio", "ceiling": "ceiling"}
_CHANGED: dict[str, tuple[str, Callable[[int], str]]] = {
    "limit_bytes": ("memory", _mib),
    "weight": ("weight", str),
    "highprio": ("high priority", lambda value: "yes" if value else "no"),
    "ceiling": ("ceiling", lambda value: str(value) if value else "none"),
    "host_limit_bytes": ("host memory", lambda value: _mib(value) if value else "no limit"),
}


def changes(before: Container, now: Container) -> list[Change]:
    """What differs between two states of a container. Its slots are always the same ones."""
    had = {slot.gpu: slot for slot in before.slots}
    found = [
        Change(slot.gpu, name, int(getattr(had[slot.gpu], field)), int(getattr(slot, field)))
        for slot in now.slots
        if slot.gpu in had
        for name, field in _VALUES.items()
        if getattr(had[slot.gpu], field) != getattr(slot, field)
    ]
    old, new = _host_limit(before), _host_limit(now)
    return found + ([Change(None, "host_limit_bytes", old, new)] if old != new else [])


def _change_text(one: Change) -> str:
    name, shown = _CHANGED[one.name]
    words = f"{name} {shown(one.old)} -> {shown(one.new)}"
    return words if one.gpu is None else f"GPU {one.gpu} {words}"


def _changed(now: Container, before: Container | None) -> str:
    if before is None:
        return f"was changed, and has now {_slots(now)}"
    words = ", ".join(map(_change_text, changes(before, now)))
    return f"was changed: {words}" if words else f"was set to the values that it had ({_slots(now)})"


class Seen:
    """The containers as they were seen last, by id and cookie: an event of a change has the new values only."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], Container] = {}

    def learn(self, there: Iterable[Container]) -> None:
        """These are all. One that is known stays as its last event had it: a later event may be on its way."""
        self._last = {key: self._last.get(key, one) for one in there for key in [(one.id, one.cookie)]}

    def describe(self, event: KernelEvent) -> LogEntry:
        """The entry of an event, which becomes the container's last state."""
        now = event.container
        if now is None or not now.slots:  # about one GPU: it has no values of the container
            return describe(event)
        key = (now.id, now.cookie)
        before = self._last.pop(key, None)
        if event.kind != Event.GONE:
            self._last[key] = now
        return describe(event, before)


def _held(container: Container) -> str:
    return ", ".join(f"{_mib(slot.used)} of GPU {slot.gpu}" for slot in container.slots) or "it"


def _refused(event: KernelEvent, container: str, gpu: str) -> str:
    value = event.values
    card = f"; the card has no room: held by {value['why']}" if value.get("why") else ""
    return (
        f"{container} was refused {_mib(value.get('asked', 0))} on {gpu}: {_mib(value.get('used', 0))} of "
        f"{_mib(value.get('limit', 0))} are in use (process {value.get('pid', 0)}){_more(event)}{card}"
    )


#: What N/C/stat calls a resource of which a GPU has a fixed number, in words; one of a newer module as it is there.
_RESOURCES = {
    "groups": "channel groups",
    "bar1_bytes": "bytes of BAR1",
    **{name: f"sessions of {name.upper()}" for name in VIDEO_ENGINES},
}


def _quota(event: KernelEvent, container: str, gpu: str) -> str:
    value = event.values
    resource = value.get("resource", "?")
    return (
        f"{container} was refused {value.get('asked', 0)} {_RESOURCES.get(resource, resource)} on {gpu}: it has "
        f"{value.get('used', 0)} of the {value.get('limit', 0)} that it may have now (process {value.get('pid', 0)})"
        f"{_more(event)}"
    )


def _overrun(event: KernelEvent, container: str, gpu: str) -> str:
    late, slow = event.values.get("overruns", 0), event.values.get("preempt_slow", 0)
    return f"{container} overran its turn on {gpu} ({late} late turns, {slow} slow preemptions so far)"


def _control_failed(event: KernelEvent, container: str, gpu: str) -> str:
    what = _CALLS.get(event.values.get("control", 0), "do what was requested for")
    return f"the driver did not {what} {container} on {gpu}: status {event.values.get('status', 0):#x}{_more(event)}"


def _controls(event: KernelEvent, container: str, gpu: str) -> str:
    old, new, ineffective = (event.values.get(name, 0) for name in ("old", "new", "ineffective"))
    lost, back = control_names(old & ~new), control_names(new & ~old)
    why = " (answered, and moves nothing)" if old & ~new & ineffective else ""
    words = [f"lost the control {' and '.join(lost)}{why}"] if lost else []
    words += [f"has the control {' and '.join(back)} again"] if back else []
    return f"{gpu} {', and '.join(words) or 'has the controls it had'}"


def _policy(event: KernelEvent, container: str, gpu: str) -> str:
    old, new = event.values.get("old", 0), event.values.get("new", 0)
    return f"the policy of {gpu} changed from {_policy_text(old)} to {_policy_text(new)}"


def _core(event: KernelEvent, container: str, gpu: str) -> str:
    value = event.values
    candidate, why = value.get("candidate", "?"), value.get("why", "")
    if not value.get("errno", 0):
        return f"core {candidate} is active: {why}"
    runs = f"{value['core']} runs on" if value.get("core") else "no core is there"
    return f"core {candidate} was not taken: {why}; {runs}"


def _redirections(event: KernelEvent, container: str, gpu: str) -> str:
    why = event.values.get("why", "no reason was given")
    if not event.values.get("errno", 0):
        return f"calls of containers reach the driver again: {why}"
    if event.values["errno"] != errno.EIO:
        return f"containers get no address spaces of the GPU: {why}"
    return f"calls of containers fail, because the driver's functions cannot be redirected: {why}"


def _of_container(text: Callable[[Container], str]) -> Callable[[KernelEvent, str, str], str]:
    return lambda event, container, gpu: f"{container} {text(event.container) if event.container else ''}".rstrip()


_TEXT: dict[Event, Callable[[KernelEvent, str, str], str]] = {
    Event.CREATED: _of_container(lambda container: f"was created ({_slots(container)})"),
    Event.DYING: _of_container(lambda container: f"was destroyed; what is still open holds {_held(container)}"),
    Event.GONE: _of_container(lambda container: "is gone, its memory returned"),
    Event.REFUSED: _refused,
    Event.OVERRUN: _overrun,
    Event.CONTROL_FAILED: _control_failed,
    Event.CONTROLS: _controls,
    Event.POLICY: _policy,
    Event.ATTACHED: lambda event, container, gpu: f"{gpu} ({event.gpu.uuid if event.gpu else ''}) is attached",
    Event.DETACHED: lambda event, container, gpu: (
        f"{gpu} ({event.gpu.uuid if event.gpu else ''}) is no longer attached"
    ),
    Event.CORE: _core,
    Event.REDIRECTIONS: _redirections,
    Event.QUOTA: _quota,
}


def _level(event: KernelEvent) -> str:
    if event.kind == Event.CONTROLS:
        return "error" if event.values.get("old", 0) & ~event.values.get("new", 0) else "info"
    if event.kind == Event.REDIRECTIONS:
        return "error" if event.values.get("errno", 0) else "info"
    failed = event.kind in NOISY or (event.kind == Event.CORE and event.values.get("errno", 0))
    return "warning" if failed else "info"


def _fields(event: KernelEvent) -> dict[str, Any]:
    out: dict[str, Any] = {"kind": name_of(event.kind)}
    if event.container is not None:
        out |= {"container": event.container.dir, "id": event.container.id, "cookie": f"{event.container.cookie:#x}"}
    if event.gpu is not None:
        out |= {"gpu": event.gpu.index, "uuid": event.gpu.uuid, "pci": event.gpu.pci}
    elif event.container is not None:
        out["slots"] = [
            {
                "gpu": slot.gpu,
                "limit_bytes": slot.limit,
                "used_bytes": slot.used,
                "weight": slot.weight,
                "highprio": slot.highprio,
                "ceiling": slot.ceiling,
                "host_limit_bytes": slot.host_limit,
            }
            for slot in event.container.slots
        ]
    units = {} if event.kind == Event.QUOTA else UNITS
    return out | {units.get(name, name): value for name, value in event.values.items()}


def describe(event: KernelEvent, before: Container | None = None) -> LogEntry:
    """@before: the container as it was; None: not known."""
    container = f"container {event.container.dir or event.container.id}" if event.container else "a container"
    gpu = f"GPU {event.gpu.index}" if event.gpu else "a GPU"
    fields = _fields(event)
    if event.kind == Event.CHANGED and event.container is not None:
        if before is not None:
            fields["changes"] = [asdict(one) for one in changes(before, event.container)]
        return LogEntry("info", f"{container} {_changed(event.container, before)}", fields)
    text = _TEXT.get(event.kind)  # type: ignore[call-overload]
    sentence = text(event, container, gpu) if text else f"event {event.kind}, which this version does not know"
    return LogEntry(_level(event), sentence, fields)


def throttle_key(event: KernelEvent) -> Hashable:
    """Noisy events with the same key are throttled together."""
    container = event.container.id if event.container else ""
    return (event.kind, container, event.gpu.index if event.gpu else None)


class LogThrottle:
    """At most one log line per period and key, with the number of events that were not logged before it."""

    def __init__(self, period_s: float = 60.0) -> None:
        self.period_s = period_s
        self._logged: dict[Hashable, tuple[float, int]] = {}

    def of_event(self, event: KernelEvent, now: float) -> int | None:
        """The same for an event; one that is not noisy is always logged."""
        return self.allow(throttle_key(event), now) if event.kind in NOISY else 0

    def allow(self, about: Hashable, now: float) -> int | None:
        """None: do not log this one. Otherwise the number of events not logged since the last line."""
        at, left_out = self._logged.get(about, (None, 0))
        if at is not None and now - at < self.period_s:
            self._logged[about] = (at, left_out + 1)
            return None
        for other in [other for other, (then, _) in self._logged.items() if now - then >= self.period_s]:
            del self._logged[other]
        self._logged[about] = (now, 0)
        return left_out
