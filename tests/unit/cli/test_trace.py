# SPDX-License-Identifier: MIT
"""cgpu trace and stats, Chrome's trace format, and its playback by cgpu simulate."""

from __future__ import annotations

import itertools
import json
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import refused, simulate, simulated
from fake_tree import ID1, ID2, MIB, Cli, Tree, inst_line, sample
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cgpu_cli import chrome, samples
from cgpu_cli.samples import MS, Track
from cgpu_cli.sim import draw, playback
from cgpu_cli.sim.gpu import Stretch
from cgpu_common.exits import CgpuError


def track(*parts: float, step_ms: int = 2) -> Track:
    """Readings step_ms apart, between which it ran for these parts of the time."""
    found = Track(0, ID1, "one", 1, False)
    ran = 0
    found.add(0, {"gpu_ns": 0})
    for place, part in enumerate(parts, 1):
        ran += round(part * step_ms * MS)
        found.add(place * step_ms * MS, {"gpu_ns": ran, "turns": place})
    return found


# ---- readings ----


def test_neighbouring_readings_are_one_interval() -> None:
    assert samples.spans(track(1, 1, 0, 0.8, 0.2)) == [(0, 4 * MS, 1.0), (6 * MS, 8 * MS, 0.8)]


def test_the_share_is_exact() -> None:
    found = track(1, 0.25, 0, 0.75)
    assert (found.share_pct, found.turns_seen) == (50.0, 4)


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=80))
def test_buckets_have_all_of_the_time(parts: list[float]) -> None:
    found = track(*parts)
    count = len(parts) * 2 // 100 + 1
    assert sum(samples.buckets(found, 0, count)) == pytest.approx(found.gpu_ns[-1], abs=count + len(parts))


def test_a_container_read_once_has_no_share() -> None:
    found = Track(0, ID1, "one", 1, False)
    found.add(5, {})
    assert (found.share_pct, samples.spans(found), samples.buckets(found, 0, 3)) == (None, [], [0, 0, 0])


def test_a_trace_of_two_that_take_turns(moving: Tree, tmp_path: Path) -> None:
    trace, svg = tmp_path / "trace.json", tmp_path / "trace.svg"
    result = Cli(moving).cgpu("trace", "--seconds", "1", "--perfetto", str(trace), "--svg", str(svg), "--json")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    one, two = data["gpus"][0]["containers"]
    assert one["name"] == "gpu_test1"
    for box in (one, two):
        assert 25 < box["share_got_pct"] < 75
        assert len(box["ran"]) >= 2
    (process,) = chrome.parse(trace.read_text())
    assert list(process.tracks) == ["gpu_test1", ID2[:12]]
    assert [about["weight"] for about in process.about] == [1, 1]
    texts = [one.text or "" for one in ET.parse(svg).getroot().iter("{http://www.w3.org/2000/svg}text")]
    assert {"gpu_test1", ID2[:12], "100 %"} <= set(texts)


def test_a_container_that_ends_during_the_trace(moving: Tree) -> None:
    timer = threading.Timer(0.2, lambda: moving.listed(inst_line(ID1, 1)))
    timer.start()
    result = Cli(moving).cgpu("trace", "--seconds", "0.5")
    assert result.exit_code == 0
    assert "not resolved" in result.stdout


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--gpu", "9"), 5),
        (("--seconds", "0"), 2),
        (("--perfetto", "/nowhere/x.json"), 2),
        (("--svg", "/nowhere/x.svg"), 2),
    ],
)
def test_wrong_words_write_nothing(cli: Cli, words: tuple[str, ...], code: int) -> None:
    assert cli.cgpu("trace", *words).exit_code == code


# ---- Chrome's format ----


def a_trace(*spans: tuple[int, float, float], names: tuple[str, ...] = ("train", "serve")) -> str:
    own = [chrome.Span(*one) for one in spans]
    return chrome.document([chrome.Process(0, "GPU 0", names, own, about=[{"weight": 2}, {"weight": 1}])], {})


