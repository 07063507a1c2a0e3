# SPDX-License-Identifier: MIT
"""PURE: a copy of one collection of the API server, kept by lists and watch events.

Events may be late, doubled or missing: a reconnected watch repeats some, and another replica of the API server may be
behind. An object never goes back to an older resourceVersion, and one that was deleted does not come back under the
same uid. What is missing comes with the next list.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any

Object = dict[str, Any]
Key = tuple[str, str]
#: What was stored of the old one, and the new one; None: there was or is none.
Change = tuple[Any, Object | None]

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


def _whole(found: Object) -> Any:
    return found


class Mirror:
    """The objects by namespace and name. @store returns what is stored of an object, to save memory, and what a change
    has as the old one; None: nothing, and it is no object of interest."""

    def __init__(self, store: Callable[[Object], Any] = _whole) -> None:
        self._store = store
        self._objects: dict[Key, tuple[str, int, Any]] = {}  # uid, resourceVersion, stored
        self._tombstones: OrderedDict[str, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[Any]:
        return iter([stored for _, _, stored in self._objects.values()])

    def get(self, namespace: str, name: str) -> Any:
        """What is stored; None: there is no such object."""
        found = self._objects.get((namespace, name))
        return found[2] if found is not None else None

    def replace(self, items: Iterable[Object], version: int = 0) -> list[Change]:
        """A list as of @version replaces everything, except objects with a newer version, which an answer to our own
        write had brought. Returns the changes."""
        changes: list[Change] = []
        there: set[Key] = set()
        for item in items:
            there.add(key_of(item))
            changes += self._put(item)
        return changes + self.without(there, version)

    def without(self, there: Container[Key], version: int) -> list[Change]:
        """The end of a list as of @version, whose objects @there came as ADDED: others are gone."""
        gone = [key for key, one in self._objects.items() if key not in there and not (version and one[1] > version)]
        return [change for key in gone for change in self._drop(key, version)]

    def forget_versions(self) -> None:
        """The versions of the server begin again below: every object that it shows counts from now on."""
        self._objects = {key: (uid, 0, stored) for key, (uid, _, stored) in self._objects.items()}
        self._tombstones.clear()

    def apply(self, kind: str, found: Object) -> list[Change]:
        """One event of a watch: ADDED, MODIFIED or DELETED."""
        if kind == "DELETED":
            old = self._objects.get(key_of(found))
            self._bury(uid_of(found), version_of(found))
            if old is not None and old[0] not in ("", uid_of(found)):
                return []  # late: there is another object of that name now
            return self._drop(key_of(found), version_of(found))
        return self._put(found)

    def _put(self, found: Object) -> list[Change]:
        key, uid, version = key_of(found), uid_of(found), version_of(found)
        old = self._objects.get(key)
        if uid and uid in self._tombstones:
            return []
        if old is not None and version:
            if uid == old[0] and version <= old[1]:
                return []
            if uid != old[0] and version < old[1]:
                return []
        stored = self._store(found)
        if stored is None:
            return self._drop(key, version) if old is not None else []
        self._objects[key] = (uid, version, stored)
        if old is None:
            return [(None, found)]
        if old[0] != uid:
            self._bury(old[0], version)
            return [(old[2], None), (None, found)]
        return [(old[2], found)]

    def _drop(self, key: Key, version: int) -> list[Change]:
        old = self._objects.pop(key, None)
        if old is None:
            return []
        self._bury(old[0], version)
        return [(old[2], None)]

    def _bury(self, uid: str, version: int) -> None:
        if uid:
            self._tombstones[uid] = version
            self._tombstones.move_to_end(uid)
            while len(self._tombstones) > TOMBSTONES_MAX:
                self._tombstones.popitem(last=False)
