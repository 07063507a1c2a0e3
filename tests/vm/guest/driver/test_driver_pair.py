# SPDX-License-Identifier: MIT
"""Two cards of one kind under NVIDIA's own kernel driver: peers, in a container that has both."""

from __future__ import annotations

from collections.abc import Iterator

import cuda_box as c
import nvclient as nv
import pytest
from driver_box import free_bytes
from peers_box import DISABLE, ENABLE, NO_NUMBER, NV_ERR_INVALID_DEVICE, PAIR, Pair, access, shared_space
from slicebox import KINDS, MIB, until

pytestmark = pytest.mark.driver_pair

LIMIT_MIB = 1024
VECTOR_BYTES = 8 * MIB  #: SIZE of tests/cuda/peers/peers.c


@pytest.fixture
def pair() -> Iterator[Pair]:
    with Pair(LIMIT_MIB) as pair:
        yield pair


def test_rm_calls_the_two_peers(pair: Pair) -> None:
    with nv.Client(pair.dev) as rm:
        ids = [rm.gpu(number).card.gpu_id for number in (0, 1)]
        assert rm.p2p_caps(*ids) == (0, PAIR, bytes([0, 0, 5, 5, 0, 5, 0, 5, 5]), (NO_NUMBER,) * 4)


@pytest.mark.parametrize("owner", [0, 1])
def test_the_copy_engine_of_one_writes_the_others_memory(pair: Pair, cards: list[nv.Gpu], owner: int) -> None:
    """Over nvidia-uvm's peers; the memory is charged where it lies, as much as that card's heap has less."""
    with nv.Client(pair.dev) as rm:
        theirs, mine = rm.gpu(owner), rm.gpu(1 - owner)
        space = mine.space()
        uvm = shared_space(space, theirs)
        channel = space.group(nv.NV2080_ENGINE_TYPE_COPY0).channel(enable=False)
        assert space.bind(channel) == 0
        assert channel.group.enable() == 0
        charged, free = pair.used(), list(map(free_bytes, cards))
        status, memory = theirs.alloc_vidmem(4 * MIB)
        assert status == 0
        expected = [4 * MIB * (number == owner) for number in (0, 1)]
        assert [was - now for was, now in zip(free, map(free_bytes, cards), strict=True)] == expected
        assert [now - was for was, now in zip(charged, pair.used(), strict=True)] == expected
        assert space.map(memory, 4 * MIB)[0] == NV_ERR_INVALID_DEVICE, "no access yet"
        assert access(uvm, ENABLE, theirs, mine) == 0
        status, at = space.map(memory, 4 * MIB)
        assert status == 0
        seen = theirs.map_cpu(memory, 4096)
        channel.submit(op=nv.OP_RELEASE, sem_va=at + 64)
        until(lambda: seen.read64(64) == 1)
        assert theirs.free(memory) == 0
        assert pair.used()[owner] == charged[owner] + 4 * MIB, "the peer still has it"
        assert access(uvm, DISABLE, theirs, mine) == 0
        assert pair.used()[owner] == charged[owner]


def test_libcuda(pair: Pair, cards: list[nv.Gpu]) -> None:
    """cuMemcpyPeer and a copy by address; then an all-reduce of two processes over memory that comes by IPC.

    Of what a card's heap has less, data is charged to the byte. The rest is the driver's own: the same on both cards
    and in both programs, and no more than is charged for contexts and page tables.
    """
    data, own = {}, set()
    for what in ("copy", "reduce"):
        free = list(map(free_bytes, cards))
        charges, left = c.peers(
            pair.dev, what, lambda: ([charge(pair, gpu) for gpu in (0, 1)], list(map(free_bytes, cards)))
        )
        assert charges[0] == charges[1], what
        data[what] = charges[0]["data"]
        own |= {was - now - data[what] for was, now in zip(free, left, strict=True)}
        until(lambda: pair.used() == (0, 0))
    assert data["reduce"] - data["copy"] == VECTOR_BYTES, "a second vector on each"
    assert len(own) == 1, own
    assert 0 < own.pop() <= charges[0]["context"] + charges[0]["tables"]


def charge(pair: Pair, gpu: int) -> dict[str, int]:
    return {kind: pair.stat(f"used_{kind}_bytes", gpu) for kind in KINDS}
