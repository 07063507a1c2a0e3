# SPDX-License-Identifier: MIT
"""Whether RM starts each chip, stops it and starts it again, and what it used of the home."""

import tomllib
from pathlib import Path

from rm import Rm

STUBS = tomllib.loads((Path(__file__).parent / "stubs.toml").read_text())["stubs"]


def test_rm_starts_every_chip(machine):
    """RmInitAdapter, and the memory of the product: its heap is smaller by what RM and the firmware keep."""
    gpu = machine.client().gpu()
    ram, heap, free = gpu.fb_info(0x07, 0x09, 0x16)
    assert ram << 10 == product_bytes(machine.chip)
    assert ram * 0.9 < free <= heap < ram


def product_bytes(chip: str) -> int:
    return {"TU104": 15360, "GA100": 40960, "GA102": 23040, "AD102": 46080, "GH100": 81920}[chip] << 20


def test_no_operating_system_function_is_missing(machine):
    """A stub that RM called beyond the known ones could change what a test sees."""
    machine.client().gpu().context()
    assert set(machine.rm.stubs()) <= set(STUBS)


def test_rm_stops_and_starts_again(tmp_path, machine):
    """All memory of the card and of the system that a start took comes back with the stop."""
    with Rm(machine.branch, machine.chip, log=tmp_path / "log") as rm:
        assert rm.start()
        rm.stop()
        before = rm.host_memory()
        for _ in range(3):
            assert rm.start()
            rm.stop()
        assert rm.host_memory() == before


def test_two_cards_side_by_side(tmp_path, machine):
    """A TU104 beside another chip: an allocation on one does not show on the other."""
    from client import Client

    with Rm(machine.branch, "TU104", machine.chip, log=tmp_path / "log") as rm:
        assert rm.start(0)
        assert rm.start(1)
        client = Client(rm)
        first, second = client.gpu(0), client.gpu(1)
        free = first.heap_free(), second.heap_free()
        assert first.memory(64 << 20)[0] == 0
        assert free[0] - first.heap_free() == 64 << 20
        assert second.heap_free() == free[1]
        client.close()
