# SPDX-License-Identifier: MIT
"""PURE: slices that several containers share: the members of one claim.

The kernel has one container for the claim; the daemon has one record for each member, with a cookie of its own, which
its hooks carry. The first member creates the kernel's container, the last one that ends destroys it.
"""

from __future__ import annotations

from collections.abc import Iterable

from cgpu_common.errors import Refused
from cgpu_common.model import Container
from cgpud.values import Phase, Record


def joinable(claim: str, records: Iterable[Record], kernel: Iterable[Container]) -> Container | None:
    """The kernel's container of the claim, if one of its members has not ended."""
    keys = {
        record.kernel_key
        for record in records
        if record.slice and record.slice[0] == claim and record.phase in (Phase.PREPARED, Phase.BOUND)
    }
    return next((one for one in kernel if (one.id, one.cookie) in keys and not one.dying and one.slots), None)


def has_other_member(record: Record, records: Iterable[Record]) -> bool:
    """Is there another record of the same slice? A record that is being released destroys the slice itself: it has
    seen no other."""
    if record.slice is None:
        return False
    return any(other.slice == record.slice and other.key != record.key for other in records)


def members(key: tuple[str, int], records: Iterable[Record]) -> list[Record]:
    """The records of the kernel's container with this id and cookie."""
    return [record for record in records if record.kernel_key == key]


def is_dying(container_id: str, kernel: Iterable[Container]) -> bool:
    """Has the kernel a container of this id whose files are not all closed?"""
    return any(one.dying and one.id == container_id for one in kernel)


def check_caller(path: str | None, records: Iterable[Record]) -> None:
    """Raise Refused for a process in the cgroup of one of our containers, or below it: with the host's pid namespace it
    may reach the socket through /proc/PID/root of another process. @path: its cgroup."""
    for record in records:
        if record.cgroup is not None and f"{path}/".startswith(f"{record.cgroup.path}/"):
            raise Refused("cgpud takes no requests from a container")
