# SPDX-License-Identifier: MIT
"""What RM maps for the processor besides memory of the caller's own: the module lets it map doorbells (rm_map.c)."""

import nvclient as nv

PAGE = 4096
USERD_BYTES = 512  #: of a channel


def channel(context) -> int:
    """One for which RM takes USERD from a page of its own."""
    params = context.channel_params()
    params.userd_memory[0] = 0
    status, handle = context.rm.alloc(context.classes[0], context.tsg, params)
    assert status == 0
    return handle


def mapped(context, handle: int) -> int:
    """The address of its USERD."""
    status, _, address = context.rm.map_memory(context.gpu.device, handle, USERD_BYTES, 0)
    assert status == 0
    return address


def test_a_channels_userd_is_the_next_channels(machine):
    """It is mapped by the page, with those of other channels, and its place goes on to another client's channel."""
    mine, other = machine.client(), machine.client()
    context, theirs = (client.gpu().context(nv.NV2080_ENGINE_TYPE_COPY0 + 2) for client in (mine, other))
    first, second = channel(context), channel(context)
    at = mapped(context, second)
    assert at // PAGE == mapped(context, first) // PAGE
    assert mine.free(second, context.tsg) == 0
    assert mapped(theirs, channel(theirs)) == at
    assert mapped(context, first) // PAGE == at // PAGE, "and the view is of both"


def test_a_doorbell_is_mapped_by_the_device_above_it(machine):
    """As the module has it mapped, whichever subdevice the call names; and unmapped by that one."""
    client = machine.client()
    gpu = client.gpu()
    usermode = gpu.context(nv.NV2080_ENGINE_TYPE_COPY0 + 2).classes[1]
    status, doorbell = client.alloc(usermode, gpu.subdevice)
    assert status == 0
    status, _, address = client.map_memory(gpu.device, doorbell, 0x10000, 0)
    assert status == 0
    assert client.unmap_memory(gpu.subdevice, doorbell, address) == 0
    assert client.unmap_memory(gpu.subdevice, doorbell, address) != 0
