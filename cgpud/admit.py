# SPDX-License-Identifier: MIT
"""PURE: a request, the GPUs and their containers -> slots to create, or a sentence with the reason of the refusal.

The kernel repeats all checks when it creates the slots. The sentence is made here, because it names the containers
that hold the memory or weight. The kernel's sums decide; the list of containers is only for the sentence. The rules:

  memory   the sum of the limits on a GPU is at most overcommit times what the driver and processes outside of
           containers leave of the GPU; the kernel's own bound is overcommit times the card's memory
  least    no slice is smaller than one context of the GPU
  number   at most max_inst containers on a GPU
  caps     the maximum for one container in [container] of cgpu.toml; a larger request is refused, never reduced
  NVIDIA   a slice is not larger than NVIDIA's own variable says, if the container has it
  ceiling  under policy burst only: a bound that the policy would ignore is refused
  weight   no weight left: weight 0 and a warning (documented; such a container does not run until an administrator
           writes its weight, except under policy 5); less weight left than requested: refused

A dying container counts until its last call has returned; the kernel lowers its limit to what it uses. What is held of
destroyed ones counts too.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from cgpu_common import effect
from cgpu_common.cards import Gpu
from cgpu_common.errors import KernelRefused, Refused
from cgpu_common.kernel_abi import MAX_INST_MAX
from cgpu_common.model import MIB, Container, Slot, SlotWant
from cgpu_common.settings import Caps
from cgpud.env import CEILING, CONTAINER, DEV, EVERY_GPU, HIGHPRIO, NVIDIA, VISIBLE, WEIGHT
from cgpud.limits import CONTEXT_MIB, limit_mib
from cgpud.values import Devices, NotSliced, Plan, Request

#: Cards have less than their name says: a T4 of 16 GB has 14.8 GiB, which its users call 15.
DEV_TOLERANCE = 0.05
PERCENT = 100  # a DEV of 100 makes percentages of CONTAINER (docs/user/coming-from.md)


class NeedsContainerList(Exception):
    """The refusal has to name the containers on the GPU, and the kernel's list was not passed."""


Names = Mapping[str, str]  # kernel container id -> how its engine names it


def _name(container: Container, names: Names) -> str:
    words = [*filter(None, [names.get(container.id)]), *["dying"] * container.dying]
    name = container.dir or container.id[:12]
    return f"{name} ({', '.join(words)})" if words else name


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
    """The GPUs of a device list, in its order."""
    if not gpus:
        raise Refused("this machine has no GPU that cgpu_km or NVML knows of")
    if devices.all:
        return tuple(gpus)
    if devices.minors:
        there = {gpu.nv_minor: gpu for gpu in gpus}
        strange = [minor for minor in devices.minors if minor not in there]
        if strange:
            raise Refused(
                f"{devices.source} has /dev/nvidia{strange[0]}, which is no GPU that cgpu_km or NVML knows of"
            )
        return tuple(there[minor] for minor in devices.minors)
    chosen = tuple(_find(item, devices, gpus) for item in devices.items)
    for place, gpu in enumerate(chosen):
        if gpu in chosen[:place]:
            raise Refused(f"{devices.source} names GPU {gpu.number} twice")
    return chosen


def _requested(request: Request, mib: int) -> str:
    """The memory variable with the container's value, which has led to this size."""
    if request.exact:
        return request.devices.source
    if request.nvidia and request.nvidia.mib == mib:
        return f"{request.nvidia.variable}={mib}"
    if not request.sizes:
        return f"{request.devices.source} without {CONTAINER}"
    return f"{CONTAINER}={','.join(map(str, request.sizes))}"


def _size_mib(request: Request, place: int, gpu: Gpu) -> int:
    """The smaller one of what our variables say and what NVIDIA's do."""
    if gpu.total_mib <= 0:
        raise Refused(f"neither NVML nor cgpu_km knows the memory size of GPU {gpu.number}")
    if request.exact:
        return request.exact[place].mib
    if request.nvidia is None:
        return _our_size_mib(request, place, gpu)
    return request.nvidia.mib if request.by_nvidia else min(_our_size_mib(request, place, gpu), request.nvidia.mib)


def _our_size_mib(request: Request, place: int, gpu: Gpu) -> int:
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
    return limit_mib(gpu.total_mib, size, request.total)


