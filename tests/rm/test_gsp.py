# SPDX-License-Identifier: MIT
"""Which calls RM answers itself and which reach the GSP, and with what."""

import struct

import nvclient as nv
import rm as home
from corelib import ffi

COPY2 = nv.NV2080_ENGINE_TYPE_COPY0 + 2
RUNLIST_SET_SCHED_POLICY = 0x20801115
CHANNEL_SCHEDULE = 0xA06F0103
OFFLINED_PAGES = 0x20801322


def disable_channels(rm, *channels: tuple[int, int], disable: bool = True) -> bytes:
    arg = nv.DisableChannels(disable=disable, count=len(channels))
    for i, (client, channel) in enumerate(channels):
        arg.client[i], arg.channel[i] = client, channel
    return bytes(arg)


def reached(context, run):
    """(status, [(control, object, params)]) of the tenant's calls that came to the GSP while run() ran."""
    context.rm.rm.seen()
    status = run()
    rows = [s for s in context.rm.rm.seen() if s.request == home.CONTROL and s.client == context.rm.handle]
    return status, [(s.number, s.object, s.params) for s in rows]


def test_scheduling_controls_reach_the_gsp(machine):
    """Each with its object and parameters unchanged; RM checks rights and handles only."""
    context = machine.client().gpu().context(COPY2)
    client, subdevice = context.rm, context.gpu.subdevice
    schedule = bytes([1]).ljust(client.rm.control_info(nv.NVA06C_CTRL_CMD_GPFIFO_SCHEDULE)[3], b"\0")
    channels = [(client.handle, context.channel), (client.handle, 0xBAD)]
    for handle, cmd, params in (
        (context.tsg, nv.NVA06C_CTRL_CMD_GPFIFO_SCHEDULE, schedule),
        (context.tsg, nv.NVA06C_CTRL_CMD_SET_TIMESLICE, struct.pack("<Q", 2000)),
        (context.tsg, nv.NVA06C_CTRL_CMD_PREEMPT, struct.pack("<BBxxI", 1, 0, 0)),
        (context.channel, CHANNEL_SCHEDULE, schedule),
        (context.channel, nv.NVA06F_CTRL_CMD_RESTART_RUNLIST, bytes([1, 0])),
        (subdevice, nv.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, disable_channels(client.rm, channels[0])),
        (subdevice, RUNLIST_SET_SCHED_POLICY, bytes(8)),
    ):
        result = reached(context, lambda h=handle, c=cmd, p=params: client.control(h, c, p)[0])
        assert result == (0, [(cmd, handle, params)]), hex(cmd)


def test_disable_channels_list_is_not_checked_by_rm(machine):
    """The list arrives unchanged, with a client and a channel that do not exist: the module must check it."""
    context = machine.client().gpu().context(COPY2)
    params = disable_channels(machine.rm, (0xDEAD, 0xBAD))
    assert len(params) == ffi.sizeof("struct nv_disable_channels")
    run = lambda: context.rm.control(context.gpu.subdevice, nv.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, params)[0]  # noqa: E731
    status, rows = reached(context, run)
    assert (status, rows) == (0, [(nv.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, context.gpu.subdevice, params)])


def test_a_control_that_the_card_does_not_know_is_refused_and_named_once(machine):
    """Not answered with the caller's own parameters, which would look like the card's."""
    gpu = machine.client().gpu()
    assert [gpu.rm.sized(gpu.subdevice, OFFLINED_PAGES) for _ in range(2)] == [nv.NV_ERR_NOT_SUPPORTED] * 2
    assert machine.rm.messages().count(f"control {OFFLINED_PAGES:#x} of") == 1


def test_a_disabled_channel_runs_again(machine):
    """What the module's freeze and thaw rest on: work queued in between is done after the thaw."""
    client = machine.client()
    gpu = client.gpu()
    context = gpu.context(COPY2)
    assert context.schedule() == 0
    memory = gpu.must_have(1 << 20)
    va = context.map(memory, 1 << 20)
    one = (client.handle, context.channel)
    assert (
        client.control(gpu.subdevice, nv.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, disable_channels(client.rm, one))[0]
        == 0
    )
    context.fill(va, 1, 16, done=1)
    assert context.semaphore() == 0
    again = disable_channels(client.rm, one, disable=False)
    assert client.control(gpu.subdevice, nv.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, again)[0] == 0
    machine.rm.poll()
    assert context.semaphore() == 1


def test_rm_answers_these_itself(machine):
    """Timeslice as set last, work token, sizes, memory: nothing of it comes to the GSP."""
    context = machine.client().gpu().context(COPY2)
    client, gpu = context.rm, context.gpu
    assert client.control(context.tsg, nv.NVA06C_CTRL_CMD_SET_TIMESLICE, struct.pack("<Q", 2000))[0] == 0

    def questions():
        status, data = client.control(context.tsg, nv.NVA06C_CTRL_CMD_GET_TIMESLICE, bytes(8))
        assert struct.unpack("<Q", data) == (2000,)
        status |= client.control(context.channel, nv.NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN, bytes(4))[0]
        gpu.heap_free()
        surface = gpu.surface(1 << 20)
        return status | surface.status | gpu.free(surface.handle)

    assert reached(context, questions) == (0, [])


def test_rm_passes_on_a_timeslice_of_zero(some_machine):
    """Bounds of timeslices are not RM's."""
    context = some_machine.client().gpu().context(COPY2)
    run = lambda: context.rm.control(context.tsg, nv.NVA06C_CTRL_CMD_SET_TIMESLICE, bytes(8))[0]  # noqa: E731
    assert reached(context, run) == (0, [(nv.NVA06C_CTRL_CMD_SET_TIMESLICE, context.tsg, bytes(8))])
