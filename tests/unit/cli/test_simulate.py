# SPDX-License-Identifier: MIT
"""cgpu simulate: its output and its errors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from commands import refused, simulate, simulated
from hypothesis import given, settings
from hypothesis import strategies as st

from cgpu_cli.sim import config, draw, native
from cgpu_cli.sim.gpu import Stretch
from cgpu_cli.sim.model import MS, Container, Setup, profile
from cgpu_cli.sim.run import run
from cgpu_common.exits import CgpuError, Exit
from cgpu_common.policies import Policy

ROOT = Path(__file__).parents[3]


def shares(*argv: str) -> dict[str, float]:
    return {one["name"]: one["share_got_pct"] for gpu in simulated(*argv) for one in gpu["containers"]}


def test_text_says_simulated_and_shows_a_line() -> None:
    result = simulate("--seconds", "1", "--container", "name=train,weight=2", "--container", "name=serve")
    lines = result.stdout.splitlines()
    assert lines[0].startswith("GPU 0: NVIDIA A100-SXM4-40GB, simulated; policy 2 weighted, slice ")
    assert [line.split()[0] for line in lines[3:5]] == ["train", "serve"]
    assert lines[-3].startswith("train ")
    assert "█" in lines[-3]


@pytest.mark.parametrize(
    ("argv", "want"),
    [
        (("--policy", "weighted", "--container", "name=a,weight=3", "--container", "name=b"), {"a": 74, "b": 25}),
        (("--policy", "1", "--container", "name=a,weight=3", "--container", "name=b"), {"a": 49, "b": 49}),
        (("--policy", "fixed", "--max-inst", "10", "--container", "name=a,weight=3"), {"a": 30}),
        (("--policy", "0", "--container", "name=a,weight=3"), {"a": 5}),
        (("--container", "name=a,weight=0", "--container", "name=b"), {"a": 0, "b": 100}),
        (("--policy", "5", "--container", "name=a,processes=3", "--container", "name=b"), {"a": 72, "b": 23}),
        (("--gpus", "2", "--container", "name=a", "--container", "name=b,gpu=1"), {"a": 100, "b": 100}),
    ],
)
def test_shares(argv: tuple[str, ...], want: dict[str, float]) -> None:
    assert shares(*argv, "--slice-us", "10000", "--seconds", "5") == pytest.approx(want, abs=1.5)


def test_the_same_seed_is_the_same_run() -> None:
    argv = ("--seconds", "1", "--container", "count=3,gap_spread_us=20,depth=1")
    first = simulate(*argv, "--json").stdout
    assert simulate(*argv, "--json").stdout == first
    assert simulate(*argv, "--seed", "2", "--json").stdout != first


TOML = """
seconds = 3
[[gpu]]
profile = "h200"
policy = "weighted"
slice_us = 10000
personality = { err40_pct = 27 }
[[container]]
name = "a"
[[container]]
name = "b"
start_ms = 1000
[[change]]
at_ms = 2000
container = "b"
weight = 3
"""


def test_a_file_with_a_change(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text(TOML)
    found = simulated(str(path))[0]
    a, b = (one["share_per_100_ms_pct"] for one in found["containers"])
    assert found["profile"] == "h200"
    assert sum(b[:10]) == 0
    assert sum(b[10:20]) / 10 == pytest.approx(50, abs=2)
    assert sum(b[20:30]) / 10 == pytest.approx(75, abs=2)
    assert all(x + y <= 100.01 for x, y in zip(a, b, strict=True))
    assert found["line"]["to_ms"] == 3000, "all of it, when something happens on the way"
    more = simulated(str(path), "--container", "name=c", "--seconds", "0.5")[0]
    assert [one["name"] for one in more["containers"]] == ["a", "b", "c"]
    assert more["seconds"] == pytest.approx(0.5, abs=0.02)
    assert more["notes"] == ["at 2000 ms: weight of b is not changed, the run ends at 500 ms"]


CHANGES = """
seconds = 1
[[container]]
name = "a"
[[container]]
name = "b"
highprio = true
[[change]]
at_ms = 300
policy = "fixed"
prio_ratio = 60
max_inst = 10
slice_us = 20000
[[change]]
at_ms = 500
container = "b"
weight = 3
highprio = 0
"""


def test_what_was_changed_is_shown_as_at_the_end(tmp_path: Path) -> None:
    """Policy and weights too, not only the slice; with a note that these are the values at the end."""
    path, svg = tmp_path / "node.toml", tmp_path / "line.svg"
    path.write_text(CHANGES)
    found = simulated(str(path))[0]
    assert found["policy"] == {"number": 3, "name": "fixed"}
    assert found["slice_us"] == 20_000
    shown = [(one["weight"], one["highprio"], one["share_allowed_pct"]) for one in found["containers"]]
    assert shown == [(1, False, 10), (3, False, 30)]
    note = "policy, slice, Weight and Allowed are the values at the end: there are changes during the run"
    assert found["notes"] == [note]
    text = simulate(str(path), "--svg", str(svg)).stdout
    assert "simulated; policy 2 weighted, at the end 3 fixed, slice 20000 us" in text.splitlines()[0]
    assert [line.split()[1:3] for line in text.splitlines()[3:5]] == [["1", "10.0%"], ["3", "30.0%"]]
    assert note in text
    assert "simulated; policy 2 weighted, at the end 3 fixed, slice 20000 us" in svg.read_text()
    path.write_text(CHANGES.split("[[change]]\nat_ms = 500")[0])
    high = simulated(str(path))[0]["containers"]
    assert [one["share_allowed_pct"] for one in high] == [10, 60], "what prio_ratio allows at the end"


@pytest.mark.parametrize(("slice_us", "kernel_us"), [("5000", 2000), ("5000", 5500), ("10000", 2000), ("10000", 10500)])
def test_kernels_that_resist_gain_little(slice_us: str, kernel_us: int) -> None:
    """The table of scheduler.md: in step with the slices, and short ones."""
    bad = f"name=bad,stubborn=1,depth=4,kernel_us={kernel_us}"
    words = ("--policy", "1", "--slice-us", slice_us, "--seconds", "20")
    got = shares(*words, "--container", bad, "--container", "name=good")
    assert -3 < 100 * (got["bad"] / got["good"] - 1) < 6


def test_a_ceiling() -> None:
    """What is above it goes to the other one; alone it has no more either; a change acts."""
    argv = ("--policy", "burst", "--max-inst", "100", "--seconds", "4")
    one = ("--container", "name=a,weight=20,ceiling=30")
    (alone,) = simulated(*argv, *one)[0]["containers"]
    assert alone["share_got_pct"] == pytest.approx(30, abs=1)
    both = simulated(*argv, *one, "--container", "name=b,weight=10")[0]["containers"]
    assert [found["share_got_pct"] for found in both] == [pytest.approx(30, abs=1), pytest.approx(69, abs=2)]
    assert [found["share_allowed_pct"] for found in both] == [30, 70]
    refused(simulate(*argv, "--container", "name=a,weight=20,ceiling=19"), "container a: ceiling 19")


def test_weight_that_is_not_left_is_said() -> None:
    argv = ("--max-inst", "2", "--container", "name=a,weight=2", "--container", "name=late", "--seconds", "1")
    lines = simulate(*argv).stdout.splitlines()
    assert "late has weight 0 and does not run: no weight was left for it" in lines
    assert [line.split()[1] for line in lines[3:5]] == ["2", "0"]
    assert [one["weight"] for one in simulated(*argv)[0]["containers"]] == [2, 0]


@pytest.mark.parametrize("seed", [2**53 + 1, 2**63 - 1])
def test_a_seed_is_taken_as_it_is(seed: int) -> None:
    result = simulate("--seconds", "0.1", "--seed", str(seed), "--gpus", "2", "--container", "name=a", "--json")
    assert json.loads(result.stdout)["seed"] == seed


def test_gpus_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "two.toml"
    path.write_text("seconds = 0.1\n[[gpu]]\n[[gpu]]\n[[container]]\ngpu = 1\n")
    assert len(simulated(str(path))) == len(simulated(str(path), "--gpus", "2")) == 2
    refused(simulate(str(path), "--gpus", "3"), "--gpus 3, and the file has 2 of [[gpu]]")


def test_highprio_has_its_takeover() -> None:
    """Below 75 % prio_ratio is held by periods, whatever the driver's samples show."""
    argv = ("--seconds", "5", "--run-state", "none", "--prio-ratio", "70")
    argv += ("--container", "name=h,highprio=1,on_ms=5,off_ms=62", "--container", "name=low")  # type: ignore[assignment]
    high, low = simulated(*argv)[0]["containers"]
    assert 0 < high["takeover_p99_us"] < 2000
    assert high["takeover_p99_us"] < high["takeover_throttled_p99_us"] < 32_000, "frozen until the 100 ms end"
    assert low["takeover_p99_us"] is None
    assert high["share_allowed_pct"] == 70


