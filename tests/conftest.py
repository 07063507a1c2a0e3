# SPDX-License-Identifier: MIT
"""A test that is a coroutine runs in an event loop of its own."""

from __future__ import annotations

import asyncio
import inspect

import pytest

LIMIT_S = 60


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """One that hangs fails by its name, after the seconds of its marker `within`."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    within = pyfuncitem.get_closest_marker("within")
    wanted = inspect.signature(pyfuncitem.obj).parameters
    body = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in wanted})
    asyncio.run(asyncio.wait_for(body, within.args[0] if within else LIMIT_S))
    return True
