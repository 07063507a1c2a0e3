# SPDX-License-Identifier: MIT
"""PURE: how near two GPUs of a machine are, and which set of them has the best links."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from cgpu_common.cards import NvmlGpu

SWITCH = "switch"  # in NvmlGpu.peers: a link to an NVSwitch, by which each GPU there reaches each other one
NVLINK = 100  # of a rank: one link; below that it counts bridges of PCIe
PCIE_MAX = NVLINK - 1
GPUS_MAX = 16  # of a machine whose links are looked at: the ranks of all pairs have to fit into an annotation

K = TypeVar("K", int, str)  # GPUs by their index, or by their UUID
Ranks = Mapping[K, Mapping[K, int]]  # GPU -> another one -> rank


def rank(one: NvmlGpu, other: NvmlGpu) -> int:
    """100 for each NVLink between them; without one the bridges of PCIe that both are below; 0: nothing is known."""
    direct = min(one.peers.count(other.pci), other.peers.count(one.pci))
    switched = min(one.peers.count(SWITCH), other.peers.count(SWITCH))
    if direct or switched:
        return NVLINK * (direct + switched)
    shared = 0
    for left, right in zip(one.bridges, other.bridges, strict=False):
        if left != right:
            break
        shared += 1
    return min(shared, PCIE_MAX)


def total(chosen: Sequence[K], ranks: Ranks[K]) -> int:
    """Of all pairs."""
    return sum(ranks.get(one, {}).get(other, 0) for at, one in enumerate(chosen) for other in chosen[at + 1 :])


def best(ordered: Sequence[K], count: int, ranks: Ranks[K], held: Sequence[K] = ()) -> list[K]:
    """@count of the GPUs with the best links; of equal sets the one that begins with what is first in @ordered. @held:
    GPUs that are in it whatever their links.

    From each GPU a set grows by the one with the best links to it, which takes GPUs x GPUs x @count steps. Where links
    are in groups, as on machines that are sold, no set is better; in general one may be."""
    if count < 2 or not ranks:
        return (list(held) + [gpu for gpu in ordered if gpu not in held])[:count]
    starts = [list(held)] if held else [[first] for first in ordered]
    sets = [_grown(start, ordered, count, ranks) for start in starts]
    return max(sets, key=lambda one: total(one, ranks)) if sets else []


def _grown(chosen: list[K], ordered: Iterable[K], count: int, ranks: Ranks[K]) -> list[K]:
    gains = {gpu: sum(ranks.get(one, {}).get(gpu, 0) for one in chosen) for gpu in ordered if gpu not in chosen}
    while len(chosen) < count and gains:
        chosen.append(max(gains, key=lambda gpu: gains[gpu]))
        del gains[chosen[-1]]
        for gpu, rank_to in ranks.get(chosen[-1], {}).items():
            if gpu in gains:
                gains[gpu] += rank_to
    return chosen


def quality(chosen: Sequence[K], ranks: Ranks[K]) -> float:
    """0 to 1: the part of the pairs that have an NVLink."""
    pairs = len(chosen) * (len(chosen) - 1) / 2
    linked = sum(
        ranks.get(one, {}).get(other, 0) >= NVLINK for at, one in enumerate(chosen) for other in chosen[at + 1 :]
    )
    return linked / pairs if pairs else 0.0