@pytest.mark.parametrize("policy", ["0", "3"])
def test_several_highprio_have_what_they_are_allowed(policy: str) -> None:
    """Only high-priority containers, and beside them one without high priority that uses the rest."""
    load = "kernel_us=500,depth=32"
    for others in ((), ("--container", f"name=low,{load}")):
        lords = [word for i in (1, 2) for word in ("--container", f"name=h{i},weight={i},highprio=1,{load}")]
        argv = ("--policy", policy, "--slice-us", "10000", "--prio-ratio", "95", "--personality", "tail_pct=0")
        for one in simulated(*argv, *lords, *others)[0]["containers"]:
            if one["highprio"]:
                assert one["share_got_pct"] == pytest.approx(one["share_allowed_pct"], abs=3), one["name"]


def test_svg(tmp_path: Path) -> None:
    path = tmp_path / "line.svg"
    result = simulate("--gpus", "2", "--container", "name=<a&b>", "--container", "gpu=1", "--svg", str(path))
    assert result.exit_code == 0
    names = [ET.parse(file).getroot() for file in (path, tmp_path / "line-1.svg")]
    texts = [element.text or "" for element in names[0].iter("{http://www.w3.org/2000/svg}text")]
    assert "<a&b>" in texts
    assert "simulated" in texts[0]


