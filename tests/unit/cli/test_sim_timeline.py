# SPDX-License-Identifier: MIT
"""The simulated engine by its rules (docs/develop/nvsim.md section 3)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cgpu_cli.sim import native
from cgpu_cli.sim.gpu import Gpu
from cgpu_cli.sim.model import MS, US, Container, Personality, Profile, S, Setup
from cgpu_cli.sim.turns import Turns

CARD = Profile(
    "x", "x", 100, timeslice_us=1000, ctxsw_us=50, control_us=300, control_spin_us=50, tail_us=5000, tail_pct=0
)
BUSY = Container("busy", kernel_us=300, depth=8)


def machine(*containers: Container, own: Personality | None = None, card: Profile = CARD, seed: int = 1) -> Gpu:
    return Gpu(card, own or Personality(), containers, 2 * S, seed)


def test_alone_it_pays_one_switch() -> None:
    gpu = machine(BUSY)
    gpu.advance(S)
    assert gpu.busy() == [S - 50 * US]
    assert gpu.client(0).works == (S - 50 * US) // (300 * US)
    assert gpu.quantile_us(gpu.client(0).wait, 1000) == pytest.approx(50, rel=0.016)


def test_an_idle_queue_leaves_the_engine_idle() -> None:
    gpu = machine(Container("a", kernel_us=100, depth=1, gap_us=300))
    gpu.advance(S)
    assert gpu.busy()[0] == pytest.approx(S / 4, rel=0.001)


def test_round_robin_and_its_switches() -> None:
    gpu = machine(BUSY, BUSY)
    gpu.advance(S)
    assert sum(gpu.busy()) == pytest.approx(S * 1000 / 1050, rel=0.002)
    assert gpu.busy()[0] == pytest.approx(gpu.busy()[1], rel=0.003)


def test_switches_between_ones_own_are_ones_own() -> None:
    gpu = machine(replace(BUSY, processes=4))
    gpu.advance(S)
    assert gpu.held()[0] == S - 50 * US
    assert gpu.busy()[0] == pytest.approx(S * 1000 / 1050, rel=0.002)


def test_a_timeslice_waits_for_its_commit() -> None:
    gpu = machine(BUSY, BUSY)
    assert gpu.timeslice(0, 3000)
    gpu.mark()
    gpu.advance(gpu.now + 500 * MS)
    assert gpu.busy()[0] == pytest.approx(gpu.busy()[1], rel=0.01)
    gpu.commit([0])
    gpu.mark()
    gpu.advance(gpu.now + 500 * MS)
    assert gpu.busy()[0] / gpu.busy()[1] == pytest.approx(3, rel=0.02)


def test_clients_on_the_sched_threads_processor_wait_while_a_call_spins() -> None:
    """During a call a short queue runs empty, and a deep one does not. Between calls neither is affected."""
    card = replace(CARD, control_spin_us=100)

    def busy(load: Container, one_cpu: bool) -> tuple[int, int]:
        gpu = Gpu(card, Personality(), [load], 2 * S, 1, one_cpu)
        gpu.mark()
        gpu.advance(100 * MS)
        between = gpu.busy()[0]
        for _ in range(200):
            gpu.timeslice(0, 1000)
        return between, gpu.busy()[0] - between

    short, deep = Container("short", kernel_us=50, depth=1), Container("deep", kernel_us=50, depth=64)
    assert busy(deep, True) == busy(deep, False)
    (before, with_own), (after, shared) = busy(short, False), busy(short, True)
    assert before == after
    assert shared < 0.75 * with_own


@pytest.mark.parametrize(
    ("own", "moves"), [(Personality(commit_required=0), True), (Personality(control_ineffective=1), False)]
)
def test_timeslices_of_other_drivers(own: Personality, moves: bool) -> None:
    gpu = machine(BUSY, BUSY, own=own)
    gpu.timeslice(0, 3000)
    if not moves:
        gpu.commit([0])
    gpu.mark()
    gpu.advance(gpu.now + 500 * MS)
    assert gpu.busy()[0] / gpu.busy()[1] == pytest.approx(3 if moves else 1, rel=0.02)


def test_frozen_is_frozen_from_the_middle_of_the_call() -> None:
    gpu = machine(BUSY)
    gpu.advance(100 * MS)
    began = gpu.now
    assert gpu.freeze(0, True)
    assert 270 * US <= gpu.now - began <= 330 * US
    assert gpu.busy()[0] == began - 50 * US + (gpu.now - began) // 2
    gpu.advance(S)
    assert gpu.busy()[0] < 101 * MS
    gpu.freeze(0, False)
    gpu.mark()
    gpu.advance(gpu.now + 100 * MS)
    assert gpu.busy()[0] >= 99 * MS


def test_long_kernels_go_on_where_they_were() -> None:
    gpu = machine(replace(BUSY, kernel_us=20_000, depth=2), BUSY)
    gpu.advance(S)
    assert gpu.client(0).works == gpu.busy()[0] // (20 * MS)


@pytest.mark.parametrize(
    ("own", "container", "least_ms", "most_ms"),
    [
        (Personality(no_preempt=1), replace(BUSY, kernel_us=40_000, depth=2), 1, 41),
        (Personality(stubborn_ms=500), replace(BUSY, kernel_us=10_000_000, depth=1, stubborn=True), 490, 502),
        (Personality(), replace(BUSY, kernel_us=10_000_000, depth=1), 0, 1),
    ],
)
def test_what_resists_holds_up_the_call(own: Personality, container: Container, least_ms: int, most_ms: int) -> None:
    gpu = machine(container, own=own)
    gpu.advance(10 * MS)
    began = gpu.now
    assert gpu.freeze(0, True)
    assert least_ms * MS <= gpu.now - began <= most_ms * MS
    was = gpu.busy()
    gpu.advance(gpu.now + 50 * MS)
    assert gpu.busy() == was


def test_faults_of_the_controls() -> None:
    gpu = machine(BUSY, own=Personality(control_ineffective=2))
    assert gpu.freeze(0, True)
    gpu.advance(500 * MS)
    assert gpu.busy()[0] > 499 * MS

    gpu = machine(BUSY, own=Personality(disable_needs_restart=1))
    gpu.freeze(0, True)
    gpu.advance(100 * MS)
    assert gpu.busy()[0] > 99 * MS
    gpu.commit([0])
    was = gpu.busy()
    gpu.advance(500 * MS)
    assert gpu.busy()[0] - was[0] == 0

    gpu = machine(replace(BUSY, processes=3), own=Personality(err40_pct=100))
    assert gpu.commit([0])[0] is False
    assert gpu.calls == 3, "each channel is tried"


def test_channels_go_in_lists_of_64() -> None:
    gpu = machine(replace(BUSY, processes=130))
    gpu.freeze(0, True)
    assert gpu.calls == 3


def test_each_list_acts_on_its_own_channels() -> None:
    """From the middle of the first call on the first 64 run, until the middle of the last the last ones do."""
    gpu = machine(replace(BUSY, processes=130), own=Personality(tail_pct=0))
    for frozen in (True, False):
        was = gpu.held()[0]
        gpu.freeze(0, frozen)
        assert 1.9 * 300_000 < gpu.held()[0] - was < 2.6 * 300_000, "2.5 calls, less a switch or two"
    gpu.freeze(0, True)
    was = gpu.held()[0]
    gpu.advance(gpu.now + 10 * MS)
    assert gpu.held()[0] == was


def test_from_one_list_to_the_next_is_ones_own() -> None:
    """The channel that ran is frozen, the first one of the next list is not yet: the container keeps the engine."""
    gpu = machine(replace(BUSY, processes=65), own=Personality(tail_pct=0))
    gpu.advance(10 * MS)
    began, held = gpu.now, gpu.held()[0]
    gpu.freeze(0, True)
    last_ns = gpu.control_ns[-1]
    assert gpu.calls == 2
    assert gpu.held()[0] - held == gpu.now - began - (last_ns - last_ns // 2), "to the middle of the last call"


def test_figures_outlive_their_gpu() -> None:
    gpu = machine(BUSY)
    gpu.advance(S)
    client, works = gpu.client(0), gpu.client(0).works
    del gpu
    others = [machine(BUSY) for _ in range(20)]
    assert client.works == works > len(others)


def test_one_that_comes_and_goes() -> None:
    """50 ms of each 100; work that was queued when it left is dropped."""
    one = replace(BUSY, churn_ms=50, start_ms=100)
    moments = list(one.moments(300 * MS))
    assert moments == [(100 * MS, True), (150 * MS, False), (200 * MS, True), (250 * MS, False)]
    assert list(replace(one, stop_ms=220).moments(S))[-1] == (220 * MS, False)
    assert list(replace(one, stop_ms=160).moments(S))[-1] == (150 * MS, False)
    gpu = machine(one)
    Turns(gpu, Setup(CARD, 1, 5000), (one,)).run(S)
    assert gpu.busy()[0] == pytest.approx(450 * MS, rel=0.005)


def test_many_moments_are_made_as_they_come() -> None:
    """An hour of a container that comes and goes each millisecond: all moments were made before the run, and the
    list of them moved by one at each."""
    loads = [replace(BUSY, churn_ms=1, start_ms=number / 10) for number in range(10)]
    gpu = Gpu(CARD, Personality(), loads, 3600 * S, 1)
    began = time.process_time()
    turns = Turns(gpu, Setup(CARD, 1, 5000), loads)
    assert time.process_time() - began < 1
    turns.run(50 * MS)
    assert gpu.now >= 50 * MS


def test_bursts_and_rates() -> None:
    gpu = machine(replace(BUSY, on_ms=10, off_ms=90, start_ms=5))
    gpu.advance(S)
    assert 10 * 10 * MS <= gpu.busy()[0] <= 10 * 13 * MS, "work that is queued when a burst ends still runs"
    assert gpu.client(0).wake.count == 10
    gpu = machine(replace(BUSY, rate=500))
    gpu.advance(S)
    assert gpu.client(0).works == pytest.approx(500, abs=1)


def test_a_shut_gate_lets_nothing_in() -> None:
    gpu = machine(replace(BUSY, depth=1, gap_us=0))
    client = gpu.client(0)
    client.gate_poll_ns, client.token_cost, client.tokens = 10 * MS, 1, 99
    gpu.advance(S)
    assert client.works == 100
    client.tokens = 49
    gpu.advance(2 * S)
    assert client.works == 150


loads = st.builds(
    Container,
    name=st.just("c"),
    kernel_us=st.floats(1, 30_000),
    spread_us=st.floats(0, 1000),
    depth=st.integers(1, 40),
    gap_us=st.floats(0, 3000),
    gap_spread_us=st.floats(0, 3000),
    rate=st.sampled_from([0, 10, 1000]),
    on_ms=st.just(7.0),
    off_ms=st.sampled_from([0.0, 13.0]),
    processes=st.integers(1, 5),
    start_ms=st.floats(0, 100),
    stop_ms=st.sampled_from([None, 150.0]),
    stubborn=st.booleans(),
    request_us=st.sampled_from([(), (), (900.0,), (2000.0, *[50.0] * 9)]),
    think_ms=st.sampled_from([0.0, 4.0]),
    requests_per_s=st.sampled_from([0.0, 30.0]),
)
acts = st.lists(
    st.tuples(st.sampled_from(["freeze", "thaw", "slice", "commit", "run"]), st.integers(0, 3)), max_size=20
)


@settings(max_examples=80, deadline=None)
@given(clients=st.lists(loads, min_size=1, max_size=4), acts=acts, seed=st.integers(0, 99))
def test_no_time_is_made_or_lost(clients: list[Container], acts: list[tuple[str, int]], seed: int) -> None:
    gpu = machine(*clients, own=Personality(stubborn_ms=3), card=replace(CARD, tail_pct=20), seed=seed)
    gpu.trace(0, 2 * S, 0)
    for what, number in acts:
        before, client = gpu.now, number % len(clients)
        match what:
            case "freeze" | "thaw":
                assert gpu.freeze(client, what == "freeze")
            case "slice":
                gpu.timeslice(client, 100 * (number + 1))
            case "commit":
                gpu.commit([client])
            case "run":
                gpu.advance(gpu.now + 30 * MS)
        assert gpu.now >= before
    gpu.advance(gpu.now + 10 * MS)
    seen = [gpu.client(i) for i in range(len(clients))]
    assert all(one.busy_ns <= one.held_ns for one in seen)
    assert sum(one.held_ns for one in seen) <= gpu.now
    assert sum(one.switches for one in seen) * 50 * US + sum(one.busy_ns for one in seen) <= gpu.now + 50 * US
    assert all(one.done_ns <= one.busy_ns for one in seen)
    assert all(sum(gpu.buckets(i, 20)) == one.held_ns for i, one in enumerate(seen) if gpu.now < 2 * S)
    line = gpu.traced()
    assert all(a.end_ns <= b.begin_ns for a, b in pairwise(line))
    if gpu.now < 2 * S:
        assert sum(one.end_ns - one.begin_ns for one in line) == sum(one.held_ns for one in seen)


@settings(max_examples=50, deadline=None)
@given(values=st.lists(st.integers(0, 2**40), min_size=1, max_size=60), permille=st.integers(1, 1000))
def test_quantiles(values: list[int], permille: int) -> None:
    ffi, lib = native.load()
    hist = ffi.new("struct cgpu_sim_hist *")
    for value in values:
        lib.cgpu_sim_hist_add(hist, value)
    exact = sorted(values)[-(-len(values) * permille // 1000) - 1]
    assert lib.cgpu_sim_quantile(hist, permille) == pytest.approx(exact, rel=0.016, abs=1)


def test_under_the_sanitizer(tmp_path: Path) -> None:
    """The same C with UBSan, in a process of its own."""
    code = """
from cgpu_cli.sim.config import read_scenario
from cgpu_cli.sim.model import Setup, profile
from cgpu_cli.sim.run import run
from cgpu_common.policies import Policy
for policy in Policy:
    flags = ["count=18,processes=3,kernel_us=50,depth=2", "highprio=1,on_ms=3,off_ms=8", "stubborn=1,stop_ms=300",
             "processes=2,request_us=9000+50x20,requests_per_s=30", "request_us=100,think_ms=1,depth=1,stop_ms=400"]
    run(read_scenario({"seconds": 0.5}, Setup(profile("t4"), policy, 2000, 25), 1, flags))
"""
    flags = "-O0 -fsanitize=undefined -fno-sanitize-recover=all"
    env = os.environ | {"CGPU_CACHE": str(tmp_path / "cache"), "CFLAGS": flags}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert not done.stderr
    assert not done.returncode
