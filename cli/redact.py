# SPDX-License-Identifier: MIT
"""Takes secrets out of a text that goes into a bug report: cookies, passwords, tokens, credentials in addresses. Pure.

The second line of defence: free-form files, which can hold anything, are not put into a report at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

GONE = "[removed]"
LEAST = 4  # a shorter value would remove parts of words

_WORDS = (
    r"pass(?:word|wd|phrase)|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credentials?|auth(?:orization)?"
)
_ASSIGNED = re.compile(
    rf"(?i)([\w.-]*(?:{_WORDS})[\w.-]*[\"']?\s*[=:]\s*)(?:bearer\s+|basic\s+)?(\"[^\"]*\"|'[^']*'|[^\s,;&]+)"
)
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}")
_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]*://)[^/\s@]+@", re.IGNORECASE)
_COOKIE = re.compile(r"(?i)(cookie[\"']?\s*[=:]\s*[\"']?)(?:0x)?[0-9a-f]+")
_PEM = re.compile(r"-----BEGIN [A-Z ]+-----.*?(?:-----END [A-Z ]+-----|\Z)", re.S)

SECRET_NAME = re.compile(rf"(?i){_WORDS}|key|cookie|session")


def redact(text: str, known: Iterable[str] = ()) -> str:
    """The text without what looks like a secret, and without the known ones."""
    text = _PEM.sub(GONE, text)
    for value in sorted({one for one in known if len(one) >= LEAST}, key=len, reverse=True):
        text = text.replace(value, GONE)
    text = _COOKIE.sub(rf"\g<1>{GONE}", text)
    text = _ADDRESS.sub(rf"\g<1>{GONE}@", text)
    text = _BEARER.sub(rf"\g<1> {GONE}", text)
    return _ASSIGNED.sub(rf"\g<1>{GONE}", text)