def test_a_trace_is_read_as_it_was_written() -> None:
    (found,) = chrome.parse(a_trace((0, 0, 300), (1, 300, 900)))
    assert found.tracks == ["train", "serve"]
    assert [(one.track, one.begin_us, one.end_us) for one in found.spans] == [(0, 0, 300), (1, 300, 900)]


def test_events_have_what_perfetto_needs() -> None:
    process = chrome.Process(
        0, "GPU 0", ["a"], [chrome.Span(0, 1, 2)], [chrome.Counter(1, "c", {"x": 50})], [chrome.Instant(3, "policy")]
    )
    events = json.loads(chrome.document([process], {"sampled": True}))["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X", "C", "i"}
    for event in events:
        assert {"ph", "name", "pid", "tid"} <= event.keys()
        assert event["ph"] == "M" or isinstance(event["ts"], (int, float))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda below: st.lists(below, max_size=4) | st.dictionaries(st.sampled_from(
        ["ph", "ts", "dur", "pid", "tid", "args", "name", "traceEvents", "weight", "highprio"]), below, max_size=6),
    max_leaves=20,
)  # fmt: skip
EVENT = st.fixed_dictionaries(
    {"ph": st.sampled_from(["X", "M", "i"]), "name": st.sampled_from(["thread_name", "a"])},
    optional=dict.fromkeys(("ts", "dur", "pid", "tid", "args"), JSON),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.one_of(JSON, st.lists(EVENT, max_size=5).map(lambda events: {"traceEvents": events})))
def test_any_json_is_a_trace_or_a_sentence(tmp_path: Path, data: object) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps(data))
    try:
        found, seconds = playback.read(path)
    except CgpuError as err:
        assert err.code == 2
    else:
        assert found
        assert seconds > 0


# ---- playback ----


