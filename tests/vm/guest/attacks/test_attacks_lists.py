# SPDX-License-Identifier: MIT
"""Hostile tenants that fill what the driver keeps in lists of the host or the card and walks for all: OS events, event
objects, clients, devices (docs/develop/bounds.md).
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from slicebox import MIB, Box, clean_box, command, ended, fresh_id, until
from slicebox import nvclient as nv

pytestmark = [pytest.mark.checked, pytest.mark.once, pytest.mark.attached]

LIMIT_MIB = 256
PARAMETERS = Path("/sys/module/cgpu_km/parameters")
RESOURCES, INVALID_EVENT = 0x1A, 0x28
OS_EVENT = 0x79


@pytest.fixture
def box() -> Iterator[Box]:
    with clean_box(LIMIT_MIB) as box:
        yield box
        until(lambda: not any(box.stat(name) for name in ("clients", "devices", "events", "os_events")))


def os_event(node: nv.Node, number: int, client: int, fd: int) -> int:
    arg = nv.OsEvent(client=client, fd=fd)
    node.call(number, arg)
    return arg.status


def make(node: nv.Node, client: int, fd: int) -> int:
    return os_event(node, nv.NV_ESC_ALLOC_OS_EVENT, client, fd)


def free(node: nv.Node, client: int, fd: int) -> int:
    return os_event(node, nv.NV_ESC_FREE_OS_EVENT, client, fd)


def in_driver() -> int:
    """OS events of all, by the simulated driver's own count."""
    return int(re.search(r"os_events=(\d+)", Path("/proc/driver/nvsim/0/state").read_text())[1])


@contextlib.contextmanager
def limit(name: str, value: int) -> Iterator[None]:
    before = (PARAMETERS / name).read_text()
    (PARAMETERS / name).write_text(str(value))
    try:
        yield
    finally:
        (PARAMETERS / name).write_text(before)


# ---- OS events ----


def test_one_container_cannot_fill_the_hosts_list(box: Box, gpu: nv.Gpu, other: Box):
    """The driver has no limit. Whichever node, client and number they are made with."""
    most = int((PARAMETERS / "max_os_events").read_text())
    refused = box.stat("refused_calls")
    before = in_driver()
    nodes = itertools.cycle([gpu.rm.ctl, gpu.node])
    with box.client() as second:
        clients = itertools.cycle([gpu.rm.handle, second.handle])
        for fd in range(most):
            assert make(next(nodes), next(clients), fd) == 0
        assert (box.stat("os_events"), box.stat("os_events_left")) == (most, 0) == (in_driver() - before, 0)
        for client in (gpu.rm.handle, second.handle):
            assert make(gpu.rm.ctl, client, most) == RESOURCES
        assert box.stat("refused_calls") == refused + 2
        assert in_driver() - before == most
        with other.client() as rm:
            assert make(rm.ctl, rm.handle, 1) == 0
        assert free(gpu.rm.ctl, gpu.rm.handle, 0) == 0
        assert make(gpu.rm.ctl, gpu.rm.handle, most) == 0
    until(lambda: box.stat("os_events") == in_driver() - before > 0)


def test_an_os_event_goes_with_its_file_or_client(box: Box, gpu: nv.Gpu):
    """Or by its name. The driver leaves those of a client that goes with another file, and the module frees them."""
    before = in_driver()
    held = [nv.Ctl(box.dev), gpu.open_node()]
    rm = box.client()
    for node in held:
        assert make(node, rm.handle, 100 + node.fd) == 0
    assert make(rm.ctl, rm.handle, 5) == 0
    assert make(rm.ctl, rm.handle, 5) == RESOURCES, "the driver's answer to a name that is there"
    assert box.stat("os_events") == in_driver() - before == 3
    assert free(rm.ctl, rm.handle, 6) == INVALID_EVENT
    assert box.stat("os_events") == in_driver() - before == 3
    held[0].close()
    until(lambda: box.stat("os_events") == in_driver() - before == 2)
    rm.close()
    until(lambda: box.stat("os_events") == in_driver() - before == 0)
    held[1].close()
    with box.client() as rm:
        node = gpu.open_node()
        for fd in range(20):
            assert make(node if fd % 2 else rm.ctl, rm.handle, fd) == 0
        assert rm.free() == 0
        assert box.stat("os_events") == in_driver() - before == 0
        node.close()


