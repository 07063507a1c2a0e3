# SPDX-License-Identifier: MIT
"""Two cards of different chips under NVIDIA's own kernel driver: which a container has, by number and by UUID."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import cuda_box as c
import docker_box as d
import nvclient
import pytest
from driver_box import free_bytes
from peers_box import Pair
from slicebox import MIB, PROC, Box, until

pytestmark = pytest.mark.driver_two

NAMES = ("a" * 64, "b" * 64)
LIMIT_MIB = (1024, 2048)
#: Of the cards: 16 bytes that count up, from 0x10 and from 0x20 on.
UUIDS = [bytes(range(first, first + 16)) for first in (0x10, 0x20)]
NO_DEVICE = 100
WORK_NS = 1_000_000


def name_of(raw: bytes) -> str:
    return f"GPU-{uuid.UUID(bytes=raw)}"


@pytest.fixture
def boxes() -> Iterator[list[Box]]:
    """A container on each of the two."""
    with Box(NAMES[0], LIMIT_MIB[0], gpu=0) as one, Box(NAMES[1], LIMIT_MIB[1], gpu=1) as two:
        yield [one, two]


def alone(box: Box, number: int) -> tuple[str, ...]:
    """The head of a command line that runs where /dev has the container's nodes, and none of the other card's.

    NVIDIA's libraries would make the missing node.
    """
    made = "; ".join(
        f"touch /mnt/{name}; mount --bind {source}/{name} /mnt/{name}"
        for source, names in (
            ("/dev", ("null", "zero", "random", "urandom")),
            (box.dev, ("nvidiactl", f"nvidia{number}", "nvidia-uvm")),
        )
        for name in names
    )
    script = f'mount -t tmpfs dev /mnt; {made}; mkdir /mnt/shm; mount --rbind /mnt /dev; exec "$@"'
    return "unshare", "-m", "sh", "-c", script, "sh", "setpriv", "--bounding-set=-mknod"


def listed(*before: str) -> list[tuple[str, str]]:
    """(product, UUID) of what nvidia-smi lists."""
    return re.findall(r"^GPU \d: (.+) \(UUID: (.+)\)$", d.must(*before, "nvidia-smi", "-L"), re.M)


def test_both_cards_are_found(cards):
    assert [card.uuid for card in cards] == UUIDS
    assert [(PROC / str(number)).is_dir() for number in range(3)] == [True, True, False]
    assert [raw for _, raw in listed()] == [name_of(raw) for raw in UUIDS]


def test_a_container_sees_its_own_card_only(boxes):
    for number, box in enumerate(boxes):
        with box.client() as client:
            assert len(client.cards()) == 1
            gpu = client.gpu(0)
            assert gpu.uuid == UUIDS[number]
            assert gpu.fb_info(nvclient.NV2080_CTRL_FB_INFO_INDEX_TOTAL_RAM_SIZE) == [LIMIT_MIB[number] << 10]
        assert [raw for _, raw in listed(*alone(box, number))] == [name_of(UUIDS[number])]


def test_memory_of_one_is_charged_on_it_alone(boxes, cards):
    for number, box in enumerate(boxes):
        with box.client() as client:
            before = [free_bytes(card) for card in cards]
            assert client.gpu(0).alloc_vidmem(300 * MIB)[0] == nvclient.NV_OK
            lost = [was - free_bytes(card) for was, card in zip(before, cards, strict=True)]
            assert lost == [300 * MIB * (number == 0), 300 * MIB * (number == 1)]
            assert [each.used for each in boxes] == lost
        until(lambda: not any(each.used for each in boxes))


def test_the_other_card_cannot_be_had_by_uuid_or_number(boxes):
    for number, box in enumerate(boxes):
        other = UUIDS[1 - number]
        with box.client() as client, nvclient.Uvm(box.dev) as uvm:
            gpu = client.gpu(0)
            assert uvm.register_gpu(gpu.uuid) == nvclient.NV_OK
            try:
                assert uvm.register_gpu(other) != nvclient.NV_OK
            except OSError:
                pass
            (theirs,) = [card for card in range(2) if card != number]
            params = nvclient.DeviceParams(device_id=theirs)
            assert client.alloc(nvclient.NV01_DEVICE_0, None, params)[0] != nvclient.NV_OK
            assert not Path(box.dev, f"nvidia{theirs}").exists()


def test_libcuda_takes_the_card_that_a_uuid_names(boxes):
    """CUDA_VISIBLE_DEVICES by UUID: on the host's nodes each of the two, in a container its own only."""
    for number, raw in enumerate(UUIDS):
        seen = walked("env", f"CUDA_VISIBLE_DEVICES={name_of(raw)}")
        assert seen["results"]["init/cuInit"] == 0
        bare_mib = seen["seen"]["init/total_mib"]
        assert (bare_mib > LIMIT_MIB[number], seen["seen"]["init/devices"]) == (True, 1)
    for number, box in enumerate(boxes):
        for raw in UUIDS:
            own = raw == UUIDS[number]
            seen = walked(*alone(box, number), "env", f"CUDA_VISIBLE_DEVICES={name_of(raw)}")
            assert seen["results"]["init/cuInit"] == (0 if own else NO_DEVICE)
            if own:
                assert seen["seen"]["init/total_mib"] == LIMIT_MIB[number]


