# SPDX-License-Identifier: MIT
"""How answers of the API server are read: as a whole, or without the parts of an object that do not count."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any, TypedDict

import msgspec

OBJECT_MAX = 10 << 20  # bytes of one: etcd's own limit is 1.5 MiB, and JSON has six bytes for a <

Read = Callable[[bytes | bytearray], Any]


class Parts:
    """What is decoded of the objects of a collection: a TypedDict without the parts that do not count is a tenth of the
    time and of the memory of the whole. PartialObjectMetadata, which the server would send, has no spec."""

    def __init__(self, kind: Any = None) -> None:
        """None: everything."""
        self.read_page: Read = json.loads
        self.read_event: Read = json.loads
        self.read_one: Read = json.loads
        if kind is not None:
            page = TypedDict("page", {"metadata": Any, "items": list[kind] | None}, total=False)  # noqa: UP013
            event = TypedDict("event", {"type": str, "object": kind}, total=False)  # noqa: UP013
            self.read_page = msgspec.json.Decoder(page).decode
            self.read_event = msgspec.json.Decoder(event).decode
            self.read_one = msgspec.json.Decoder(kind).decode


WHOLE = Parts()


async def lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytearray]:
    """Complete lines only: the rest of a stream that broke off is no event."""
    line = bytearray()
    async for chunk in chunks:
        start = 0
        while start < len(chunk):
            end = chunk.find(b"\n", start)
            line += chunk[start : end if end >= 0 else len(chunk)]
            if len(line) > OBJECT_MAX:
                raise ValueError(f"a watch event is longer than {OBJECT_MAX} bytes")
            if end < 0:
                break
            if line.strip():
                yield line
            line, start = bytearray(), end + 1
