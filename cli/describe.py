# SPDX-License-Identifier: MIT
"""One container, one GPU or the policies as text or JSON, in full. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cgpu_common import policies
from cgpu_common.figures import controls, rounded
from cgpu_common.model import Container, KernelGpu, Slot, slot_state
from cgpu_common.share import allowed_pct

from .columns import Column, cells, folded, printable
from .names import labels
from .rates import Rates
from .render import gpu_json, memory_total, mib, percent, slot_json


@dataclass(frozen=True)
class Inspected:
    """Everything about one container. @followed: cgpud's record of it; @silence: why cgpud gave no answer; @comm: names
    of processes; @rates: by GPU."""

    container: Container
    name: str | None
    slots: Sequence[tuple[KernelGpu, Slot]]
    followed: Mapping[str, Any] | None = None
    silence: str = ""
    comm: Mapping[int, str] = field(default_factory=dict)
    rates: Mapping[int, Rates] = field(default_factory=dict)


def _processes(slot: Slot, comm: Mapping[int, str]) -> str:
    words = [f"{pid} {comm.get(pid, '?')} ({mib(size)} MiB)" for pid, size in slot.pids]
    return ", ".join(words) or "none"


def _throttled(slot: Slot, rates: Rates) -> list[str]:
    if not slot.ceiling:
        return []
    return [f"  Throttled by its ceiling: {percent(rates.throttled_by_ceiling_pct)} of that second"]


def _shares_held(gpu: KernelGpu, slot: Slot) -> str:
    """Of the compute alone: under native no part is enforced, and the memory limit is."""
    if not gpu.facts.limits:
        return "left to the driver (native)"
    return {0: "not enforced now", 1: "enforced"}.get(slot.stat.get("enforced", -1), "?")


def _slot_lines(one: Inspected, gpu: KernelGpu, slot: Slot) -> list[str]:
    stat = slot.stat
    minor = dict(one.container.gpus).get(gpu.index, "?")
    rates = one.rates.get(gpu.index, Rates())
    allowed, got = percent(allowed_pct(gpu, slot)), percent(rates.share_got_pct, gpu.facts.estimated)
    memory = f"{mib(slot.used)} of {mib(slot.limit)} MiB, peak {mib(stat.get('peak_bytes', slot.used))} MiB"
    weight = f"weight {slot.weight} of {gpu.max_inst}{f', ceiling {slot.ceiling}' if slot.ceiling else ''}"
    weight += ", high priority" if slot.highprio else ""
    turns, overruns, refused = (stat.get(name, 0) for name in ("turns", "overruns", "refused_calls"))
    return [
        f"GPU {gpu.index}      {gpu.name}, policy {gpu.policy} ({gpu.facts.name})",
        f"  State     {slot_state(gpu, slot)}; memory limit: enforced; share: {_shares_held(gpu, slot)}",
        f"  Node      {one.container.major}:{minor} as /dev/nvidia{gpu.nv_minor}",
        f"  Memory    {memory}, refused allocations: {stat.get('refused_allocs', 0)}",
        f"  Compute   {weight}: {allowed} allowed, {got} got in the last second",
        *_throttled(slot, rates),
        f"  Turns     {turns}, overruns: {overruns}, refused calls: {refused}",
        f"  Processes {_processes(slot, one.comm)}",
    ]


def inspect_text(one: Inspected) -> str:
    box = one.container
    by = one.followed
    lines = [
        f"Id         {box.id}",
        f"Name       {one.name or '-'}",
        f"Directory  {box.dir}",
        f"Cookie     {box.cookie:#x}",
        f"State      {'dying' if box.dying else 'live'}",
        f"Nodes      {box.major}:{box.ctl_minor} nvidiactl, {box.major}:{box.uvm_minor} nvidia-uvm",
        f"cgpud      {by.get('phase')}, pid {by.get('pid') or '-'}, cgroup {by.get('cgroup') or '-'}"
        if by
        else f"cgpud      {one.silence or 'does not follow it: made by hand, or its record is lost'}",
    ]
    for gpu, slot in one.slots:
        lines += _slot_lines(one, gpu, slot)
    return "\n".join(map(printable, lines))


def inspect_json(one: Inspected) -> dict[str, Any]:
    box, by = one.container, one.followed
    return {
        "id": box.id,
        "name": one.name,
        "dir": box.dir,
        "cookie": f"{box.cookie:#x}",
        "dying": box.dying,
        "nodes": {"major": box.major, "ctl_minor": box.ctl_minor, "uvm_minor": box.uvm_minor},
        "cgpud": {key: by.get(key) for key in ("phase", "pid", "cgroup")} if by else None,
        "gpus": [
            {
                "gpu": gpu.index,
                "minor": dict(box.gpus).get(gpu.index),
                "policy": {"number": gpu.policy, "name": gpu.facts.name},
                **slot_json(gpu, slot, one.rates.get(gpu.index, Rates()).share_got_pct),
                "processes": [{"pid": pid, "name": one.comm.get(pid), "used_bytes": size} for pid, size in slot.pids],
            }
            for gpu, slot in one.slots
        ],
    }


# ---- GPUs ----

# fmt: off
GPUS: tuple[tuple[Column, Callable[[KernelGpu], str]], ...] = (
    (Column("GPU", right=True), lambda gpu: str(gpu.index)),
    (Column("NAME", least=8, tail=False), lambda gpu: gpu.name),
    (Column("UUID"), lambda gpu: gpu.uuid[:UUID_SHOWN]),
    (Column("POLICY"), lambda gpu: gpu.facts.name),
    (Column("CONTAINERS", right=True), lambda gpu: f"{len(gpu.slots)}/{gpu.max_inst}"),
    (Column("FREE WEIGHT", right=True), lambda gpu: str(gpu.free_weight)),
    (Column("USED MiB", right=True), lambda gpu: mib(gpu.used)),
    (Column("LIMITS MiB", right=True, drop=1), lambda gpu: mib(gpu.limits or 0)),
    (Column("TOTAL MiB", right=True), memory_total),
)
# fmt: on
SETTINGS = ("policy", "max_inst", "prio_ratio", "slice_us", "uvm", "overcommit", "default_memsize")
UUID_SHOWN = 12
NAMED = 12  # cells of a name of gpu_text()


def gpu_rows(gpus: Sequence[KernelGpu]) -> tuple[list[Column], list[list[str]]]:
    """The columns of the list of GPUs, and their cells."""
    return [column for column, _ in GPUS], [[text(gpu) for _, text in GPUS] for gpu in gpus]


def _run_state(gpu: KernelGpu, source: str | None) -> str:
    """Whether it is known which containers have work. @source: run_state_source of the GPU's stat."""
    if source is None:
        return "-"
    if source != "none":
        return f"known, by {source}"
    if not any(slot.opened for slot in gpu.slots):
        return "not known before a container opens the GPU"
    return "not known (cgpu doctor, line run state)"


