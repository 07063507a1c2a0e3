# SPDX-License-Identifier: MIT
"""Names of containers, from their bundles and Docker's own files, read once for each container."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from cgpu_common import proc
from cgpu_common.errors import CgpuError
from cgpud import bundle, labels
from cgpud.values import Record

Key = tuple[str, object]  # id, and the cookie in the form of the caller


class NameReader:
    """A cache: a bundle does not change while its container exists. Not thread-safe."""

    def __init__(self, paths: proc.Paths) -> None:
        self._paths = paths
        self._found: dict[Key, Mapping[str, str]] = {}

    def keep(self, keys: Iterable[Key]) -> None:
        """Forget all other containers."""
        known = set(keys)
        self._found = {key: found for key, found in self._found.items() if key in known}

    def of(self, key: Key, directory: str) -> Mapping[str, str]:
        """name, image, pod and namespace, those that are known."""
        if key not in self._found and directory:
            try:
                self._found[key] = labels.of_spec(bundle.read(directory))
            except CgpuError:
                self._found[key] = {}
        found = self._found.get(key, {})
        if "name" not in found and (docker := labels.of_docker(proc.engine_record(self._paths, key[0]))):
            found = self._found[key] = {**docker, **found}
        return found


class RecordNames:
    """The names of the daemon's containers, for `status`."""

    def __init__(self, paths: proc.Paths) -> None:
        self._reader = NameReader(paths)
        self._one_at_a_time = asyncio.Lock()  # guards _reader, which a thread uses

    async def of(self, records: Iterable[Record]) -> dict[str, Mapping[str, str]]:
        """By container id."""
        there = list(records)

        def read() -> dict[str, Mapping[str, str]]:
            self._reader.keep(record.key for record in there)
            return {record.id: self._reader.of(record.key, record.bundle) for record in there}

        async with self._one_at_a_time:
            return await asyncio.to_thread(read)
