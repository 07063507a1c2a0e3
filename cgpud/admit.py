# SPDX-License-Identifier: MIT
"""PURE: a request, the GPUs and who is there already -> slots to make, or a sentence why not.

The kernel checks all of it again when the slots are made; this is where the sentence comes from, because only here is
it known who holds what. The rules:

  memory   the limits of all containers of a GPU together fit on it; what a dying one still holds counts as held
  number   at most max_inst containers on a GPU
  weight   none left: weight 0 and a warning (documented; such a container never runs until somebody gives it weight);
           some left but fewer than asked: refused
"""

from __future__ import annotations

from collections.abc import Sequence

from cgpud.env import CONTAINER, DEV, NVIDIA, WEIGHT
from cgpud.errors import Refused
from cgpud.limits import limit_mib
from cgpud.model import MIB, Container, Devices, Gpu, Plan, Request, SlotWant


def _name(container: Container) -> str:
    return container.dir or container.id[:12]


def _find(item: int | str, devices: Devices, gpus: Sequence[Gpu]) -> Gpu:
    have = ", ".join(str(gpu.number) for gpu in gpus) or "none"
    if isinstance(item, int):
        for gpu in gpus:
            if gpu.number == item:
                return gpu
        raise Refused(f"{devices.source} names GPU {item}, which this machine does not have (GPUs: {have})")
    found = [gpu for gpu in gpus if gpu.uuid.lower().startswith(item.lower())]
    if len(found) == 1:
        return found[0]
    if found:
        several = " and ".join(str(gpu.number) for gpu in found)
        raise Refused(f"{devices.source} names {item}, which fits GPU {several}; write more of the UUID")
    raise Refused(f"{devices.source} names {item}, which is no GPU of this machine (GPUs: {have})")


def choose(devices: Devices, gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """The GPUs of a list, in the list's order."""
    if not gpus:
        raise Refused("this machine has no GPU that cgpu_km or NVML knows of")
    if devices.all:
        return tuple(gpus)
    chosen = tuple(_find(item, devices, gpus) for item in devices.items)
    for place, gpu in enumerate(chosen):
        if gpu in chosen[:place]:
            raise Refused(f"{devices.source} names GPU {gpu.number} twice")
    return chosen


def _size_mib(request: Request, place: int, gpu: Gpu, default_mib: int | None) -> int:
    if gpu.total_mib <= 0:
        raise Refused(f"neither NVML nor cgpu_km knows the memory size of GPU {gpu.number}")
    if not request.sizes:
        return min(default_mib or 0, gpu.total_mib)
    size = request.sizes[min(place, len(request.sizes) - 1)]
    if size > request.total:
        raise Refused(f"{CONTAINER} asks for {size} of the {request.total} GiB that {DEV} gives GPU {gpu.number}")
    mib = limit_mib(gpu.total_mib, size, request.total)
    if mib < 1:
        raise Refused(f"{CONTAINER}={size} of {DEV}={request.total} is less than 1 MiB of GPU {gpu.number}")
    return mib


def _check_memory(gpu: Gpu, want_mib: int, there: Sequence[Container]) -> None:
    held = [
        (container, slot.used if container.dying else slot.limit)
        for container in there
        for slot in container.slots
        if slot.gpu == gpu.index
    ]
    left = gpu.total_mib - sum(-(-size // MIB) for _, size in held)
    if want_mib > left:
        holders = ", ".join(f"{_name(container)} {-(-size // MIB)} MiB" for container, size in held) or "nobody"
        raise Refused(
            f"GPU {gpu.number} has {max(left, 0)} of its {gpu.total_mib} MiB left and {want_mib} MiB were asked for; "
            f"held by: {holders}"
        )


def _grant_weight(gpu: Gpu, asked: int, there: Sequence[Container]) -> tuple[int, str | None]:
    live = [c for c in there if not c.dying and any(slot.gpu == gpu.index for slot in c.slots)]
    holders = ", ".join(f"{_name(c)} {slot.weight}" for c in live for slot in c.slots if slot.gpu == gpu.index)
    if len(live) >= gpu.max_inst:
        raise Refused(f"GPU {gpu.number} already has max_inst={gpu.max_inst} containers: {', '.join(map(_name, live))}")
    if asked > gpu.max_inst:
        raise Refused(f"{WEIGHT}={asked} is more than max_inst={gpu.max_inst} of GPU {gpu.number}")
    if gpu.free_weight == 0:
        return 0, (
            f"GPU {gpu.number} has no weight left, so the container gets weight 0 and no compute at all until somebody "
            f"writes its weight; held by: {holders}"
        )
    if asked > gpu.free_weight:
        raise Refused(
            f"GPU {gpu.number} has {gpu.free_weight} of {gpu.max_inst} weight left and {asked} was asked for; "
            f"held by: {holders}"
        )
    return asked, None


def admit(
    request: Request,
    gpus: Sequence[Gpu],
    there: Sequence[Container],
    *,
    default_mib: int | None = None,
) -> Plan:
    """The slots to make, or Refused. `there` is the kernel's list, dying ones included."""
    chosen = choose(request.devices, gpus)
    if len(request.sizes) > len(chosen):
        raise Refused(
            f"{CONTAINER} lists {len(request.sizes)} sizes, but {request.devices.source} gives {len(chosen)} GPU(s)"
        )
    if request.native is not None:
        beside = [gpu for gpu in choose(request.native, gpus) if gpu not in chosen]
        if beside:
            raise Refused(
                f"{NVIDIA} names GPU {beside[0].number}, which {request.devices.source} does not: "
                f"whole GPUs beside slices are not possible in one container"
            )
    slots: list[SlotWant] = []
    warnings: list[str] = []
    for place, gpu in enumerate(chosen):
        if gpu.mig:
            raise Refused(f"GPU {gpu.number} is in MIG mode, which cannot be sliced")
        size = _size_mib(request, place, gpu, default_mib)
        weight, warning = _grant_weight(gpu, request.weight or 1, there)
        if warning:
            warnings.append(warning)
        _check_memory(gpu, size, there)
        slots.append(SlotWant(gpu.index, gpu.nv_minor, size * MIB, weight, request.highprio))
    return Plan(tuple(slots), tuple(warnings))


def check_grant(plan: Plan, container: Container) -> None:
    """Did the kernel make what was planned? If the two number GPUs differently, this is where it shows."""
    made = {slot.gpu: slot for slot in container.slots}
    for want in plan.slots:
        slot = made.get(want.gpu)
        if slot is None or slot.nv_minor != want.nv_minor or slot.limit != want.limit:
            raise Refused(
                f"cgpu_km made another slot on GPU {want.gpu} than was asked for (/dev/nvidia{want.nv_minor}, "
                f"{want.limit} bytes), so the container was not started"
            )
