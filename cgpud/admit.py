# SPDX-License-Identifier: MIT
"""PURE: a request, the GPUs and who is there already -> slots to make, or a sentence why not.

The kernel checks all of it again when the slots are made; this is where the sentence comes from, because only here is
it known who holds what. Judged is by the kernel's sums; the list of all containers is for the sentence. The rules:

  memory   the limits of all containers of a GPU together fit into what the driver and processes outside of containers
           leave of it, times overcommit; the kernel's own bound is the card times overcommit, whatever is outside
  number   at most max_inst containers on a GPU
  caps     what [container] of cgpu.toml allows one container at most; over it: refused, never lowered

A dying container counts as it does in the kernel, with its whole limit, until its last file and mapping are gone.
  weight   none left: weight 0 and a warning (documented; such a container never runs until somebody gives it weight);
           some left but fewer than asked: refused
"""

from __future__ import annotations

from collections.abc import Sequence

from cgpud.env import CONTAINER, DEV, HIGHPRIO, NVIDIA, WEIGHT
from cgpud.errors import Refused
from cgpud.limits import limit_mib
from cgpud.model import MIB, Container, Devices, Gpu, Plan, Request, Slot, SlotWant
from cgpud.settings import Caps


class WhoHolds(Exception):
    """There is a sentence to say, and without the kernel's list nobody knows who holds what."""


def _name(container: Container) -> str:
    name = container.dir or container.id[:12]
    return f"{name} (dying)" if container.dying else name


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


def _asked(request: Request) -> str:
    """The memory variable as the container has it."""
    if not request.sizes:
        return f"{request.devices.source} without {CONTAINER}"
    return f"{CONTAINER}={','.join(map(str, request.sizes))}"


def _size_mib(request: Request, place: int, gpu: Gpu) -> int:
    if gpu.total_mib <= 0:
        raise Refused(f"neither NVML nor cgpu_km knows the memory size of GPU {gpu.number}")
    if not request.sizes:
        if not gpu.default_mib:
            raise Refused(f"{CONTAINER} is not set, and GPU {gpu.number} has no default_memsize_mib in cgpu.toml")
        if gpu.default_mib > gpu.total_mib:
            raise Refused(
                f"{CONTAINER} is not set, and the default_memsize of GPU {gpu.number}, {gpu.default_mib} MiB, is more "
                f"than its {gpu.total_mib} MiB"
            )
        return gpu.default_mib
    size = request.sizes[min(place, len(request.sizes) - 1)]
    if size > request.total:
        raise Refused(f"{CONTAINER} asks for {size} of the {request.total} GiB that {DEV} gives GPU {gpu.number}")
    mib = limit_mib(gpu.total_mib, size, request.total)
    if mib < 1:
        raise Refused(f"{CONTAINER}={size} of {DEV}={request.total} is less than 1 MiB of GPU {gpu.number}")
    return mib


def _check_cap(request: Request, gpu: Gpu, want_mib: int, caps: Caps) -> None:
    allowed = []
    if caps.max_memory_mib is not None:
        allowed.append((caps.max_memory_mib, "max_memory_mib"))
    if caps.max_memory_fraction is not None:
        allowed.append((int(gpu.total_mib * caps.max_memory_fraction), "max_memory_fraction"))
    for most, key in sorted(allowed):
        if want_mib > most:
            raise Refused(
                f"{_asked(request)} asks for {want_mib} MiB of GPU {gpu.number}, and {most} MiB are allowed: "
                f"{caps.source(key)}"
            )


def _check_request(request: Request, caps: Caps) -> None:
    if request.highprio and caps.highprio == "refuse":
        raise Refused(f"{HIGHPRIO}=1 asks for high priority, which is not given out: {caps.source('highprio')}")
    if caps.max_weight is not None and (request.weight or 1) > caps.max_weight:
        raise Refused(
            f"{WEIGHT}={request.weight} asks for weight {request.weight}, and {caps.max_weight} is allowed: "
            f"{caps.source('max_weight')}"
        )


def _on(gpu: Gpu, there: Sequence[Container] | None) -> list[tuple[Container, Slot]]:
    if there is None:
        raise WhoHolds
    return [(container, slot) for container in there for slot in container.slots if slot.gpu == gpu.index]


def _check_memory(gpu: Gpu, want_mib: int, there: Sequence[Container] | None) -> None:
    limits = gpu.limits if gpu.limits is not None else sum(slot.limit for _, slot in _on(gpu, there))
    room = gpu.total_mib if gpu.room_mib is None else gpu.room_mib
    left = room * gpu.overcommit // 100 - -(-limits // MIB)
    if want_mib <= left:
        return
    holders = [f"{_name(container)} {-(-slot.limit // MIB)} MiB" for container, slot in _on(gpu, there)]
    if room < gpu.total_mib:
        holders.append(f"the driver and what runs outside of containers {gpu.total_mib - room} MiB")
    times = f" (overcommit {gpu.overcommit / 100:g})" if gpu.overcommit != 100 else ""
    raise Refused(
        f"GPU {gpu.number} has {max(left, 0)} of its {gpu.total_mib} MiB{times} left and {want_mib} MiB were asked "
        f"for; held by: {', '.join(holders) or 'nobody'}"
    )


def _check_sharing(gpu: Gpu) -> None:
    if gpu.lost:
        raise Refused(f"GPU {gpu.number} does not answer NVML ({gpu.lost}), so no slice of it is given out")
    if gpu.mig:
        raise Refused(f"GPU {gpu.number} is in MIG mode, which cannot be sliced")
    if gpu.compute_mode:
        raise Refused(
            f"GPU {gpu.number} is in compute mode {gpu.compute_mode}, in which it cannot be shared "
            f"(nvidia-smi -i {gpu.number} -c DEFAULT)"
        )


def _grant_weight(gpu: Gpu, asked: int, there: Sequence[Container] | None) -> tuple[int, str | None]:
    instances = gpu.instances if gpu.limits is not None else len(_on(gpu, there))
    if instances >= gpu.max_inst:
        names = ", ".join(_name(container) for container, _ in _on(gpu, there))
        raise Refused(f"GPU {gpu.number} already has max_inst={gpu.max_inst} containers: {names}")
    if asked > gpu.max_inst:
        raise Refused(f"{WEIGHT}={asked} is more than max_inst={gpu.max_inst} of GPU {gpu.number}")
    if asked <= gpu.free_weight:
        return asked, None
    holders = ", ".join(f"{_name(container)} {slot.weight}" for container, slot in _on(gpu, there))
    if gpu.free_weight == 0:
        return 0, (
            f"GPU {gpu.number} has no weight left, so the container gets weight 0 and no compute at all until somebody "
            f"writes its weight; held by: {holders}"
        )
    raise Refused(
        f"GPU {gpu.number} has {gpu.free_weight} of {gpu.max_inst} weight left and {asked} was asked for; "
        f"held by: {holders}"
    )


def admit(
    request: Request,
    gpus: Sequence[Gpu],
    there: Sequence[Container] | None,
    caps: Caps = Caps(),  # noqa: B008  frozen
) -> Plan:
    """The slots to make, or Refused. `there` is the kernel's list, dying ones included; None, not read: may raise
    WhoHolds, and then the list is needed."""
    _check_request(request, caps)
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
        _check_sharing(gpu)
        size = _size_mib(request, place, gpu)
        _check_cap(request, gpu, size, caps)
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
