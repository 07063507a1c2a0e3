# SPDX-License-Identifier: MIT
"""Hostile tenants that name objects of others: files, clients, address spaces, events, pages and runlists.

In these places the driver does not check the owner of a handle or a pointer; the module must.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import errno
import mmap
import random
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from slicebox import MIB, Box, clean_box, command, fb_used, fresh_id, until
from slicebox import nvclient as nv

pytestmark = [pytest.mark.checked, pytest.mark.attached]

OS_DESCRIPTOR, OS_EVENT = 0x71, 0x79
PAGE_ARRAY = 1  # NVOS32_DESCRIPTOR_TYPE_OS_PAGE_ARRAY
NO_MAP_CACHED = 1 << 30 | 1 << 12 | 1 << 4  # NVOS02_FLAGS: not mapped, cached, not contiguous
DMA_FIXED = 1 << 15
VAS_NEW, VAS_HOST, VAS_GLOBAL, VAS_DEVICE, VAS_FLA = range(5)
INVALID_EVENT, INVALID_PARENT, STATE_IN_USE = 0x28, 0x36, 0x63
ROUNDS = 1000


@pytest.fixture
def neighbour() -> Iterator[nv.Gpu]:
    with Box(fresh_id(), 512) as box, box.client() as client:
        yield client.gpu(0)


@pytest.fixture
def box(neighbour: nv.Gpu) -> Iterator[Box]:
    with clean_box(256) as made:
        yield made


@contextlib.contextmanager
def refusing(box: Box, count: int) -> Iterator[None]:
    """So many calls are counted as refused, and nothing is charged for them."""
    calls, used = box.stat("refused_calls"), box.used
    yield
    assert box.stat("refused_calls") == calls + count
    assert box.used == used


def register(box_or_node: nv.Node, ctl: nv.Ctl) -> int:
    return box_or_node.raw(nv.request(nv.NV_ESC_REGISTER_FD, 4), nv.RegisterFd(ctl.fd))


# ---- files ----


def test_memory_by_a_control_file_registered_on_another(box: Box):
    """The file's clients would live as long as the other file, but be charged only as long as the file itself."""
    before = fb_used()
    with box.client() as first:
        instance = nv.IdInfo(gpu_id=first.cards()[0].gpu_id)
        assert first.control(first.handle, nv.NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2, instance)[0] == 0
    with nv.Ctl(box.dev) as keeper, refusing(box, 3):
        for _ in range(3):
            with nv.Ctl(box.dev) as ctl:
                assert register(ctl, keeper) == 0
                with contextlib.suppress(nv.RmError):
                    client = nv.Client(box.dev, ctl)
                    _, device = client.alloc(
                        nv.NV01_DEVICE_0, None, nv.DeviceParams(device_id=instance.device_instance)
                    )
                    params = nv.MemoryParams(owner=client.handle, size=64 * MIB, attr=nv.ATTR_NONCONTIG_ALLOWED)
                    assert client.alloc(nv.NV01_MEMORY_LOCAL_USER, device, params)[0] == 0
            until(lambda: box.used == 0)
            time.sleep(0.2)
            assert fb_used() - before <= box.used


def test_clients_by_registering_while_they_are_made(box: Box):
    """In either order of closing, the client is freed with the file on which it was allocated."""
    with nv.Ctl(box.dev) as keeper:
        for n in range(60):
            with nv.Ctl(box.dev) as ctl:
                thread = threading.Thread(target=register, args=(ctl, keeper))
                thread.start()
                time.sleep(n % 6 / 10000)
                handle = 0
                with contextlib.suppress(nv.RmError):
                    handle = nv.Client(box.dev, ctl).handle
                thread.join()
            if handle:
                keeper_status = nv.Control(client=handle, object=handle, cmd=nv.NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS)
                keeper.call(nv.NV_ESC_RM_CONTROL, keeper_status)
                assert keeper_status.status, "a client that another file keeps"