def test_os_events_of_a_client_that_is_freed_as_memory(box: Box, gpu: nv.Gpu):
    """NVOS32's free takes any handle, and would leave the OS events in the driver: it frees no client."""
    before = in_driver()
    with gpu.open_node() as node:
        rm = box.client()
        assert make(node, rm.handle, 5) == 0
        arg = (ctypes.c_uint32 * 46)()
        arg[0], arg[1], arg[2], arg[11] = rm.handle, rm.handle, 3, rm.handle
        rm.ctl.raw(nv.request(nv.NV_ESC_RM_VID_HEAP_CONTROL, ctypes.sizeof(arg)), arg)
        assert (arg[5], box.stat("clients")) == (nv.NV_ERR_NOT_SUPPORTED, 2)
        assert box.stat("os_events") == in_driver() - before == 1
        rm.close()
        until(lambda: box.stat("os_events") == in_driver() - before == 0)


def test_os_events_of_destroyed_containers_are_not_kept():
    """A mapping keeps the file on which they were made, for as long as its process likes."""
    before = in_driver()
    with contextlib.ExitStack() as held:
        for _ in range(3):
            one = Box(fresh_id(), LIMIT_MIB)
            rm, other = one.client(), one.client()
            gpu = rm.gpu()
            node, ctl = gpu.open_node(), nv.Ctl(one.dev)
            status, memory = gpu.alloc_vidmem(2 << 20)
            assert (status, rm.map_memory(node, gpu.device, memory, 2 << 20)[0]) == (0, 0)
            status, system = gpu.alloc_sysmem(4096)
            assert (status, rm.map_memory(ctl, gpu.device, system, 4096)[0]) == (0, 0)
            held.callback(node.mmap(2 << 20).close)
            held.callback(ctl.mmap(4096).close)
            for fd in range(20):
                assert make(node if fd % 2 else ctl, (rm if fd % 3 else other).handle, fd) == 0
            other.close()
            rm.close()
            node.close()
            ctl.close()
            command(f"destroy {one.name}")
            until(lambda one=one: not one.there())
        assert in_driver() == before
        assert len(ended()) == 3, "kept by their mappings"
    until(lambda: not ended())


def test_an_os_event_beside_the_end_of_its_clients_file(box: Box, gpu: nv.Gpu):
    """Made on another file while the client's is closed: whichever comes first, it does not outlive the client."""
    before = in_driver()
    rng = random.Random(12)
    for _ in range(60):
        rm = box.client()
        go = threading.Barrier(3)

        def makes(first: int, handle: int, go: threading.Barrier = go) -> None:
            go.wait()
            for fd in range(first, first + 20):
                make(gpu.node, handle, fd)

        threads = [threading.Thread(target=makes, args=(first, rm.handle)) for first in (0, 100)]
        for thread in threads:
            thread.start()
        go.wait()
        time.sleep(rng.random() / 1000)
        rm.close()
        for thread in threads:
            thread.join()
        until(lambda: box.stat("os_events") == in_driver() - before == 0)


def test_os_events_in_any_order(box: Box, gpu: nv.Gpu):
    """The module's figure is the driver's after each call, and the limit holds between."""
    rng = random.Random(11)
    before = in_driver()
    with limit("max_os_events", 24), contextlib.ExitStack() as stack:
        clients = [stack.enter_context(box.client()) for _ in range(3)]
        nodes: list[nv.Node] = []
        for _ in range(600):
            client = rng.choice(clients)
            node = rng.choice([client.ctl, gpu.node, *nodes])
            what = rng.randrange(8)
            if what < 4:
                make(node, client.handle, rng.randrange(12))
            elif what < 6:
                free(node, client.handle, rng.randrange(12))
            elif what == 6 and len(nodes) < 4:
                nodes.append(gpu.open_node())
            elif nodes:
                nodes.pop().close()
            until(lambda: box.stat("os_events") == in_driver() - before <= 24)
        for node in nodes:
            node.close()
    until(lambda: box.stat("os_events") == in_driver() - before)  # those that were made on the GPU's file


