# SPDX-License-Identifier: MIT
"""Hostile tenants with context DMAs, which are known as error notifiers of channels only."""

from __future__ import annotations

import pytest
from slicebox import Box
from slicebox import nvclient as nv

pytestmark = [pytest.mark.checked, pytest.mark.attached]

LIMIT_MIB = 256
CONTEXT_DMA = 0x2
NOTIFIER = 1 << 29 | 1 << 20  # NVOS03_FLAGS: no hash table, a notifier
BYTES = 176  # as libnvcuvid has it
PAGE = 4096
INVALID_PARENT = 0x36


def notifier(gpu: nv.Gpu, memory: int, parent: int = 0, **fields: int) -> tuple[int, int]:
    params = nv.ContextDma(**{"flags": NOTIFIER, "memory": memory, "limit": BYTES - 1, **fields})
    return gpu.rm.alloc(CONTEXT_DMA, parent or gpu.device, params)


@pytest.mark.parametrize("name", ["error_object", "ecc_error_object"])
@pytest.mark.parametrize("by", ["notifier", "memory"])
def test_a_channel_goes_before_its_notifier(box: Box, name: str, by: str):
    """The driver frees a context DMA with its memory, and leaves a channel the address."""
    with box.client() as client:
        gpu = client.gpu(0)
        group = gpu.space().group()
        channel = group.channel()
        params = channel.params()
        for _ in range(2):
            status, memory = gpu.alloc_sysmem(PAGE)
            assert status == 0
            status, dma = notifier(gpu, memory)
            assert status == 0
            setattr(params, name, dma)
            assert [client.alloc(group.gpfifo_class, group.tsg, params)[0] for _ in range(2)] == [0, 0]
            assert box.stat("channels") == 3
            assert gpu.free(dma if by == "notifier" else memory) == 0
            assert box.stat("channels") == 1
        channel.submit(kernel_ns=1000)
        channel.wait()


def test_other_context_dmas(box: Box):
    """Not at the start, longer than a page, of another type, of a subdevice, of what is no system memory."""
    with box.client() as client, box.client() as other:
        gpu = client.gpu(0)
        status, memory = gpu.alloc_sysmem(16 * PAGE)
        assert status == 0
        status, video = gpu.alloc_vidmem(64 << 10)
        assert status == 0
        status, theirs = other.gpu(0).alloc_sysmem(PAGE, 0x7E57)
        assert status == 0
        refused = box.stat("refused_calls")
        wrong = (
            {"offset": PAGE},
            {"offset": (1 << 64) - PAGE},
            {"limit": PAGE},
            {"limit": (1 << 64) - 1},
            {"flags": 1 << 29},
            {"flags": NOTIFIER | 1 << 12},
            {"flags": 0},
            {"subdevice": gpu.subdevice},
        )
        for fields in wrong:
            assert notifier(gpu, memory, **fields)[0] == nv.NV_ERR_INVALID_CLASS, fields
        assert notifier(gpu, video)[0] == INVALID_PARENT
        assert notifier(gpu, memory, parent=gpu.subdevice)[0] == INVALID_PARENT
        assert notifier(gpu, theirs)[0] == nv.NV_ERR_OBJECT_NOT_FOUND
        assert box.stat("refused_calls") == refused + len(wrong) + 3


def test_a_notifier_is_no_memory(box: Box):
    """Nor is there a second handle of it."""
    with box.client() as client:
        gpu = client.gpu(0)
        space = gpu.space()
        group = space.group()
        params = group.channel().params()
        status, memory = gpu.alloc_sysmem(PAGE)
        assert status == 0
        status, dma = notifier(gpu, memory)
        assert status == 0
        assert notifier(gpu, dma)[0] == INVALID_PARENT
        assert client.dup(gpu.device, client, dma)[0] == nv.NV_ERR_NOT_SUPPORTED
        assert space.map(dma, PAGE)[0] != nv.NV_OK
        params.userd_memory[0], params.userd_offset[0] = dma, 0
        assert client.alloc(group.gpfifo_class, group.tsg, params)[0] == INVALID_PARENT
        assert box.stat("channels") == 1