def test_svg_is_refused_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("it ran")

    monkeypatch.setattr("cgpu_cli.simulate.run", never)
    (tmp_path / "y-1.svg").mkdir()
    for name, count, why in (
        ("nowhere/x.svg", 1, f"there is no folder {tmp_path}/nowhere"),
        ("y.svg", 2, f"{tmp_path}/y-1.svg: is a folder, and only a plain file is replaced"),
    ):
        refused(simulate("--container", "count=2", "--gpus", str(count), "--svg", str(tmp_path / name)), why)


def test_time_line_cells() -> None:
    line = [Stretch(0, 0, 10 * MS), Stretch(1, 10 * MS, 15 * MS)]
    assert draw.cover(line, 0, (0, 20), 4) == [1, 1, 0, 0]
    assert draw.cover(line, 1, (0, 20), 4) == [0, 0, 1, 0]
    assert draw.cover(line, 1, (12.5, 22.5), 2) == [0.5, 0]
    assert draw.time_line(line, ["a", "b"], (0, 20), 24, plain=True)[2] == "b   " + " " * 10 + "@" * 5


def test_a_small_share_is_not_blank() -> None:
    """3 % of each cell was drawn as nothing, and the shades had no legend."""
    line = [Stretch(0, cell * 100 * MS, cell * 100 * MS + 3 * MS) for cell in range(20)]
    rows = draw.time_line(line, ["a", "b"], (0, 2000), 24)
    assert rows[1:3] == ["a   " + "▁" * 20, "b"]
    assert " ".join(" ".join(rows[3:]).split()) == "▁ to █: a little to all of a cell, blank: none"


def test_the_first_policy_is_in_the_title(tmp_path: Path) -> None:
    """With a change of policy only the last one was shown."""
    changed = "[[change]]\nat_ms = 500\npolicy = 2"
    (tmp_path / "x.toml").write_text(f'seconds = 1\n[[gpu]]\npolicy = "native"\n[[container]]\n{changed}\n')
    picture = tmp_path / "x.svg"
    result = simulate(str(tmp_path / "x.toml"), "--svg", str(picture))
    assert "policy 5 native, at the end 2 weighted" in result.stdout, result.output
    assert "policy 5 native, at the end 2 weighted" in picture.read_text()