def _check_least(request: Request, gpu: Gpu, want_mib: int) -> None:
    least = max(CONTEXT_MIB, gpu.context_mib)
    if want_mib < least:
        by_nvidia = request.nvidia is not None and request.nvidia.mib == want_mib
        mixed = f"; are {CONTAINER} and {DEV}={request.total} in one unit?" if request.sizes and not by_nvidia else ""
        raise Refused(
            f"{_requested(request, want_mib)} gives {want_mib} MiB of GPU {gpu.number}, and one context takes {least}, "
            f"so that no program could use it{mixed}"
        )


def _check_cap(request: Request, gpu: Gpu, want_mib: int, caps: Caps) -> None:
    allowed = []
    if caps.max_memory_mib is not None:
        allowed.append((caps.max_memory_mib, "max_memory_mib"))
    if caps.max_memory_fraction is not None:
        allowed.append((int(gpu.total_mib * caps.max_memory_fraction), "max_memory_fraction"))
    for most, key in sorted(allowed):
        if want_mib > most:
            raise Refused(
                f"{_requested(request, want_mib)} asks for {want_mib} MiB of GPU {gpu.number}, and {most} MiB are "
                f"allowed: {caps.source(key)}"
            )


def _check_request(request: Request, caps: Caps) -> None:
    weight = max((slot.weight for slot in request.exact), default=request.weight or 1)
    if (request.highprio or any(slot.highprio for slot in request.exact)) and caps.highprio == "refuse":
        source = request.devices.source if request.exact else f"{HIGHPRIO}=1"
        raise Refused(f"{source} asks for high priority, which is not allowed: {caps.source('highprio')}")
    if caps.max_weight is not None and weight > caps.max_weight:
        source = request.devices.source if request.exact else f"{WEIGHT}={weight}"
        raise Refused(
            f"{source} asks for weight {weight}, and {caps.max_weight} is allowed: {caps.source('max_weight')}"
        )


def check_disable(wanted: NotSliced, caps: Caps) -> None:
    """Refuse a container whose variables switch cGPU off, where they may not: without a slice it has no limits."""
    if wanted.switched_off and caps.denies_disable():
        raise Refused(f"{wanted.why}, and a container may not switch cGPU off: {caps.source('disable')}")


def check_granted(caps: Caps) -> None:
    """A container without a grant requests a slice."""
    if caps.grants == "required":
        raise Refused(f"the variables ask for a slice, and no grant gives the container one: {caps.source('grants')}")


def _slots_on(gpu: Gpu, containers: Sequence[Container] | None) -> list[tuple[Container, Slot]]:
    if containers is None:
        raise NeedsContainerList
    return [(container, slot) for container in containers for slot in container.slots if slot.gpu == gpu.index]


def _check_memory(gpu: Gpu, want_mib: int, containers: Sequence[Container] | None, names: Names) -> None:
    limits = gpu.limits if gpu.limits is not None else sum(slot.limit for _, slot in _slots_on(gpu, containers))
    room = gpu.total_mib if gpu.room_mib is None else gpu.room_mib
    left = _left_mib(gpu, limits)
    if want_mib <= left:
        return
    there = _slots_on(gpu, containers)
    holders = [f"{_name(container, names)} {-(-slot.limit // MIB)} MiB" for container, slot in there]
    if (held := limits - sum(slot.limit for _, slot in there)) > 0:
        holders.append(f"destroyed containers {-(-held // MIB)} MiB (/proc/cgpu_km/ended names them)")
    if room < gpu.total_mib:
        holders.append(f"the driver and what runs outside of containers {gpu.total_mib - room} MiB")
    times = f" (overcommit {gpu.overcommit} %)" if gpu.overcommit != 100 else ""
    raise Refused(
        f"GPU {gpu.number} has {max(left, 0)} of its {gpu.total_mib} MiB{times} left and {want_mib} MiB were "
        f"requested; held by: {', '.join(holders) or 'no container'}"
    )


def why_unshared(gpu: Gpu) -> str:
    """Why the GPU takes no slice at all, in a sentence; "" if it does."""
    if gpu.lost:
        return f"GPU {gpu.number} does not answer NVML ({gpu.lost}), so it cannot be sliced"
    if gpu.mig:
        return f"GPU {gpu.number} is in MIG mode, which cannot be sliced"
    if gpu.confidential:
        return (
            f"GPU {gpu.number} has Confidential Computing on, which cannot be sliced: a container's channels would "
            "need keys that only the driver may have"
        )
    if gpu.mps:
        return f"GPU {gpu.number} {gpu.mps}, so it cannot be sliced"
    if gpu.compute_mode:
        return (
            f"GPU {gpu.number} is in compute mode {gpu.compute_mode}, in which it cannot be shared "
            f"(nvidia-smi -i {gpu.number} -c DEFAULT)"
        )
    return ""


