# SPDX-License-Identifier: MIT
"""Whether a container has work, as a Turing GPU's registers show it (PCCSR), which the module maps itself.

The machine has a PCI device with RAM as BAR0 for the first GPUs; the simulated Turing card writes its registers there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from runstatebox import (
    GIVEN_UP_S,
    LONG_NS,
    NO_ADDRESS,
    ONES,
    REFUSED,
    RUN_STATE,
    STUCK,
    ZEROS,
    drained_s,
    errors,
    opened,
    state,
)
from sharebox import NATIVE, WEIGHTED, put
from slicebox import Box, nvsim_as, until

pytestmark = [pytest.mark.once, pytest.mark.needs("pci")]


@pytest.fixture(scope="module")
def turing() -> Iterator[None]:
    """Three GPUs, of which the last has no PCI device."""
    with nvsim_as("t4", gpus=3):
        yield


@pytest.fixture
def boxes(turing: None) -> Iterator[list[Box]]:
    """Two containers; each may use the whole GPU until the policy changes."""
    with Box("a" * 64) as a, Box("b" * 64) as b:
        put("policy", NATIVE)
        yield [a, b]
        put("policy", NATIVE)


def test_work_is_seen_while_it_is_there(boxes):
    with opened(boxes[0]) as a:
        assert state() == ("pccsr", 1, 0), "queued nothing yet"
        a.channels[0].submit(LONG_NS)
        until(lambda: state() == ("pccsr", 1, 1), 2, step=0.001)
        a.channels[0].wait()
        until(lambda: state() == ("pccsr", 1, 0), 2, step=0.001)
        with opened(boxes[1], registered=False):
            assert state() == ("pccsr", 1, 0), "unknown without channels registered with nvidia-uvm"
        with opened(boxes[1], channels=3) as b:
            assert state() == ("pccsr", 2, 0)
            b.channels[2].submit(LONG_NS)
            until(lambda: state() == ("pccsr", 2, 1), 2, step=0.001)
            a.channels[0].submit(LONG_NS)
            until(lambda: state() == ("pccsr", 2, 2), 2, step=0.001)
            a.channels[0].wait()
            b.channels[2].wait()
            until(lambda: state() == ("pccsr", 2, 0), 2, step=0.001)
    assert state() == ("none", 0, 0)
    assert errors() == 0


def test_every_channel_of_a_slot_must_be_known(boxes):
    with opened(boxes[0], channels=2, registered=False) as a:
        one, two = a.channels
        a.register(one)
        assert state() == ("pccsr", 0, 0)
        a.register(two)
        assert state() == ("pccsr", 1, 0)
        a.unregister(one)
        assert state() == ("pccsr", 0, 0)
        a.register(one)
        one.close()  # nvidia-uvm still holds it
        assert state() == ("pccsr", 1, 0)


def test_each_gpu_has_its_own_registers(turing):
    """The third has no PCI device: its run state is not known."""
    with (
        Box("a" * 64) as first,
        Box("b" * 64, gpu=1) as second,
        Box("c" * 64, gpu=2) as third,
        opened(first) as a,
        opened(second) as b,
        opened(third),
    ):
        b.channels[0].submit(LONG_NS)
        until(lambda: state(1) == ("pccsr", 1, 1), 2, step=0.001)
        assert state(0) == ("pccsr", 1, 0)
        a.channels[0].submit(LONG_NS)
        until(lambda: state(0) == ("pccsr", 1, 1), 2, step=0.001)
        assert state(2) == ("none", 0, 0)


def test_a_frozen_slot_is_off_the_engine_and_keeps_its_work(boxes):
    (boxes[0].proc / "weight").write_text("0\n")
    put("policy", WEIGHTED)
    with opened(boxes[0]) as a, opened(boxes[1]) as b:
        until(lambda: boxes[0].stat("running") == 0, 5)
        before = errors()
        a.channels[0].submit(1_000_000)
        until(lambda: state() == ("pccsr", 2, 1), 2, step=0.001)
        b.channels[0].submit(1_000_000)
        b.channels[0].wait()
        assert a.channels[0].reap() == 0, "it is frozen"
        assert errors() == before
        (boxes[0].proc / "weight").write_text("1\n")
        a.channels[0].wait()
        until(lambda: state() == ("pccsr", 2, 0), 2, step=0.001)
        assert errors() == before


def test_ones_are_nothing_known_as_long_as_they_last(boxes, personality):
    with opened(boxes[0]), opened(boxes[1]):
        personality(chram_fault=ONES)
        until(lambda: state() == ("pccsr", 0, 0), 2)
        personality(chram_fault=0)
        until(lambda: state() == ("pccsr", 2, 0), 2)


@pytest.mark.parametrize(
    ("fault", "why"), [(REFUSED, "reads are refused"), (ZEROS, "enabled channels show to be disabled")]
)
def test_a_source_that_contradicts_is_given_up(boxes, personality, kernel_log, fault, why):
    with opened(boxes[0]), opened(boxes[1]):
        kernel_log.news()
        personality(chram_fault=fault)
        until(lambda: state()[1] == 0, 2)
        until(lambda: state()[0] == "none", GIVEN_UP_S, step=0.05)
        assert kernel_log.news().count(f"GPU 0: the run state of channels is not used: {why}") == 1
        personality(chram_fault=0)
        put("policy", NATIVE)
        until(lambda: state() == ("pccsr", 2, 0), 2)


def test_bits_that_stick_are_found_by_a_freeze(boxes, personality, kernel_log):
    (boxes[0].proc / "weight").write_text("0\n")
    put("policy", WEIGHTED)
    with opened(boxes[0]), opened(boxes[1]):
        until(lambda: boxes[0].stat("running") == 0, 5)
        kernel_log.news()
        personality(chram_fault=STUCK)
        until(lambda: state()[0] == "none", GIVEN_UP_S, step=0.05)
        assert "frozen channels show to be on the engine" in kernel_log.news()


def test_no_address_is_needed(boxes, personality):
    personality(chram_fault=NO_ADDRESS)
    with opened(boxes[0]):
        assert state() == ("pccsr", 1, 0)


def test_a_gpu_that_sleeps_is_not_read(boxes, personality):
    """Each reading would be an error: none is made."""
    with opened(boxes[0]):
        personality(asleep=1)
        personality(chram_fault=REFUSED)
        before = errors()
        for _ in range(50):
            assert state() == ("pccsr", 0, 0)
            time.sleep(0.01)
        assert errors() == before
        personality(asleep=0)
        until(lambda: errors() > before, 2)
        personality(chram_fault=0)
        until(lambda: state() == ("pccsr", 1, 0), 2)


def test_an_idle_openers_time_is_lent(boxes):
    put("policy", WEIGHTED)
    before = errors()
    with opened(boxes[0]) as a, opened(boxes[1]):
        a.channels[0].submit(LONG_NS)
        a.channels[0].wait()
        lent = drained_s(a)
        assert state()[0] == "pccsr"
        RUN_STATE.write_text("0")
        try:
            lost = drained_s(a)
        finally:
            RUN_STATE.write_text("1")
    assert errors() == before
    assert lent < 0.75 * lost, (lent, lost)
