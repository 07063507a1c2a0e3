# SPDX-License-Identifier: MIT
"""Video engines: which a chip has, and when RM takes the memory of their contexts. The buffers' size is our GSP's."""

import struct

import nvclient as nv
from client import VIDEOS, Context

CONTEXT = 256 << 10  #: VIDEO_CONTEXT_BYTES of tests/simgpu/gsp/tables.c
CHANNEL = 64 << 10
TURING = "TU104"


def context(machine, engine: int) -> Context:
    return machine.client().gpu().context(engine, with_object=False)


def test_a_chip_has_what_its_list_of_classes_has(machine):
    own = VIDEOS[machine.chip]
    assert {kind: context(machine, kind).session()[0] for kind in own} == dict.fromkeys(own, 0)
    channel = context(machine, nv.NV2080_ENGINE_TYPE_NVDEC0).channel
    client = machine.clients[-1]
    others = {cls for chip in VIDEOS.values() for cls in chip.values()} - set(own.values())
    for cls in others:
        assert client.alloc(cls, channel, struct.pack("<3I", 12, 0, 0))[0] == nv.NV_ERR_INVALID_CLASS


def test_a_context_is_taken_with_its_group(machine):
    """From GA100 on all of it, before there is a session, and with the channel what each channel takes."""
    for engine in VIDEOS[machine.chip]:
        made = context(machine, engine)
        sizes = made.before_group - made.before_channel, made.before_channel - made.before_object
        assert sizes == ((0, 0) if machine.chip == TURING else (CONTEXT, CHANNEL))


def test_a_channel_without_a_group_takes_a_context_too(machine):
    made = context(machine, nv.NV2080_ENGINE_TYPE_NVDEC0)
    gpu = made.gpu
    before = gpu.heap_free()
    status, channel = gpu.rm.alloc(made.classes[0], gpu.device, made.channel_params())
    assert (status, before - gpu.heap_free()) == (0, 0 if machine.chip == TURING else CONTEXT + CHANNEL)
    assert made.session(channel)[0] == 0


def test_a_session_takes_nothing_and_the_context_outlives_it(machine):
    made = context(machine, nv.NV2080_ENGINE_TYPE_NVDEC0)
    gpu = made.gpu
    before = gpu.heap_free()
    sessions = [made.session() for _ in range(3)]
    assert [status for status, _ in sessions] == [0, 0, 0]
    for _, handle in sessions:
        assert gpu.rm.free(handle, made.channel) == 0
    assert gpu.heap_free() == before
    assert gpu.rm.free(made.channel, made.tsg) == 0
    assert gpu.heap_free() == made.before_channel
    assert gpu.rm.free(made.tsg, gpu.device) == 0
    assert gpu.heap_free() == made.before_group
