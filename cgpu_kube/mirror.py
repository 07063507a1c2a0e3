# SPDX-License-Identifier: MIT
"""PURE: a copy of one collection of the API server, kept by lists and watch events.

Events may be late, doubled or missing: a reconnected watch repeats some, and another replica of the API server may be
behind. An object never goes back to an older resourceVersion, and one that was deleted does not come back under the
same uid. What is missing comes with the next list.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

Object = dict[str, Any]
Key = tuple[str, str]
#: old, new; None: there was or is none.
Change = tuple[Object | None, Object | None]

#: uids of deleted objects that are remembered. A late event is seconds late, and a cluster deletes fewer in that time.
TOMBSTONES_MAX = 4096


def key_of(found: Object) -> Key:
    meta = found.get("metadata") or {}
    return str(meta.get("namespace") or ""), str(meta.get("name") or "")


def uid_of(found: Object) -> str:
    return str((found.get("metadata") or {}).get("uid") or "")


def version_of(found: Object) -> int:
    """The resourceVersion; 0 if it is no number, which only servers of an aggregated API have."""
    text = str((found.get("metadata") or {}).get("resourceVersion") or "")
    return int(text) if text.isascii() and text.isdigit() else 0


class Mirror:
    """The objects by namespace and name. @keep returns what is kept of an object, to save memory: at least its name,
    namespace, uid and resourceVersion."""

    def __init__(self, keep: Callable[[Object], Object] = lambda found: found) -> None:
        self._keep = keep
        self._objects: dict[Key, Object] = {}
        self._tombstones: OrderedDict[str, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[Object]:
        return iter(list(self._objects.values()))

    def get(self, namespace: str, name: str) -> Object | None:
        return self._objects.get((namespace, name))

    def replace(self, items: Iterable[Object], version: int = 0) -> list[Change]:
        """A list as of @version replaces everything, except objects with a newer version, which an answer to our own
        write had brought. Returns the changes."""
        changes: list[Change] = []
        there: set[Key] = set()
        for item in items:
            there.add(key_of(item))
            changes += self._put(item)
        for key, old in list(self._objects.items()):
            if key not in there and not (version and version_of(old) > version):
                changes += self._drop(key, version)
        return changes

    def apply(self, kind: str, found: Object) -> list[Change]:
        """One event of a watch: ADDED, MODIFIED or DELETED."""
        if kind == "DELETED":
            old = self._objects.get(key_of(found))
            if old is not None and uid_of(old) not in ("", uid_of(found)):
                self._bury(uid_of(found), version_of(found))
                return []  # late: there is another object of that name now
            self._bury(uid_of(found), version_of(found))
            return self._drop(key_of(found), version_of(found))
        return self._put(found)

    def _put(self, found: Object) -> list[Change]:
        key, uid, version = key_of(found), uid_of(found), version_of(found)
        old = self._objects.get(key)
        if uid and uid in self._tombstones:
            return []
        if old is not None and version:
            if uid == uid_of(old) and version <= version_of(old):
                return []
            if uid != uid_of(old) and version < version_of(old):
                return []
        kept = self._keep(found)
        if old is not None and uid_of(old) != uid:
            self._bury(uid_of(old), version)
            self._objects[key] = kept
            return [(old, None), (None, kept)]
        self._objects[key] = kept
        return [(old, kept)]

    def _drop(self, key: Key, version: int) -> list[Change]:
        old = self._objects.pop(key, None)
        if old is None:
            return []
        self._bury(uid_of(old), version)
        return [(old, None)]

    def _bury(self, uid: str, version: int) -> None:
        if uid:
            self._tombstones[uid] = version
            self._tombstones.move_to_end(uid)
            while len(self._tombstones) > TOMBSTONES_MAX:
                self._tombstones.popitem(last=False)
