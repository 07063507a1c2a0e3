# SPDX-License-Identifier: MIT
"""Handles, duplicates, files and frees: what RM itself answers."""

import struct
from pathlib import Path

import nvclient as nv
from client import ALLOC_VIRTUAL, ATTR_CONTIGUOUS, ATTR_PAGE_4K, CLASS_VIRTUAL

MIB = 1 << 20
ALLOC_LAZY = 1 << 10  #: nvos.h: NVOS32_ALLOC_FLAGS_LAZY
NV_ERR_OBJECT_EXISTS = 0x19  #: NV_ERR_INSERT_DUPLICATE_NAME
NV_ERR_INVALID_OBJECT_HANDLE = 0x33


def gid(client, gpu, owner):
    """A harmless control on a GPU of @owner, through the file of @client."""
    size = client.rm.control_info(nv.NV2080_CTRL_CMD_GPU_GET_GID_INFO)[3]
    return client.control(gpu.subdevice, nv.NV2080_CTRL_CMD_GPU_GET_GID_INFO, bytes(size), client=owner.handle)[0]


def test_a_client_belongs_to_its_file(some_machine):
    """Another file's client is NV_ERR_INVALID_CLIENT, for controls, frees and dups into it."""
    mine, other = some_machine.client(), some_machine.client()
    gpu, theirs = mine.gpu(), other.gpu()
    assert gid(mine, gpu, mine) == 0
    assert gid(other, gpu, mine) == nv.NV_ERR_INVALID_CLIENT
    arg = nv.Free(root=mine.handle, parent=mine.handle, handle=gpu.device)
    other._call(nv.NV_ESC_RM_FREE, arg)
    assert arg.status == nv.NV_ERR_INVALID_CLIENT
    surface = gpu.surface(MIB)
    arg = nv.Dup(other.handle, theirs.device, 0x888, mine.handle, surface.handle)
    mine._call(nv.NV_ESC_RM_DUP_OBJECT, arg)
    assert arg.status == nv.NV_ERR_INVALID_CLIENT


def test_free_of_what_is_not_there(some_machine):
    """An unknown handle of one's own client is freed with NV_OK; an unknown client is an error."""
    client = some_machine.client()
    gpu = client.gpu()
    assert client.free(0x4711, gpu.device) == 0
    assert client.free(0x4711, 0) == 0
    assert client.free(0x4711, 0x4712) == 0
    arg = nv.Free(root=0x77777, parent=0, handle=0x4711)
    client._call(nv.NV_ESC_RM_FREE, arg)
    assert arg.status == NV_ERR_INVALID_OBJECT_HANDLE


def test_a_handle_names_one_object(some_machine):
    client = some_machine.client()
    gpu = client.gpu()
    status, _ = client.alloc(nv.NV20_SUBDEVICE_0, gpu.device, nv.SubdeviceParams(0), handle=gpu.subdevice)
    assert status == NV_ERR_OBJECT_EXISTS


def test_a_dup_keeps_the_memory(machine):
    """The memory comes back with the last of the two, and the dup takes nothing."""
    mine, other = machine.client(), machine.client()
    gpu, theirs = mine.gpu(), other.gpu()
    free = gpu.heap_free()
    surface = gpu.surface(8 * MIB)
    status, dup = other.dup(theirs.device, mine.handle, surface.handle)
    assert status == 0
    assert free - gpu.heap_free() == 8 * MIB
    assert gpu.free(surface.handle) == 0
    assert free - gpu.heap_free() == 8 * MIB
    assert theirs.phys_size(dup) == 8 * MIB
    assert theirs.free(dup) == 0
    assert gpu.heap_free() == free


def test_a_dup_outlives_the_file_of_the_original(machine):
    mine, other = machine.client(), machine.client()
    theirs = other.gpu()
    free = theirs.heap_free()
    surface = mine.gpu().surface(8 * MIB)
    status, dup = other.dup(theirs.device, mine.handle, surface.handle)
    assert status == 0
    mine.close()
    machine.clients.remove(mine)
    assert free - theirs.heap_free() == 8 * MIB
    assert theirs.free(dup) == 0
    assert theirs.heap_free() == free


