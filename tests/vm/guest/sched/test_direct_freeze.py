# SPDX-License-Identifier: MIT
"""The experiment direct_freeze: channels of the simulated card are frozen by their registers, and what that is worth.

The tests of NVIDIA's own driver show that it is refused there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from runstatebox import DIRECT_FREEZE, LONG_NS, Opened, errors, opened, stat
from sharebox import NATIVE, WEIGHTED, Tenant, put, shares
from slicebox import Box, nvsim_as, until

pytestmark = pytest.mark.icount  # the words must show an effect within a millisecond

WORK_NS = 1_000_000
SLICE_US = 5000
NO_DISABLE = 2
#: Freezes in a row without effect, after which the parameter is ignored.
FAILURES = 8


def direct() -> int:
    return int(stat()["control_direct"])


def calls() -> int:
    return int(stat()["control_calls"])


@pytest.fixture(scope="module")
def ampere() -> Iterator[None]:
    """The card looks at its registers every 20 us."""
    with nvsim_as("a100", fb_mib=15109, chram_us=20):
        yield


@pytest.fixture
def boxes(ampere: None) -> Iterator[list[Box]]:
    with Box("a" * 64) as a, Box("b" * 64) as b:
        put("policy", NATIVE)
        yield [a, b]
        put("policy", NATIVE)


@pytest.fixture
def directly() -> Iterator[None]:
    DIRECT_FREEZE.write_text("1")
    yield
    DIRECT_FREEZE.write_text("0")


def freeze(box: Box) -> None:
    """For good: the container has no weight."""
    (box.proc / "weight").write_text("0\n")
    until(lambda: box.stat("running") == 0, 5)


def thaw(box: Box) -> None:
    (box.proc / "weight").write_text("1\n")


def is_held(client: Opened) -> bool:
    """Whether its work waits, as that of a frozen container."""
    channel = client.channels[0]
    done = channel.reap()
    channel.submit(WORK_NS)
    time.sleep(0.2)
    return channel.reap() == done


def test_it_is_off_by_default(boxes):
    assert DIRECT_FREEZE.read_text() == "N\n"
    before = direct()
    put("policy", WEIGHTED)
    with opened(boxes[0]) as a, opened(boxes[1]):
        freeze(boxes[0])
        assert is_held(a)
        thaw(boxes[0])
        a.channels[0].wait()
    assert direct() == before


def test_a_freeze_holds_work_and_a_thaw_releases_it(boxes, directly):
    put("policy", WEIGHTED)
    with opened(boxes[0], channels=3) as a, opened(boxes[1]) as b:
        until(lambda: boxes[0].stat("running") == 1, 5)
        failed, made = errors(), direct()
        a.channels[1].submit(LONG_NS)
        freeze(boxes[0])
        a.channels[2].submit(WORK_NS)
        time.sleep(0.6)
        assert a.channels[1].reap() == 0, "it was on the engine, for 400 ms"
        assert is_held(a)
        b.channels[0].submit(WORK_NS)
        b.channels[0].wait()
        thaw(boxes[0])
        for channel in a.channels:
            channel.wait()
        assert direct() > made
        assert errors() == failed


def test_a_channel_without_a_word_is_frozen_by_a_call(boxes, directly):
    put("policy", WEIGHTED)
    with opened(boxes[0], channels=2, registered=False) as a, opened(boxes[1]):
        a.register(a.channels[1])
        before = calls()
        freeze(boxes[0])
        assert calls() > before
        assert is_held(a)
        thaw(boxes[0])
        a.channels[0].wait()


def test_what_is_made_while_it_is_frozen_is_frozen_too(boxes, directly):
    put("policy", WEIGHTED)
    with opened(boxes[0]) as a, opened(boxes[1]):
        freeze(boxes[0])
        late = a.channels[0].group.channel(entries=16)
        a.register(late)
        late.submit(WORK_NS)
        assert is_held(a)
        assert late.reap() == 0
        thaw(boxes[0])
        late.wait()
        a.channels[0].wait()


def test_a_word_that_goes_takes_no_freeze_with_it(boxes, directly):
    put("policy", WEIGHTED)
    with opened(boxes[0]) as a, opened(boxes[1]):
        freeze(boxes[0])
        a.unregister(a.channels[0])
        assert is_held(a)
        thaw(boxes[0])
        a.channels[0].wait()


def test_a_thaw_needs_no_parameter(boxes, directly):
    put("policy", WEIGHTED)
    with opened(boxes[0]) as a, opened(boxes[1]):
        freeze(boxes[0])
        DIRECT_FREEZE.write_text("0")
        assert is_held(a)
        thaw(boxes[0])
        a.channels[0].wait()


def test_without_effect_the_driver_is_called(boxes, directly, personality, kernel_log):
    personality(control_ineffective=NO_DISABLE)
    kernel_log.news()
    put("policy", WEIGHTED)
    with opened(boxes[0]), opened(boxes[1]):
        made, before = direct(), calls()
        for _ in range(FAILURES):
            thaw(boxes[0])
            until(lambda: boxes[0].stat("running") == 1, 5)
            freeze(boxes[0])
        # One for each freeze, and one for each thaw but the first: nothing was frozen before that.
        assert calls() >= before + 2 * FAILURES - 1
        assert direct() == made
        assert kernel_log.news().count("GPU 0: direct_freeze is ignored: channels stay enabled") == 1


def test_latency_beside_that_of_a_call(ampere):
    """In exact guest time, simulated: the card looks at its registers every 20 us, a call takes 300 us of waiting."""
    one, two = Tenant("a", weight=1), Tenant("b", weight=2)
    seen = {}
    put("policy", WEIGHTED)
    put("slice_us", SLICE_US)
    try:
        for tenant in (one, two):
            tenant.start("--register")
        for how in ("0", "1"):
            DIRECT_FREEZE.write_text(how)
            time.sleep(0.5)  # the one that is frozen by then is thawed in the way it was frozen
            before = direct(), calls()
            got = shares(one, two)
            now = stat()
            p50, p99 = int(now["control_p50_us"]), int(now["control_p99_us"])
            seen[how] = got, p50, direct() - before[0], calls() - before[1]
            print(f"direct_freeze={how}: {seen[how][2:]} direct, calls; p50 {p50} us, p99 {p99} us, simulated")
    finally:
        DIRECT_FREEZE.write_text("0")
        for tenant in (one, two):
            tenant.stop()
            tenant.box.destroy()
    (by_call, call_us, _, _), (by_word, word_us, made, called) = seen["0"], seen["1"]
    assert made > 500 and called == 0
    assert word_us < call_us / 3
    for got in (by_call, by_word):
        assert got[1] / got[0] == pytest.approx(2, rel=0.03)
    assert sum(by_word) > sum(by_call) - 0.5
