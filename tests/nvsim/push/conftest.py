# SPDX-License-Identifier: MIT
"""A channel for each test, by one build of the decoder."""

import ctypes
from collections.abc import Iterator

import pytest
from machine import Machine, build


@pytest.fixture(scope="session")
def lib(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The decoder."""
    return build(tmp_path_factory.mktemp("push"))


@pytest.fixture
def m(lib: ctypes.CDLL) -> Iterator[Machine]:
    """The channel."""
    machine = Machine(lib)
    yield machine
    machine.close()
