# SPDX-License-Identifier: MIT
"""Whether a container has work, as the GPU shows it: read, checked, and not used where it is wrong.

The simulated Ampere card keeps a word for each channel in its channel RAM (chram). The Turing card has registers
(PCCSR), which the module maps itself: the machine has a PCI device with RAM as BAR0 for the first GPUs, and the card
writes them there. The words are compared with the queued work.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator

import nvclient
import pytest
from corebox import MOODY, OLD, SICK, insmod, leave_only_the_product, moody, rmmod, swap
from runstatebox import (
    COUNTED_S,
    GIVEN_UP_S,
    LONG_NS,
    NO_ADDRESS,
    ONES,
    REFUSED,
    RUN_STATE,
    STUCK,
    ZEROS,
    Opened,
    drained_s,
    errors,
    opened,
    state,
)
from sharebox import GPU, NATIVE, WEIGHTED, put
from slicebox import Box, nvsim_as, until

pytestmark = pytest.mark.once


CARDS = {"chram": ("a100", {"fb_mib": 15109}), "pccsr": ("t4", {"gpus": 3})}  # of three GPUs the last has no PCI device
OF_PCI = pytest.mark.needs("pci")
PCCSR = pytest.param("pccsr", marks=OF_PCI)
of_chram = pytest.mark.parametrize("source", ["chram"], indirect=True)
of_pccsr = pytest.mark.parametrize("source", [PCCSR], indirect=True)


@pytest.fixture(scope="module", params=["chram", PCCSR])
def source(request: pytest.FixtureRequest) -> Iterator[str]:
    """What the run state is read from."""
    card, more = CARDS[request.param]
    with nvsim_as(card, **more):
        yield request.param


@pytest.fixture
def boxes(source: str) -> Iterator[list[Box]]:
    """Two containers; each may use the whole GPU until the policy changes."""
    with Box("a" * 64) as a, Box("b" * 64) as b:
        put("policy", NATIVE)
        yield [a, b]
        put("policy", NATIVE)


def test_work_is_seen_while_it_is_there(boxes, source):
    before = errors()
    with opened(boxes[0]) as a:
        assert state() == (source, 1, 0), "queued nothing yet"
        a.channels[0].submit(LONG_NS)
        until(lambda: state() == (source, 1, 1), 2, step=0.001)
        a.channels[0].wait()
        until(lambda: state() == (source, 1, 0), 2, step=0.001)
        with opened(boxes[1], registered=False):
            assert state() == (source, 1, 0), "unknown without channels registered with nvidia-uvm"
        with opened(boxes[1], channels=3) as b:
            assert state() == (source, 2, 0)
            b.channels[2].submit(LONG_NS)
            until(lambda: state() == (source, 2, 1), 2, step=0.001)
            a.channels[0].submit(LONG_NS)
            until(lambda: state() == (source, 2, 2), 2, step=0.001)
            a.channels[0].wait()
            b.channels[2].wait()
            until(lambda: state() == (source, 2, 0), 2, step=0.001)
    assert state() == ("none", 0, 0)
    assert errors() == before


def test_every_channel_of_a_slot_must_be_known(boxes, source):
    with opened(boxes[0], channels=2, registered=False) as a:
        one, two = a.channels
        assert source == "pccsr" or state() == ("none", 0, 0)  # no address is known yet, and registers need none
        a.register(one)
        assert state() == (source, 0, 0)
        a.register(two)
        assert state() == (source, 1, 0)
        a.unregister(one)
        assert state() == (source, 0, 0)
        a.register(one)
        assert state() == (source, 1, 0)
        two.close()  # nvidia-uvm still holds it
        assert state() == (source, 1, 0)
        if source == "chram":
            third = one.group.channel(entries=16)
            assert state() == (source, 0, 0)
            third.close()
            assert state() == (source, 1, 0)


@of_chram
def test_copy_channels_do_not_count(boxes):
    with opened(boxes[0]) as a:
        a.space.group(nvclient.NV2080_ENGINE_TYPE_COPY0).channel(entries=16)
        assert state() == ("chram", 1, 0)


def test_a_frozen_slot_is_off_the_engine_and_keeps_its_work(boxes, source):
    (boxes[0].proc / "weight").write_text("0\n")
    put("policy", WEIGHTED)
    with opened(boxes[0]) as a, opened(boxes[1]) as b:
        until(lambda: a and boxes[0].stat("running") == 0, 5)
        before = errors()
        a.channels[0].submit(1_000_000)
        until(lambda: state() == (source, 2, 1), 2, step=0.001)
        b.channels[0].submit(1_000_000)
        b.channels[0].wait()
        for _ in range(20):
            assert state()[:2] == (source, 2)
            time.sleep(0.05)
        assert a.channels[0].reap() == 0, "it is frozen"
        assert errors() == before
        (boxes[0].proc / "weight").write_text("1\n")
        a.channels[0].wait()
        until(lambda: state() == (source, 2, 0), 2, step=0.001)
        assert errors() == before


def test_ones_are_nothing_known_as_long_as_they_last(boxes, source, personality):
    with opened(boxes[0]), opened(boxes[1]):
        personality(chram_fault=ONES)
        until(lambda: state() == (source, 0, 0), 2)
        if source == "chram":
            before, begin, readings = errors(), time.monotonic(), 0
            while time.monotonic() < begin + 2:
                assert state() == (source, 0, 0)
                readings += 1
            took = time.monotonic() - begin
            assert readings > 40
            assert 1 <= errors() - before <= took / 0.1 + 2, "a GPU that is off the bus is read ten times a second"
        personality(chram_fault=0)
        until(lambda: state() == (source, 2, 0), 2)


@pytest.mark.parametrize(
    ("source", "fault", "why"),
    [
        ("chram", REFUSED, "reads are refused"),
        ("chram", ZEROS, "enabled channels show to be disabled"),
        pytest.param("pccsr", REFUSED, "reads are refused", marks=OF_PCI),
    ],
    indirect=["source"],
)
def test_a_source_that_contradicts_is_given_up(boxes, source, personality, kernel_log, fault, why):
    with opened(boxes[0]) as a, opened(boxes[1]):
        kernel_log.news()
        personality(chram_fault=fault)
        until(lambda: state()[1] == 0, 2)
        until(lambda: state()[0] == "none", GIVEN_UP_S, step=0.05)
        assert kernel_log.news().count(f"GPU 0: the run state of channels is not used: {why}") == 1
        personality(chram_fault=0)
        time.sleep(0.5)
        a.channels[0].submit(1_000_000)
        a.channels[0].wait()
        assert state() == ("none", 0, 0), "a source that was wrong once is not enabled again by itself"
        put("policy", NATIVE)
        until(lambda: state() == (source, 2, 0), 2)


def test_bits_that_stick_are_found_by_a_freeze(boxes, source, personality, kernel_log):
    (boxes[0].proc / "weight").write_text("0\n")
    put("policy", WEIGHTED)
    with opened(boxes[0]), opened(boxes[1]):
        until(lambda: boxes[0].stat("running") == 0, 5)
        kernel_log.news()
        personality(chram_fault=STUCK)
        until(lambda: state()[0] == "none", GIVEN_UP_S, step=0.05)
        assert "frozen channels show to be on the engine" in kernel_log.news()


@of_chram
def test_without_an_address_there_is_no_source(boxes, personality):
    personality(chram_fault=NO_ADDRESS)
    with opened(boxes[0]):
        assert state() == ("none", 0, 0)
        personality(chram_fault=0)
        with opened(boxes[1]):
            assert state() == ("chram", 1, 0)


@of_chram
def test_a_faulted_tenant_does_not_take_the_source_from_the_others(boxes):
    with opened(boxes[0]) as a, opened(boxes[1]):
        assert state() == ("chram", 2, 0)
        a.channels[0].submit(op=99)
        until(a.channels[0].group.fault)
        until(lambda: state() == ("chram", 1, 0), 2)
        end = time.monotonic() + COUNTED_S
        while time.monotonic() < end:
            assert state() == ("chram", 1, 0)
            time.sleep(0.02)


@of_chram
def test_a_faulted_tenant_alone_takes_no_source_from_those_that_come_later(boxes):
    """Its channels contradict what the module believes for longer than 8 counts."""
    with opened(boxes[0]) as a:
        a.channels[0].submit(op=99)
        until(a.channels[0].group.fault)
        until(lambda: state() == ("chram", 0, 0), 2)
        end = time.monotonic() + COUNTED_S
        while time.monotonic() < end:
            assert state() == ("chram", 0, 0), "its own is unknown"
            time.sleep(0.02)
        with opened(boxes[1]):
            until(lambda: state() == ("chram", 1, 0), 2)


def fault(*clients: Opened) -> None:
    """Their groups stay scheduled as far as the module knows, and their channels are disabled."""
    for client in clients:
        client.channels[0].submit(op=99)
        until(client.channels[0].group.fault)


@of_chram
def test_a_tenant_with_two_faulted_containers_takes_no_source_from_those_that_come_later(boxes, kernel_log):
    kernel_log.news()
    with opened(boxes[0]) as a, opened(boxes[1]) as b, Box("c" * 64) as third:
        fault(a, b)
        until(lambda: state()[0] == "none", GIVEN_UP_S, step=0.05)  # of all that there are: it may be the source
        for _ in range(2):
            with opened(third) as c:
                until(lambda: state() == ("chram", 1, 0), 2)
                end = time.monotonic() + COUNTED_S
                while time.monotonic() < end:
                    assert state() == ("chram", 1, 0)
                    time.sleep(0.02)
                c.channels[0].submit(LONG_NS)
                until(lambda: state() == ("chram", 1, 1), 2, step=0.001)
                c.channels[0].wait()
            assert state() == ("none", 0, 0)
    assert kernel_log.news().count("the run state of channels is not used") == 1, "a tenant fills no log"


@of_chram
def test_a_tenant_with_two_faulted_containers_takes_no_source_from_one_that_is_frozen(boxes):
    """It shows nothing that agrees for as long as it is frozen."""
    with Box("c" * 64) as third, opened(third), opened(boxes[0]) as a, opened(boxes[1]) as b:
        (third.proc / "weight").write_text("0\n")
        put("policy", WEIGHTED)
        until(lambda: third.stat("running") == 0, 5)
        fault(a, b)
        end = time.monotonic() + 2 * COUNTED_S
        while time.monotonic() < end:
            source, known, busy = state()
            assert (source, busy) == ("chram", 0) and known >= 1
            time.sleep(0.02)
        # A busy machine leaves one that has half of the turns too few readings until then.
        until(lambda: state() == ("chram", 1, 0), GIVEN_UP_S)  # the two are unknown, in their turns and between them


@of_chram
def test_a_process_that_starts_again_after_a_fault_is_known(boxes):
    with opened(boxes[0]) as a, opened(boxes[1]) as b:
        fault(a, b)
        until(lambda: state()[0] == "none", GIVEN_UP_S, step=0.05)
        with opened(boxes[0]):
            until(lambda: state() == ("chram", 1, 0), 2)


@of_chram
def test_a_source_that_was_given_up_makes_nobody_seem_idle(boxes, personality, kernel_log):
    """Words of zeros, and one that comes later and is frozen at once: it contradicts nothing."""
    kernel_log.news()
    put("policy", WEIGHTED)
    with opened(boxes[0]), opened(boxes[1]), Box("c" * 64) as third:
        personality(chram_fault=ZEROS)
        until(lambda: state()[0] == "none", GIVEN_UP_S, step=0.05)
        (third.proc / "weight").write_text("0\n")
        with opened(third):
            until(lambda: third.stat("running") == 0, 5)
            end = time.monotonic() + COUNTED_S
            while time.monotonic() < end:
                assert state()[1] == 0
                time.sleep(0.02)
            (third.proc / "weight").write_text("1\n")
            until(lambda: state()[0] == "none", GIVEN_UP_S, step=0.05)
            assert kernel_log.news().count("the run state of channels is not used") == 1
            personality(chram_fault=0)
            put("policy", WEIGHTED)
            until(lambda: state() == ("chram", 3, 0), 5)


@of_chram
def test_many_channels_make_their_own_slot_unknown_only(boxes):
    with opened(boxes[1]) as b, opened(boxes[0], channels=255):
        assert state() == ("chram", 2, 0), "256 words"
        with opened(boxes[0]):
            assert state() == ("chram", 1, 0)
            b.channels[0].submit(LONG_NS)
            until(lambda: state() == ("chram", 1, 1), 2, step=0.001)
            b.channels[0].wait()


@of_chram
def test_the_parameter_turns_it_off(boxes):
    with opened(boxes[0]):
        RUN_STATE.write_text("0")
        try:
            assert state() == ("none", 0, 0)
        finally:
            RUN_STATE.write_text("1")
        assert state() == ("chram", 1, 0)


def churn(box: Box) -> None:
    """Channels that come and go in every order, until killed."""
    while True:
        with opened(box, channels=3) as client:
            one, two, three = client.channels
            two.submit(200_000)
            client.unregister(one)
            one.close()
            two.close()
            client.unregister(three)
            client.register(three)
            three.group.close()  # with its channel, which nvidia-uvm still holds


@contextlib.contextmanager
def churning(*boxes: Box) -> Iterator[None]:
    pids = []
    for box in boxes:
        pid = os.fork()
        if not pid:
            try:
                churn(box)
            finally:
                os._exit(1)
        pids.append(pid)
    try:
        yield
        for pid in pids:
            assert os.waitpid(pid, os.WNOHANG) == (0, 0), "it ended by itself: a call of it failed"
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@of_chram
def test_channels_come_and_go_while_they_are_read(boxes):
    with opened(boxes[1]):
        for _ in range(2):
            with churning(boxes[0]):
                end = time.monotonic() + 1.5
                while time.monotonic() < end:
                    source, known, _busy = state()
                    assert source == "chram" and 1 <= known <= 2
        until(lambda: boxes[0].stat("opened") == 0)
        assert state() == ("chram", 1, 0)
    assert state() == ("none", 0, 0)


@pytest.fixture
def polling(boxes: list[Box]) -> Iterator[None]:
    """A core with plans that need the run state each millisecond."""
    assert insmod("test_core_moody")
    try:
        swap(SICK)
        moody(poll_us=1000)
        yield
    finally:
        swap(OLD)
        assert rmmod("test_core_moody")
        leave_only_the_product()


def told(name: str) -> int:
    return int((MOODY / name).read_text())


@of_chram
def test_the_thread_reads_while_a_plan_depends_on_it(boxes, polling):
    time.sleep(0.3)
    assert told("polls") == 0, "no channel has a word: nothing to read"
    with opened(boxes[0]) as a, opened(boxes[1], registered=False):
        put("policy", WEIGHTED)
        until(lambda: bin(told("known")).count("1") == 1, 2)
        assert told("busy") == 0
        a.channels[0].submit(LONG_NS)
        until(lambda: told("busy") == told("known"), 2, step=0.001)
        a.channels[0].wait()
        until(lambda: told("busy") == 0, 2, step=0.001)
        with churning(boxes[1]):
            time.sleep(1)
        RUN_STATE.write_text("0")
        try:
            until(lambda: told("known") == 0, 2)
            time.sleep(0.1)
            polls = told("polls")
            time.sleep(0.5)
            assert told("polls") <= polls + 1, "the loss of the source is reported once"
        finally:
            RUN_STATE.write_text("1")


@of_chram
@pytest.mark.icount
@pytest.mark.needs("instructions")
def test_a_reading_costs_little(boxes, polling):
    """1 channel and 20, as a CUDA context has; in exact guest time, and without the cost of a real register."""
    cost = {}
    for channels in (1, 20):
        with opened(boxes[0], channels):
            until(lambda: told("known"), 2)
            begin = told("polls"), cpu_ns()
            time.sleep(0.3)
            polls, spent = told("polls") - begin[0], cpu_ns() - begin[1]
        assert polls > 150
        cost[channels] = spent / polls
    word = (cost[20] - cost[1]) / 19
    print(f"a poll of 1 channel: {cost[1]:.0f} ns of the thread, with its sleep; each further word: {word:.0f} ns")
    assert 0 < word < 500, "125 instructions"
    assert cost[1] < 40_000, "10,000 instructions"


def cpu_ns() -> int:
    return int(dict(line.split() for line in (GPU / "stat").read_text().splitlines())["thread_cpu_ns"])


@pytest.mark.parametrize(
    ("source", "policy"),
    [("chram", 1), ("chram", WEIGHTED), ("chram", 6), pytest.param("pccsr", WEIGHTED, marks=OF_PCI)],
    indirect=["source"],
)
def test_an_idle_openers_time_is_lent(boxes, source, policy):
    """With two openers of which one never launches, the other has the GPU; half of it where no run state is read."""
    put("policy", policy)
    before = errors()
    with opened(boxes[0]) as a, opened(boxes[1]):
        a.channels[0].submit(LONG_NS)
        a.channels[0].wait()
        lent = drained_s(a)
        assert state()[0] == source
        RUN_STATE.write_text("0")
        try:
            lost = drained_s(a)
        finally:
            RUN_STATE.write_text("1")
    assert errors() == before
    assert lent < 0.75 * lost, (lent, lost)


@of_chram
def test_high_priority_that_sleeps_costs_nothing(boxes):
    put("policy", 1)
    (boxes[1].proc / "highprio").write_text("1")
    with opened(boxes[0]) as a, opened(boxes[1]) as b:
        b.channels[0].submit(LONG_NS)
        b.channels[0].wait()
        alone = drained_s(a)
        b.channels[0].submit(5 * LONG_NS)
        time.sleep(0.1)
        beside = drained_s(a, works=12)
        b.channels[0].wait()
    assert alone < 120 * 0.010 * 1.5
    assert beside > 0.5, "high priority has the GPU while it has work"


@of_pccsr
def test_each_gpu_has_its_own_registers(source):
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
        until(lambda: state(1) == (source, 1, 1), 2, step=0.001)
        assert state(0) == (source, 1, 0)
        a.channels[0].submit(LONG_NS)
        until(lambda: state(0) == (source, 1, 1), 2, step=0.001)
        assert state(2) == ("none", 0, 0)


@of_pccsr
def test_no_address_is_needed(boxes, personality):
    personality(chram_fault=NO_ADDRESS)
    with opened(boxes[0]):
        assert state() == ("pccsr", 1, 0)


@of_pccsr
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
