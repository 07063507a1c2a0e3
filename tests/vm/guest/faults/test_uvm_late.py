# SPDX-License-Identifier: MIT
"""nvidia-uvm is loaded beside a container, and an allocation of the module fails while it redirects its functions.

Without these functions nothing holds nvidia-uvm to the limits, so its node cannot be opened; the attempt is repeated.
"""

from __future__ import annotations

import asyncio
import errno
import threading
import time
from collections.abc import Iterator

import pytest
from corebox import insmod, rmmod
from failbox import Injector
from slicebox import MIB, PROC, Box, clean_box, until
from slicebox import nvclient as nv

from cgpu_common.kernel_abi import Event
from cgpu_common.model import KernelEvent
from cgpu_common.netlink import NetlinkLink

pytestmark = [pytest.mark.long, pytest.mark.debug_ok]

MADE = "nvidia-uvm's functions are redirected"
FAILED = "nvidia-uvm's functions are not redirected"
#: In which the first attempt fails, after nvidia-uvm was loaded; the next one is a second later.
ATTEMPT_S = 0.5


def redirections() -> str:
    return dict(line.split() for line in (PROC / "0/stat").read_text().splitlines())["redirections"]


def opens(box: Box) -> bool:
    try:
        nv.Uvm(box.dev).close()
    except OSError as error:
        assert error.errno == errno.ENODEV
        return False
    return True


def load_another() -> None:
    """The module's notifier sees a module of the driver."""
    assert insmod("nv_none")
    assert rmmod("nv_none")


@pytest.fixture
def events() -> Iterator[list[KernelEvent]]:
    """Those of the redirections, as they come."""
    heard: list[KernelEvent] = []
    listening = threading.Event()
    loop = asyncio.new_event_loop()

    async def ready() -> None:
        listening.set()

    def hear(event: KernelEvent) -> None:
        if event.kind == Event.REDIRECTIONS:
            heard.append(event)

    async def listen() -> None:
        async for event in NetlinkLink().events(ready):
            hear(event)

    def run() -> None:
        try:
            loop.run_until_complete(task)
        except asyncio.CancelledError:
            pass

    task = loop.create_task(listen())
    thread = threading.Thread(target=run)
    thread.start()
    assert listening.wait(30)
    yield heard
    loop.call_soon_threadsafe(task.cancel)
    thread.join(30)


def test_it_is_loaded_after_the_container(personality, events: list[KernelEvent]) -> None:
    until(lambda: redirections() == "none")
    personality(uvm=0)
    with clean_box(64) as box:
        assert not opens(box)
        assert redirections() == "on"
        personality(uvm=1)
        assert not opens(box), "it is not redirected yet"
        load_another()
        until(lambda: opens(box))
        with box.client() as rm:
            gpu = rm.gpu(0)
            _, memory = gpu.alloc_vidmem(2 * MIB)
            assert gpu.space().map(memory, 2 * MIB)[0] == 0
    assert events == []


def test_an_attempt_that_fails_is_repeated(personality, kernel_log, events: list[KernelEvent]) -> None:
    seen: set[str] = set()
    failed: list[str] = []
    with Injector("allocations") as injector:
        for nth in range(1, 60):
            until(lambda: redirections() == "none")
            personality(uvm=0)
            kernel_log.news()
            events.clear()
            with clean_box(64) as box:
                personality(uvm=1)
                injector.arm(nth, task=0)
                load_another()
                time.sleep(ATTEMPT_S)
                unused, at = injector.disarm()
                there = opens(box)
                seen.add(redirections())
                until(lambda: opens(box), 10)
                assert redirections() == "on"
                with box.client() as rm:
                    assert rm.gpu(0).space()
            if unused:
                assert there
                break
            log = kernel_log.news()
            assert (FAILED in log) == (MADE in log), at
            if FAILED in log:
                failed.append(at)
                told = [(event.values["errno"], event.values["why"].partition(" (")[0]) for event in events]
                assert [code != 0 for code, _ in told] == [True, False], f"{at}: {told}"
                assert told[0][1] == FAILED and told[1][1].startswith(MADE)
            else:  # the allocation was another's, such as that of the witness
                assert there, at
    print(f"attempts that failed, by function: {failed}")
    assert unused and len(failed) >= 3
    assert seen == {"no_uvm", "on"}