def gpu_text(
    gpu: KernelGpu,
    settings: Mapping[str, str],
    drift: Sequence[Mapping[str, Any]],
    run_state: str | None = None,
    width: int | None = None,
) -> str:
    lines = [
        f"GPU {gpu.index}       {gpu.name}",
        f"UUID        {gpu.uuid}",
        f"PCI         {gpu.pci}, /dev/nvidia{gpu.nv_minor}",
        f"Policy      {gpu.policy} ({gpu.facts.name}): {gpu.facts.about}",
        f"Containers  {len(gpu.slots)} of {gpu.max_inst}, weight {gpu.free_weight} of {gpu.max_inst} free",
        (f"Memory      {mib(gpu.used)} MiB used, {mib(gpu.limits or 0)} MiB in limits, {memory_total(gpu)} MiB in all"),
        (
            f"Controls    {', '.join(controls(gpu.control)) or 'none'}; seen to act: "
            f"{', '.join(controls(gpu.control_seen)) or 'none'}"
        ),
        f"Run state   {_run_state(gpu, run_state)}",
        "Settings    " + ", ".join(f"{name} {settings[name]}" for name in SETTINGS if name in settings),
    ]
    lines += [f"Drift       {row['key']} is {row['live']}, cgpu.toml has {row['configured']}" for row in drift]
    shown = labels(gpu.slots)
    lines += [
        f"  {shown[slot.id]}: weight {slot.weight}{' hp' if slot.highprio else ''}, "
        f"{mib(slot.used)} of {mib(slot.limit)} MiB, {slot_state(gpu, slot)}"
        for slot in gpu.slots
    ]
    return "\n".join(part for line in map(printable, lines) for part in _fitting(line, width))