def test_what_can_be_duplicated(some_machine):
    """Memory, address spaces and TSGs can, by anyone who knows the handles; channels and devices cannot."""
    mine, other = some_machine.client(), some_machine.client()
    gpu, theirs = mine.gpu(), other.gpu()
    context = gpu.context(nv.NV2080_ENGINE_TYPE_COPY0 + 2)
    results = {
        "group": other.dup(theirs.device, mine.handle, context.tsg)[0],
        "space": other.dup(theirs.device, mine.handle, context.space)[0],
        "channel": other.dup(theirs.device, mine.handle, context.channel)[0],
        "subdevice": other.dup(theirs.device, mine.handle, gpu.subdevice)[0],
        "device": other.dup(other.handle, mine.handle, gpu.device)[0],
    }
    invalid = nv.NV_ERR_INVALID_ARGUMENT
    assert results == {"group": 0, "space": 0, "channel": invalid, "subdevice": invalid, "device": invalid}


def test_a_duplicated_group_keeps_its_context(machine):
    """The context's memory comes back with the last name of the group, not with the file that made it."""
    mine, other = machine.client(), machine.client()
    theirs = other.gpu()
    free = theirs.heap_free()
    context = mine.gpu().context()
    taken = context.before_group - context.before_channel
    status, dup = other.dup(theirs.device, mine.handle, context.tsg)
    assert status == 0
    mine.close()
    machine.clients.remove(mine)
    assert free - theirs.heap_free() >= taken
    assert theirs.free(dup) == 0
    assert theirs.heap_free() == free


def test_memory_is_freed_under_its_mappings(machine):
    """RM takes the mappings away with the memory, at once; a later unmap finds nothing."""
    client = machine.client()
    gpu = client.gpu()
    context = gpu.context(nv.NV2080_ENGINE_TYPE_COPY0 + 2)
    free = gpu.heap_free()
    memory = gpu.must_have(MIB)
    status, fd, address = client.map_memory(gpu.device, memory, MIB, card=0)
    assert status == 0
    machine.rm.write(fd, 0, b"before")
    context.map(memory, MIB)
    assert gpu.free(memory) == 0
    assert gpu.heap_free() == free
    assert client.unmap_memory(gpu.device, memory, address) == nv.NV_ERR_OBJECT_NOT_FOUND


def test_a_mapping_goes_with_the_subdevice_that_made_it(machine):
    """And its memory lives on. The module lets RM map by the memory's own device (rm_map.c)."""
    client = machine.client()
    gpu = client.gpu()
    memory = gpu.must_have(MIB)
    status, _, address = client.map_memory(gpu.subdevice, memory, MIB, card=0)
    assert status == 0
    assert client.free(gpu.subdevice, gpu.device) == 0
    assert client.unmap_memory(gpu.device, memory, address) == nv.NV_ERR_OBJECT_NOT_FOUND
    status, _, address = client.map_memory(gpu.device, memory, MIB, card=0)
    assert status == 0
    assert client.unmap_memory(gpu.device, memory, address) == 0


def test_userd_goes_back_to_the_heap_under_its_channel(some_machine):
    """The next allocation has the page while the GPU reads and writes it: the module frees the channel first."""
    mine, other = some_machine.client(), some_machine.client()
    gpu, theirs = mine.gpu(), other.gpu()
    context = gpu.context(nv.NV2080_ENGINE_TYPE_COPY0 + 2)
    assert context.schedule() == 0
    _, _, place = mine.map_memory(gpu.device, context.userd, 4096, 0)
    free = gpu.heap_free()
    assert gpu.free(context.userd) == 0
    assert gpu.heap_free() - free == 64 << 10
    for _ in range(16):
        page = theirs.must_have(4096, attr=ATTR_PAGE_4K | ATTR_CONTIGUOUS)
        _, context.userd_fd, at = other.map_memory(theirs.device, page, 4096, 0)
        if at == place:
            break
    assert at == place, "the neighbour's page is the channel's USERD"
    some_machine.rm.write(context.userd_fd, 0, bytes(4096))
    context.fill(context.va + 0x9000, 0x1234, 4, 77)
    assert some_machine.rm.read(context.userd_fd, nv.NV_USERD_GPGET, 4) == b"\1\0\0\0", "written by the GPU"
    assert context.semaphore() == 77, "and run by what the neighbour wrote"


