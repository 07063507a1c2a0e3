# SPDX-License-Identifier: MIT
"""The end of one container causes a check of its cgroup only, however many others run."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import shutil
import subprocess
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from cgpu_common.inotify import Inotify
from cgpud import oci, watch
from cgpud.state import Trigger
from cgpud.values import Cgroup, Phase, Record
from cgpud.watch import Facts, Key, Watcher


def test_pipes_of_an_mps_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "file").touch()
    names = ("there", "dangling", "absent", "file/below", "x" * 300)  # stat() of the last one fails
    monkeypatch.setattr(oci, "MPS_DIRECTORIES", tuple(str(tmp_path / name) for name in names))
    there = ["there", "dangling", "x" * 300]
    assert Facts().mps_directories() == tuple(str(tmp_path / name) for name in there)


class Looked(Facts):
    """Records the cgroups for which is_empty() is called."""

    def __init__(self, root: Path) -> None:
        super().__init__(root / "proc", root)
        self.asked: list[str] = []

    def is_empty(self, group: Cgroup) -> bool:
        self.asked.append(group.path)
        return super().is_empty(group)


def make(facts: Facts, name: str) -> Record:
    directory = facts.cgroups / "docker" / name
    directory.mkdir(parents=True)
    (directory / "cgroup.events").write_text("populated 1\n")
    return Record(name, 1, "boot", "", Phase.BOUND, 0.0, None, facts.cgroup_at(f"/docker/{name}"))


@contextlib.contextmanager
def no_descriptor_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 200), hard))
    taken: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        yield
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("version", [1, 2])
def test_what_cannot_be_looked_at_is_not_gone(tmp_path: Path, version: int) -> None:
    """Without a descriptor the answer is unknown. A slice that is released too early is lost to a running container."""
    group = tmp_path / ("devices/docker/a" if version == 1 else "docker/a")
    group.mkdir(parents=True)
    (tmp_path / ("devices/cgroup.procs" if version == 1 else "cgroup.controllers")).touch()
    (group / "cgroup.events").write_text("populated 1\n")
    (group / "cgroup.procs").write_text(f"{os.getpid()}\n")
    facts = Facts(Path("/proc"), tmp_path)
    bound = Record("a", 1, "boot", "", Phase.BOUND, 0.0, None, facts.cgroup_at("/docker/a"))
    prepared = Record("a", 1, "boot", "", Phase.PREPARED, 0.0, facts.process(os.getpid()), None)
    assert bound.cgroup is not None
    with no_descriptor_left():
        alive = [facts.is_alive(bound), facts.is_alive(prepared)]
    assert alive == [True, True]
    shutil.rmtree(group)
    assert not facts.is_alive(bound)


async def until_told(told: Collection[object]) -> None:
    """Wait until a trigger was reported, or for a second."""
    for _ in range(100):
        await asyncio.sleep(0.01)
        if told:
            return


@pytest.mark.parametrize("how", ["emptied", "removed"])
async def test_only_the_one_that_ended_is_looked_at(tmp_path: Path, how: str) -> None:
    facts = Looked(tmp_path)
    told: list[tuple[Key, Trigger]] = []

    watcher = Watcher(facts, lambda key, trigger: told.append((key, trigger)))
    for n in range(200):
        watcher.add(make(facts, f"c{n}"), None)
    await asyncio.sleep(0)
    facts.asked.clear()
    directory = tmp_path / "docker/c7"
    if how == "emptied":
        (directory / "cgroup.events").write_text("populated 0\n")
    else:
        shutil.rmtree(directory)
    await until_told(told)
    watcher.close()
    assert set(told) == {(("c7", 1), Trigger.CGROUP_EMPTY)}
    assert set(facts.asked) == {"/docker/c7"}


async def test_of_two_lives_in_one_cgroup_the_one_that_is_watched_is_told(tmp_path: Path) -> None:
    facts = Facts(tmp_path / "proc", tmp_path)
    told: set[Key] = set()

    watcher = Watcher(facts, lambda key, trigger: told.add(key))
    first = make(facts, "c")
    second = Record("c", 2, "boot", "", Phase.BOUND, 0.0, None, first.cgroup)
    watcher.add(first, None)
    watcher.add(second, None)
    watcher.remove(first.key)
    shutil.rmtree(tmp_path / "docker/c")
    await until_told(told)
    watcher.close()
    assert told == {("c", 2)}, "a removed record gets no trigger"


def test_with_cgroup_v1_one_after_the_other_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """cgroup v1 has no cgroup.events: the watcher opens a pidfd of one member after the other.

    A member in a directory below counts too. Which one was the first process does not matter.
    """
    inner = tmp_path / "devices/docker/c/inner"
    inner.mkdir(parents=True)
    (tmp_path / "devices/cgroup.procs").touch()
    places = [inner.parent, inner.parent, inner]
    members = [subprocess.Popen(["sleep", "1000"]) for _ in places]

    def enrol() -> None:
        for directory in set(places):
            here = [one for one, place in zip(members, places, strict=True) if place == directory]
            (directory / "cgroup.procs").write_text("".join(f"{one.pid}\n" for one in here if one.poll() is None))

    enrol()
    monkeypatch.setattr(watch, "CHECK_AGAIN_S", (60.0,))  # the repeated check is not under test
    facts = Facts(cgroups=tmp_path)
    init = facts.process(members[0].pid)
    record = Record("c", 1, "boot", "", Phase.BOUND, 0.0, init, facts.cgroup_at("/docker/c"))
    told: list[Trigger] = []

    async def scene() -> None:
        watcher = Watcher(facts, lambda key, trigger: told.append(trigger))
        watcher.add(record, os.pidfd_open(members[0].pid))
        for one in members:
            await asyncio.sleep(0.1)
            assert told == []
            assert facts.is_alive(record)
            one.kill()
            one.wait()
            enrol()
            await until_told(told)
            assert told == [Trigger.INIT_EXITED]
            told.clear()
            watcher.check_cgroup(record.key)
        assert Trigger.CGROUP_EMPTY in told
        watcher.close()

    try:
        asyncio.run(scene())
    finally:
        for one in members:
            one.kill()
            one.wait()
    assert not facts.is_alive(record)


def exhausted(*_args: object) -> None:
    raise OSError(errno.EMFILE, "Too many open files (fs.inotify.max_user_instances)")


@pytest.mark.parametrize("what", ["instance", "watch"])
async def test_without_inotify_cgroups_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Any program of root can hold all instances; the daemon died in a loop, and every start was refused."""
    monkeypatch.setattr(watch, "LOOK_S", 0.05)
    monkeypatch.setattr(watch, "CHECK_AGAIN_S", (60.0,))
    facts = Looked(tmp_path)
    told: list[tuple[Key, Trigger]] = []

    with monkeypatch.context() as none_left:
        none_left.setattr(*((watch, "Inotify") if what == "instance" else (watch.Inotify, "add")), exhausted)
        watcher = Watcher(facts, lambda key, trigger: told.append((key, trigger)))
        for name in ("a", "b", "c"):
            watcher.add(make(facts, name), None)
        watcher.remove(("c", 1))
        await asyncio.sleep(0.2)
        assert not told
        (tmp_path / "docker/a/cgroup.events").write_text("populated 0\n")
        await until_told(told)
        assert set(told) == {(("a", 1), Trigger.CGROUP_EMPTY)}
        watcher.remove(("a", 1))
    await asyncio.sleep(0.2)  # there is one again
    told.clear()
    facts.asked.clear()
    await asyncio.sleep(0.2)
    assert facts.asked == [], "no look without need"
    shutil.rmtree(tmp_path / "docker/b")
    await until_told(told)
    watcher.close()
    assert set(told) == {(("b", 1), Trigger.CGROUP_EMPTY)}


