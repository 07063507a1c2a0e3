# SPDX-License-Identifier: MIT
"""Two cards of a kind as peers over PCIe: what RM sends their firmware, and what an engine does on the other card."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
import rm as home
from client import MAP_PEER, Client
from rm import BRANCHES, CHIPS, Rm

SIZE = 2 << 20
VALUE = 0xC0FFEE
CAPS_V2, READS_AND_WRITES_OVER_PCIE = 0x12B, 0x47
SETUP_LOCAL, SETUP_REMOTE, DESTROY = 0x20800A71, 0x20800A72, 0x20800A73


@pytest.fixture(params=[(branch, chip) for branch in BRANCHES for chip in CHIPS], ids="-".join)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rm]:
    branch, chip = request.param
    with Rm(branch, chip, chip, log=tmp_path / "log") as rm:
        assert rm.start(0)
        assert rm.start(1)
        yield rm


def test_rm_calls_two_cards_of_a_kind_peers(pair: Rm):
    """GET_P2P_CAPS_V2, as the module passes it on."""
    client = Client(pair)
    params = struct.pack("<2I", 0x100, 0x200).ljust(128, b"\0") + struct.pack("<I", 2)
    status, answer = client.control(client.handle, CAPS_V2, params.ljust(pair.control_info(CAPS_V2)[3], b"\0"))
    assert (status, struct.unpack_from("<I", answer, 132)) == (0, (READS_AND_WRITES_OVER_PCIE,))


def test_both_cards_are_told_of_each_other(pair: Rm):
    """With the number of the peer, 0 on both, and the addresses of both cards, twice; and of the end."""
    client = Client(pair)
    one, other = client.gpu(0), client.gpu(1)
    pair.seen()
    peers = client.peers(one, other)
    sent = mailboxes(pair)
    assert [(card, number) for card, number, _ in sent] == [
        *((0, SETUP_LOCAL), (1, SETUP_REMOTE), (1, SETUP_LOCAL), (0, SETUP_REMOTE)),
    ]
    assert {struct.unpack_from("<2I", params) for _, _, params in sent} == {(0, 0)}
    assert client.free(peers, client.handle) == 0
    assert [(card, number) for card, number, _ in mailboxes(pair)] == [(0, DESTROY), (1, DESTROY)]


def mailboxes(rm: Rm) -> list[tuple[int, int, bytes]]:
    """(card, control, parameters) of what RM sent to the cards about their peers since the last call."""
    rows = [seen for seen in rm.seen() if seen.request == home.CONTROL and SETUP_LOCAL <= seen.number <= DESTROY]
    return [(seen.card, seen.number, seen.params) for seen in rows]


@pytest.mark.parametrize("worker", [0, 1])
def test_an_engine_writes_the_other_cards_memory(pair: Rm, worker: int):
    """By page tables that RM wrote; as long as the peers are there. Both cards have memory at that address."""
    client = Client(pair)
    gpus = client.gpu(0), client.gpu(1)
    mine, theirs = gpus[worker], gpus[1 - worker]
    peers = client.peers(*gpus)
    context = mine.context()
    assert context.schedule() == 0
    files = []
    for gpu in (mine, theirs):
        memory = gpu.must_have(SIZE)
        status, fd, _ = client.map_memory(gpu.device, memory, 4096, gpu.index)
        assert status == 0
        files.append(fd)
    at = context.map(memory, SIZE, MAP_PEER)
    context.fill(at, VALUE, words=2, done=1)
    assert context.semaphore() == 1
    assert [struct.unpack("<2I", pair.read(fd, 0, 8)) for fd in files] == [(0, 0), (VALUE, VALUE)]
    assert client.free(peers, client.handle) == 0
    context.fill(at, VALUE + 1, words=2, done=2)
    assert context.semaphore() == 1, "a channel that reaches for a peer that is gone faults"
    assert f"card {worker}: no peer 0" in pair.messages()
    assert struct.unpack("<2I", pair.read(files[1], 0, 8)) == (VALUE, VALUE)
