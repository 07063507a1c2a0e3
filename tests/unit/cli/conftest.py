# SPDX-License-Identifier: MIT
"""Trees to look at, and programs on them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_tree import ID1, ID2, STAT, Cli, Moving, Tree, empty_tree, with_containers
from hypothesis import settings

from cgpu_cli import change, show

# A slow machine must not fail a test.
settings.register_profile("cli", deadline=None)
settings.load_profile("cli")


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the second reading of `inspect`, and for the end of a container that only the real module takes away."""
    monkeypatch.setattr(show, "SAMPLE_S", 0.01)
    monkeypatch.setattr(change, "END_S", 0.1)


@pytest.fixture
def empty(tmp_path: Path) -> Tree:
    return empty_tree(tmp_path)


@pytest.fixture
def tree(empty: Tree) -> Tree:
    return with_containers(empty)


@pytest.fixture
def cli(tree: Tree) -> Cli:
    return Cli(tree)


@pytest.fixture
def empty_cli(empty: Tree) -> Cli:
    return Cli(empty)


@pytest.fixture
def moving(tree: Tree) -> Iterator[Tree]:
    """Its two containers take turns of 50 ms."""
    for one in (ID1, ID2):
        tree.slot(0, one, stat=STAT.format(ran=0, waited=0, turns=0).ljust(200))
    writer = Moving(tree, 0.05)
    writer.start()
    yield tree
    writer.over.set()
    writer.join(5)
