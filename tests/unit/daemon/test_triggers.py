# SPDX-License-Identifier: MIT
"""Ends without a trigger: reconcile finds them by itself. After an overflow of inotify all cgroups are checked."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import Node, eventually

from cgpud import watch
from cgpud.state import Trigger
from cgpud.values import Cgroup, Phase, Record

ID = "0123456789abcdef" * 4


@pytest.fixture
def quick(node: Node) -> Node:
    """With a period of reconcile that is short enough for a test."""
    node.config = replace(node.config, reconcile_s=0.05)  # type: ignore[arg-type]
    return node


@pytest.mark.parametrize("group", [None, "/docker/a"])
async def test_an_end_that_nobody_saw(quick: Node, group: str | None) -> None:
    async with quick.running() as daemon:
        process = await quick.start(ID, group)
        daemon.watcher.remove((ID, int(quick.cookie(ID))))  # no trigger from here on
        await asyncio.sleep(0.2)
        assert quick.link.containers, "it lives"
        process.kill()
        process.wait()
        if group:
            quick.populate(group, False)
        await eventually(lambda: not quick.link.containers, "found by the period alone")
        assert not list((quick.directory / "state").glob("*.json"))


async def test_a_lease_that_nobody_ends(quick: Node) -> None:
    """The runtime lives on and binds nothing."""

    async with quick.running():
        await quick.prepare(ID)
        await asyncio.sleep(0.2)
        assert quick.link.containers
        quick.now += quick.config.lease_s + 1
        await eventually(lambda: not quick.link.containers, "over")


class Overflowed(watch.Inotify):
    """The kernel's queue was full: the one event shows only that others were lost."""

    def read(self) -> list[tuple[int, int, str]]:
        return [(-1, watch.IN_Q_OVERFLOW, "")] if super().read() else []


class Looked(watch.Facts):
    """Records the cgroups for which is_empty() is called."""

    def __init__(self, root: Path) -> None:
        super().__init__(root / "proc", root)
        self.asked: set[str] = set()

    def is_empty(self, group: Cgroup) -> bool:
        self.asked.add(group.path)
        return super().is_empty(group)


async def test_after_an_overflow_all_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "Inotify", Overflowed)
    facts = Looked(tmp_path)
    told: set[tuple[watch.Key, Trigger]] = set()

    def add(watcher: watch.Watcher, name: str) -> None:
        directory = tmp_path / "docker" / name
        directory.mkdir(parents=True)
        (directory / "cgroup.events").write_text("populated 1\n")
        group = facts.cgroup_at(f"/docker/{name}")
        watcher.add(Record(name, 1, "boot", "", Phase.BOUND, 0.0, None, group), None)

    watcher = watch.Watcher(facts, lambda key, trigger: told.add((key, trigger)))
    for name in ("emptied", "removed", "lives"):
        add(watcher, name)
    await asyncio.sleep(0.05)
    assert not told
    facts.asked.clear()
    (tmp_path / "docker/emptied/cgroup.events").write_text("populated 0\n")
    shutil.rmtree(tmp_path / "docker/removed")
    await eventually(lambda: len(told) == 2, "both reported")
    watcher.close()
    assert told == {((name, 1), Trigger.CGROUP_EMPTY) for name in ("emptied", "removed")}
    assert facts.asked == {"/docker/emptied", "/docker/removed", "/docker/lives"}