def test_a_registered_control_file_serves_the_others_clients(box: Box):
    """The legitimate use: an OS event on a file of its own."""
    with box.client() as client, nv.Ctl(box.dev) as events, nv.Ctl(box.dev) as late:
        gpu = client.gpu(0)
        with refusing(box, 0):
            assert register(events, client.ctl) == 0
            arg = nv.OsEvent(client=client.handle, fd=events.fd)
            events.call(nv.NV_ESC_ALLOC_OS_EVENT, arg)
            assert arg.status == 0
            params = nv.EventParams(client.handle, gpu.subdevice, OS_EVENT, 0, events.fd)
            assert client.alloc(OS_EVENT, gpu.subdevice, params)[0] == 0
        with refusing(box, 0):
            rm = nv.Client(box.dev, late)
            assert register(late, client.ctl) == 0
            assert rm.free() == nv.NV_ERR_INVALID_CLIENT, "the driver's answer: it was the file's own before"
        with refusing(box, 1), pytest.raises(nv.RmError):
            nv.Client(box.dev, late)


# ---- host memory ----


class Pages(mmap.mmap):
    """Pages of this process."""

    def __new__(cls, size: int) -> Pages:
        return super().__new__(cls, -1, size)

    @property
    def address(self) -> int:
        return ctypes.addressof(ctypes.c_char.from_buffer(self))


def alloc_memory(gpu: nv.Gpu, class_id: int, address: int, size: int, handle: int) -> nv.AllocMemory:
    arg = nv.AllocMemory(gpu.rm.handle, gpu.device, handle, class_id, NO_MAP_CACHED, address, size - 1)
    arg.fd = -1
    return arg


def test_host_memory_can_be_registered(box: Box):
    """As cuMemHostRegister does it: on the GPU's file, to be mapped by uvm; it costs none of the card."""
    size = 4 * MIB
    pages = Pages(size)
    with box.client() as client:
        gpu = client.gpu(0)
        before = fb_used()
        with refusing(box, 0):
            arg = alloc_memory(gpu, OS_DESCRIPTOR, pages.address, size, 0x7171)
            gpu.node.call(nv.NV_ESC_RM_ALLOC_MEMORY, arg)
            assert (arg.status, arg.handle) == (0, 0x7171)
            space = gpu.space()
            assert space.map(arg.handle, size)[0] == 0
            assert fb_used() == before
        assert gpu.free(arg.handle) == 0
        space.close()


def test_host_memory_is_registered_on_the_gpus_file_only(box: Box):
    """Where the driver takes it; and nothing but system memory goes that way."""
    pages = Pages(MIB)
    with box.client() as client:
        gpu = client.gpu(0)
        with refusing(box, 3):
            arg = alloc_memory(gpu, OS_DESCRIPTOR, pages.address, MIB, 0x7171)
            assert client.ctl.raw(nv.request(nv.NV_ESC_RM_ALLOC_MEMORY, 56), arg) == errno.EINVAL
            for class_id in (nv.NV01_MEMORY_LOCAL_USER, nv.FERMI_VASPACE_A):
                arg = alloc_memory(gpu, class_id, 0, MIB, 0x7172)
                gpu.node.call(nv.NV_ESC_RM_ALLOC_MEMORY, arg)
                assert arg.status == nv.NV_ERR_INVALID_CLASS


def test_a_channel_goes_with_the_pages_of_its_userd(box: Box):
    """The driver frees it with them: it is not counted on."""
    pages = Pages(MIB)
    with box.client() as client:
        gpu = client.gpu(0)
        group = gpu.space().group()
        channel = group.channel()
        arg = alloc_memory(gpu, OS_DESCRIPTOR, pages.address, MIB, 0x7171)
        gpu.node.call(nv.NV_ESC_RM_ALLOC_MEMORY, arg)
        assert arg.status == 0
        params = channel.params()
        params.userd_memory[0], params.userd_offset[0] = arg.handle, 0
        status, second = client.alloc(group.gpfifo_class, group.tsg, params)
        assert status == 0
        assert box.stat("channels") == 2
        assert gpu.free(arg.handle) == 0
        assert box.stat("channels") == 1
        status, again = client.alloc(group.gpfifo_class, group.tsg, channel.params(), second)
        assert (status, again) == (0, second), "the driver has none of that name either"
        assert client.free(again, group.tsg) == 0
        channel.submit(kernel_ns=1000)
        channel.wait()


