# SPDX-License-Identifier: MIT
"""Containers of the kernel with our cookie and without a record: adopted, or destroyed once they are idle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from cgpu_common import cgroup, log
from cgpu_common.model import Container
from cgpud import reconcile
from cgpud.dependencies import Dependencies
from cgpud.values import Phase, Record
from cgpud.watch import Key

CLAIM = "claim-"  # with the claim's uid: the id of a slice that containers of several ids share


class Orphans:
    """Those without a known cgroup: key -> idle since."""

    def __init__(self, deps: Dependencies, boot_id: str, cookie: Callable[[], int]) -> None:
        self._deps = deps
        self._boot_id = boot_id
        self._cookie = cookie
        self._used: set[Key] = set()  # or perhaps: by processes that cannot be watched
        self._since: dict[Key, float | None] = {}
        self._log = log.get()

    def __contains__(self, key: Key) -> bool:
        return key in self._since

    def __bool__(self) -> bool:
        return bool(self._since)

    def keep(self, there: Collection[Key]) -> None:
        """Forget those that the kernel has no more."""
        self._since = {key: since for key, since in self._since.items() if key in there}
        self._used.intersection_update(there)

    async def adopted(self, container: Container) -> list[Record]:
        """Records for its processes' cgroups: that with its id in the name, else those of the processes that see its
        nodes. A claim's slice has a member in each; none has its id. One that cannot be looked for is kept, and
        disturbs no other."""
        try:
            return await self._adopted(container)
        except Exception as error:
            self._used.add((container.id, container.cookie))
            self._log.exception("an orphan cannot be looked for", id=container.id, error=str(error))
            return []

    async def _adopted(self, container: Container) -> list[Record]:
        facts, key = self._deps.facts, (container.id, container.cookie)
        group = await asyncio.to_thread(facts.find_cgroup, container.id)
        if group is not None:
            return self._adopt(container, [Record(*key, self._boot_id, "", Phase.BOUND, 0.0, None, group)])
        self._used.discard(key)
        try:
            paths = await asyncio.to_thread(facts.users_of, container.dir)
            # Beside a process that cannot be watched no cgroup's end is the end of the slice's use.
            records = [] if None in paths else self._members(container, {path for path in paths if path is not None})
        except OSError as error:
            self._used.add(key)
            self._log.warning("the users of an orphan are not known", id=container.id, error=str(error))
            return []
        if paths and not records:
            self._used.add(key)
        return self._adopt(container, records)

    def _adopt(self, container: Container, records: list[Record]) -> list[Record]:
        for record in records:
            self._since.pop((container.id, container.cookie), None)
            self._log.warning("orphan adopted", id=container.id, cgroup=record.cgroup and record.cgroup.path)
        return records

    def _members(self, container: Container, paths: set[str]) -> list[Record]:
        key = (container.id, container.cookie)
        is_claim = container.id.startswith(CLAIM)
        named = {path: name for name, path in map(cgroup.of_engine, paths)} if is_claim else dict.fromkeys(paths, "")
        groups = [(name, group) for path, name in sorted(named.items()) if (group := self._deps.facts.cgroup_at(path))]
        if not is_claim:  # one of several cgroups may end before the container
            return [
                Record(*key, self._boot_id, "", Phase.BOUND, 0.0, None, one) for _, one in groups if len(groups) == 1
            ]
        return [
            Record(name or container.id, self._cookie(), self._boot_id, "", Phase.BOUND, 0.0, None, group, key)
            for name, group in groups
        ]

    def is_over(self, container: Container) -> bool:
        """Has it used no memory, and been seen by no process, for long enough to be destroyed?"""
        key, now = (container.id, container.cookie), self._deps.clock()
        is_new = key not in self._since
        before = None if key in self._used else self._since.get(key)
        self._since[key] = since = reconcile.idle_since(container, before, now)
        if since is not None and now - since >= reconcile.IDLE_S:
            self._log.warning("orphan destroyed", id=container.id)
            return True
        if is_new:
            self._log.warning("orphan kept unwatched until it is idle", id=container.id)
        return False
