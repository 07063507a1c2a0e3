# SPDX-License-Identifier: MIT
"""Where RM takes a context's memory. The buffers' sizes are our GSP's; when and from where they are taken is RM's."""

import struct

import nvclient as nv
import pytest

KIB = 1 << 10
COPY2 = nv.NV2080_ENGINE_TYPE_COPY0 + 2


def test_a_context_is_taken_with_its_group(machine):
    """From GA100 on: when the TSG is made, and 64 KiB with the channel. On Turing HEAP_FREE never shows it."""
    context = machine.client().gpu().context()
    group = context.before_group - context.before_channel
    channel = context.before_channel - context.before_object
    assert context.before_object == context.after, "the engine object takes nothing"
    if machine.chip == "TU104":
        assert (group, channel) == (0, 0)
    else:
        assert channel == 64 * KIB
        # one main buffer of 1 MiB and 24 or 25 others of 64 KiB, of our GSP, and what RM adds
        assert group > (1024 + 24 * 64) * KIB


def test_a_copy_group_has_no_context_buffers(machine):
    """cgpu charges groups on graphics and compute engines only."""
    context = machine.client().gpu().context(COPY2)
    assert context.before_group == context.before_channel


def test_a_context_comes_back_with_its_file(machine):
    client = machine.client()
    before = machine.observer.heap_free()
    client.gpu().context()
    client.close()
    machine.clients.remove(client)
    assert machine.observer.heap_free() == before


def test_work_runs_in_the_memory_that_rm_mapped(machine):
    """A fill by the copy engine through RM's page tables is what the CPU sees through RM's mapping."""
    client = machine.client()
    gpu = client.gpu()
    context = gpu.context(COPY2)
    assert context.schedule() == 0
    memory = gpu.must_have(1 << 20)
    context.fill(context.map(memory, 1 << 20), 0xC0FFEE, 1024, done=1)
    assert context.semaphore() == 1
    status, fd, _ = client.map_memory(gpu.device, memory, 1 << 20, card=0)
    assert status == 0
    assert machine.rm.read(fd, 0, 4096) == (0xC0FFEE).to_bytes(4, "little") * 1024
    assert machine.rm.read(fd, 4096, 16) == bytes(16)


@pytest.mark.parametrize("engine", [pytest.param(COPY2, marks=pytest.mark.more), nv.NV2080_ENGINE_TYPE_GRAPHICS])
def test_channel_ids_end(some_machine, engine):
    """One client can take all ids of a runlist; the next group of anyone is refused with NV_ERR_NO_FREE_FIFOS."""
    client = some_machine.client()
    gpu = client.gpu()
    context = gpu.context(engine)
    pairs, status = 0, 0
    while not status and pairs < 2100:
        group = nv.TsgParams(vaspace=context.space, engine=engine)
        status, tsg = client.alloc(nv.KEPLER_CHANNEL_GROUP_A, gpu.device, group)
        if not status:
            status, _ = client.alloc(context.classes[0], tsg, context.channel_params())
            pairs += not status
    assert status == 0x4F
    assert 2030 < pairs < 2048, "a few ids are RM's own"
    other = some_machine.client()
    group = nv.TsgParams(vaspace=0, engine=engine)
    assert other.alloc(nv.KEPLER_CHANNEL_GROUP_A, other.gpu().device, group)[0] == 0x4F


BIND = 0xA06F0104  #: NVA06F_CTRL_CMD_BIND
NV_ERR_INVALID_STATE = 0x40


@pytest.mark.parametrize("bound", [False, True])
def test_the_runlist_of_a_channel_is_that_of_its_first_object(machine, bound: bool):
    """Of a group made for graphics too, unless the channel is bound: the module binds it (rm_alloc_context.c)."""
    context = machine.client().gpu().context(with_object=False)
    client = context.rm

    def bind(engine: int) -> int:
        return client.control(context.channel, BIND, struct.pack("<I", engine))[0]

    if bound:
        assert bind(nv.NV2080_ENGINE_TYPE_GRAPHICS) == 0
    status, _ = client.alloc(context.classes[3], context.channel, nv.CopyParams(1, COPY2))
    assert (status == 0) == (not bound)
    other = NV_ERR_INVALID_STATE
    assert (bind(COPY2), bind(nv.NV2080_ENGINE_TYPE_GRAPHICS)) == ((other, 0) if bound else (0, other))