@pytest.mark.parametrize("make", ["alloc_vidmem", "alloc_sysmem"])
def test_a_channel_goes_before_its_userd(box: Box, make: str):
    """The driver's heap takes the page back with its handle, and the GPU would read and write it on: a neighbour's then
    (tests/rm: test_userd_goes_back_to_the_heap_under_its_channel).
    """
    with box.client() as client:
        gpu = client.gpu(0)
        group = gpu.space().group()
        channel = group.channel()
        status, userd = getattr(gpu, make)(MIB)
        assert status == 0
        params = channel.params()
        params.userd_memory[0], params.userd_offset[0] = userd, 0
        handles = [client.alloc(group.gpfifo_class, group.tsg, params)[1] for _ in range(3)]
        assert client.free(handles[0], group.tsg) == 0
        assert box.stat("channels") == 3
        assert gpu.free(userd) == 0
        assert box.stat("channels") == 1
        for handle in handles[1:]:
            status, again = client.alloc(group.gpfifo_class, group.tsg, channel.params(), handle)
            assert (status, again) == (0, handle), "the driver has none of that name either"
        channel.submit(kernel_ns=1000)
        channel.wait()


@pytest.mark.parametrize("name", ["error_object", "ecc_error_object"])
@pytest.mark.parametrize("by", ["channel", "group"])
def test_a_channel_goes_before_its_error_notifier(box: Box, name: str, by: str):
    """The driver and the card's firmware keep its address and write there on each fault and each token: a neighbour's
    page, or the host's, after its handle is freed (tests/rm: test_a_notifier_goes_back_to_the_heap_under_its_channel).
    """
    with box.client() as client:
        gpu = client.gpu(0)
        space = gpu.space()
        group = space.group()
        channel = group.channel()
        params = channel.params()
        for make in (gpu.alloc_vidmem, gpu.alloc_sysmem):
            status, memory = make(64 << 10)
            assert status == 0
            of_group = nv.TsgParams(error_object=group.notifier, vaspace=space.vaspace, engine=group.engine)
            setattr(params, name, 0 if by == "group" else memory)
            setattr(of_group, name, memory if by == "group" else 0)
            status, tsg = client.alloc(nv.KEPLER_CHANNEL_GROUP_A, gpu.device, of_group)
            assert status == 0
            assert [client.alloc(group.gpfifo_class, tsg, params)[0] for _ in range(3)] == [0, 0, 0]
            assert box.stat("channels") == 4
            assert gpu.free(memory) == 0
            assert box.stat("channels") == 1
            assert gpu.free(tsg) == 0
        channel.submit(kernel_ns=1000)
        channel.wait()


@pytest.mark.parametrize("name", ["error_object", "ecc_error_object"])
@pytest.mark.parametrize("by", ["channel", "group"])
def test_the_host_by_a_notifier_that_is_not_there(box: Box, name: str, by: str):
    """The driver follows a NULL pointer for it: kchannelGetNotifierInfo() fails, and its caller goes on."""
    with box.client() as client:
        gpu = client.gpu(0)
        space = gpu.space()
        group = space.group()
        channel = group.channel()
        params = channel.params()
        for handle, status in ((0xDEAD, nv.NV_ERR_OBJECT_NOT_FOUND), (space.vaspace, INVALID_PARENT)):
            of_group = nv.TsgParams(vaspace=space.vaspace, engine=group.engine)
            setattr(params, name, 0 if by == "group" else handle)
            setattr(of_group, name, handle if by == "group" else 0)
            made, tsg = client.alloc(nv.KEPLER_CHANNEL_GROUP_A, gpu.device, of_group)
            assert made == 0
            with refusing(box, 1):
                assert client.alloc(group.gpfifo_class, tsg, params)[0] == status
            assert gpu.free(tsg) == 0


