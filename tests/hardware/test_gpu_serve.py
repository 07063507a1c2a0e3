# SPDX-License-Identifier: MIT
"""The service beside training: its arrivals, its word for conduct, and the requests that count. No PyTorch needed."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from types import SimpleNamespace

import pytest
from hw import machine, serve


@pytest.fixture
def serveload():
    spec = importlib.util.spec_from_file_location("serveload", machine.GPU / "load/serveload.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def torch(available: bool = True) -> SimpleNamespace:
    return SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: available, synchronize=lambda: None))


def events(capsys, kind: str) -> list[dict]:
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return [line for line in lines if line["event"] == kind]


def test_the_word_is_where_conduct_reads_it(serveload, tmp_path):
    state = serveload.State(str(tmp_path / "word"))
    seen = []
    for busy in (1, 0):
        state.set(busy)
        seen.append(int.from_bytes((tmp_path / "word").read_bytes()[:4], "little"))
    assert seen == [1, 0]
    serveload.State(None).set(1)


def test_without_a_gpu_it_says_so(serveload, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["serveload"])
    monkeypatch.setitem(sys.modules, "torch", torch(available=False))
    assert serveload.main() == 4
    monkeypatch.setitem(sys.modules, "torch", None)
    assert serveload.main() == 1
    assert "sees no GPU" in (said := capsys.readouterr().err)
    assert "not installed" in said


def run(serveload, monkeypatch, tmp_path, token_s: float, rate: float) -> list[int]:
    """A second of requests of three tokens; gives the word as each token saw it."""
    word, seen = tmp_path / "word", []

    def decode() -> None:
        seen.append(word.read_bytes()[0])
        time.sleep(token_s)

    argv = f"serveload --tokens 3 --rate {rate} --seconds 1 --state {word} --seed 7"
    monkeypatch.setattr(sys, "argv", argv.split())
    monkeypatch.setitem(sys.modules, "torch", torch())
    monkeypatch.setattr(serveload, "decoders", lambda *_: {1: decode})
    assert serveload.main() == 0
    return seen


def test_a_request_is_timed_from_its_arrival(serveload, monkeypatch, tmp_path, capsys):
    seen = run(serveload, monkeypatch, tmp_path, token_s=0.002, rate=20)
    requests = events(capsys, "request")
    assert len(requests) >= 5
    assert all(one["ms"] >= 6 for one in requests), "three tokens"
    assert all(one["ms"] == pytest.approx(1000 * (one["monotonic"] - one["arrived"])) for one in requests)
    assert set(seen) == {1}, "while it works it says so"
    assert (tmp_path / "word").read_bytes()[0] == 0


def test_a_late_answer_delays_those_behind_it(serveload, monkeypatch, tmp_path, capsys):
    """Arrivals do not wait for answers: 50 a second of 60 ms each pile up."""
    run(serveload, monkeypatch, tmp_path, token_s=0.02, rate=50)
    requests = events(capsys, "request")
    assert requests[-1]["ms"] > 3 * requests[0]["ms"] > 0
    assert (tmp_path / "word").read_bytes()[0] == 1, "others wait"


def test_a_loop_decodes_what_stdin_asks_for(serveload, monkeypatch, capsys):
    """At rest until a line comes; then batches, each token of each request counted; a wrong line changes nothing."""
    done: list[int] = []

    def lines():
        yield from ("2\n", "3\n")
        while len(done) < 5:
            time.sleep(0.001)
        yield "4\n"

    def decoder(batch: int):
        def decode() -> None:
            done.append(batch)
            time.sleep(0.005)

        return decode

    argv = "serveload --batches 2,4 --seconds 0.3 --interval 0.01"
    monkeypatch.setattr(sys, "argv", argv.split())
    monkeypatch.setattr(sys, "stdin", lines())
    monkeypatch.setitem(sys.modules, "torch", torch())
    monkeypatch.setattr(serveload, "decoders", lambda *made: {batch: decoder(batch) for batch in made[-1]})
    assert serveload.main() == 0
    said = capsys.readouterr()
    assert done[0] == 2
    assert done[-1] == 4
    assert "'3' is none of [0, 2, 4]" in said.err
    progress = [json.loads(line) for line in said.out.splitlines() if "progress" in line]
    assert 0 < progress[-1]["works"] <= sum(done)
    assert progress[-1]["works"] % 2 == 0


class Crew:
    def __init__(self, *rates: float):
        self._rates = list(rates)

    def rates(self, seconds: float, loads: list) -> list[float]:
        assert len(loads) == len(self._rates)
        return self._rates


def test_requests_that_arrive_in_the_window_count(monkeypatch):
    monkeypatch.setattr(serve.time, "monotonic", lambda: 100.0)
    inside = [{"arrived": 100.3 + i / 10, "ms": float(i)} for i in range(1, 101)]
    outside = [{"arrived": at, "ms": 1e6} for at in (100.2, 110.4, 0.0)]
    load = SimpleNamespace(requests=outside + inside)
    row = serve.window(None, Crew(9.0, 30.12345), load, SimpleNamespace(), 10.0)
    assert row["request_ms"]["n"] == 100
    assert (row["request_ms"]["median"], row["request_ms"]["p99"]) == (50.5, 99)
    assert row["steps_per_s"] == 30.123, "the training's, not the requests'"
    assert "steps_per_s" not in serve.window(None, Crew(9.0), load, None, 10.0)
    assert "request_ms" not in serve.window(None, Crew(9.0), None, SimpleNamespace(), 10.0)


def test_the_answer_has_each_way_or_its_reason():
    rows = {
        "driver": {"request_ms": {"n": 2, "median": 1.0, "p99": 2.0}, "steps_per_s": 3.0},
        "MPS": {"reason": "nvidia-cuda-mps-control is not installed"},
        "none": {"request_ms": {"n": 0}},
    }
    said = serve.said_of(rows)
    assert said.startswith("driver: p50/p99 1.0/2.0 ms, 3.0 steps/s; MPS: nvidia-cuda-mps-control is not")
    assert said.endswith("none: nothing")


def test_without_mps_it_is_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(serve.Missing, match="not installed"), serve.mps(SimpleNamespace(work=tmp_path)):
        pass