def test_what_ran_arrives_again(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(a_trace((0, 1000, 2000), (1, 2000, 2100), (0, 5000, 5450)))
    (train, serve), seconds = playback.read(path)
    assert (train.name, train.weight, serve.weight) == ("train", 2, 1)
    assert [arrival.at_ms for arrival in train.trace] == [0.0, 4.0]
    assert train.trace[0].request_us == (300, 300, 300, 100)
    assert serve.trace[0].request_us == (100,)
    assert seconds == pytest.approx(0.1)


def test_a_simulation_is_played_back(tmp_path: Path) -> None:
    """Two that always work; their intervals, played back alone, take as much of the GPU."""
    path, again = tmp_path / "x.json", tmp_path / "y.json"
    words = ("--seconds", "1", "--from-ms", "0", "--line-ms", "1000")
    (first,) = simulated("--container", "name=a,weight=3", "--container", "name=b", *words, "--perfetto", str(path))
    (second,) = simulated("--trace", str(path), "--seconds", "1.2", "--perfetto", str(again))
    got = {one["name"]: one["share_got_pct"] for one in second["containers"]}
    before = {one["name"]: one["share_got_pct"] for one in first["containers"]}
    assert got.keys() == before.keys()
    for name, share in before.items():
        assert got[name] == pytest.approx(share / 1.2, rel=0.1)
    assert [one["weight"] for one in second["containers"]] == [3, 1]
    assert chrome.parse(again.read_text())[0].tracks == ["a", "b"]


GAPS = "name=a,kernel_us=100,gap_us=100,depth=1"


def test_gaps_are_no_work(tmp_path: Path) -> None:
    """Gaps below 1/5000 of the line were a part of the interval: half of the time was drawn and played back as all."""
    path, picture = tmp_path / "x.json", tmp_path / "x.svg"
    words = ("--policy", "native", "--seconds", "2", "--from-ms", "0", "--line-ms", "2000", "--container", GAPS)
    (gpu,) = simulated(*words, "--perfetto", str(path), "--svg", str(picture))
    share = gpu["containers"][0]["share_got_pct"]
    assert share == pytest.approx(50, abs=0.1)
    ran = gpu["line"]["ran"]
    assert sum(one["to_ms"] - one["from_ms"] for one in ran) == pytest.approx(20 * share, rel=1e-4)
    again = simulated("--trace", str(path), "--policy", "native")[0]["containers"][0]
    assert again["share_got_pct"] == pytest.approx(share, rel=0.01)
    rects = ET.parse(picture).getroot().findall("{http://www.w3.org/2000/svg}rect[@fill='#0072b2']")
    drawn = [one for one in rects if float(one.get("width") or 0) > 100]
    assert [one.get("height") for one in drawn] == ["11.5"], "half of a lane, in one piece"
    text = simulate(*words).stdout
    assert "▄▄▄▄▄▄▄▄" in text and "█████" not in text


def test_two_of_unequal_gaps_are_played_back(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    line = ("--seconds", "2", "--from-ms", "0", "--line-ms", "2000", "--perfetto", str(path))
    words = ("--container", GAPS, "--container", "name=b,kernel_us=700,depth=1,gap_us=300,weight=2")
    before = simulated(*words, *line)[0]["containers"]
    after = simulated("--trace", str(path), "--policy", "native", "--seconds", "2.2")[0]["containers"]
    for first, second in zip(before, after, strict=True):
        assert 2.2 * second["share_got_pct"] == pytest.approx(2 * first["share_got_pct"], rel=0.01)


def test_a_line_of_too_many_intervals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was chosen is refused, the default ends where there is no room."""
    monkeypatch.setattr("cgpu_cli.sim.run.LINE_MOST", 100)
    words = ("--seconds", "1", "--container", GAPS + ",start_ms=1")
    done = simulate(*words, "--line-ms", "500", "--perfetto", str(tmp_path / "x"))
    refused(done, "the time line has more than 100 intervals (--line-ms, a shorter one)")
    (gpu,) = simulated(*words)
    assert len(gpu["line"]["ran"]) == 100
    assert gpu["line"]["to_ms"] == gpu["line"]["ran"][-1]["to_ms"] < 500
    assert any("more than 100 intervals" in note for note in gpu["notes"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no", "no JSON"),
        ("{}", "no list of traceEvents"),
        ('{"traceEvents": [{"ph": "X", "ts": -1, "dur": 1, "pid": 0, "tid": 1}]}', "ts of an event is -1"),
        ('{"traceEvents": []}', "no interval in which a container ran"),
    ],
)
def test_a_file_that_is_no_trace(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    refused(simulate("--trace", str(path)), said)


def test_many_processes_in_a_trace_are_read_at_once() -> None:
    """All tracks were gone through for each process: ten thousand took half a minute."""
    events = [{"ph": "X", "ts": n, "dur": 1, "pid": n, "tid": 1} for n in range(10_000)]
    began = time.process_time()
    assert len(chrome.parse(json.dumps(events))) == 10_000
    assert time.process_time() - began < 3


def test_too_many_kernels_in_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cgpu_cli.sim.requests.KERNELS_ALL", 1000)
    path = tmp_path / "x.json"
    path.write_text(a_trace((0, 0, 200_000), (1, 0, 200_000)))
    with pytest.raises(CgpuError, match="too many kernels"):
        playback.read(path)


def test_too_many_containers_in_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    spans = [chrome.Span(n, n, n + 1) for n in range(26)]
    path.write_text(chrome.document([chrome.Process(0, "GPU 0", [f"c{n}" for n in range(26)], spans)], {}))
    with pytest.raises(CgpuError, match="26 containers are on GPU 0"):
        playback.read(path)


# ---- drawing ----


@settings(deadline=None)
@given(st.floats(0, 1e6), st.floats(1e-3, 1e7))
def test_ticks_are_round_and_inside(begin: float, length: float) -> None:
    found = draw.ticks((begin, begin + length))
    assert len(found) <= 11
    assert all(begin - 1e-6 * length <= one <= (begin + length) * (1 + 1e-9) + 1e-6 for one in found)


def test_a_drawing_with_25_long_names_and_marks() -> None:
    names = [f"a-name-of-a-container-that-is-very-long-{n:02d}-7d9f8b6c54-x2x9q" for n in range(25)]
    line = [Stretch(n, n * MS, (n + 1) * MS) for n in range(25)]
    marks = [draw.Mark(n, f"change {n}") for n in range(20)]
    text = draw.svg("title", names, line, (0, 25), [[4_000_000] * 3] * 25, marks=marks)
    root = ET.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    texts = [one.text or "" for one in root.iter(f"{space}text")]
    shown = [one for one in texts if one.startswith("a-name")]
    assert len(set(shown)) == 25, "the ends tell them apart"
    assert max(map(len, shown)) == draw.NAME_MOST
    assert [one.text for one in root.iter(f"{space}title")] == names
    assert len(root.findall(f"{space}line[@class='mark']")) == 20 * 2
    assert "and 9 more" in texts
    assert {"0 %", "100 %", "ms"} <= set(texts)
    drawn = [one for one in root.iter(f"{space}text") if one.get("text-anchor") is None]
    ends = [float(one.get("x") or 0) + draw.LETTER * len(one.text or "") for one in drawn]
    assert max(ends) <= float(root.get("width") or 0), "no text is cut off"
    assert len({draw.colour(n) for n in range(25)}) == 25


# ---- stats ----


def test_stats_once(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    sample(monkeypatch)
    monkeypatch.setenv("COLUMNS", "80")
    lines = cli.cgpu("stats", "--no-stream").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].split()[:3] == [ID1[:12], "gpu_test1", "0"]
    rows = [json.loads(line) for line in cli.cgpu("stats", "--no-stream", "--format", "json").stdout.splitlines()]
    assert [(one["schema_version"], one["memory"]["used_bytes"]) for one in rows] == [(1, 256 * MIB), (1, 512 * MIB)]
    assert rows[0]["process_count"] == 1 and "pids" not in rows[0], "pids is a list everywhere"
    assert len(cli.cgpu("stats", "--no-stream", "gpu_test1").stdout.splitlines()) == 2
    assert cli.cgpu("stats", "nobody", "--no-stream").exit_code == 5


def test_stats_stream(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from cgpu_cli import collect

    real: Callable[..., object] = collect.stream
    monkeypatch.setattr(collect, "stream", lambda paths, every: itertools.islice(real(paths, 0.05), 3))
    assert cli.cgpu("stats").stdout.count("CONTAINER ID") == 3


def test_cordon(cli: Cli) -> None:
    """`drain` does the same, with the wait."""
    assert "new slices are refused, 2 left" in cli.cgpu("cordon").stdout
    assert "already" in cli.cgpu("drain").stdout
    data = json.loads(cli.cgpu("uncordon", "--json").stdout)
    assert (data["draining"], data["changed"]) == (False, True)
    assert cli.cgpu("uncordon").stdout == "containers may start anyway\n"


def test_the_picture_agrees_with_the_shares() -> None:
    """A container with 5.9 % had an empty row: only pairs of readings with more than half were drawn."""
    found = track(*[0.059] * 50, 1, 1, 0)
    (low, high) = samples.steps(found)
    assert (low[0], low[1], round(low[2], 3)) == (0, 100 * MS, 0.059)
    assert (high[0], high[1], high[2]) == (100 * MS, 104 * MS, 1.0)
    ran = sum((end - begin) * part for begin, end, part in samples.steps(found))
    assert ran == pytest.approx(found.gpu_ns[-1], rel=0.01)
    text = draw.svg("t", ["a"], [Stretch(0, low[0], low[1], low[2])], (0, 106), [samples.buckets(found, 0, 1)])
    heights = [one.get("height", "") for one in ET.fromstring(text).iter("{http://www.w3.org/2000/svg}rect")]
    assert "1.4" in heights, "5.9 % of the row"


def test_a_gpu_without_containers_has_a_picture() -> None:
    text = draw.svg("GPU 1", [], [], (0, 1000), [])
    assert "no container was on this GPU" in text
    assert 'height="112"' in text.partition(">")[0] + ">"


def test_nothing_is_blank_at_the_start(moving: Tree, tmp_path: Path) -> None:
    """The search for containers was a part of the picture."""
    data = json.loads(Cli(moving).cgpu("trace", "--seconds", "0.4", "--every-ms", "5", "--json").stdout)
    first = min(part["from_ms"] for one in data["gpus"][0]["containers"] for part in one["ran"])
    assert first < 60
