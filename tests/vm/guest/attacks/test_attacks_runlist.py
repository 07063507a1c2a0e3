# SPDX-License-Identifier: MIT
"""Hostile tenants whose copies are on the runlist of graphics: they take turns with the neighbours' kernels.

The simulated card has COPY3 and COPY4 there.
"""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sharebox import stat
from slicebox import MIB, PROC, Box, fresh_id, nvsim_as
from slicebox import nvclient as nv

pytestmark = pytest.mark.once

ASYNC, OTHER_ASYNC, SHARED, OTHER_SHARED = (nv.NV2080_ENGINE_TYPE_COPY0 + n for n in (0, 1, 3, 4))
BIND_GROUP, BIND_CHANNEL = 0xA06C0102, 0xA06F0104
SEC2, DECOMPRESS = 0x26, 0x42  # NV2080_ENGINE_TYPE_*: with runlists of their own from Ampere on
INVALID_STATE = 0x40
COPY_NS = 50_000_000
COPY_MBPS = Path("/sys/module/nvsim/parameters/copy_mbps")  # bytes of a microsecond
RESERVE_MIB = 32  # ctx_reserve_mib


@pytest.fixture
def neighbour(box: Box) -> Iterator[None]:
    """Policy 2, with another container that has work now and then: @box without weight is out of turn."""
    with Box(fresh_id(), 512) as other, other.client() as client:
        channel = client.gpu(0).space().group().channel()
        channel.submit(kernel_ns=1000)
        channel.wait()
        (PROC / "0/policy").write_text("2\n")
        yield
        (PROC / "0/policy").write_text("5\n")


def weight(box: Box, value: int) -> None:
    (box.proc / "weight").write_text(f"{value}\n")
    time.sleep(0.2)


def group_of(channel: nv.Channel) -> dict[str, int]:
    """The group by the simulated card's own count."""
    text = Path("/proc/driver/nvsim/0/tsgs").read_text()
    line = re.search(rf"^client={channel.gpu.rm.handle:x} tsg={channel.group.tsg:x} (.*)$", text, re.M)[1]
    return {key: int(value) for key, value in (word.split("=") for word in line.split())}


