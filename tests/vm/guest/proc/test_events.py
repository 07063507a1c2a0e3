# SPDX-License-Identifier: MIT
"""The module's events (docs/reference/netlink.md), received by the daemon's own listener, and its overflow handling."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from corebox import NEXT, OLD, SICK, insmod, last, leave_only_the_product, moody, refused, swap
from slicebox import MIB, PROC, REPO, Box, mount_nodes, nvclient, unmount_nodes, until

from cgpu_common.errors import KernelMissing, Resync
from cgpu_common.kernel_abi import Event
from cgpu_common.model import KernelEvent
from cgpu_common.netlink import NetlinkLink

pytestmark = pytest.mark.debug_ok

GPU = PROC / "0"
NO_MEMORY = 0x51
SECOND = 1.0


def put(node: str, value: object) -> None:
    (GPU / node).write_text(f"{value}\n")


def other_policy() -> None:
    put("policy", 9 - int((GPU / "policy").read_text()))  # 4 <-> 5


class Ear(threading.Thread):
    """Records every event from its start on."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.heard: list[tuple[float, KernelEvent]] = []
        self.loop = asyncio.new_event_loop()
        self.start()

        def something() -> bool:
            other_policy()
            time.sleep(0.05)
            return bool(self.heard)

        until(something)
        # A delayed event is not mistaken for the last one: no earlier change went from 0 to 5.
        put("policy", 0)
        put("policy", 5)
        until(lambda: [self.heard[-1][1].values.get(key) for key in ("old", "new")] == [0, 5])
        self.heard.clear()

    def run(self) -> None:
        async def listen() -> None:
            async for event in NetlinkLink().events():
                self.heard.append((time.monotonic(), event))

        self.task = self.loop.create_task(listen())
        try:
            self.loop.run_until_complete(self.task)
        except asyncio.CancelledError:
            pass

    def of(self, kind: Event) -> list[KernelEvent]:
        return [event for _, event in self.heard if event.kind == kind]

    def wait(self, kind: Event, count: int = 1) -> list[KernelEvent]:
        until(lambda: len(self.of(kind)) >= count)
        return self.of(kind)


@pytest.fixture
def ear() -> Iterator[Ear]:
    assert not Box.listed()
    ear = Ear()
    yield ear
    put("policy", 5)
    ear.loop.call_soon_threadsafe(ear.task.cancel)
    ear.join(10)