async def test_the_cause_is_named(tmp_path: Path) -> None:
    """With the kernel's own errors, by the descriptors, which count for inotify_init1() too."""

    watcher = Watcher(Facts(tmp_path / "proc", tmp_path), lambda key, trigger: None)
    with no_descriptor_left():
        assert Inotify.available() is None
        with pytest.raises(OSError, match="Too many open files"):
            Inotify()
    watcher.close()


def test_the_size_of_a_context(tmp_path: Path) -> None:
    facts = Facts(tmp_path, tmp_path)
    assert facts.context_mib(0) == 0
    (tmp_path / "cgpu_km/0").mkdir(parents=True)
    for text, mib in (("context_bytes 33554433\nx 1\n", 33), ("context_bytes x\n", 0), ("", 0), ("x 1\n", 0)):
        (tmp_path / "cgpu_km/0/stat").write_text(text)
        assert facts.context_mib(0) == mib


def test_the_gpus_behind_the_nodes_of_drm(tmp_path: Path) -> None:
    """As sysfs has them: a GPU of NVIDIA, one of another vendor, a connector, and a device that is on no bus."""
    cards = (("card0", "226:0", "0000:00:02.0", "0x8086"), ("card1", "226:1", "0000:01:00.0", "0x10de"))
    for name, number, address, vendor in (*cards, ("renderD129", "226:129", "0000:01:00.0", "0x10de")):
        device = tmp_path / "devices" / address
        device.mkdir(parents=True, exist_ok=True)
        (device / "vendor").write_text(f"{vendor}\n")
        entry = device / "drm" / name
        entry.mkdir(parents=True)
        (entry / "dev").write_text(f"{number}\n")
        (entry / "device").symlink_to("../..")
        (tmp_path / "class").mkdir(exist_ok=True)
        (tmp_path / "class" / name).symlink_to(entry)
    (tmp_path / "class/card1-DP-1").mkdir()
    (tmp_path / "class/card2").mkdir()
    (tmp_path / "class/card2/dev").write_text("226:2\n")
    assert Facts(drm=tmp_path / "class").drm() == {0: "", 1: "0000:01:00.0", 129: "0000:01:00.0"}
    assert Facts(drm=tmp_path / "none").drm() == {}
