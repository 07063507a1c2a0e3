# SPDX-License-Identifier: MIT
"""PURE: the mark by which a container of the daemon is recognised in the kernel."""

from __future__ import annotations

# The upper 16 bits of every cookie of the daemon; the other 48 are random.
COOKIE_MARK = 0xC69D
COOKIE_BITS = 48


def make_cookie(random_bits: int) -> int:
    return (COOKIE_MARK << COOKIE_BITS) | (random_bits & ((1 << COOKIE_BITS) - 1))


def is_our_cookie(cookie: int) -> bool:
    return cookie >> COOKIE_BITS == COOKIE_MARK
