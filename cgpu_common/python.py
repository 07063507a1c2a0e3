# SPDX-License-Identifier: MIT
"""`timeout()` of asyncio, which Python 3.10, Ubuntu 22.04's, does not have."""

from __future__ import annotations

import asyncio
import sys

if sys.version_info >= (3, 11):
    from asyncio import timeout
else:
    from collections.abc import AsyncIterator
    from contextlib import asynccontextmanager

    import async_timeout

    @asynccontextmanager
    async def timeout(seconds: float) -> AsyncIterator[None]:
        """When the time is over, the body is cancelled and TimeoutError is raised."""
        try:
            async with async_timeout.timeout(seconds):
                yield
        except asyncio.TimeoutError as error:  # before 3.11 neither TimeoutError nor an OSError
            raise TimeoutError from error


__all__ = ["timeout"]
