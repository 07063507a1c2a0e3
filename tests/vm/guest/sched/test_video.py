# SPDX-License-Identifier: MIT
"""Video engines in a slice: sessions counted, contexts charged, and work that stops with the container's turn."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from runstatebox import stat, state
from sharebox import NATIVE, WEIGHTED, put
from slicebox import MIB, Box, child, clean_box, fb_used, fresh_id, nvsim_as, until
from slicebox import nvclient as nv

pytestmark = pytest.mark.once

PARAMETERS = Path("/sys/module/cgpu_km/parameters")
SCHEDULE_CHANNEL = 0xA06F0103
FRAME_NS = 2_000_000
KINDS = {
    nv.NV2080_ENGINE_TYPE_NVDEC0: "nvdec",
    nv.NV2080_ENGINE_TYPE_NVENC0: "nvenc",
    nv.NV2080_ENGINE_TYPE_NVJPEG0: "nvjpg",
    nv.NV2080_ENGINE_TYPE_OFA0: "ofa",
}
DECODER = 0xC4B0  # of the T4


@contextlib.contextmanager
def parameter(name: str, value: int) -> Iterator[None]:
    """A parameter of the module, as it was again afterwards."""
    node = PARAMETERS / name
    before = node.read_text()
    node.write_text(str(value))
    try:
        yield
    finally:
        node.write_text(before)


def channel_of(gpu: nv.Gpu, engine: int = nv.NV2080_ENGINE_TYPE_NVDEC0, session: bool = False) -> nv.Channel:
    return gpu.space().group(engine).channel(session=session)


def sessions(channel: nv.Channel, upto: int = 2000) -> tuple[int, list[int]]:
    """Objects until one is refused: its status, and those that were made."""
    made: list[int] = []
    for _ in range(upto):
        status, handle = channel.session()
        if status:
            return status, made
        made.append(handle)
    return 0, made


def works(engine: int) -> int:
    """Frames that the engine has done, by the simulated card's own count."""
    text = Path("/proc/driver/nvsim/0/tsgs").read_text()
    return sum(int(done) for done in re.findall(rf"engine={engine} .*works=(\d+)", text))


# ---- sessions ----