def _check_sharing(gpu: Gpu) -> None:
    if why := why_unshared(gpu):
        raise Refused(why)


def most_mib(gpu: Gpu) -> int:
    """The sum of limits that _check_memory() lets into the GPU."""
    room = gpu.total_mib if gpu.room_mib is None else gpu.room_mib
    return room * gpu.overcommit // 100


def _left_mib(gpu: Gpu, limits: int) -> int:
    """@limits: bytes, of its containers together."""
    return most_mib(gpu) - -(-limits // MIB)


def _most_instances(gpu: Gpu) -> int:
    return min(gpu.max_inst, MAX_INST_MAX)


def free_mib(gpu: Gpu) -> int | None:
    """The largest limit of one more container of weight 1; None: not known, of an older module or a GPU that no
    container has used yet."""
    if gpu.limits is None or not gpu.total_mib:
        return None
    if why_unshared(gpu) or gpu.instances >= _most_instances(gpu):
        return 0
    return max(_left_mib(gpu, gpu.limits), 0)


def _grant_weight(
    gpu: Gpu, requested: int, containers: Sequence[Container] | None, names: Names
) -> tuple[int, str | None]:
    instances = gpu.instances if gpu.limits is not None else len(_slots_on(gpu, containers))
    most = _most_instances(gpu)
    if instances >= most:
        holders = ", ".join(_name(container, names) for container, _ in _slots_on(gpu, containers))
        limit = f"max_inst={most}" if most == gpu.max_inst else f"{most}, the most that a GPU takes,"
        raise Refused(f"GPU {gpu.number} already has {limit} containers: {holders}")
    if requested > gpu.max_inst:
        raise Refused(f"{WEIGHT}={requested} is more than max_inst={gpu.max_inst} of GPU {gpu.number}")
    if requested <= gpu.free_weight:
        return requested, None
    there = _slots_on(gpu, containers)
    holders = ", ".join(f"{_name(container, names)} {slot.weight}" for container, slot in there)
    if gpu.free_weight == 0:
        about = effect.of_weight(gpu.kernel.policy, 0) if gpu.kernel else "without compute under every policy but 5"
        return 0, f"GPU {gpu.number} has no weight left, so the container gets weight 0: {about}; held by: {holders}"
    raise Refused(
        f"GPU {gpu.number} has {gpu.free_weight} of {gpu.max_inst} weight left and {requested} was requested; "
        f"held by: {holders}"
    )


def _ceiling(request: Request, place: int, gpu: Gpu, weight: int, caps: Caps) -> int:
    """The requested ceiling, else the configured one, at least the weight. One of max_inst or more limits nothing."""
    requested = request.exact[place].ceiling if request.exact else request.ceiling
    most = max(caps.ceiling, weight) if caps.ceiling else gpu.max_inst
    if requested is None:
        return most if most < gpu.max_inst else 0
    source = request.devices.source if request.exact else f"{CEILING}={requested}"
    if requested > gpu.max_inst:
        raise Refused(f"{source} asks for ceiling {requested}, more than max_inst={gpu.max_inst} of GPU {gpu.number}")
    if requested > most:
        raise Refused(f"{source} asks for ceiling {requested}, and {most} is allowed: {caps.source('ceiling')}")
    if gpu.kernel and (why := effect.of_ceiling(gpu.kernel.policy)):
        raise Refused(f"{source} asks for ceiling {requested} of GPU {gpu.number}, and {why}")
    return requested if requested < gpu.max_inst else 0


def _without_effect(request: Request, gpu: Gpu) -> list[str]:
    """The requested values that the policy of the GPU ignores. A container never changes the policy."""
    if gpu.kernel is None:
        return []
    about = [
        (f"{WEIGHT}={request.weight}", effect.of_weight(gpu.kernel.policy, request.weight or 1)),
        (f"{HIGHPRIO}=1", effect.of_highprio(gpu.kernel.policy) if request.highprio else None),
    ]
    return [f"{variable} on GPU {gpu.number}: {why}" for variable, why in about if why]


def _hardly_meant(request: Request, chosen: Sequence[Gpu]) -> list[str]:
    """Sentences on sizes that the interface allows and authors seldom mean: a slice of each GPU because no variable
    names one, and a DEV that is not the card's, where a "GiB" of CONTAINER is another size than 1,024 MiB."""
    if not request.sizes:
        return []
    found = []
    if request.devices.source == EVERY_GPU and len(chosen) > 1:
        found.append(f"{VISIBLE} is not set: the container gets a slice of each of the {len(chosen)} GPUs, not of one")
    for place, gpu in enumerate(chosen):
        gib = gpu.total_mib / 1024
        if request.total != PERCENT and abs(request.total - gib) > 1 + gib * DEV_TOLERANCE:
            size = request.sizes[min(place, len(request.sizes) - 1)]
            found.append(
                f"{DEV}={request.total}, and GPU {gpu.number} has {gib:.0f} GiB: {CONTAINER}={size} is the fraction "
                f"{size}/{request.total} of it, {limit_mib(gpu.total_mib, size, request.total)} MiB, not {size} GiB"
            )
    return found


def _beside_nvidia(request: Request, place: int, gpu: Gpu) -> list[str]:
    """Which one counts, where our variables and NVIDIA's say different sizes."""
    theirs = request.nvidia
    if theirs is None or request.by_nvidia or (mib := _our_size_mib(request, place, gpu)) == theirs.mib:
        return []
    ours = f"{_requested(request, 0)} is {mib} MiB of GPU {gpu.number}"
    return [f"{theirs.variable}={theirs.mib}, and {ours}: the smaller one counts, {min(mib, theirs.mib)} MiB"]


def admit(
    request: Request,
    gpus: Sequence[Gpu],
    containers: Sequence[Container] | None,
    caps: Caps = Caps(),  # noqa: B008  frozen
    names: Names = MappingProxyType({}),
) -> Plan:
    """The slots to create. Raises Refused with the reason, which names the holders by `names` too.

    `containers` is the kernel's list, with dying containers. Without it (None), a refusal that has to name containers
    raises NeedsContainerList."""
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
    warnings = _hardly_meant(request, chosen)
    hints: list[str] = []
    for place, gpu in enumerate(chosen):
        _check_sharing(gpu)
        size = _size_mib(request, place, gpu)
        warnings += _beside_nvidia(request, place, gpu)
        _check_least(request, gpu, size)
        _check_cap(request, gpu, size, caps)
        exact = request.exact[place] if request.exact else None
        weight, warning = _grant_weight(gpu, exact.weight if exact else request.weight or 1, containers, names)
        if warning:
            warnings.append(warning)
        _check_memory(gpu, size, containers, names)
        hints += _without_effect(request, gpu)
        highprio = exact.highprio if exact else request.highprio
        ceiling = _ceiling(request, place, gpu, weight, caps)
        slots.append(SlotWant(gpu.index, gpu.nv_minor, size * MIB, weight, highprio, ceiling))
    return Plan(tuple(slots), tuple(warnings), tuple(hints))


def join(request: Request, gpus: Sequence[Gpu], container: Container) -> Plan:
    """The slots of a slice that exists, for one more container of its claim. Raises Refused if the grant describes
    another slice. Its weight, priority and ceiling may have been changed by an administrator."""
    chosen = choose(request.devices, gpus)
    wanted = {gpu.index: _size_mib(request, place, gpu) * MIB for place, gpu in enumerate(chosen)}
    if wanted != {slot.gpu: slot.limit for slot in container.slots}:
        raise Refused(
            f"the slice {container.id} exists with other GPUs or another size than {request.devices.source} gives; "
            f"its last container has to end first"
        )
    return Plan(
        tuple(
            SlotWant(slot.gpu, slot.nv_minor, slot.limit, slot.weight, slot.highprio, slot.ceiling)
            for slot in container.slots
        )
    )


def check_grant(plan: Plan, container: Container) -> None:
    """Refuse a container whose slots differ from the plan, as when kernel and daemon number GPUs differently.

    Less weight is KernelRefused, ENOSPC: another creation, by inst_ctl, took it after the sums were read, and with the
    sums of now the request gets a sentence that names the holders."""
    made = {slot.gpu: slot for slot in container.slots}
    for want in plan.slots:
        slot = made.get(want.gpu)
        if slot is None or slot.nv_minor != want.nv_minor or slot.limit != want.limit:
            raise Refused(
                f"cgpu_km created another slot on GPU {want.gpu} than requested (/dev/nvidia{want.nv_minor}, "
                f"{want.limit} bytes), so the container was not started"
            )
        if slot.highprio != want.highprio:
            raise Refused(f"cgpu_km created a slot on GPU {want.gpu} with another priority than requested")
        if slot.ceiling != want.ceiling:
            raise Refused(f"cgpu_km created a slot on GPU {want.gpu} with another ceiling than requested or configured")
        if slot.weight != want.weight:
            raise KernelRefused(
                errno.ENOSPC,
                f"cgpu_km granted weight {slot.weight} of GPU {want.gpu} instead of {want.weight}: another container "
                f"was created at the same time",
            )