@pytest.mark.parametrize(
    ("argv", "code", "why"),
    [
        ((), Exit.USAGE, "there is no container to simulate"),
        (("--container", "weight"), Exit.USAGE, "'weight' is not name=value"),
        (("--container", "weight=1,weight=2"), Exit.USAGE, "weight is repeated"),
        (("--container", "colour=red"), Exit.USAGE, "container c0 has no key 'colour' (ceiling, "),
        (("--container", "name=a,wieght=2"), Exit.USAGE, "container a has no key 'wieght'; did you mean weight? ("),
        (("--container", "weight=x"), Exit.USAGE, "container c0: weight=x is no number"),
        (("--container", "weight=nan"), Exit.USAGE, "weight=nan is no number"),
        (("--container", "weight=1.5"), Exit.USAGE, "weight=1.5 is no whole number"),
        (("--container", "kernel_us=0"), Exit.USAGE, "kernel_us=0 is out of range (1 to 10000000)"),
        (("--container", "off_ms=4"), Exit.USAGE, "off_ms needs on_ms"),
        (("--container", "start_ms=4,stop_ms=4"), Exit.USAGE, "stop_ms is not after start_ms"),
        (("--container", "name=a", "--container", "name=a"), Exit.USAGE, "2 containers are called 'a'"),
        (("--container", "gpu=1"), Exit.USAGE, "container c0 is on GPU 1, and there is only GPU 0 ("),
        (("--container", "count=26"), Exit.USAGE, "count=26 is out of range"),
        (("--container", "count=2", "--policy", "12"), Exit.USAGE, "'12' is no policy"),
        (("--container", "count=2", "--profile", "b200"), Exit.USAGE, "no profile 'b200' (a100, h100, h200, t4)"),
        (("--container", "count=2", "--seconds", "0"), Exit.USAGE, "seconds=0 is out of range"),
        (("--container", "count=2", "--from-ms", "99999"), Exit.USAGE, "--from-ms 99999 is after the end"),
        (("--container", "rate=1e-11"), Exit.USAGE, "rate=1e-11 is out of range (0, or 0.0001 to 1000000)"),
        (("--container", "rate=1e-300"), Exit.USAGE, "rate=1e-300 is out of range"),
        (("--container", "on_ms=0.0000001,off_ms=5"), Exit.USAGE, "on_ms=0.0000001 is out of range (0, or 0.001 to"),
        (("--container", "on_ms=5,off_ms=1e-7"), Exit.USAGE, "off_ms=1e-7 is out of range"),
        (
            ("--container", "name=a,count=20", "--container", "count=20"),
            Exit.USAGE,
            "40 containers are on GPU 0 (25 at",
        ),
        (("--container", "count=2", "--seed", "9223372036854775808"), Exit.USAGE, "seed=9223372036854775808 is out of"),
        (("--container", "count=2", "--personality", "x=1"), Exit.USAGE, "a personality has no key 'x'"),
        (
            ("--container", "weight=15,count=2"),
            Exit.USAGE,
            "container c1: weight 15: 5 of max_inst 20 is left; held by: c0 15 (--max-inst, under",
        ),
        (
            ("--container", "count=25"),
            Exit.USAGE,
            "container c20: weight 1: max_inst is 20 containers too; held by: c0 1, c1 1, c2 1, c3 1, c4 1 and 15 more",
        ),
        (
            ("--container", "count=2", "--personality", "control_ineffective=2"),
            Exit.REFUSED,
            "policy 2: the control it needs does not work here",
        ),
        (("nowhere.toml",), Exit.USAGE, "'nowhere.toml' does not exist"),
    ],
)
def test_failures(argv: tuple[str, ...], code: Exit, why: str) -> None:
    assert refused(simulate(*argv), why, code).startswith("cgpu: error: ")
    assert json.loads(simulate(*argv, "--json").stderr)["error"]["exit"] == code


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ('at_ms = 1\ncontainer = "x"\nweight = 1', "a change names 'x', and there is no such container"),
        ("at_ms = 1\ngpu = 1\npolicy = 1", "x.toml: a change is of GPU 1, and there is only GPU 0"),
        ("at_ms = 1", "a change changes nothing (policy, max_inst, prio_ratio, slice_us)"),
        ("policy = 1", "x.toml: at_ms= is no number"),
        ("at_ms = 1\nweight = 1", "x.toml: a change has no key 'weight'"),
        ('at_ms = 1\ncontainer = "a"\nweight = 25', "at 1 ms: weight 25: out of range (0 to max_inst"),
        ("at_ms = 1\n[", "is no TOML"),
        ("at_ms = " + 5000 * "1", "is no TOML"),
        ('at_ms = 1\ncontainer = ["a"]\nweight = 1', "a change names one container"),
        ("at_ms = 1\ncontainer = {x = 1}\nweight = 1", "a change names one container"),
        ("at_ms = true\npolicy = 1", "at_ms=True is no number"),
        ("at_ms = 1\nslice_us = true", "slice_us=True is no number"),
    ],
)
def test_changes_that_cannot_be(tmp_path: Path, change: str, why: str) -> None:
    path = tmp_path / "x.toml"
    path.write_text(f'seconds = 1\n[[container]]\nname = "a"\n[[change]]\n{change}\n')
    refused(simulate(str(path)), why)


