# SPDX-License-Identifier: MIT
"""A test that is a coroutine runs in an event loop of its own, between the start and the end of those of its arguments
that are asynchronous context managers; --failed-in chooses tests by an earlier report."""

from __future__ import annotations

import asyncio
import inspect
import xml.etree.ElementTree as ET
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

import pytest

LIMIT_S = 60


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """One that hangs fails by its name, after the seconds of its marker `within`."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    within = pyfuncitem.get_closest_marker("within")
    wanted = inspect.signature(pyfuncitem.obj).parameters
    body = entered(pyfuncitem.obj, {name: pyfuncitem.funcargs[name] for name in wanted})
    asyncio.run(asyncio.wait_for(body, within.args[0] if within else LIMIT_S))
    return True


async def entered(test: Any, arguments: dict[str, Any]) -> None:
    """A fixture cannot wait in the test's loop: it returns the context manager, and the test gets what that yields. In
    the order of the arguments: one that needs another comes after it."""
    async with AsyncExitStack() as stack:
        for name, value in arguments.items():
            if isinstance(value, AbstractAsyncContextManager):
                arguments[name] = await stack.enter_async_context(value)
        await test(**arguments)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--failed-in", metavar="XML", help="run the tests that failed in this report of --junitxml")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """scripts/test-levels runs a few failed tests again."""
    report = config.getoption("--failed-in")
    if not report:
        return
    cases = ET.parse(config.rootpath / report).getroot().iter("testcase")
    failed = {
        (case.get("classname"), case.get("name"))
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    }
    chosen = [item for item in items if named(item) in failed]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


def named(item: pytest.Item) -> tuple[str, str]:
    """As pytest's report has it: the file as a module, the name."""
    path, _, name = item.nodeid.partition("::")
    return path.removesuffix(".py").replace("/", "."), name
