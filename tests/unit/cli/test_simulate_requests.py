# SPDX-License-Identifier: MIT
"""Requests: hand-computed latencies, known queues, and the flags and files that describe them."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from commands import refused, simulate, simulated
from hypothesis import given, settings
from hypothesis import strategies as st

from cgpu_cli.sim import figures, requests
from cgpu_cli.sim.gpu import Gpu
from cgpu_cli.sim.model import MS, US, Arrival, Container, Personality, Profile, S
from cgpu_cli.sim.requests import Request, Requests
from cgpu_common.exits import CgpuError, Exit

CARD = Profile(
    "x", "x", 100, timeslice_us=1000, ctxsw_us=50, control_us=300, control_spin_us=50, tail_us=5000, tail_pct=0
)
# 12 ms of kernels and two gaps of 30 us: 12.06 ms.
THREE = Container("three", depth=1, gap_us=30, request_us=(10_000.0, 1000.0, 1000.0))
ONE = Container("one", depth=1, gap_us=0, request_us=(10_000.0,))
BUSY = Container("busy", kernel_us=500, depth=64)


def machine(*containers: Container, seconds: int = 2, seed: int = 1, own: Personality | None = None) -> Gpu:
    return Gpu(CARD, own or Personality(), containers, seconds * S, seed)


def trace(*at_ms: float, request_us: tuple[float, ...] = THREE.request_us) -> tuple[Arrival, ...]:
    return tuple(Arrival(at, request_us) for at in at_ms)


def latencies_us(gpu: Gpu, number: int = 0) -> list[float]:
    return [(one.end_ns - one.arrival_ns) / US for one in gpu.requests(number)]


def test_three_arrivals() -> None:
    """The first pays the switch to it, the second waits for the first, the third comes to an idle GPU."""
    gpu = machine(replace(THREE, trace=trace(0, 5, 100)))
    gpu.advance(S)
    assert latencies_us(gpu) == [50 + 12_060, 50 + 12_060 + 12_060 - 5000, 12_060]
    assert [one.arrival_ns for one in gpu.requests(0)] == [0, 5 * MS, 100 * MS]
    assert gpu.client(0).works == 9


def test_a_queue_hides_the_gaps() -> None:
    """Kernels that are launched while others run wait for no gap; the next request is launched after the last end."""
    gpu = machine(replace(THREE, depth=3, trace=trace(0, 5)))
    gpu.advance(S)
    assert latencies_us(gpu) == [12_050, 24_050 - 5000]
    gpu = machine(replace(THREE, depth=2, gap_us=5000, trace=trace(0)))
    gpu.advance(S)
    assert latencies_us(gpu) == [50 + 10_000 + 5000 + 1000], "the third is launched 5 ms after the first"


def test_each_arrival_may_have_its_own_kernels() -> None:
    gpu = machine(replace(ONE, trace=(Arrival(0, (3000.0,)), Arrival(0, (100.0, 200.0)), Arrival(50, (3000.0,)))))
    gpu.advance(S)
    assert latencies_us(gpu) == [3050, 3350, 3000]


def test_requests_are_dealt_to_the_processes_in_turn() -> None:
    """The third is of the first process, which is at work; the second process stands idle by then."""
    arrivals = (Arrival(0, (100_000.0,)), Arrival(0, (10.0,)), Arrival(50, (10.0,)), Arrival(200, (10.0,)))
    gpu = machine(replace(ONE, processes=2, trace=arrivals))
    gpu.advance(S)
    by_arrival = sorted(zip([one.arrival_ns for one in gpu.requests(0)], latencies_us(gpu), strict=True))
    assert by_arrival[0][1] < 1200
    assert 100_000 < by_arrival[1][1] < 100_300
    assert 50_000 < by_arrival[2][1] < 50_400
    assert by_arrival[3][1] == 60, "the other process: a switch"


def test_the_cpu_of_a_closed_loop_works_while_the_gpu_does() -> None:
    """Alone its steps come at the pace of the CPU; beside another one the GPU is slower, and nothing is waited for."""
    one = replace(ONE, request_us=(1000.0,) * 8, depth=8, cpu_ms=10)
    gpu = machine(one)
    gpu.advance(1000 * MS)
    assert [found.arrival_ns for found in gpu.requests(0)[:3]] == [0, 10 * MS, 20 * MS]
    beside = machine(one, BUSY)
    beside.advance(1000 * MS)
    found = beside.requests(0)
    assert all(after.arrival_ns == before.end_ns for before, after in pairwise(found))
    assert 50 <= len(found) <= 65


def test_a_closed_loop_thinks_after_each_end() -> None:
    gpu = machine(replace(ONE, think_ms=5))
    gpu.advance(S)
    found = gpu.requests(0)
    assert latencies_us(gpu) == [10_050] + [10_000] * (len(found) - 1)
    assert [b.arrival_ns - a.end_ns for a, b in pairwise(found)] == [5 * MS] * (len(found) - 1)
    assert len(found) == 66


def test_poisson_arrivals_at_a_server_of_constant_time() -> None:
    """M/D/1 at a load of one half: the mean wait is half a service. 30,000 arrivals are within 5 % of it."""
    one = replace(ONE, requests_per_s=50)
    gpu = machine(one, seconds=600)
    gpu.advance(600 * S)
    took = latencies_us(gpu)
    assert len(took) == pytest.approx(30_000, rel=0.02)
    assert sum(took) / len(took) == pytest.approx(15_000, rel=0.05)
    assert sum(us < 10_001 for us in took) / len(took) == pytest.approx(0.5, abs=0.02), "those that found it idle"


def test_arrivals_in_bursts_are_in_the_bursts() -> None:
    one = replace(ONE, request_us=(10.0,), requests_per_s=1000, on_ms=30, off_ms=70, start_ms=5)
    gpu = machine(one, seconds=20)
    gpu.advance(20 * S)
    at_ms = [(found.arrival_ns / MS - 5) % 100 for found in gpu.requests(0)]
    assert max(at_ms) < 30
    assert len(at_ms) == pytest.approx(20 * 300, rel=0.05)


def test_arrivals_are_the_same_alone_and_beside_others() -> None:
    one = replace(THREE, requests_per_s=20, spread_us=300)
    alone, beside, other = machine(one), machine(BUSY, one), machine(one, seed=2)
    for gpu in (alone, beside, other):
        gpu.advance(2 * S)
    first = [found.arrival_ns for found in alone.requests(0)]
    both = min(len(first), len(beside.requests(1)))
    assert both > 20
    assert first[:both] == [found.arrival_ns for found in beside.requests(1)][:both]
    assert first[:10] != [found.arrival_ns for found in other.requests(0)][:10]
    assert latencies_us(beside, 1)[0] > latencies_us(alone)[0]


def test_what_has_not_ended_counts_with_its_age() -> None:
    """Of three arrivals in 30 ms one ended; the third is younger than its kernels take."""
    gpu = machine(replace(ONE, request_us=(20_000.0,), trace=trace(0, 5, 15, request_us=(20_000.0,))))
    gpu.advance(30 * MS)
    gpu.close()
    assert gpu.requests(0) == [
        Request(0, 20 * MS + 50 * US),
        Request(5 * MS, 30 * MS, open=True),
    ]
    found = Requests.of(gpu.requests(0), 30 * MS)
    assert (found.ended, found.open, found.max_us) == (1, 1, 25_000)


def test_what_is_open_at_the_stop_counts_once() -> None:
    """They vanished where the container left: an overloaded one seemed to have served all."""
    lengths = (20_000.0,)
    gpu = machine(replace(ONE, request_us=lengths, stop_ms=50, trace=trace(0, 5, 10, 45, 60, request_us=lengths)))
    gpu.advance(50 * MS)
    gpu.end(0)
    gpu.advance(S)
    gpu.close()
    ended = [Request(0, 20 * MS + 50 * US), Request(5 * MS, 40 * MS + 50 * US)]
    assert gpu.requests(0) == [*ended, Request(10 * MS, 50 * MS, open=True)], "that of 45 ms had no time to end"
    assert (
        gpu_of("--container", "request_us=9000,requests_per_s=500,stop_ms=500")["containers"][0]["requests_open"] > 100
    )


def test_figures_begin_at_the_mark() -> None:
    gpu = machine(replace(ONE, trace=trace(0, 50, request_us=ONE.request_us)))
    gpu.advance(30 * MS)
    gpu.mark()
    gpu.advance(S)
    assert latencies_us(gpu) == [10_000]


def test_none_arrives_after_the_end() -> None:
    gpu = machine(replace(ONE, think_ms=5, stop_ms=40))
    gpu.advance(39 * MS)
    gpu.end(0)
    gpu.advance(S)
    gpu.close()
    assert len(gpu.requests(0)) == 2
    gpu = machine(replace(ONE, trace=trace(0, 50, request_us=ONE.request_us), stop_ms=40))
    gpu.advance(S)
    gpu.close()
    assert len(gpu.requests(0)) == 1


def test_the_nearest_rank() -> None:
    found = Requests.of([Request(0, at * US) for at in range(1, 201)], S)
    assert (found.p50_us, found.p99_us, found.max_us, found.per_s) == (100, 198, 200, 200)
    assert Requests.of([], S).p99_us is None


def test_idle_is_a_loss_only_with_work_queued() -> None:
    """Frozen from 0 on; its first kernel comes at 100 ms, and it is thawed at 400."""
    gpu = machine(replace(ONE, trace=trace(100, request_us=ONE.request_us)))
    gpu.enable(0, False)
    gpu.advance(250 * MS)
    gpu.advance(400 * MS)
    gpu.enable(0, True)
    gpu.advance(S)
    assert gpu.idle_loss_ns == 300 * MS
    assert gpu.switching_ns == 50 * US
    assert latencies_us(gpu) == [310_050]
    gpu.mark()
    assert (gpu.idle_loss_ns, gpu.switching_ns) == (0, 0)


def test_a_gap_of_the_only_one_is_no_loss() -> None:
    gpu = machine(Container("a", kernel_us=100, depth=1, gap_us=300))
    gpu.advance(S)
    assert gpu.idle_loss_ns == 0


# Figures.


@pytest.mark.parametrize(
    ("demands", "weights", "fair"),
    [
        ([1, 1], [1, 1], [0.5, 0.5]),
        ([1, 1, 1], [3, 2, 1], [1 / 2, 1 / 3, 1 / 6]),
        ([0.1, 1, 1], [1, 1, 1], [0.1, 0.45, 0.45]),
        ([0.1, 0.2, 1], [1, 1, 1], [0.1, 0.2, 0.7]),
        ([0.2, 1, 1], [2, 1, 1], [0.2, 0.4, 0.4]),
        ([0.1, 0.2], [1, 1], [0.1, 0.2]),
        ([1, 1, 0.4], [0, 1, 1], [0, 0.6, 0.4]),
        ([0, 1], [1, 1], [0, 1]),
        ([], [], []),
    ],
)
def test_max_min(demands: list[float], weights: list[float], fair: list[float]) -> None:
    assert figures.max_min(demands, weights) == pytest.approx(fair)


def test_priority_comes_before_fairness() -> None:
    fair = figures.fair_shares
    assert fair([0.1, 1, 1], [1, 1, 1], [True, False, False], 0.8) == pytest.approx([0.1, 0.45, 0.45])
    assert fair([1, 1], [1, 1], [True, False], 0.8) == pytest.approx([0.8, 0.2])
    assert fair([1, 0], [1, 1], [True, False], 0.8) == pytest.approx([1, 0])
    assert fair([1, 1], [1, 1], [False, False], 0.8) == pytest.approx([0.5, 0.5])


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 5)), min_size=1, max_size=8))
def test_max_min_is_both(pairs: list[tuple[float, int]]) -> None:
    """No time is wasted, and a container below its demand has no less for its weight than any other."""
    demands, weights = [one for one, _ in pairs], [one for _, one in pairs]
    found = figures.max_min(demands, weights)
    wanted = sum(want for want, weight in pairs if weight)
    assert sum(found) == pytest.approx(min(1, wanted), abs=1e-6)
    parts = [share / weight for share, weight in zip(found, weights, strict=True) if weight]
    for share, want, weight in zip(found, demands, weights, strict=True):
        assert share <= want + 1e-9
        if weight and share < want - 1e-9:
            assert share / weight >= max(parts) - 1e-9


def test_what_the_low_ones_have_of_the_rest() -> None:
    assert figures.low_of_rest_pct([0.2, 0.4, 0.2], [True, False, False]) == pytest.approx(75)
    assert figures.low_of_rest_pct([0.2, 0.4], [False, False]) is None
    assert figures.low_of_rest_pct([0.2, 0.4], [True, True]) is None


# The command.


def gpu_of(*argv: str) -> dict[str, Any]:
    return simulated(*argv)[0]


LLM = "name=llm,request_us=20000+200x40,depth=1,gap_us=30"


def test_alone_is_a_hundred_percent_of_itself() -> None:
    only = gpu_of("--alone", "--policy", "native", "--container", LLM + ",requests_per_s=5")["containers"][0]
    assert only["request_p99_of_alone_pct"] == 100
    assert only["request_p99_us"] == only["request_alone_p99_us"]
    assert only["share_from_fair_pp"] == pytest.approx(0, abs=1e-9)


def test_beside_a_saturating_one() -> None:
    """1 ms of timeslice for each 1 ms: native takes about twice as long."""
    argv = ("--policy", "native", "--container", LLM + ",think_ms=400", "--container", "name=train")
    found = gpu_of("--alone", *argv)
    llm, train = found["containers"]
    service_us = 20_000 + 40 * 200 + 40 * 30
    assert llm["request_alone_p99_us"] == pytest.approx(service_us, rel=0.01)
    assert 150 < llm["request_p99_of_alone_pct"] < 400
    assert llm["requests"] == pytest.approx(10_000 / (400 + llm["request_p50_us"] / 1000), abs=1)
    assert train["request_p99_us"] is train["requests"] is None
    assert train["share_alone_pct"] == pytest.approx(100, abs=0.1)
    assert train["share_fair_pct"] == pytest.approx(100 - llm["share_alone_pct"], abs=0.01)
    assert found["share_from_fair_pp"] == max(abs(one["share_from_fair_pp"]) for one in (llm, train))
    assert gpu_of(*argv)["containers"][0]["request_p99_of_alone_pct"] is None
    text = simulate("--alone", *argv).stdout
    assert "p99 of alone" in text
    assert "Max-min fair" in text


def test_a_trace_file(tmp_path: Path) -> None:
    path = tmp_path / "arrivals.txt"
    path.write_text("# time in ms, lengths in us\n0\n\n5 3000\n100 1000+10x2 # the last\n")
    argv = ("--container", f"name=a,request_us=10000,requests_file={path},gap_us=0,depth=1")
    found = gpu_of("--policy", "native", "--seconds", "1", *argv)["containers"][0]
    assert found["requests"] == 3
    assert found["request_max_us"] == pytest.approx(10_085)
    assert found["request_p50_us"] == pytest.approx(10_085 + 3000 - 5000)


def test_requests_are_drawn(tmp_path: Path) -> None:
    path = tmp_path / "line.svg"
    assert simulate("--seconds", "1", "--container", LLM + ",think_ms=40", "--svg", str(path)).exit_code == 0
    marks = [one for one in ET.parse(path).getroot().iter() if one.get("class") == "request"]
    assert len(marks) in (3, 4), "200 ms of requests that are 70 ms apart"


def test_a_file_has_requests_too(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text('seconds = 1\n[[container]]\nname = "a"\nrequest_us = 5000\nthink_ms = 5\n')
    assert gpu_of(str(path), "--policy", "native")["containers"][0]["requests"] == 100


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("request_us=10000", "container c0: requests arrive in one way, and none is given (requests_per_s, think_ms"),
        ("request_us=1000,think_ms=1,requests_per_s=5", "in one way, and requests_per_s and think_ms are given"),
        ("think_ms=4", "container c0: think_ms needs request_us"),
        ("request_us=10,requests_per_s=5,cpu_ms=5", "container c0: cpu_ms needs think_ms"),
        ("requests_per_s=4", "requests_per_s needs request_us"),
        ("request_us=0,think_ms=1", "request_us: '0' is no length of a kernel (microseconds, 1 to 1e+07, or 200x40)"),
        ("request_us=nan,think_ms=1", "'nan' is no length"),
        ("request_us=10+,think_ms=1", "'' is no length"),
        ("request_us=10x0,think_ms=1", "'10x0' is no number of kernels (1 to 100000 in a request)"),
        ("request_us=10x1.5,think_ms=1", "'10x1.5' is no number of kernels"),
        ("request_us=10x99999+10x2,think_ms=1", "'10x2' is no number of kernels"),
        ("request_us=10,think_ms=1,kernel_us=5", "kernel_us and requests exclude one another"),
        ("request_us=10,think_ms=1,rate=5", "rate and requests exclude one another"),
        ("request_us=10,think_ms=-1", "think_ms=-1 is out of range"),
        ("request_us=10,requests_per_s=1e5", "container c0 has more than 1000000 requests"),
        ("request_us=10,requests_file=/nowhere/x", "/nowhere/x: No such file"),
    ],
)
def test_requests_that_cannot_be(words: str, why: str) -> None:
    refused(simulate("--seconds", "11", "--container", words), why)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("5 9\nx\n", "line 2: 'x' is no time (milliseconds, 0 to 3.6e+06)"),
        ("5 9\n4\n", "line 2: 4 ms is before the line above"),
        ("-1\n", "line 1: '-1' is no time"),
        ("nan\n", "'nan' is no time"),
        ("5 0\n", "line 1: '0' is no length of a kernel"),
        ("# nothing\n", "has no arrivals"),
        ("5\n", "line 1 has no lengths, and the container has no request_us"),
    ],
)
def test_traces_that_cannot_be(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "arrivals.txt"
    path.write_text(text)
    refused(simulate("--container", f"requests_file={path}"), why)


def test_a_file_of_too_many_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of a megabyte had 10^10 kernels, and each line's lengths were read and kept anew."""
    path = tmp_path / "arrivals.txt"
    path.write_text("5 10x1000\n" * 100)
    found = requests.read_trace(path, ())
    assert len({id(one.request_us) for one in found}) == 1, "the same words are read once"
    monkeypatch.setattr(requests, "KERNELS_ALL", 99_999)
    with pytest.raises(CgpuError, match="too many kernels"):
        requests.read_trace(path, ())
    monkeypatch.setattr(requests, "KERNELS_ALL", 10**9)
    monkeypatch.setattr(requests, "KERNELS_KEPT", 1999)
    assert len(requests.read_trace(path, ())) == 100
    path.write_text("5 10x1000\n5 11x1000\n")
    with pytest.raises(CgpuError, match="too many kernels"):
        requests.read_trace(path, ())
    monkeypatch.setattr(requests, "FILE_MOST", 10)
    with pytest.raises(CgpuError, match="is larger than"):
        requests.read_trace(path, ())


@pytest.mark.parametrize("line", ["request_us = 0x" + 5000 * "f" + "\nthink_ms = 1", "weight = 0x" + 5000 * "f"])
def test_long_numbers_in_a_file(tmp_path: Path, line: str) -> None:
    path = tmp_path / "x.toml"
    path.write_text(f"[[container]]\n{line}\n")
    refused(simulate(str(path)), "a number of 20000 bits")


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.text(max_size=20), st.from_regex(r"[0-9x+.,e]{1,12}", fullmatch=True)))
def test_any_lengths_are_lengths_or_a_sentence(text: str) -> None:
    try:
        found = requests.read_lengths(text, "x")
    except CgpuError as err:
        assert err.code == Exit.USAGE
        assert "\n" not in err.line("cgpu")
    else:
        assert 0 < len(found) <= requests.KERNELS_MAX
