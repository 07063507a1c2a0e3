# SPDX-License-Identifier: MIT
"""The format of the socket: a 4-byte big-endian length, then one JSON object. A request may carry one descriptor."""

from __future__ import annotations

import json
import struct
from typing import Any

import msgspec

from cgpud.errors import ProtocolError

HEAD = struct.Struct(">I")
REQUEST_MAX = 64 << 10
REPLY_MAX = 64 << 10
SENTENCE_MAX = 2000  # bytes; cgpu-runtime has room for 2048


class Message(msgspec.Struct, frozen=True):
    """Every request there is. Fields that an operation does not use stay empty."""

    op: str
    id: str = ""
    bundle: str = ""
    verb: str = ""
    cookie: str = "0"
    runtime: str = ""


def length(head: bytes) -> int:
    (size,) = HEAD.unpack(head)
    if not 2 <= size <= REQUEST_MAX:
        raise ProtocolError(f"a request of {size} bytes")
    return int(size)


def decode(body: bytes) -> Message:
    try:
        return msgspec.json.decode(body, type=Message)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:  # the second for a string that is no UTF-8
        raise ProtocolError(f"not a request: {error}") from error


def cookie_of(message: Message) -> int:
    if not message.cookie.isascii() or not message.cookie.isdecimal() or len(message.cookie) > 20:
        raise ProtocolError("a cookie that is no number")
    return int(message.cookie)


def encode(value: dict[str, Any]) -> bytes:
    """Half a surrogate, which JSON can say and UTF-8 cannot, becomes a question mark: msgspec would raise."""
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
    return HEAD.pack(len(body)) + body


def sentence(text: str) -> str:
    """One line that cgpu-runtime has room for, cut between two characters."""
    line = " ".join(text.split()).encode(errors="replace")[:SENTENCE_MAX]
    return line.decode(errors="ignore")


def refusal(why: str) -> dict[str, Any]:
    return {"ok": False, "error": sentence(why)}