def test_userd_is_where_its_offset_points(some_machine):
    """At a neighbour's page, too: RM adds it to the memory's address, until 590. The module refuses it."""
    mine, other = some_machine.client(), some_machine.client()
    gpu, theirs = mine.gpu(), other.gpu()
    context = gpu.context(nv.NV2080_ENGINE_TYPE_COPY0 + 2, with_object=False)
    page = theirs.must_have(4096, attr=ATTR_PAGE_4K | ATTR_CONTIGUOUS)
    _, context.userd_fd, _ = other.map_memory(theirs.device, page, 4096, 0)
    for n in range(1, 33):
        assert mine.free(context.channel, context.tsg) == 0
        params = context.channel_params()
        params.userd_offset[0] = n * (64 << 10)
        status, context.channel = mine.alloc(context.classes[0], context.tsg, params)
        assert status == 0
        context.engine_object()
        assert context.schedule() == 0
        some_machine.rm.write(context.userd_fd, 0, bytes(4096))
        context.put = 0
        context.fill(context.va + 0x9000, 0x1234, 4, 77)
        if context.semaphore() == 77:
            break
    assert context.semaphore() == 77, "run by what the neighbour wrote"
    assert some_machine.rm.read(context.userd_fd, nv.NV_USERD_GPGET, 4) == b"\1\0\0\0", "written by the GPU"


def test_a_notifier_goes_back_to_the_heap_under_its_channel(some_machine):
    """A token writes to the page, which is the neighbour's by then: the module frees the channel first."""
    mine, other = some_machine.client(), some_machine.client()
    gpu, theirs = mine.gpu(), other.gpu()
    context = gpu.context(nv.NV2080_ENGINE_TYPE_COPY0 + 2)
    notifier = gpu.must_have(4096, attr=ATTR_PAGE_4K | ATTR_CONTIGUOUS)
    _, _, place = mine.map_memory(gpu.device, notifier, 4096, 0)
    params = context.channel_params()
    params.error_object = notifier
    status, channel = mine.alloc(context.classes[0], context.tsg, params)
    assert status == 0
    assert gpu.free(notifier) == 0, "and the channel stays"
    assert mine.control(channel, nv.NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN, 4)[0] == 0
    for _ in range(16):
        page = theirs.must_have(4096, attr=ATTR_PAGE_4K | ATTR_CONTIGUOUS)
        _, at_page, at = other.map_memory(theirs.device, page, 4096, 0)
        if at == place:
            break
    assert at == place, "the neighbour's page is the channel's notifier"
    some_machine.rm.write(at_page, 0, bytes(4096))
    assert mine.control(channel, nv.NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN, 4)[0] == 0
    assert some_machine.rm.read(at_page, 0, 4096) != bytes(4096), "written by the driver for another client"


def test_a_parent_takes_everything_below_it(machine):
    """Device freed: memory, spaces, groups, channels and their mappings go with it."""
    client = machine.client()
    free = machine.observer.heap_free()
    gpu = client.gpu()
    gpu.context()
    gpu.surface(8 * MIB)
    assert client.free(gpu.device, client.handle) == 0
    assert machine.observer.heap_free() == free


def test_a_closed_file_takes_its_clients(machine):
    """As at the end of a process that was killed."""
    free = machine.observer.heap_free()
    client = machine.client()
    gpu = client.gpu()
    gpu.surface(64 * MIB)
    gpu.context()
    client.close()
    machine.clients.remove(client)
    assert machine.observer.heap_free() == free


OBJECTS = 1000


def test_what_an_object_takes_of_the_hosts_memory(some_machine):
    """By RM's own allocator; the module counts 4 KiB of it for each of the container's (state/memory.h)."""
    client = some_machine.client()
    gpu = client.gpu()
    memory = gpu.must_have(64 << 10)
    space = gpu.space()
    window = struct.pack("<QQII", 0, 0, space, 0)  # NV_MEMORY_VIRTUAL_ALLOCATION_PARAMS
    fields = nv.MemoryParams(owner=client.handle, size=2 * MIB, flags=ALLOC_VIRTUAL | ALLOC_LAZY, vaspace=space)
    makers = {
        "a window": lambda: client.alloc(0x70, gpu.device, window),
        "a 0x2081": lambda: client.alloc(0x2081, gpu.subdevice),
        "memory": lambda: gpu.memory(4096),
        "addresses": lambda: client.alloc(CLASS_VIRTUAL, gpu.device, fields),
        "a dup of memory": lambda: client.dup(gpu.device, client.handle, memory),
        "a dup of a space": lambda: client.dup(gpu.device, client.handle, space),
    }

    def taken() -> int:
        text = Path(f"/proc/{some_machine.rm.process.pid}/status").read_text()
        return int(text.split("RssAnon:")[1].split()[0]) << 10

    for name, make in makers.items():
        before = taken()
        assert {make()[0] for _ in range(OBJECTS)} == {0}, name
        each = (taken() - before) / OBJECTS
        print(f"{name}: {each:.0f} bytes of {some_machine.branch}")
        assert each <= 4096, name