@contextlib.contextmanager
def repeating(*calls: Callable[[], object]) -> Iterator[None]:
    """Each call by a thread of its own, again and again."""
    over = threading.Event()

    def repeat(call: Callable[[], object]) -> None:
        while not over.is_set():
            call()

    threads = [threading.Thread(target=repeat, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_userd_and_its_group_freed_at_once(box: Box):
    """The driver call for the channel sleeps: the group must not take the channel meanwhile, nor the channel's names
    go to a new one. A third thread keeps the GPU's lock, so that the others meet in the driver.
    """
    tsg, userd, names = 0x5100, 0x5200, (0x5301, 0x5302, 0x5303)
    with box.client() as client:
        gpu = client.gpu(0)
        space = gpu.space()
        group = space.group(nv.NV2080_ENGINE_TYPE_COPY0)
        channel = group.channel()
        of_group = nv.TsgParams(error_object=group.notifier, vaspace=space.vaspace, engine=nv.NV2080_ENGINE_TYPE_COPY0)
        params = channel.params()
        params.userd_memory[0], params.userd_offset[0] = userd, 0
        used, frees, made = box.used, collections.Counter(), collections.Counter()

        def free_group() -> None:
            frees["group", gpu.free(tsg)] += 1

        with repeating(free_group, group.enable):
            for _ in range(ROUNDS):
                made["group", gpu.rm.alloc(nv.KEPLER_CHANNEL_GROUP_A, gpu.device, of_group, tsg)[0]] += 1
                made["userd", gpu.alloc_vidmem(64 << 10, userd)[0]] += 1
                for name in names:
                    made["channel", client.alloc(group.gpfifo_class, tsg, params, name)[0]] += 1
                frees["userd", gpu.free(userd)] += 1
        for what in ("group", "userd"):
            assert {frees[what, status] > 0 for status in (nv.NV_OK, STATE_IN_USE)} == {True}, (frees, made)
            assert sum(frees[what, status] for status in (nv.NV_OK, STATE_IN_USE)) > 100, (frees, made)
        assert made["channel", nv.NV_OK] > 100, (frees, made)
        for handle in (tsg, userd):
            gpu.free(handle)
        assert (box.stat("channels"), box.stat("groups"), box.used) == (1, 1, used), (frees, made)
        for name in names:
            params.userd_memory[0], params.userd_offset[0] = channel.memory, channel.userd_at
            assert client.alloc(group.gpfifo_class, group.tsg, params, name) == (nv.NV_OK, name)
            assert client.free(name, group.tsg) == nv.NV_OK
        channel.submit()
        channel.wait()


def test_userd_freed_while_a_channel_is_made(box: Box):
    """The driver may still find memory that is being freed: a channel on it would not go with it."""
    userd, names = 0x5200, (0x5301, 0x5302, 0x5303)
    with box.client() as client:
        gpu = client.gpu(0)
        group = gpu.space().group(nv.NV2080_ENGINE_TYPE_COPY0)
        channel = group.channel()
        params = channel.params()
        params.userd_memory[0], params.userd_offset[0] = userd, 0
        made = collections.Counter()

        def make_and_free() -> None:
            gpu.alloc_vidmem(64 << 10, userd)
            made["freed", gpu.free(userd)] += 1

        with repeating(make_and_free, group.enable):
            for number in range(180 * ROUNDS):  # on one processor the threads seldom meet as they must
                name = names[number % len(names)]
                made["channel", client.alloc(group.gpfifo_class, group.tsg, params, name)[0]] += 1
                if number >= 2 * ROUNDS and min(made["freed", nv.NV_OK], made["channel", nv.NV_OK]) > 10:
                    break
        gpu.free(userd)
        assert made["freed", nv.NV_OK] > 10, made
        assert made["channel", nv.NV_OK] > 10, made
        assert made["channel", nv.NV_ERR_OBJECT_NOT_FOUND] > 0, made
        assert box.stat("channels") == 1, made
        channel.submit()
        channel.wait()


def test_channels_and_what_they_depend_on_at_random(box: Box):
    """Four threads make and free memory, groups and channels on it, by the same names. Nothing is left, and the names
    are free in the driver too.
    """
    memories, groups, channels = ([first + n for n in range(count)] for first, count in
                                  ((0x6000, 6), (0x6100, 3), (0x6200, 10)))  # fmt: skip
    done = collections.Counter()
    with box.client() as client:
        gpu = client.gpu(0)
        space = gpu.space()
        group = space.group(nv.NV2080_ENGINE_TYPE_COPY0)
        channel = group.channel()

        def one(rng: random.Random) -> tuple[str, int]:
            some = [0, *memories]
            what = rng.randrange(6)
            if what == 0:
                return "memory", rng.choice((gpu.alloc_vidmem, gpu.alloc_sysmem))(64 << 10, rng.choice(memories))[0]
            if what == 1:
                params = nv.TsgParams(rng.choice(some), rng.choice(some), space.vaspace, nv.NV2080_ENGINE_TYPE_COPY0)
                return "group", client.alloc(nv.KEPLER_CHANNEL_GROUP_A, gpu.device, params, rng.choice(groups))[0]
            if what < 4:
                params = channel.params()
                params.error_object, params.ecc_error_object = rng.choice(some), rng.choice(some)
                params.userd_memory[0], params.userd_offset[0] = rng.choice([channel.memory, *memories]), 0
                return "channel", client.alloc(group.gpfifo_class, rng.choice(groups), params, rng.choice(channels))[0]
            if what == 4:
                return "free", client.free(rng.choice(channels), rng.choice(groups))
            return "free", gpu.free(rng.choice(memories + groups))

        def again(seed: int) -> Callable[[], None]:
            rng = random.Random(seed)
            return lambda: done.update([one(rng)])

        with repeating(*(again(seed) for seed in range(4))):
            time.sleep(4)
        assert min(done[what, nv.NV_OK] for what in ("memory", "group", "channel", "free")) > 20, done
        for handle in memories + groups:
            gpu.free(handle)
        assert (box.stat("channels"), box.stat("groups")) == (1, 1), done
        for name in channels:
            assert client.alloc(group.gpfifo_class, group.tsg, channel.params(), name) == (nv.NV_OK, name)
        channel.submit()
        channel.wait()


@pytest.mark.parametrize("kind", ["video", "system", "page"])
def test_userd_outside_of_its_memory(box: Box, kind: str):
    """Up to 580 the driver adds the offset to the address of the memory and compares the sum with nothing."""
    with box.client() as client:
        gpu = client.gpu(0)
        group = gpu.space().group(nv.NV2080_ENGINE_TYPE_COPY0)
        channel = group.channel()
        size = 4096 if kind == "page" else 64 << 10
        status, userd = (gpu.alloc_vidmem if kind == "video" else gpu.alloc_sysmem)(size)
        assert status == nv.NV_OK
        charged = box.used

        def make(offset: int) -> int:
            params = channel.params()
            params.userd_memory[0], params.userd_offset[0] = userd, offset % 2**64
            return client.alloc(group.gpfifo_class, group.tsg, params, 0x6D00)[0]

        page = 4096 - 512
        for offset in (
            size,
            size - 256,
            size + page,
            64 << 10,
            1 << 30,
            1 << 40,
            -512,
            -(1 << 30),
            2**63,
            100,
            size - 511,
        ):
            assert make(offset) == nv.NV_ERR_INVALID_ARGUMENT, hex(offset)
        assert (box.stat("channels"), box.used) == (1, charged)
        for offset in (0, 512, page, size - 512):
            assert make(offset) == nv.NV_OK, hex(offset)
            assert client.free(0x6D00, group.tsg) == nv.NV_OK
        channel.submit()
        channel.wait()


@pytest.mark.gpus(2)
def test_userd_of_another_device():
    """It could go without the channel."""
    name = fresh_id()
    command(f"create {name} gpu=0,1 memsize={256 * MIB},{256 * MIB}")
    try:
        with nv.Client(f"/dev/cgpu/{name[:12]}") as client:
            gpu, other = client.gpu(0), client.gpu(1)
            group = gpu.space().group()
            channel = group.channel()
            for make in (other.alloc_vidmem, other.alloc_sysmem):
                status, memory = make(MIB)
                assert status == 0
                params = channel.params()
                params.userd_memory[0], params.userd_offset[0] = memory, 0
                assert client.alloc(group.gpfifo_class, group.tsg, params)[0] == INVALID_PARENT
            channel.submit(kernel_ns=1000)
            channel.wait()
    finally:
        command(f"destroy {name}")


def test_the_kernels_memory_by_a_class_that_takes_its_pointers(box: Box):
    """RM_ALLOC of 0x71 has the driver follow a list of pages that the caller wrote."""
    pages = Pages(MIB)
    with box.client() as client:
        gpu = client.gpu(0)
        with refusing(box, 2):
            for kind in (0, PAGE_ARRAY):
                params = nv.OsDescParams(descriptor=pages.address, limit=MIB - 1, descriptor_type=kind)
                assert client.alloc(OS_DESCRIPTOR, gpu.device, params)[0] == nv.NV_ERR_INVALID_CLASS


# ---- address spaces ----


def device_sharing(client: nv.Client, gpu: nv.Gpu, share: int) -> tuple[int, int]:
    """A device object of a client that has none of that GPU."""
    info = nv.IdInfo(gpu_id=gpu.card.gpu_id)
    assert client.control(client.handle, nv.NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2, info)[0] == 0
    params = nv.DeviceParams(device_id=info.device_instance, client_share=share)
    return client.alloc(nv.NV01_DEVICE_0, None, params)


def test_the_neighbours_address_space_by_its_client(box: Box, neighbour: nv.Gpu):
    """Nor another client's of the container: the driver looks it up later, when the handle may be a neighbour's."""
    with box.client() as client, box.client() as other:
        gpu = other.gpu(0)
        with refusing(box, 4):
            for share in (neighbour.rm.handle, other.handle, gpu.device, 0xDEAD):
                assert device_sharing(client, gpu, share)[0] == nv.NV_ERR_INVALID_CLIENT
        with refusing(box, 0):
            for share in (0, client.handle):
                status, device = device_sharing(client, gpu, share)
                assert status == 0
                assert client.free(device) == 0


def test_the_address_space_of_all_by_sharing_with_nobody(box: Box, neighbour: nv.Gpu):
    """Two containers that share with none have the same address, each its own."""
    with box.client() as client:
        for gpu in (neighbour, client.gpu(0)):
            rm = gpu.rm
            status, space = rm.alloc(nv.FERMI_VASPACE_A, gpu.device, nv.VaspaceParams(index=VAS_DEVICE))
            assert status == 0
            status, memory = gpu.alloc_vidmem(2 * MIB)
            assert status == 0
            arg = nv.MapDma(rm.handle, gpu.device, space, memory, 0, 2 * MIB, DMA_FIXED)
            arg.dma_offset = nv.FIRST_VA
            rm.ctl.call(nv.NV_ESC_RM_MAP_MEMORY_DMA, arg)
            assert arg.status == 0
            if gpu is neighbour:
                theirs = memory
    assert neighbour.free(theirs) == 0


def test_the_address_space_of_all_by_its_index(box: Box):
    with box.client() as client:
        gpu = client.gpu(0)
        with refusing(box, 5):
            for index in (VAS_HOST, VAS_GLOBAL, VAS_FLA, 5, 0xFFFFFFFF):
                status, _ = client.alloc(nv.FERMI_VASPACE_A, gpu.device, nv.VaspaceParams(index=index))
                assert status == nv.NV_ERR_INVALID_ARGUMENT
        with refusing(box, 0):
            for index in (VAS_NEW, VAS_DEVICE):
                status, space = client.alloc(nv.FERMI_VASPACE_A, gpu.device, nv.VaspaceParams(index=index))
                assert status == 0
                assert gpu.free(space) == 0


# ---- events ----


def os_event(node: nv.Node, number: int, client: int, fd: int) -> int:
    arg = nv.OsEvent(client=client, fd=fd)
    node.call(number, arg)
    return arg.status


def test_the_neighbours_os_events_by_its_client(box: Box, neighbour: nv.Gpu):
    theirs = neighbour.rm
    assert os_event(theirs.ctl, nv.NV_ESC_ALLOC_OS_EVENT, theirs.handle, 77) == 0
    with box.client() as client:
        gpu = client.gpu(0)
        nobody = (theirs.handle, 0, 0xDEAD, gpu.device)
        for node in (client.ctl, gpu.node):
            with refusing(box, 2 * len(nobody)):
                for handle in nobody:
                    assert os_event(node, nv.NV_ESC_FREE_OS_EVENT, handle, 77) == nv.NV_ERR_INVALID_CLIENT
                    assert os_event(node, nv.NV_ESC_ALLOC_OS_EVENT, handle, 78) == nv.NV_ERR_INVALID_CLIENT
            with refusing(box, 0):
                assert os_event(node, nv.NV_ESC_ALLOC_OS_EVENT, client.handle, 77) == 0
                assert os_event(node, nv.NV_ESC_FREE_OS_EVENT, client.handle, 77) == 0
                assert os_event(node, nv.NV_ESC_FREE_OS_EVENT, client.handle, 77) == INVALID_EVENT
    assert os_event(theirs.ctl, nv.NV_ESC_FREE_OS_EVENT, theirs.handle, 77) == 0
    assert os_event(theirs.ctl, nv.NV_ESC_FREE_OS_EVENT, theirs.handle, 78) == INVALID_EVENT


@pytest.mark.parametrize("class_id", [0x05, OS_EVENT])
def test_the_neighbours_events_by_their_source(box: Box, neighbour: nv.Gpu, class_id: int):
    theirs = neighbour.rm
    with box.client() as client:
        gpu = client.gpu(0)
        assert os_event(gpu.node, nv.NV_ESC_ALLOC_OS_EVENT, client.handle, 5) == 0

        def event(parent_client: int, source: int) -> tuple[int, int]:
            """hSrcResource is 0, as libcuda has it: the driver takes the parent, in that client."""
            return client.alloc(class_id, source, nv.EventParams(parent_client, 0, OS_EVENT, 0, 5))

        wrong = [(theirs.handle, neighbour.subdevice), (theirs.handle, theirs.handle)]
        wrong += [(0, 0xDEAD), (0xDEAD, gpu.device)]
        with refusing(box, len(wrong)):
            for pair in wrong:
                assert event(*pair)[0] == nv.NV_ERR_OBJECT_NOT_FOUND
        with refusing(box, 0):
            for pair in ((0, gpu.subdevice), (client.handle, gpu.subdevice), (client.handle, client.handle)):
                status, handle = event(*pair)
                assert status == 0
                assert client.free(handle, pair[1]) == 0
            with box.client() as second:
                theirs_too = second.gpu(0).subdevice
                status, handle = event(second.handle, theirs_too)
                assert status == 0, "of another client of the container; below its own"
                assert client.free(handle, client.handle) == 0


# ---- time ----


def test_time_by_channels_without_a_group(box: Box):
    """The driver would create a group for each, and the module would not set the timeslice of that group."""
    with box.client() as client:
        gpu = client.gpu(0)
        space = gpu.space()
        group = space.group()
        channel = group.channel()
        params = channel.params()
        params.vaspace = space.vaspace
        with refusing(box, 2):
            for engine in (0, nv.NV2080_ENGINE_TYPE_GRAPHICS):
                params.engine = engine
                status, _ = client.alloc(group.gpfifo_class, gpu.device, params)
                assert status == INVALID_PARENT
        params.engine = nv.NV2080_ENGINE_TYPE_COPY0
        status, copying = client.alloc(group.gpfifo_class, gpu.device, params)
        assert status == 0
        assert client.alloc(group.compute_class, copying)[0] == nv.NV_ERR_INVALID_CLASS
        assert gpu.free(copying) == 0
