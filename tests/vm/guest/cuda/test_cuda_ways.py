# SPDX-License-Identifier: MIT
"""CUDA's newer ways to memory by NVIDIA's own libcuda: each is charged what it takes, and none exceeds the limit."""

from __future__ import annotations

from collections.abc import Iterator

import cuda_box as c
import pytest
import ways
from slicebox import MIB, PROC, command, fb_used, until

pytestmark = pytest.mark.cuda

NAME = "3b" * 32
LIMIT = 1024 * MIB


@pytest.fixture
def dev() -> Iterator[str]:
    """The nodes of a plain container; nothing of it may be left."""
    before = fb_used(0)
    command(f"create {NAME} gpu=0 memsize={LIMIT}")
    try:
        yield f"/dev/cgpu/{NAME[:12]}"
        until(lambda: used() == 0)
        until(lambda: fb_used(0) == before)
    finally:
        command(f"destroy {NAME}")


def used() -> int:
    text = (PROC / "0" / NAME[:12] / "stat").read_text()
    return int(dict(line.split(" ", 1) for line in text.splitlines())["used_bytes"])


def chosen() -> list[str]:
    """Those by NVIDIA's program where it is: docs/develop/testing.md.

    A boot of another kind has no branch of the driver. It lists every way under the name that the cuda boot gives it:
    of an empty list pytest makes a test that no boot runs.
    """
    branches = [int(c.BRANCH)] if c.BRANCH else ways.ALL
    return list(dict.fromkeys(name for branch in sorted(branches) for name in ways.of_branch(branch)))


@pytest.mark.parametrize("name", chosen())
def test_way(dev: str, name: str) -> None:
    """The driver alone takes the same memory of the card and gives the same results."""
    alone = ways.run((), name, c.card_used)
    sliced = ways.run(c.in_nodes(dev), name, used)
    for where, found in (("alone", alone), ("sliced", sliced)):
        print(f"{where}: {found} {found.results}")
    assert not alone.problem, "the simulated driver"
    assert not sliced.problem
    assert sliced.results == alone.results


@pytest.mark.parametrize("name", ways.LATER)
def test_a_call_that_this_libcuda_has_not(dev: str, name: str) -> None:
    """It is named, and nothing of the slice is taken."""
    assert ways.run(c.in_nodes(dev), name, used).problem == ways.lacks(ways.LATER[name])
