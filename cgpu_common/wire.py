# SPDX-License-Identifier: MIT
"""Requests to cgpud and its answers, in the frames of frames.py. A request may carry one descriptor."""

from __future__ import annotations

from typing import Any

import msgspec

from cgpu_common.errors import ProtocolError
from cgpu_common.frames import HEAD

REQUEST_MAX = 64 << 10
REPLY_MAX = 64 << 10
SENTENCE_MAX = 2000  # bytes; the buffer of cgpu-runtime has 2048


class Message(msgspec.Struct, frozen=True):
    """All requests. Fields that an operation does not use are empty."""

    op: str
    id: str = ""
    bundle: str = ""
    verb: str = ""
    cookie: str = "0"
    runtime: str = ""
    capability: str = ""  # of exec: one of oci.UNDOING_CAPABILITIES that the process would have
    since: float = 0.0  # of events: seconds since 1970
    grant: Any = None  # of grant and revoke, see grants.py
    subject: Any = None  # of decide, which cgpud asks cgpu-kube


def length(head: bytes) -> int:
    (size,) = HEAD.unpack(head)
    if not 2 <= size <= REQUEST_MAX:
        raise ProtocolError(f"a request of {size} bytes")
    return int(size)


def decode(body: bytes) -> Message:
    try:
        return msgspec.json.decode(body, type=Message)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:  # UnicodeDecodeError: a string is not UTF-8
        raise ProtocolError(f"not a request: {error}") from error


def cookie_of(message: Message) -> int:
    if not message.cookie.isascii() or not message.cookie.isdecimal() or len(message.cookie) > 20:
        raise ProtocolError("a cookie that is no number")
    return int(message.cookie)


def sentence(text: str) -> str:
    """One line, cut at a character to the size that cgpu-runtime accepts. An image's value of a variable may be in it,
    and a terminal would obey its control characters."""
    shown = "".join(char if char.isprintable() else "?" for char in " ".join(text.split()))
    line = shown.encode(errors="replace")[:SENTENCE_MAX]
    return line.decode(errors="ignore")


def refusal(why: str) -> dict[str, Any]:
    return {"ok": False, "error": sentence(why)}