def walked(*before: str) -> dict:
    return c.walk(*before, steps=["context"])


def test_two_architectures_in_one_container_are_no_peers(cards, kernel_log):
    """Both cards are there with their limits, each call on them succeeds; as peers the module names the reason."""
    with Pair(*LIMIT_MIB) as pair:
        with nvclient.Client(pair.dev) as client:
            gpus = client.gpu(0), client.gpu(1)
            assert [gpu.uuid for gpu in gpus] == UUIDS
            assert [gpu.fb_info(nvclient.NV2080_CTRL_FB_INFO_INDEX_TOTAL_RAM_SIZE) for gpu in gpus] == [
                [mib << 10] for mib in LIMIT_MIB
            ]
            before = [free_bytes(card) for card in cards]
            assert gpus[1].alloc_vidmem(300 * MIB)[0] == nvclient.NV_OK
            assert [was - free_bytes(card) for was, card in zip(before, cards, strict=True)] == [0, 300 * MIB]
            kernel_log.news()
            status, capabilities, _, numbers = client.p2p_caps(*(gpu.card.gpu_id for gpu in gpus))
            assert (status, capabilities, set(numbers)) == (nvclient.NV_OK, 0, {0xFFFFFFFF})
            assert "GPUs of different architectures are no peers" in kernel_log.news()
        seen = c.walk(*c.in_nodes(pair.dev, gpus=2), steps=["context"])
        assert (seen["results"]["init/cuInit"], seen["seen"]["init/devices"]) == (0, 2)


def test_a_freeze_on_one_leaves_the_other(boxes):
    with boxes[0].client() as one, boxes[1].client() as two:
        channels = []
        for client in (one, two):
            space = client.gpu(0).space()
            group = space.group(nvclient.NV2080_ENGINE_TYPE_GRAPHICS)
            channels.append(group.channel(enable=False))
            assert space.bind(channels[-1]) == nvclient.NV_OK
            assert group.enable() == nvclient.NV_OK
        policies = [PROC / str(number) / "policy" for number in range(2)]
        try:
            for policy in policies:
                policy.write_text("2")
            (boxes[0].proc / "weight").write_text("0")
            time.sleep(1)
            for channel in channels:
                channel.submit(WORK_NS, count=4)
            assert channels[1].wait() == 4
            time.sleep(0.5)
            assert channels[0].reap() == 0
            (boxes[0].proc / "weight").write_text("1")
            assert channels[0].wait() == 4
        finally:
            for policy in policies:
                policy.write_text("5")
