# SPDX-License-Identifier: MIT
"""Memory that a container's start depends on: the limit of system memory by the driver, from its memory cgroup, and
what its last run still holds."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Collection, Iterator

from cgpu_common import log
from cgpu_common.errors import KernelRefused, Refused
from cgpu_common.kernel_abi import MIB, S
from cgpud import slices
from cgpud.dependencies import Dependencies
from cgpud.values import Phase, Process, Record


@contextlib.contextmanager
def closed_on_error(fd: int) -> Iterator[None]:
    """The file descriptor stays open only if the block ends without an error."""
    try:
        yield
    except BaseException:
        os.close(fd)
        raise


async def until_gone(deps: Dependencies, container_id: str, deadline: float) -> None:
    """Wait: `docker restart` may start a container before the kernel has closed the files of its last run. Raises
    Refused after @deadline, of the daemon's clock."""
    while slices.is_dying(container_id, await deps.link.list()):
        if deps.clock() > deadline:
            raise Refused(f"the last run of container {container_id[:12]} still holds GPU memory; try again later")
        await asyncio.sleep(0.05)


async def limit(deps: Dependencies, records: Collection[Record], record: Record, process: Process) -> None:
    """System memory that the driver allocates is in no memory cgroup: give it the limit that the container's has.

    `process` is the container's first process. Containers that share a slice have the sum of theirs, and none where one
    has none. One whose first process has ended adds nothing, so that it widens no limit. Raises an OSError if a cgroup
    cannot be read."""
    others = [one for one in records if one.phase is Phase.BOUND and one.key != record.key]
    sharing = [one.process for one in others if one.process and one.kernel_key == record.kernel_key]
    limits = [limit for one in (process, *sharing) if (limit := deps.facts.memory_limit(one)) is not None]
    if not limits:
        return
    wanted = sum(limits) if all(limits) else 0
    container_id, cookie = key = record.kernel_key
    found = next((one for one in await deps.link.list() if (one.id, one.cookie) == key), None)
    if not found or all(slot.host_limit == wanted for slot in found.slots):
        return
    value = max(wanted, MIB) if wanted else 0
    try:
        await deps.link.set(container_id, cookie, {slot.gpu: {S.HOST_LIMIT: value} for slot in found.slots})
    except KernelRefused as error:
        if error.code != errno.EINVAL:
            raise
        log.get().warning("the loaded cgpu_km has no limit of system memory", id=record.id)
