# SPDX-License-Identifier: MIT
"""Which container a word of the command line means, and how ids are shown apart. Pure.

As Docker does it: a full id, then an exact name, then a unique beginning of an id. An ambiguous word is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cgpu_common.exits import CgpuError, Exit

ID_SHOWN = 12
CANDIDATES_SHOWN = 5


@dataclass(frozen=True)
class Named:
    """A container's names: full id, directory of /proc/cgpu_km, and the engine's name, if it has one."""

    id: str
    dir: str
    name: str | None = None


def _common(one: str, other: str) -> int:
    """How many first characters are the same."""
    return next((place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), len(one))


def shown_ids(ids: Sequence[str]) -> dict[str, str]:
    """Each id cut to 12 characters, or to as many as distinguish it from the others."""
    ordered = sorted(set(ids))
    shared = [0] * len(ordered)
    for place in range(1, len(ordered)):
        common = _common(ordered[place - 1], ordered[place])
        shared[place - 1] = max(shared[place - 1], common)
        shared[place] = max(shared[place], common)
    return {one: one[: max(ID_SHOWN, shared[place] + 1)] for place, one in enumerate(ordered)}


def label(container_id: str, name: str | None = None) -> str:
    """What people call a container: the engine's name, else its id, an engine's long one cut. Commands accept it."""
    is_long_hex = len(container_id) > ID_SHOWN and not set(container_id) - set("0123456789abcdef")
    return name or (container_id[:ID_SHOWN] if is_long_hex else container_id)


def by_name(name: str | None) -> tuple[bool, list[str | int]]:
    """A key to sort by: job2 before job10, and what has no name last."""
    parts = re.split("([0-9]{1,18})", name or "")
    return not name, [int(part) if place % 2 else part for place, part in enumerate(parts)]


class HasName(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def name(self) -> str | None: ...


def labels(there: Sequence[HasName]) -> dict[str, str]:
    """What people call each of these containers, by id: as label(), and no two of them the same beginning of an id."""
    shown = shown_ids([one.id for one in there])
    return {one.id: one.name or (shown[one.id] if label(one.id) != one.id else one.id) for one in there}


def _listed(found: Sequence[Named]) -> str:
    shown = shown_ids([one.id for one in found])
    words = [f"{shown[one.id]} ({one.name})" if one.name else shown[one.id] for one in found[:CANDIDATES_SHOWN]]
    more = len(found) - CANDIDATES_SHOWN
    return ", ".join(words) + (f" and {more} more" if more > 0 else "")


def choose(key: str, there: Sequence[Named], hidden: bool = False) -> int:
    """The place of the one container that @key means. @hidden: the engine's names are for root, who asks not.
    CgpuError: empty, unknown or ambiguous."""
    if not key:
        raise CgpuError(Exit.USAGE, "usage", "an empty word names no container", "cgpu ps lists the containers")
    ways = (
        lambda one: one.id == key,
        lambda one: key in (one.name, one.dir),
        lambda one: one.id.startswith(key),
    )
    for fits in ways:
        found = [place for place, one in enumerate(there) if fits(one)]
        if len(found) == 1:
            return found[0]
        if found:
            text = f"fits {len(found)} containers: {_listed([there[place] for place in found])}"
            raise CgpuError(Exit.USAGE, f"container {key}", text, "write more of the id")
    if hidden:
        why = f"no container has this id or directory, and only root may look up the name {key}"
        hint = "give the id, as cgpu ps lists it, or be root on the host"
        raise CgpuError(Exit.NOT_FOUND, f"container {key}", why, hint)
    raise CgpuError(Exit.NOT_FOUND, f"container {key}", "there is no such container", "cgpu ps lists them")


@dataclass(frozen=True)
class GpuNames:
    """What a GPU is called: N of /proc/cgpu_km/N, UUID, PCI address."""

    index: int
    uuid: str
    pci: str


def choose_gpu(word: str, there: Sequence[GpuNames]) -> int:
    """The number of the one GPU that @word means. CgpuError: unknown or ambiguous."""
    low = word.lower()
    exact = [one.index for one in there if low in (str(one.index), one.pci.lower(), one.uuid.lower())]
    found = exact or [one.index for one in there if low and one.uuid.lower().startswith(low)]
    if len(found) != 1:
        why = f"fits {len(found)} GPUs" if found else "there is no such GPU"
        raise CgpuError(Exit.USAGE if found else Exit.NOT_FOUND, f"gpu {word}", why, "cgpu-smi -L lists the GPUs")
    return found[0]