@pytest.mark.checked
@pytest.mark.parametrize("engine", [SHARED, OTHER_SHARED])
def test_time_by_copies_on_the_runlist_of_graphics(box: Box, gpu: nv.Gpu, neighbour: None, engine: int):
    channel = gpu.space().group(engine).channel()
    assert group_of(channel)["engine"] == nv.NV2080_ENGINE_TYPE_GRAPHICS
    assert (box.stat("channels"), box.used >= RESERVE_MIB * MIB) == (1, True), "scheduled, and charged as a context"
    weight(box, 0)
    channel.submit(copy_bytes=int(COPY_MBPS.read_text()) * COPY_NS // 1000)
    time.sleep(0.5)
    assert group_of(channel)["busy_ns"] == 0
    weight(box, 1)
    channel.wait(60)
    assert group_of(channel)["busy_ns"] >= COPY_NS


def test_asynchronous_copies_go_on(box: Box, gpu: nv.Gpu, neighbour: None):
    channel = gpu.space().group(ASYNC).channel()
    assert box.used < RESERVE_MIB * MIB
    weight(box, 0)
    channel.submit(copy_bytes=1 << 20)
    channel.wait(60)


def test_a_bind_to_another_runlist(box: Box, gpu: nv.Gpu):
    """The driver would follow the first one. Copy engines of graphics are as good as graphics itself."""
    space = gpu.space()
    cases = (
        (
            nv.NV2080_ENGINE_TYPE_GRAPHICS,
            (nv.NV2080_ENGINE_TYPE_GRAPHICS, SHARED, OTHER_SHARED),
            (ASYNC, OTHER_ASYNC, 0x13, SEC2, DECOMPRESS),
        ),
        (SHARED, (nv.NV2080_ENGINE_TYPE_GRAPHICS, SHARED), (ASYNC, 0x1B)),
        (
            ASYNC,
            (ASYNC,),
            (nv.NV2080_ENGINE_TYPE_GRAPHICS, 0, SHARED, OTHER_ASYNC, 0x13, nv.NV2080_ENGINE_TYPE_COPY0 + 7, 0x22),
        ),
    )
    for engine, good, bad in cases:
        channel = space.group(engine).channel()
        for handle, cmd in ((channel.group.tsg, BIND_GROUP), (channel.handle, BIND_CHANNEL)):
            refused = box.stat("refused_calls")
            assert [gpu.rm.control(handle, cmd, struct.pack("<I", type))[0] for type in good] == [0] * len(good)
            assert box.stat("refused_calls") == refused
            got = [gpu.rm.control(handle, cmd, struct.pack("<I", type))[0] for type in bad]
            assert got == [INVALID_STATE] * len(bad), engine
            assert box.stat("refused_calls") == refused + len(bad)
        channel.submit(**{"kernel_ns" if engine == nv.NV2080_ENGINE_TYPE_GRAPHICS else "copy_bytes": 1000})
        channel.wait()


@pytest.mark.parametrize("engine, good, bad", [
    (
        nv.NV2080_ENGINE_TYPE_NVDEC0,
        (nv.NV2080_ENGINE_TYPE_NVDEC0,),
        (nv.NV2080_ENGINE_TYPE_GRAPHICS, ASYNC, nv.NV2080_ENGINE_TYPE_NVENC0),
    ),
    (ASYNC, (ASYNC,), (nv.NV2080_ENGINE_TYPE_GRAPHICS, SHARED, nv.NV2080_ENGINE_TYPE_NVDEC0)),
])  # fmt: skip
def test_a_bind_of_a_channel_without_a_group(gpu: nv.Gpu, engine: int, good: tuple[int, ...], bad: tuple[int, ...]):
    """The driver makes its group, of the engine that the channel names; libnvcuvid binds such a channel."""
    group = gpu.space().group(engine)
    params = nv.in_branch(group.gpfifo_class, group.channel(enable=False).params(), gpu.rm.branch)
    status, channel = gpu.rm.alloc(group.gpfifo_class, gpu.device, params)
    assert status == 0
    got = [gpu.rm.control(channel, BIND_CHANNEL, struct.pack("<I", type))[0] for type in (*good, *bad)]
    assert got == [0] * len(good) + [INVALID_STATE] * len(bad)


@pytest.mark.parametrize("card", ["t4", "a100"])
def test_a_channel_is_bound_before_its_owner_has_it(card: str):
    """The driver puts one that is not bound on the runlist of its first object, or on Turing on that of graphics
    (test_the_runlist_of_a_channel_is_that_of_its_first_object)."""
    bound = {
        ASYNC: ASYNC,
        SHARED: nv.NV2080_ENGINE_TYPE_GRAPHICS,
        nv.NV2080_ENGINE_TYPE_GRAPHICS: nv.NV2080_ENGINE_TYPE_GRAPHICS,
    }
    with nvsim_as(card, ctx_mib=0), Box(fresh_id(), 1024) as box, box.client() as client:
        space = client.gpu(0).space()
        assert {engine: group_of(space.group(engine).channel())["bound"] for engine in bound} == bound


def test_the_size_of_a_context_is_not_learnt_from_a_copy_engine():
    """The driver makes none there, and the least that was measured is what each is charged."""
    with nvsim_as("a100", ctx_mib=48), Box(fresh_id(), 1024) as box, box.client() as client:
        learnt = stat("context_bytes")
        gpu = client.gpu(0)
        params = nv.TsgParams(vaspace=gpu.space().vaspace, engine=SHARED)
        assert gpu.rm.alloc(nv.KEPLER_CHANNEL_GROUP_A, gpu.device, params)[0] == 0
        assert stat("context_bytes") == learnt
        assert box.stat("used_context_bytes") == max(learnt, RESERVE_MIB * MIB)


def test_where_the_copy_engines_are_not_known(kernel_log):
    """All of them stop with their container."""
    with nvsim_as("t4", no_ce_caps=1), Box(fresh_id(), 1024) as box, box.client() as client:
        channel = client.gpu(0).space().group(ASYNC).channel()
        assert (box.stat("channels"), box.used >= RESERVE_MIB * MIB) == (1, True)
        channel.submit(copy_bytes=1 << 20)
        channel.wait()
        assert "names no asynchronous copy engine (status 0x56)" in kernel_log.news()