def test_each_engine_has_a_number_of_its_own(box: Box, gpu: nv.Gpu):
    """512 in all, an eighth kept back, half of the rest floors of twenty."""
    made = channel_of(gpu, session=True), channel_of(gpu, nv.NV2080_ENGINE_TYPE_NVENC0, session=True)
    assert [box.stat(kind) for kind in KINDS.values()] == [1, 1, 0, 0]
    assert (box.stat("nvdec_floor"), box.stat("nvdec_left")) == (224 // 20, 448 - 19 * 11 - 1)
    assert gpu.rm.free(made[0].handle, made[0].group.tsg) == 0
    assert [box.stat(kind) for kind in KINDS.values()] == [0, 1, 0, 0]


@pytest.mark.parametrize(
    "engine", [nv.NV2080_ENGINE_TYPE_GRAPHICS, nv.NV2080_ENGINE_TYPE_COPY0, nv.NV2080_ENGINE_TYPE_NVENC0]
)
def test_an_object_on_another_engines_channel(box: Box, gpu: nv.Gpu, engine: int):
    """Only channels of its own engine are known to stop with it."""
    channel = channel_of(gpu, engine)
    refused = box.stat("refused_calls")
    assert gpu.rm.alloc(DECODER, channel.handle, struct.pack("<3I", 12, 0, 0))[0] == nv.NV_ERR_INVALID_CLASS
    assert (box.stat("nvdec"), box.stat("refused_calls")) == (0, refused + 1)


@pytest.mark.checked
def test_at_the_limit_the_neighbour_has_its_floor(box: Box, gpu: nv.Gpu, other: Box):
    with parameter("nvdec_sessions", 91):  # 80 to give: two for each of twenty, 40 first come
        status, made = sessions(channel_of(gpu))
        assert (status, len(made)) == (nv.NV_ERR_INSUFFICIENT_RESOURCES, 2 + 40)
        assert (box.stat("nvdec"), box.stat("nvdec_floor"), box.stat("nvdec_left")) == (42, 2, 0)
        with other.client() as rm:
            status, own = sessions(channel_of(rm.gpu()))
            assert (status, len(own)) == (nv.NV_ERR_INSUFFICIENT_RESOURCES, 2)
        until(lambda: other.stat("nvdec") == 0)
        gpu.free(made[0])
        assert (box.stat("nvdec"), box.stat("nvdec_left")) == (41, 1)


def test_none_is_allowed(box: Box, gpu: nv.Gpu):
    channel = channel_of(gpu)
    with parameter("nvdec_sessions", 0):
        assert channel.session()[0] == nv.NV_ERR_INVALID_CLASS
    assert channel.session()[0] == 0


def test_where_a_freeze_does_not_stop_the_engine(box: Box, gpu: nv.Gpu):
    """RESTART_RUNLIST is made of the graphics runlist: a decoder would run on."""
    channel = channel_of(gpu)
    with parameter("freeze_restart", 1):
        assert channel.session()[0] == nv.NV_ERR_INVALID_CLASS
    assert channel.session()[0] == 0
    assert box.stat("nvdec") == 1


@pytest.mark.checked
def test_a_killed_process_gives_all_back(box: Box):
    def work() -> None:
        gpu = box.client().gpu()
        channel = channel_of(gpu)
        for _ in range(30):
            channel.session()
        channel.submit(frame_ns=FRAME_NS, count=20)

    with child(work) as pid:
        until(lambda: box.stat("nvdec") == 30)
        os.kill(pid, signal.SIGSTOP)
    until(lambda: (box.stat("nvdec"), box.stat("channels"), box.used) == (0, 0, 0))


# ---- time ----


@pytest.fixture
def without_weight() -> Iterator[tuple[Box, Box]]:
    """Two containers, the first with all of the weight: the second runs under the native policy only."""
    put("max_inst", 2)
    try:
        with Box(fresh_id(), 1024, weight=2) as first, Box(fresh_id(), 1024) as second:
            yield first, second
    finally:
        put("policy", NATIVE)
        put("max_inst", 20)


def lone(gpu: nv.Gpu) -> nv.Channel:
    """A channel of a decoder without a group, for which the driver makes one."""
    space = gpu.space()
    group = space.group(nv.NV2080_ENGINE_TYPE_NVDEC0)

    class Lone(nv.Channel):
        def params(self):
            arg = super().params()
            arg.vaspace = space.vaspace
            return arg

    tsg, group.tsg = group.tsg, gpu.device
    try:
        channel = Lone(group, enable=False)
    finally:
        group.tsg = tsg
    params = nv.in_branch(nv.NVA06C_CTRL_CMD_GPFIFO_SCHEDULE, bytes([1, 0, 0]), gpu.rm.branch)
    nv.check("GPFIFO_SCHEDULE", gpu.rm.control(channel.handle, SCHEDULE_CHANNEL, params)[0])
    return channel


MAKERS = {"of a group": lambda gpu: channel_of(gpu, session=True), "without a group": lone}


@pytest.mark.checked
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_frozen_containers_decoder_stops(without_weight, make: Callable[[nv.Gpu], nv.Channel]):
    first, second = without_weight
    with first.client() as a, second.client() as b:
        runs, stops = make(a.gpu()), make(b.gpu())
        for channel in (runs, stops):
            channel.submit(frame_ns=FRAME_NS)
            channel.wait()
        put("policy", WEIGHTED)
        until(lambda: (first.stat("running"), second.stat("running")) == (1, 0))
        stops.submit(frame_ns=FRAME_NS, count=3)
        runs.submit(frame_ns=FRAME_NS, count=3)
        runs.wait()
        time.sleep(0.2)
        assert stops.reap() == 1, "the frames that were queued after the freeze wait"
        late = make(b.gpu())
        late.submit(frame_ns=FRAME_NS)
        time.sleep(0.2)
        assert late.reap() == 0, "a channel that is made out of turn is frozen before its first frame"
        put("policy", NATIVE)
        assert (stops.wait(), late.wait()) == (4, 1)


def test_frames_in_a_row_stop_in_the_middle(without_weight):
    first, second = without_weight
    with first.client() as a, second.client() as b:
        channel_of(a.gpu(), session=True)
        channel = channel_of(b.gpu(), session=True)
        channel.submit(frame_ns=50 * FRAME_NS, count=50)
        until(lambda: works(nv.NV2080_ENGINE_TYPE_NVDEC0) >= 1)
        put("policy", WEIGHTED)
        until(lambda: second.stat("running") == 0)
        done = works(nv.NV2080_ENGINE_TYPE_NVDEC0)
        time.sleep(0.5)
        assert works(nv.NV2080_ENGINE_TYPE_NVDEC0) == done < 50
        assert second.stat("opened") == 1, "a decoder alone opens the GPU"


def test_a_container_that_decodes_has_work():
    """The words of a video engine's runlist count; without one the container's state is unknown."""
    with nvsim_as("a100", fb_mib=15109), Box(fresh_id(), 1024) as box, box.client() as rm:
        gpu = rm.gpu()
        space = gpu.space()
        channel = space.group(nv.NV2080_ENGINE_TYPE_NVDEC0).channel()
        assert state() == ("none", 0, 0)
        assert space.uvm.register_channel(gpu.uuid, rm, channel.handle) == 0
        assert state() == ("chram", 1, 0)
        channel.submit(frame_ns=400_000_000)
        until(lambda: state() == ("chram", 1, 1), 2, step=0.001)
        channel.wait()
        until(lambda: state() == ("chram", 1, 0), 2, step=0.001)
        space.group(nv.NV2080_ENGINE_TYPE_OFA0).channel()
        assert state() == ("chram", 0, 0)


# ---- memory ----


def decoders_group(gpu: nv.Gpu) -> int:
    """The status of a group without channels."""
    return gpu.rm.alloc(
        nv.KEPLER_CHANNEL_GROUP_A, gpu.device, nv.TsgParams(vaspace=0, engine=nv.NV2080_ENGINE_TYPE_NVDEC0)
    )[0]


def test_its_context_is_charged_with_its_group():
    """As NVIDIA's driver takes it (tests/rm/test_video.py); the module remembers the least that it has measured."""
    with nvsim_as("a100", fb_mib=15109), clean_box(1024) as box, box.client() as rm:
        gpu = rm.gpu()
        before = stat()["context_bytes"]
        used, card = box.used, fb_used()
        for n in (1, 2):
            assert decoders_group(gpu) == 0
            assert box.used - used == fb_used() - card == n * 2 * MIB
        channel = channel_of(gpu)
        used = box.used
        assert channel.session()[0] == 0
        assert box.used == used
        assert stat()["context_bytes"] == before, "a graphics context's is another number"


def test_a_channel_without_a_group_is_charged_a_context():
    with nvsim_as("a100", fb_mib=15109), clean_box(1024) as box, box.client() as rm:
        gpu = rm.gpu()
        assert decoders_group(gpu) == 0
        used = box.used
        channel_of(gpu)
        grouped = box.used - used
        assert grouped >= 2 * MIB
        lone(gpu)
        assert box.used - used - grouped == grouped + 2 * MIB, "lone() has a group beside its channel's own"


def test_groups_over_the_memory_limit():
    with nvsim_as("a100", fb_mib=15109), Box(fresh_id(), 3) as box, box.client() as rm:
        gpu = rm.gpu()
        assert decoders_group(gpu) == 0
        assert decoders_group(gpu) == nv.NV_ERR_NO_MEMORY
        assert box.stat("refused_allocs") == 1


# ---- cards ----


@pytest.mark.parametrize("profile", ["t4", "a100", "h100"])
def test_what_a_card_has(profile: str):
    """By the public driver's list of classes: a data-centre chip encodes nothing."""
    has = {"t4": {"nvdec", "nvenc"}, "a100": {"nvdec", "nvjpg", "ofa"}, "h100": {"nvdec", "nvjpg", "ofa"}}[profile]
    with nvsim_as(profile), Box(fresh_id(), 1024) as box, box.client() as rm:
        gpu = rm.gpu()
        for engine, kind in KINDS.items():
            if kind in has:
                channel_of(gpu, engine, session=True)
            else:
                with pytest.raises(nv.RmError):
                    gpu.video_class(engine)
            assert box.stat(kind) == (kind in has)


def test_a_card_without_them():
    with nvsim_as("t4", video=0), Box(fresh_id(), 1024) as box, box.client() as rm:
        gpu = rm.gpu()
        with pytest.raises(nv.RmError):
            channel_of(gpu)
        channel = channel_of(gpu, nv.NV2080_ENGINE_TYPE_COPY0)
        assert gpu.rm.alloc(DECODER, channel.handle, struct.pack("<3I", 12, 0, 0))[0] == nv.NV_ERR_INVALID_CLASS
        assert box.stat("nvdec") == 0


def test_the_refusal_names_the_kind(box: Box, gpu: nv.Gpu, kernel_log):
    with parameter("nvenc_sessions", 4):
        sessions(channel_of(gpu, nv.NV2080_ENGINE_TYPE_NVENC0))
    assert re.search(r"1 sessions of NVENC refused, it has 4 and may have 0 more", kernel_log.news())
