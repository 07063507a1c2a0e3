# SPDX-License-Identifier: MIT
"""What a container does on a card under NVIDIA's own kernel driver."""

from __future__ import annotations

import nvclient
from slicebox import MIB


def compute_and_fill(client: nvclient.Client, limit_mib: int) -> None:
    """Work of a context, memory within the limit, and more than the limit leaves."""
    gpu = client.gpu(0)
    space = gpu.space()
    group = space.group(nvclient.NV2080_ENGINE_TYPE_GRAPHICS)
    channel = group.channel(enable=False)
    assert space.bind(channel) == nvclient.NV_OK
    assert group.enable() == nvclient.NV_OK
    channel.submit(count=4)
    assert channel.wait() == 4
    assert gpu.alloc_vidmem(limit_mib * MIB // 2)[0] == nvclient.NV_OK
    assert gpu.alloc_vidmem(limit_mib * MIB)[0] == nvclient.NV_ERR_NO_MEMORY


def free_bytes(card: nvclient.Gpu) -> int:
    """Of the card's own heap."""
    return card.fb_info(nvclient.NV2080_CTRL_FB_INFO_INDEX_HEAP_FREE)[0] << 10