def _fitting(line: str, width: int | None) -> list[str]:
    """The line as it is, or folded below its value where it is wider than the terminal."""
    if width is None or cells(line) <= width:
        return [line]
    name = line[:NAMED] if not line.startswith(" ") else "  "
    if len(name) + max(map(cells, line[len(name) :].split())) > width:
        return [name.strip(), *folded(line[len(name) :], width, "", "  ")]
    return folded(line[len(name) :], width, name, " " * len(name) if len(name) > 2 else "    ")


def gpu_full_json(gpu: KernelGpu, settings: Mapping[str, str]) -> dict[str, Any]:
    """gpu_json() with the settings that are not in the output of cgpu-smi."""
    own = gpu_json(gpu) | {"containers": [slot_json(gpu, slot, None) for slot in gpu.slots]}
    more = {
        "overcommit_pct": settings.get("overcommit"),
        "default_memsize_bytes": settings.get("default_memsize"),
    }
    return own | {name: int(text) if text and text.isdecimal() else None for name, text in more.items()}


# ---- policies ----

POLICY_HEAD = (
    Column("POLICY", right=True),
    Column("NAME"),
    Column("GPUS"),
    Column("COMPUTE"),
    Column("WEIGHT", drop=1),
)


def policy_rows(gpus: Sequence[KernelGpu]) -> list[tuple[str, ...]]:
    return [
        (str(one["number"]), one["name"], ",".join(map(str, one["gpus"])) or "-", one["compute"], one["weight"])
        for one in policy_json(gpus)
    ]


def policy_json(gpus: Sequence[KernelGpu]) -> list[dict[str, Any]]:
    return [
        {
            "number": number.value,
            "name": facts.name,
            "gpus": [gpu.index for gpu in gpus if gpu.policy == number],
            "compute": facts.about,
            "weight": facts.weight,
        }
        for number, facts in policies.TABLE.items()
    ]


@dataclass(frozen=True)
class ShareChange:
    """The share allowed to a container under the policy before and after; None: all. @name: the engine's. @shown: what
    people call it."""

    id: str
    name: str | None
    shown: str
    weight: int
    before: float | None
    after: float | None


def share_changes(before: KernelGpu, after: KernelGpu) -> list[ShareChange]:
    new = {slot.dir: slot for slot in after.slots}
    shown = labels(before.slots)
    out = []
    for slot in before.slots:
        if slot.dir in new:
            allowed = allowed_pct(before, slot), allowed_pct(after, new[slot.dir])
            out.append(ShareChange(slot.id, slot.name, shown[slot.id], slot.weight, *allowed))
    return out


def if_gpu_had(gpu: KernelGpu, node: str, value: int) -> list[ShareChange]:
    """The shares allowed that a value of a node of the GPU would change."""
    if node not in ("policy", "max_inst", "prio_ratio") or (node == "max_inst" and value == 0):
        return []
    after = replace(gpu, **{node: value})  # type: ignore[arg-type]
    return [one for one in share_changes(gpu, after) if one.before != one.after]


def if_slot_had(gpu: KernelGpu, container_id: str, node: str, value: int) -> list[ShareChange]:
    """The shares allowed that a value of a node of one container would change, also those of the others."""
    if node not in ("weight", "highprio", "ceiling"):
        return []
    changed = [
        replace(slot, **{node: value != 0 if node == "highprio" else value})  # type: ignore[arg-type]
        if slot.id == container_id
        else slot
        for slot in gpu.slots
    ]
    found = share_changes(gpu, replace(gpu, slots=tuple(changed)))
    return [one for one in found if one.before != one.after]


def share_lines(changes: Sequence[ShareChange]) -> list[str]:
    width = max((len(one.shown) for one in changes), default=0)
    return [
        f"  {printable(one.shown):<{width}}  weight {one.weight:<3} {percent(one.before):>6} -> {percent(one.after):>6}"
        for one in changes
    ]


def shares_json(changes: Sequence[ShareChange]) -> list[dict[str, Any]]:
    return [
        {
            "id": one.id,
            "name": one.name,
            "weight": one.weight,
            "share_allowed_before_pct": rounded(one.before),
            "share_allowed_after_pct": rounded(one.after),
        }
        for one in changes
    ]