def test_a_neighbours_os_event_beside_a_full_list(box: Box, gpu: nv.Gpu, other: Box):
    """At most twice as long as alone, and 50 us: 40,000 of one container made 25 us into 9,472 (simulated)."""

    def took() -> float:
        """The shortest of many lives of an OS event, in microseconds: others on the machine lengthen some."""
        times = []
        for _ in range(401):
            start = time.perf_counter_ns()
            assert make(rm.ctl, rm.handle, 7) == 0
            assert free(rm.ctl, rm.handle, 7) == 0
            times.append(time.perf_counter_ns() - start)
        return min(times) / 1000

    with other.client() as rm:
        alone = took()
        for fd in range(40_000):
            if make(gpu.rm.ctl, gpu.rm.handle, fd):
                break
        assert box.stat("os_events_left") == 0
        beside = took()
    assert beside <= 2 * alone + 50, (alone, beside)
    print(f"an OS event, simulated: {alone:.1f} us alone, {beside:.1f} us beside a full list")


# ---- all of them, and a neighbour's allocations ----


def of_lists(box: Box, gpu: nv.Gpu) -> None:
    """As many OS events, event objects, clients and devices as may be."""
    while not make(gpu.rm.ctl, gpu.rm.handle, box.stat("os_events")):
        pass
    params = nv.EventParams(gpu.rm.handle, gpu.subdevice, OS_EVENT, 12, 5)
    while not gpu.rm.alloc(OS_EVENT, gpu.subdevice, params)[0]:
        pass
    while box.stat("clients_left"):
        client = nv.Client(box.dev, gpu.rm.ctl)
        assert client.alloc(nv.NV01_DEVICE_0, None, nv.DeviceParams(client_share=client.handle))[0] == 0


def of_memory(box: Box, gpu: nv.Gpu) -> None:
    """Pieces of video memory up to the limit."""
    while not gpu.alloc_vidmem(64 << 10)[0]:
        pass


def of_handles(box: Box, gpu: nv.Gpu) -> None:
    """Second handles of one piece."""
    memory = gpu.alloc_vidmem(64 << 10)[1]
    for _ in range(10_000):
        assert gpu.rm.dup(gpu.device, gpu.rm, memory)[0] == 0


def of_channels(box: Box, gpu: nv.Gpu) -> None:
    """As many idle channels as there may be, in a group that is enabled."""
    group = gpu.space().group()
    first = group.channel()
    while not gpu.rm.alloc(group.gpfifo_class, group.tsg, first.params())[0]:
        pass


@pytest.mark.parametrize("load", [of_lists, of_memory, of_handles, of_channels])
def test_a_neighbours_allocation_beside_a_full_container(box: Box, gpu: nv.Gpu, load: Callable):
    """At most twice as long as alone, and 50 us (docs/develop/bounds.md)."""

    def took() -> float:
        """The shortest of many allocations with their frees, in microseconds: others on the machine lengthen some."""
        times = []
        for _ in range(401):
            start = time.perf_counter_ns()
            status, memory = theirs.alloc_vidmem(64 << 10)
            assert (status, theirs.free(memory)) == (0, 0)
            times.append(time.perf_counter_ns() - start)
        return min(times) / 1000

    with Box(fresh_id(), LIMIT_MIB) as other, other.client() as rm:
        theirs = rm.gpu()
        alone = took()
        load(box, gpu)
        beside = took()
    print(f"an allocation and its free, simulated: {alone:.1f} us alone, {beside:.1f} us beside {load.__name__}")
    assert beside <= 2 * alone + 50, (alone, beside)