words = st.sampled_from(["weight", "depth", "kernel_us", "name", "gpu", "count", "highprio", "on_ms", "off_ms", ""])
values = st.one_of(st.integers(-3, 300).map(str), st.text(max_size=8), st.sampled_from(["1e9", "inf", "٣", "0x10"]))
garbage = st.one_of(st.text(max_size=40), st.lists(st.tuples(words, values)).map(lambda p: ",".join(map("=".join, p))))


@settings(max_examples=150, deadline=None)
@given(texts=st.lists(garbage, min_size=1, max_size=3))
def test_any_container_text_is_a_model_or_a_sentence(texts: list[str]) -> None:
    try:
        found = config.read_scenario({}, Setup(profile("a100")), 2, texts)
    except CgpuError as err:
        assert err.code == Exit.USAGE
        assert "\n" not in err.line("cgpu")
    else:
        assert found.containers


toml_values = st.recursive(
    st.one_of(
        st.integers(-5, 5000), st.floats(allow_nan=True), st.booleans(), st.text(max_size=5), st.just("weighted")
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=4), inner, max_size=2)),
    max_leaves=4,
)
names = st.sampled_from(["seconds", "seed", "gpu", "container", "change", "x"])
keys = st.sampled_from(
    ["name", "weight", "policy", "profile", "at_ms", "container", "personality", "slice_us", "count"]
)
tables = st.lists(st.dictionaries(keys, toml_values, max_size=3), max_size=3)


@settings(max_examples=150, deadline=None)
@given(data=st.dictionaries(names, st.one_of(tables, toml_values), max_size=5))
def test_any_file_is_a_model_or_a_sentence(data: dict[str, object]) -> None:
    try:
        config.read_scenario(data, Setup(profile("a100")), 1, ["name=a"])
    except CgpuError as err:
        assert err.code == Exit.USAGE


@settings(max_examples=40, deadline=None)
@given(
    policy=st.sampled_from(Policy),
    containers=st.lists(
        st.builds(
            Container,
            name=st.uuids().map(str),
            weight=st.integers(0, 6),
            highprio=st.booleans(),
            kernel_us=st.floats(10, 9000),
            depth=st.integers(1, 30),
            processes=st.integers(1, 3),
            start_ms=st.floats(0, 300),
            stop_ms=st.sampled_from([None, 310.0]),
            stubborn=st.booleans(),
        ),
        min_size=1,
        max_size=4,
    ),
    seed=st.integers(0, 5),
)
def test_whatever_is_simulated_adds_up(policy: int, containers: list[Container], seed: int) -> None:
    scenario = config.Scenario((Setup(profile("a100"), policy, 5000, 25),), tuple(containers), (), 0.5, seed)
    result = run(scenario)[0]
    assert sum(got.share_pct for got in result.got) <= 100 + 1e-9
    assert 0 <= result.idle_pct <= 100
    for got in result.got:
        assert got.container.weight or policy == Policy.NATIVE or got.share_pct == 0, "weight 0 is frozen"
    assert run(scenario)[0] == result
    if policy == Policy.NATIVE:
        plain = tuple(replace(one, weight=1, highprio=False) for one in containers)
        other = run(replace(scenario, containers=plain))[0]
        assert [got.share_pct for got in other.got] == [got.share_pct for got in result.got], "both mean nothing"


def test_no_compiler_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CGPU_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CC", "no-such-compiler")
    native.load.cache_clear()
    try:
        result = simulate("--container", "count=2")
    finally:
        native.load.cache_clear()
    refused(result, "it needs a C compiler to build the core (Debian, Ubuntu: apt-get install gcc libc6-dev; EL", 5)


