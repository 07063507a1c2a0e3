# SPDX-License-Identifier: MIT
"""A container's allowed and actual share of a GPU. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from cgpu_common.model import KernelGpu, Slot
from cgpu_common.policies import UNKNOWN


def _by_policy(gpu: KernelGpu, slot: Slot, rivals: Sequence[Slot]) -> float:
    """The slot's part of its group's share; rivals are the other slots of the group with weight."""
    facts = gpu.facts
    if facts.fixed_round:
        return min(1.0, (slot.weight if facts.weights else 1) / gpu.max_inst)
    if facts.ceilings:
        return _under_ceilings(gpu, slot, [other for other in rivals if other.opened])
    if facts.weights:
        return slot.weight / (slot.weight + sum(other.weight for other in rivals))
    return 1 / (1 + sum(other.opened for other in rivals))


def _ceiling(gpu: KernelGpu, slot: Slot) -> float:
    """The part of the GPU that the slot may have under burst."""
    return min(1.0, slot.ceiling / gpu.max_inst) if slot.ceiling else 1.0


def _under_ceilings(gpu: KernelGpu, slot: Slot, rivals: Sequence[Slot]) -> float:
    """The slot's part by weight where those with a ceiling below theirs leave the rest to the others."""
    sharing, rest = [slot, *rivals], 1.0
    while True:
        weights = sum(one.weight for one in sharing)
        held = [one for one in sharing if _ceiling(gpu, one) < rest * one.weight / weights]
        if slot in held:
            return _ceiling(gpu, slot)
        if not held:
            return rest * slot.weight / weights
        rest -= sum(_ceiling(gpu, one) for one in held)
        sharing = [one for one in sharing if one not in held]


def _by_policy_highprio(gpu: KernelGpu, slot: Slot, rivals: Sequence[Slot]) -> float:
    """A high-priority slot's part of the group's share, without caps (docs/develop/scheduler.md, the vendor's text)."""
    if gpu.facts.weights:
        return slot.weight / (slot.weight + sum(other.weight for other in rivals))
    return 1 / (1 + len(rivals))


def _capped(gpu: KernelGpu, slot: Slot, part: float) -> float:
    return min(part, _ceiling(gpu, slot)) if gpu.facts.ceilings else part


def allowed_pct(gpu: KernelGpu, slot: Slot) -> float | None:
    """Upper bound in percent while all containers with the GPU open have work; None: no bound (native), or not known.

    For a container that has not opened the GPU: the bound it would have after opening it.
    """
    if not gpu.facts.limits or gpu.facts is UNKNOWN:
        return None
    if slot.weight == 0:
        return 0.0
    others = [other for other in gpu.slots if other.dir != slot.dir and other.weight > 0 and not other.dying]
    highprio = [other for other in others if other.highprio and other.opened]
    if slot.highprio:
        plain_open = any(other.opened for other in others if not other.highprio)
        whole = gpu.prio_ratio / 100 if plain_open else 1.0
        return 100 * _capped(gpu, slot, whole * _by_policy_highprio(gpu, slot, highprio))
    plain = [other for other in others if not other.highprio]
    part = _by_policy(gpu, slot, plain if highprio else others)
    if not highprio:
        return 100 * part
    rest = 1 - gpu.prio_ratio / 100
    return 100 * _capped(gpu, slot, min(part, rest) if gpu.facts.fixed_round else part * rest)


def got_pct(gpu: KernelGpu, before: Slot, after: Slot) -> float | None:
    """Percent of the time between two readings in which the container could run; None: not measured.

    Both readings must be under the policy of @gpu. Under native the kernel counts the time in which the GPU was open,
    so the time since a container opened the GPU has no share: it may be of several policies.
    """
    elapsed_ns = after.at_ns - before.at_ns
    if not gpu.facts.limits or elapsed_ns <= 0 or "gpu_ns" not in after.stat:
        return None
    return min(100.0, max(0.0, 100 * (after.stat["gpu_ns"] - before.stat.get("gpu_ns", 0)) / elapsed_ns))