# ---- the kernel log ----


def test_a_neighbours_line_is_not_lost(box: Box, gpu: nv.Gpu, other: Box, kernel_log: Any):
    """A container that makes lines without end uses up its own limit of them, not the neighbour's."""
    kernel_log.news()
    for fd in range(500):
        assert make(gpu.rm.ctl, 0xDEAD, fd) == nv.NV_ERR_INVALID_CLIENT
    with other.client() as rm:
        assert make(rm.ctl, 0xBEEF, 1) == nv.NV_ERR_INVALID_CLIENT
    lines = [line for line in kernel_log.news().splitlines() if "OS event of client" in line]
    assert 1 <= sum(box.dir in line for line in lines) <= 20
    assert sum(other.dir in line for line in lines) == 1


def test_a_full_card_is_logged_with_its_holders(kernel_log: Any):
    """The driver has no memory, though the container is inside its limit: the others are named."""
    with Box(fresh_id(), 64) as box, Box(fresh_id(), 64) as other, box.client() as rm, other.client() as theirs:
        assert theirs.gpu(0).alloc_vidmem(48 * MIB)[0] == 0
        gpu = rm.gpu(0)
        with nv.Client() as outside:
            card = outside.gpu(0)
            for size in (1024 * MIB, 16 * MIB, 2 * MIB):
                while not card.alloc_vidmem(size)[0]:
                    pass
            kernel_log.news()
            used = box.used
            assert gpu.alloc_vidmem(32 * MIB)[0] == nv.NV_ERR_NO_MEMORY
            assert box.used == used
            (line,) = [line for line in kernel_log.news().splitlines() if "the driver has no room" in line]
    assert f"container {box.dir}: GPU 0: the driver has no room for {32 * MIB} bytes, {used} of {64 * MIB}" in line
    assert re.search(rf"held by .*outside of containers at most \d+ MiB.*, {other.dir} 48 MiB", line)


# ---- objects ----


def fill(one: Callable[[], int], most: int) -> int:
    """Makes them until one is refused; its status."""
    for _ in range(most + 1):
        if status := one():
            return status
    return 0


def test_event_objects(box: Box, gpu: nv.Gpu, other: Box):
    """An engine's interrupt walks them all, whichever container raised it."""
    assert make(gpu.rm.ctl, gpu.rm.handle, 5) == 0
    params = nv.EventParams(gpu.rm.handle, gpu.subdevice, OS_EVENT, 12, 5)
    handles: list[int] = []

    def one() -> int:
        status, handle = gpu.rm.alloc(OS_EVENT, gpu.subdevice, params, len(handles) % 2 * (0x7000 + len(handles)))
        if not status:
            handles.append(handle)
        return status

    with limit("max_events", 40):
        refused = box.stat("refused_calls")
        assert fill(one, 40) == RESOURCES
        assert one() == RESOURCES
        assert len(handles) == box.stat("events") == 40
        assert (box.stat("events_left"), box.stat("refused_calls") - refused) == (0, 2)
        with other.client() as rm:
            theirs = rm.gpu()
            assert make(rm.ctl, rm.handle, 5) == 0
            assert rm.alloc(0x05, theirs.subdevice, nv.EventParams(rm.handle, 0, OS_EVENT, 12, 5))[0] == 0
        assert gpu.rm.free(handles[0], gpu.subdevice) == 0
        assert box.stat("events_left") == 1
        assert one() == 0
    assert gpu.rm.free(gpu.subdevice, gpu.device) == 0
    assert box.stat("events") == 0


