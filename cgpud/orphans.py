# SPDX-License-Identifier: MIT
"""Containers of the kernel with our cookie and without a record: adopted, or destroyed once they are idle."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from cgpu_common import log
from cgpu_common.model import Container, Phase, Record
from cgpud import reconcile
from cgpud.dependencies import Dependencies
from cgpud.watch import Key


class Orphans:
    """Those without a known cgroup: key -> idle since."""

    def __init__(self, deps: Dependencies, boot_id: str) -> None:
        self._deps = deps
        self._boot_id = boot_id
        self._since: dict[Key, float | None] = {}
        self._log = log.get()

    def __contains__(self, key: Key) -> bool:
        return key in self._since

    def __bool__(self) -> bool:
        return bool(self._since)

    def keep(self, there: Collection[Key]) -> None:
        """Forget those that the kernel has no more."""
        self._since = {key: since for key, since in self._since.items() if key in there}

    async def adopted(self, container: Container) -> Record | None:
        """A record for the container, if its cgroup is found."""
        group = await asyncio.to_thread(self._deps.facts.find_cgroup, container.id)
        if group is None:
            return None
        self._since.pop((container.id, container.cookie), None)
        self._log.warning("orphan adopted", id=container.id, cgroup=group.path)
        return Record(container.id, container.cookie, self._boot_id, "", Phase.BOUND, 0.0, None, group)

    def is_over(self, container: Container) -> bool:
        """Has it used no memory for long enough to be destroyed?"""
        key, now = (container.id, container.cookie), self._deps.clock()
        is_new = key not in self._since
        self._since[key] = since = reconcile.idle_since(container, self._since.get(key), now)
        if since is not None and now - since >= reconcile.IDLE_S:
            self._log.warning("orphan destroyed", id=container.id)
            return True
        if is_new:
            self._log.warning("orphan kept unwatched until it is idle", id=container.id)
        return False
