# SPDX-License-Identifier: MIT
"""The threads that look up what containers bind: what a slow one, many and one that is too late leave behind."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fakes import eventually

from cgpu_common import cgroup
from cgpu_common.errors import Refused
from cgpud import host_paths, oci
from cgpud.places import Places
from cgpud.watch import Facts

MOUNTS = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n9 1 0:{} / /mnt/nfs rw - nfs server:/ rw\n"


def places(device: int = 99) -> Places:
    return Places(tuple(cgroup.mounts(MOUNTS.format(device))), ())


@contextmanager
def silent_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Of 0:99, while this lasts."""
    read, answers = os.readlink, threading.Event()

    def readlink(path: str) -> str:
        if path.startswith("/mnt/nfs/silent"):
            answers.wait(60)
        return read(path)

    monkeypatch.setattr(os, "readlink", readlink)
    try:
        yield
    finally:
        answers.set()


async def test_a_slow_look_up_makes_no_mount_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is on /, as all others are. Its thread ends when the start is refused."""
    monkeypatch.setattr(host_paths, "WAIT_S", 1.0)
    looked: list[str] = []

    def readlink(path: str) -> str:
        looked.append(path)
        time.sleep(0.01)
        raise FileNotFoundError(2, "", path)

    monkeypatch.setattr(os, "readlink", readlink)
    lookups = host_paths.Lookups()
    many = [f"/srv/{number}" for number in range(500)]
    with pytest.raises(Refused, match="500 paths of the host, and where they lead is not known after 1 s"):
        await lookups.find("/", places(), many)
    assert (await lookups.find("/", places(), ["/srv/x"]))("/srv/x")[0] == "/srv/x"
    await eventually(lambda: not lookups._left, "the thread has ended")
    assert len(looked) < 500


async def test_a_start_that_waits_with_many_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a boot all containers of a node start at once."""
    monkeypatch.setattr(host_paths, "LEFT_MAX", 3)
    lookups = host_paths.Lookups()
    read = os.readlink
    monkeypatch.setattr(os, "readlink", lambda path: time.sleep(0.05) or read(path))
    found = await asyncio.gather(*(lookups.find("/", places(), ["/srv/x"]) for _ in range(20)))
    assert all(one("/srv/x")[0] == "/srv/x" for one in found)


async def test_threads_that_stay_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_paths, "WAIT_S", 1.0)
    monkeypatch.setattr(host_paths, "LEFT_MAX", 2)
    lookups = host_paths.Lookups()
    with silent_server(monkeypatch):
        starts = (lookups.find("/", places(), ["/mnt/nfs/silent"]) for _ in range(2))
        for error in await asyncio.gather(*starts, return_exceptions=True):
            assert "/mnt/nfs does not answer" in str(error)
        with pytest.raises(Refused, match="2 starts wait for file systems that do not answer; try again later"):
            await lookups.find("/", places(), ["/srv/x"])
    await eventually(lambda: not lookups._left, "they have ended")
    await lookups.find("/", places(), ["/srv/x"])


async def test_what_is_mounted_in_place_of_a_silent_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """umount -l, as an administrator does it; the thread waits for ever."""
    monkeypatch.setattr(host_paths, "WAIT_S", 1.0)
    lookups = host_paths.Lookups()
    with silent_server(monkeypatch):
        with pytest.raises(Refused, match="does not answer"):
            await lookups.find("/", places(99), ["/mnt/nfs/silent"])
        with pytest.raises(Refused, match="does not answer"):
            await lookups.find("/", places(99), ["/mnt/nfs/x"])
        await lookups.find("/", places(100), ["/mnt/nfs/x"])


async def test_a_link_that_any_user_of_the_host_may_make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the place of /tmp/nvidia-mps, which the container does not mount."""
    link = tmp_path / "nvidia-mps"
    link.symlink_to(link)
    monkeypatch.setattr(oci, "GUARDED", (str(link), *oci.GUARDED))
    await Facts().host_paths("/", ["/srv/x"])


async def test_an_answer_in_the_last_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread has ended, so nothing would take its mark from the mount any more."""
    monkeypatch.setattr(host_paths, "WAIT_S", 1.0)
    lookups = host_paths.Lookups()
    with silent_server(monkeypatch):
        start = asyncio.create_task(lookups.find("/", places(), ["/mnt/nfs/silent"]))
        await asyncio.sleep(0.3)
    time.sleep(1.2)  # the loop finds both, the answer and the end of the time
    assert (await start)("/mnt/nfs/silent")[0] == "/mnt/nfs/silent"
    await lookups.find("/", places(), ["/mnt/nfs/x"])