def test_clients(box: Box, gpu: nv.Gpu, other: Box):
    """Each end of a client searches the list of all of them, with the locks of all GPUs held."""
    made: list[int] = []

    def one() -> int:
        arg = nv.Alloc(class_id=nv.NV01_ROOT_CLIENT)
        gpu.rm.ctl.call(nv.NV_ESC_RM_ALLOC, arg)
        if not arg.status:
            made.append(arg.handle)
        return arg.status

    with limit("max_clients", 30):
        assert fill(one, 30) == RESOURCES
        assert one() == RESOURCES
        assert len(made) + 1 == box.stat("clients") == 30
        other.client().close()
        arg = nv.Free(made[0], made[0], made[0])
        gpu.rm.ctl.call(nv.NV_ESC_RM_FREE, arg)
        assert (arg.status, box.stat("clients_left")) == (0, 1)
        assert one() == 0


def test_devices(box: Box, gpu: nv.Gpu):
    def one() -> int:
        client = nv.Client(box.dev, gpu.rm.ctl)
        return client.alloc(nv.NV01_DEVICE_0, None, nv.DeviceParams(client_share=client.handle))[0]

    with limit("max_devices", 20):
        assert fill(one, 20) == RESOURCES
        assert (box.stat("devices"), box.stat("devices_left")) == (20, 0)


# ---- mappings for the processor ----


MAPS_OF_ONE_MAX = 4096
MANY_OF, MANY_EACH = 4, 4000
ONE_NAME = 0x7000_0000_0000
DOORBELL = 0xC461  # TURING_USERMODE_A


@pytest.mark.parametrize("kind", ["system memory", "doorbell"])
def test_mappings_of_one_are_bounded(box: Box, gpu: nv.Gpu, kind: str):
    """What takes no part of BAR1 too: the driver keeps each, its file is closed or not, and walks them in an unmap."""
    rm = gpu.rm
    status, handle = gpu.alloc_sysmem(4096) if kind == "system memory" else rm.alloc(DOORBELL, gpu.subdevice)
    assert status == 0
    name = "nvidiactl" if kind == "system memory" else "nvidia0"
    last = 0
    for _ in range(MAPS_OF_ONE_MAX):
        with nv.Node(name, box.dev) as file:
            status, last = rm.map_memory(file, gpu.device, handle, 4096)
        assert status == 0
    refused = box.stat("refused_calls")
    with nv.Node(name, box.dev) as file:
        assert rm.map_memory(file, gpu.device, handle, 4096)[0] == nv.NV_ERR_NO_MEMORY
        assert box.stat("refused_calls") == refused + 1
        assert rm.unmap_memory(gpu.device, handle, last) == 0
        assert rm.map_memory(file, gpu.device, handle, 4096)[0] == 0
    assert gpu.free(handle) == 0


def renamed(gpu: nv.Gpu, memory: int) -> None:
    """One more mapping of that memory, by the same name as the others."""
    with nv.Node("nvidiactl", gpu.rm.directory) as file:
        status, at = gpu.rm.map_memory(file, gpu.device, memory, 4096)
    assert status == 0
    arg = nv.RenameMap(gpu.rm.handle, gpu.device, memory, at, ONE_NAME)
    gpu.rm.ctl.call(nv.NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO, arg)
    assert arg.status == 0


def test_a_mapping_costs_the_same_beside_16000_of_equal_names(box: Box, gpu: nv.Gpu):
    """They are in a tree of the container, by name; their end is in steps, in which its neighbours' calls go on."""

    def usual_ns() -> int:
        """Of a mapping that comes, is renamed and goes."""
        took = []
        for _ in range(100):
            begin = time.monotonic_ns()
            renamed(gpu, memories[0])
            assert gpu.rm.unmap_memory(gpu.device, memories[0], ONE_NAME) == 0
            took.append(time.monotonic_ns() - begin)
        return sorted(took)[len(took) // 2]

    memories = [gpu.alloc_sysmem(4096)[1] for _ in range(MANY_OF)]
    alone = usual_ns()
    for memory in memories:
        for _ in range(MANY_EACH):
            renamed(gpu, memory)
    beside = usual_ns()
    print(f"{alone} ns alone, {beside} beside {MANY_OF * MANY_EACH} mappings")
    assert beside < 3 * alone
    for memory in memories:
        assert gpu.free(memory) == 0