def test_a_cache_that_others_may_write_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CGPU_CACHE", str(tmp_path))
    assert native.cache_dir() == (tmp_path, False)
    tmp_path.chmod(0o777)
    other, is_private = native.cache_dir()
    assert other != tmp_path and is_private
    other.rmdir()
    monkeypatch.setenv("CGPU_CACHE", "/proc/nowhere")
    other, is_private = native.cache_dir()
    assert other.stat().st_mode & 0o777 == 0o700 and is_private
    other.rmdir()


#: A compiler that works once; the next ones get what it wrote.
ONCE = """#!/bin/sh
case "$1" in -E) [ -e {top}/h ] || cc "$@" >{top}/h; exec cat {top}/h ;; esac
for word; do [ "$last" != -o ] || out=$word; last=$word; done
[ -e {top}/so ] || { cc "$@" -O0 && cp "$out" {top}/so; }
exec cp {top}/so "$out"
"""


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> str:
    top = tmp_path_factory.mktemp("once")
    (top / "cc").write_text(ONCE.replace("{top}", str(top)))
    (top / "cc").chmod(0o755)
    return str(top / "cc")


@pytest.fixture
def cached(once: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """$CGPU_CACHE with the library, which is loaded anew, and again after the test."""
    folder = tmp_path / "cgpu-sim-mine"
    folder.mkdir()
    monkeypatch.setenv("CC", once)
    monkeypatch.setenv("CGPU_CACHE", str(folder))
    native.build(folder)
    native.load.cache_clear()
    yield folder
    native.load.cache_clear()


SHORT = ("--seconds", "0.1", "--container", "name=a")


def test_only_a_private_cache_is_removed(
    cached: Path, once: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's folder whose name began like a private one was removed with all that was in it."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    (cached / "notes").write_text("mine")
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    assert simulate(*SHORT).exit_code == 0
    assert (cached / "notes").read_text() == "mine" and list(cached.glob("sim-*.so"))
    cached.chmod(0o777)
    for compiler, code in ((once, 0), ("false", Exit.REFUSED)):
        native.load.cache_clear()
        monkeypatch.setenv("CC", compiler)
        assert simulate(*SHORT).exit_code == code
        assert list(temporary.iterdir()) == []
    assert (cached / "notes").read_text() == "mine"


@pytest.mark.parametrize("kind", ["so", "h"])
def test_a_damaged_cache_is_built_again(cached: Path, kind: str) -> None:
    """An empty file, as a crash of the machine leaves it, made every run fail."""
    (damaged,) = cached.glob(f"*.{kind}")
    damaged.write_bytes(b"")
    result = simulate(*SHORT)
    assert result.exit_code == 0, result.stderr
    assert damaged.stat().st_size


def test_a_library_that_cannot_be_loaded_is_a_sentence(cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "LAST", "no_such_name")
    refused(simulate(*SHORT), "the library of the core cannot be loaded", Exit.REFUSED)


def test_the_cache_may_be_relative(cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """dlopen() looks for a name without a slash elsewhere."""
    monkeypatch.chdir(cached)
    monkeypatch.setenv("CGPU_CACHE", ".")
    assert simulate(*SHORT).exit_code == 0
    assert len(list(cached.iterdir())) == 2


@pytest.mark.parametrize("name", ["CC", "CFLAGS"])
def test_words_for_the_compiler(cached: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "gcc 'x")
    refused(simulate(*SHORT), f"{name} in the environment is no list of words: No closing quotation")


def test_an_ended_build_leaves_nothing(tmp_path: Path) -> None:
    """SIGTERM during the compiler's work left its files and its children."""
    compiler, cache = tmp_path / "cc", tmp_path / "cache"
    compiler.write_text('#!/bin/sh\necho $$ > "$TMPDIR/pid"\nsleep 60\n')
    compiler.chmod(0o755)
    code = "from cgpu_cli.sim import native; native.load()"
    env = os.environ | {"CGPU_CACHE": str(cache), "CC": str(compiler)}
    with subprocess.Popen([sys.executable, "-c", code], env=env) as running:
        for _ in range(500):
            if found := [path for path in cache.glob("*/pid") if path.read_text().endswith("\n")]:
                break
            time.sleep(0.02)
        pid = int(found[0].read_text())
        running.terminate()
        assert running.wait(10) == 128 + signal.SIGTERM
    assert list(cache.iterdir()) == []
    deadline = time.monotonic() + 10  # it was killed; init reaps it when it gets to run
    while (there := Path(f"/proc/{pid}").exists()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not there


def test_an_installed_copy_brings_its_c_files(tmp_path: Path) -> None:
    """The files of a wheel, outside of this tree."""
    build = [sys.executable, "-W", "ignore", "-c", "import setuptools; setuptools.setup()", "-q", "build_py"]
    subprocess.run([*build, "--build-lib", str(tmp_path / "lib")], cwd=ROOT, check=True, capture_output=True)
    code = "import cgpu_cli.sim.native as n, cgpu_cli.main as m; print(n.source_dir()); m.main()"
    env = os.environ | {"PYTHONPATH": str(tmp_path / "lib"), "CGPU_CACHE": str(tmp_path / "cache"), "CFLAGS": "-O0"}
    argv = [sys.executable, "-c", code, "simulate", "--seconds", "0.2", "--container", "count=2"]
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[0] == str(tmp_path / "lib/cgpu_cli/sim/csrc"), done.stderr
    assert "simulated" in done.stdout


def test_the_line_of_a_change_is_on_its_containers_gpu(tmp_path: Path) -> None:
    """A change of a container on GPU 1 made the line of GPU 0 the whole run, and not its own."""
    path = tmp_path / "x.toml"
    change = '[[change]]\nat_ms = 100\ncontainer = "b"\nweight = 2\n'
    path.write_text('seconds = 1\n[[container]]\nname = "a"\n[[container]]\nname = "b"\ngpu = 1\n' + change)
    lines = [gpu["line"] for gpu in simulated(str(path), "--gpus", "2")]
    assert [(line["from_ms"], line["to_ms"]) for line in lines] == [(500, 700), (0, 1000)]


def test_each_of_many_has_a_turn_in_the_line() -> None:
    """A round of 25 slices is longer than 200 ms: seven rows of the picture were empty."""
    words = ["--policy", "weighted", "--max-inst", "25", "--seconds", "2", "--container", "name=c,count=25"]
    (gpu,) = simulated(*words)
    assert len(gpu["containers"]) == 25
    assert {one["container"] for one in gpu["line"]["ran"]} == {one["name"] for one in gpu["containers"]}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "x.toml: it has no [[container]] (--container name=a,weight=2, or tables in the file)"),
        ("secnds = 2", "x.toml: the file has no key 'secnds'; did you mean seconds?"),
        (
            '[[container]]\nname = "a"\n[[container]]\nname = "b"\nweight = "x"',
            "x.toml: container b: weight=x is no num",
        ),
        ('[[container]]\nname = "b"\nwieght = 2', "x.toml: container b has no key 'wieght'; did you mean weight?"),
        ("[[gpu]]\n[[gpu]]\nmax_inst = 0\n[[container]]", "x.toml: [[gpu]] 1: max_inst=0 is out of range"),
    ],
)
def test_a_wrong_file_is_named_with_the_container(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "x.toml").write_text(text)
    refused(simulate(str(tmp_path / "x.toml")), why)


def test_a_file_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text("seconds = 0.2\n[[container]]\n", encoding="utf-8-sig")
    result = simulate(str(tmp_path / "x.toml"))
    assert result.exit_code == 0, result.stderr


def test_a_ceiling_that_the_policy_ignores_has_a_note() -> None:
    words = ("--seconds", "0.2", "--container", "name=a,ceiling=5", "--container", "name=b")
    note = "a: ceiling 5: policy 2 (weighted) ignores ceilings: only burst has them"
    assert f"\n{note}\n" in simulate(*words).stdout
    assert "ceiling" not in simulate("--policy", "burst", *words).stdout


def test_a_long_run_has_no_exponent() -> None:
    found = simulate("--seconds", "1200", "--container", "kernel_us=9000000,depth=1").stdout
    assert "600000 ms" in found and "e+" not in found


def test_the_hint_for_a_compiler_is_not_of_one_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(native.shutil, "which", lambda _name: None)
    with pytest.raises(CgpuError) as found:
        native.compiler()
    assert "apt-get install" in found.value.hint and "dnf install" in found.value.hint
