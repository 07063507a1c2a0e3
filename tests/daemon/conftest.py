# SPDX-License-Identifier: MIT
from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fakes import Node


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.cleanup()


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, None]], None]:
    """Drive one coroutine; a test that hangs fails by name."""

    def drive(coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run(asyncio.wait_for(coroutine, 60))

    return drive
