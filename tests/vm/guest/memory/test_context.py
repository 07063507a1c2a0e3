# SPDX-License-Identifier: MIT
"""The charge for a context: on Turing a constant, from Ampere on the measured size of its group."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from slicebox import MIB, PROC, Box, clean_box, fb_used, fresh_id, nvsim_as, until
from slicebox import nvclient as nv

pytestmark = pytest.mark.once

CTX_MIB = 48  # of this nvsim; as on the other boots, because the module remembers it
RESERVE_MIB = 32  # ctx_reserve_mib
KIB = 1024


@pytest.fixture(scope="module")
def ampere() -> Iterator[None]:
    with nvsim_as("a100", ctx_mib=CTX_MIB, fb_mib=15109):
        yield


@pytest.fixture
def box(ampere: None) -> Iterator[Box]:
    with clean_box(1024) as box:
        yield box


@pytest.fixture
def space(gpu: nv.Gpu) -> int:
    return gpu.rm.alloc(nv.FERMI_VASPACE_A, gpu.device, nv.VaspaceParams())[1]


def stat(key: str) -> int:
    return int(dict(line.split() for line in (PROC / "0/stat").read_text().splitlines())[key])


def group(gpu: nv.Gpu, space: nv.Space, engine: int = nv.NV2080_ENGINE_TYPE_GRAPHICS) -> tuple[int, int]:
    """A group and nothing else: (status, handle)."""
    return gpu.rm.alloc(nv.KEPLER_CHANNEL_GROUP_A, gpu.device, nv.TsgParams(vaspace=space.vaspace, engine=engine))


@pytest.fixture
def many(ampere: None) -> Iterator[Box]:
    with clean_box(2048) as box:
        yield box


def test_contexts_of_which_none_can_be_measured(many: Box):
    """Any other call at the same time makes a measurement void: a bomb of contexts is charged more than it takes."""
    assert stat("context_bytes") == RESERVE_MIB * MIB, "none was measured"
    before, count = fb_used(), 10
    with contextlib.ExitStack() as held, slow(ctx_ms=1000):
        spaces = [held.enter_context(many.client()).gpu(0) for _ in range(count)]
        spaces = [(gpu, gpu.space()) for gpu in spaces]
        tables = many.used
        threads = [threading.Thread(target=group, args=one) for one in spaces]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert stat("context_bytes") == RESERVE_MIB * MIB, "none could be measured"
        assert fb_used() - before >= count * CTX_MIB * MIB
        assert many.used - tables == (4 * RESERVE_MIB + (count - 4) * 128) * MIB
    until(lambda: many.used == 0)


def test_what_a_context_takes_is_learnt_when_its_group_is_made(box: Box, gpu: nv.Gpu):
    """No call returns the size: the first context is measured and its charge corrected; the next is charged at once."""
    space, card = gpu.space(), fb_used()
    assert group(gpu, space)[0] == 0
    assert stat("context_bytes") == box.used == box.stat("used_context_bytes") == CTX_MIB * MIB
    assert fb_used() - card == CTX_MIB * MIB, "before there is a channel"
    status, second = group(gpu, space)
    assert (status, box.used) == (0, 2 * CTX_MIB * MIB)
    assert gpu.free(second) == 0
    assert box.used == CTX_MIB * MIB
    assert group(gpu, space, nv.NV2080_ENGINE_TYPE_COPY0)[0] == 0
    assert box.used == CTX_MIB * MIB, "a copy engine has none"


def test_what_channels_take_is_charged_on_a_copy_engine_too(box: Box, gpu: nv.Gpu):
    """64 KiB each: beyond the included part, memory in use on the card does not exceed the charge."""
    space, card = gpu.space(), fb_used()
    copy = space.group(nv.NV2080_ENGINE_TYPE_COPY0)
    made = copy.channel()
    alloc = gpu.rm.alloc
    while alloc(copy.gpfifo_class, copy.tsg, made.params())[0] == 0:
        pass
    assert box.stat("channels") > 256
    assert fb_used() - card == box.stat("channels") * 64 * KIB
    assert box.used >= box.stat("channels") * 64 * KIB - 16 * MIB - 1024 * MIB // 512 > 0
    assert box.stat("used_tables_bytes") == box.used


# ---- the least counts, for the whole GPU and for good ----


@contextlib.contextmanager
def slow(**parameters: int) -> Iterator[None]:
    """The simulator's parameters, as they were again afterwards."""
    nodes = {Path(f"/sys/module/nvsim/parameters/{name}"): str(value) for name, value in parameters.items()}
    before = {node: node.read_text() for node in nodes}
    for node, text in nodes.items():
        node.write_text(text)
    try:
        yield
    finally:
        for node, text in before.items():
            node.write_text(text)


def seen_of_a_context(box: Box, between: Callable[[], object]) -> int:
    """The known size after a context for which the driver needs a second, with @between run meanwhile."""
    failed: list[Exception] = []

    def make() -> None:
        try:
            with box.client() as client:
                client.gpu(0).space().group()
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=make)
    with slow(ctx_ms=1500):
        thread.start()
        time.sleep(0.6)
        between()
        thread.join()
    assert not failed
    return stat("context_bytes")


@pytest.fixture
def other(ampere: None) -> Iterator[Box]:
    """Another container, and a context's size known."""
    with Box(fresh_id(), 512) as other:
        with slow(ctx_ms=0), other.client() as client:
            client.gpu(0).space().group()
        yield other


def test_a_context_measured_while_page_tables_go(box: Box, gpu: nv.Gpu, space: int, other: Box):
    known = stat("context_bytes")
    assert known
    _, memory = gpu.alloc_vidmem(2 * MIB)
    with slow(tables_kib=1024):
        status, at = gpu.rm.map_dma(gpu.device, space, memory, 2 * MIB)
    assert status == 0
    assert seen_of_a_context(other, lambda: gpu.rm.unmap_dma(gpu.device, space, memory, at)) == known


def mapped_until_killed(box: Box) -> int:
    """A process with managed memory ends, while another one of its process group keeps its files open."""
    pid = os.fork()
    if not pid:
        try:
            os.setpgid(0, 0)
            with box.client() as client:
                client.gpu(0).space().uvm.managed(4 * MIB)
                os.fork()
                signal.pause()
        finally:
            os._exit(1)
    until(lambda: box.used == 4 * MIB)
    time.sleep(0.5)
    return pid


def test_a_context_measured_while_an_exit_gives_back(box: Box, other: Box):
    """The exit begins before the context is made; its memory is back while the driver makes it."""
    known = stat("context_bytes")
    assert known
    (PROC / "0/uvm").write_text("account\n")
    try:
        pid = mapped_until_killed(box)
        with slow(close_ms=1500):
            os.kill(pid, signal.SIGKILL)
            time.sleep(0.4)
            seen = seen_of_a_context(other, lambda: None)
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        assert seen == known
        until(lambda: box.used == 0)
    finally:
        (PROC / "0/uvm").write_text("deny\n")