def test_the_life_of_a_container(ear: Ear) -> None:
    # Maybe gone before Box destroys it; the events are checked.
    with contextlib.suppress(FileNotFoundError), Box("a" * 64, 512, cookie=7) as box, box.client() as rm:
        assert rm.gpu().alloc_vidmem(10 * MIB)[0] == 0
        (box.proc / "weight").write_text("3\n")
        (box.proc / "memsize").write_text(f"{600 * MIB}\n")
        (box.proc / "highprio").write_text("1\n")
        (box.proc / "ceiling").write_text("5\n")
        with pytest.raises(OSError):
            (box.proc / "weight").write_text("99\n")
        subprocess.run(["sh", "-c", f"echo destroy {box.name} > /proc/cgpu_km/inst_ctl"], check=True)
        ear.wait(Event.DYING)
    gpus = len(list(PROC.glob("[0-9]*")))
    ear.wait(Event.DETACHED, gpus)
    kinds = [event.kind for _, event in ear.heard]
    assert kinds == [Event.ATTACHED] * gpus + [
        Event.CREATED,
        *[Event.CHANGED] * 4,
        Event.DYING,
        Event.GONE,
        *[Event.DETACHED] * gpus,
    ]
    attached = ear.of(Event.ATTACHED)[0].gpu
    assert (attached.index, attached.uuid) == (0, (GPU / "uuid").read_text().strip())
    assert attached.total > 0
    (created,) = ear.of(Event.CREATED)
    assert (created.container.id, created.container.cookie, created.container.dir) == ("a" * 64, 7, "a" * 12)
    assert [(slot.gpu, slot.limit, slot.weight) for slot in created.container.slots] == [(0, 512 * MIB, 1)]
    changed = [event.container.slots[0] for event in ear.of(Event.CHANGED)]
    assert [(slot.weight, slot.limit // MIB, slot.highprio, slot.ceiling) for slot in changed] == [
        (3, 512, False, 0),
        (3, 600, False, 0),
        (3, 600, True, 0),
        (3, 600, True, 5),
    ]
    assert ear.of(Event.DYING)[0].container.slots[0].used >= 10 * MIB
    assert not any("lost" in event.values for _, event in ear.heard)


@pytest.mark.needs("ftrace")
def test_redirections_that_are_switched_off_are_told(ear: Ear) -> None:
    """Once, within a second and without a call of a container; and when they are back."""
    switch = Path("/sys/kernel/debug/kprobes/enabled")
    if not switch.exists():
        subprocess.run(["mount", "-t", "debugfs", "none", "/sys/kernel/debug"], check=True)
    with Box("b" * 64, 64):
        for before in (0, 2):
            switch.write_text("0")
            try:
                until(lambda before=before: len(ear.of(Event.REDIRECTIONS)) > before, 2 * SECOND)
                time.sleep(before * SECOND)  # the second time: is it told again?
            finally:
                switch.write_text("1")
            until(lambda before=before: len(ear.of(Event.REDIRECTIONS)) > before + 1, 2 * SECOND)
    told = [event.values for event in ear.of(Event.REDIRECTIONS)]
    off = {"errno": errno.EIO, "why": "rm_ioctl is not redirected: are kprobes switched off?"}
    assert told == [off, {"errno": 0, "why": "all redirections are in effect"}] * 2
    assert not any(event.gpu or event.container for event in ear.of(Event.REDIRECTIONS))


def test_a_policy_is_told_once_and_only_when_it_changed(ear: Ear) -> None:
    for policy in (2, 2, 0, 5):
        put("policy", policy)
    with pytest.raises(OSError):
        put("policy", 7)
    put("max_inst", 20)
    events = ear.wait(Event.POLICY, 3)
    assert [(event.values["old"], event.values["new"]) for event in events] == [(5, 2), (2, 0), (0, 5)]
    assert {event.gpu.index for event in events} == {0}
    assert all(event.container is None for event in events)


@pytest.mark.once
def test_every_refusal_is_told_and_few_events_do_it(ear: Ear) -> None:
    with Box("b" * 64, 64) as box, box.client() as rm:
        gpu = rm.gpu()
        begun = time.monotonic()
        tries = 0
        while time.monotonic() < begun + 2.5 * SECOND:
            assert gpu.alloc_vidmem(100 * MIB)[0] == NO_MEMORY
            tries += 1
        refused = box.stat("refused_allocs")
        assert refused >= tries > 100
        told = lambda: sum(1 + event.values["suppressed"] for event in ear.of(Event.REFUSED))  # noqa: E731
        until(lambda: told() == refused)
        took = time.monotonic() - begun
        first = ear.of(Event.REFUSED)[0]
        assert first.values["pid"] == os.getpid()
        assert first.values["asked"] >= 100 * MIB
        assert first.values["limit"] == 64 * MIB
        assert first.values["used"] == box.used
        assert (first.container.id, first.gpu.index) == (box.name, 0)
        assert len(ear.of(Event.REFUSED)) <= took / SECOND + 2
        at = [when for when, event in ear.heard if event.kind == Event.REFUSED]
        assert at[0] < begun + 2.5 * SECOND  # and not when it was over


@pytest.mark.once
def test_a_session_over_the_limit_is_told(ear: Ear) -> None:
    sessions = Path("/sys/module/cgpu_km/parameters/nvdec_sessions")
    before = sessions.read_text()
    sessions.write_text("1")
    try:
        with Box("f" * 64, 64) as box, box.client() as rm:
            channel = rm.gpu().space().group(nvclient.NV2080_ENGINE_TYPE_NVDEC0).channel()
            assert channel.session()[0] == nvclient.NV_ERR_INSUFFICIENT_RESOURCES
            (event,) = ear.wait(Event.QUOTA, 1)
    finally:
        sessions.write_text(before)
    values = {name: event.values[name] for name in ("resource", "pid", "asked", "limit", "used", "suppressed")}
    assert values == {"resource": "nvdec", "pid": os.getpid(), "asked": 1, "limit": 1, "used": 1, "suppressed": 0}
    assert (event.container.id, event.gpu.index) == (box.name, 0)


def test_what_is_not_told_yet_is_told_before_the_end(ear: Ear) -> None:
    with Box("c" * 64, 64) as box, box.client() as rm:
        gpu = rm.gpu()
        for _ in range(3):
            assert gpu.alloc_vidmem(100 * MIB)[0] == NO_MEMORY
        refused = box.stat("refused_allocs")
    ear.wait(Event.GONE)
    kinds = [event.kind for _, event in ear.heard]
    assert sum(1 + event.values["suppressed"] for event in ear.of(Event.REFUSED)) == refused
    assert max(n for n, kind in enumerate(kinds) if kind == Event.REFUSED) < kinds.index(Event.GONE)


def two_loads(one: Box, other: Box, *options: object) -> list[subprocess.Popen]:
    loads = [box.simload("--seconds", 0, "--depth", 8, *options) for box in (one, other)]
    put("policy", 1)
    return loads


@pytest.mark.once
def test_who_overruns_is_told_once_a_second(ear: Ear, personality) -> None:
    personality(no_preempt=1)
    put("slice_us", 5000)
    begun = time.monotonic()
    with Box("d" * 64) as one, Box("e" * 64) as other:
        loads = two_loads(one, other, "--kernel-us", 40000)
        try:
            until(lambda: len([event for event in ear.of(Event.OVERRUN) if event.container.id == one.name]) >= 3, 60)
        finally:
            for load in loads:
                load.terminate()
                load.communicate(timeout=60)
        mine = [(when, event) for when, event in ear.heard if event.kind == Event.OVERRUN]
        for box in (one, other):
            at = [when for when, event in mine if event.container.id == box.name]
            assert len(at) <= (time.monotonic() - begun) / SECOND + 2
        ones = [event.values for _, event in mine if event.container.id == one.name]
        totals = [values["overruns"] + values["preempt_slow"] for values in ones]
        assert totals == sorted(totals) and totals[0] > 0
        assert totals[-1] <= one.stat("overruns") + one.stat("preempt_slow")


def test_a_driver_that_does_not_restart_the_runlist_is_told_of(ear: Ear, personality) -> None:
    personality(disable_needs_restart=1)
    with Box("d" * 64) as one, Box("e" * 64) as other:
        loads = two_loads(one, other, "--kernel-us", 500)
        try:
            personality(err40_pct=100)
            (event, *_) = ear.wait(Event.CONTROL_FAILED)
        finally:
            personality(err40_pct=0)
            for load in loads:
                load.terminate()
                load.communicate(timeout=60)
    assert (event.values["control"], event.values["status"]) == (3, 0x40)
    assert event.gpu.index == 0
    assert event.container.id in (one.name, other.name)


def test_every_attempt_at_another_core_is_told(ear: Ear) -> None:
    """Matches the last line of the upgrade node: a swap, an abandoned swap, a rejected core."""
    lines = []

    def note(expected: int, number: int) -> None:
        assert number == expected
        lines.append(last())

    try:
        assert not insmod("test_core_moody", abi=99)
        note(errno.EINVAL, last()[1])
        assert insmod("test_core_next") and insmod("test_core_moody")
        swap(NEXT)
        note(0, 0)
        moody(sick="Y")
        note(errno.EIO, refused(SICK))
        moody(sick="N", fail_at=1)
        note(errno.EOPNOTSUPP, refused(SICK))
        note(errno.ENOENT, refused("9.9.9"))
    finally:
        leave_only_the_product()
    events = ear.wait(Event.CORE, len(lines) + 1)
    told = [event.values for event in events]
    assert [(one["candidate"], one["errno"], one["why"]) for one in told] == [*lines, last()]
    assert [one["core"] for one in told] == [OLD, NEXT, NEXT, NEXT, NEXT, OLD]
    assert all(event.gpu is None and event.container is None for event in events)


def test_a_small_buffer_overflows_into_a_resync() -> None:
    async def main() -> None:
        events = NetlinkLink(rcvbuf=1).events()
        first = asyncio.create_task(anext(events))
        while not first.done():
            other_policy()
            await asyncio.sleep(0.2)
        for _ in range(100):  # no reader meanwhile
            other_policy()
        with pytest.raises(Resync):
            while True:
                await asyncio.wait_for(anext(events), 20)

    asyncio.run(main())
    put("policy", 5)


def test_the_end_of_the_module_is_heard() -> None:
    """Without an event, the end would look the same as no change."""
    modules = REPO / "build/modules" / os.environ["KERNEL"]
    (core,) = (path.name for path in Path("/sys/module").glob("cgpu_core_*"))

    async def main() -> None:
        events = NetlinkLink().events()
        first = asyncio.create_task(anext(events))
        while not first.done():
            other_policy()
            await asyncio.sleep(0.2)
        put("policy", 5)
        unmount_nodes()
        for name in (core, "cgpu_km"):  # in use during a request of cgpud
            until(lambda name=name: subprocess.run(["rmmod", name]).returncode == 0)
        try:
            with pytest.raises(KernelMissing):
                while True:
                    await asyncio.wait_for(anext(events), 20)
        finally:
            for name in ("cgpu_km", core):
                subprocess.run(["insmod", modules / f"{name}.ko"], check=True)
            mount_nodes()

    assert not Box.listed()
    asyncio.run(main())
    until((PROC / "0/policy").exists)
