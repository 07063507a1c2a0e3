# SPDX-License-Identifier: MIT
"""cgpu-smi at 40, 80 and 140 columns, its filters, queries, loops, dmon, pmon and top."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import termios
import threading
import time
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
import schema
from fake_daemon import daemon_at, packed
from fake_tree import ID1, ID2, ID3, MIB, PCI, Cli, Tree, a_second_before, exactly_at, inst_line, sample, waits, write
from golden_files import golden
from hypothesis import given, settings
from hypothesis import strategies as st

from cgpu_cli import cells, collect, columns, monitor, names, overview, query, rates, sensors, topview
from cgpu_cli.columns import Column
from cgpu_cli.names import Named
from cgpu_cli.view import SORTS, View, chosen
from cgpu_common import policies, proc
from cgpu_common import waits as wait_times
from cgpu_common.exits import CgpuError
from cgpu_common.model import Names, Snapshot

SCHEMA = schema.load("cgpu-smi")
LONG = "inference-of-a-model-with-a-long-name-7d9f8b6c54-x2x9q"
GPU1 = "GPU-00000001-1111-2222-3333-444455556666"
NVML = {
    "ok": True,
    "nvml": "",
    "gpus": [
        {"uuid": "GPU-00000000-1111-2222-3333-444455556666", "name": "Tesla T4", "total_bytes": 15109 * MIB,
         "used_bytes": 900 * MIB, "utilization_pct": 38, "temperature_c": 45, "power_mw": 31250,
         "power_limit_mw": 70000, "lost": "", "age_s": 1, "memory_utilization_pct": 20, "sm_active_pct": 61.2,
         "dram_active_pct": 30.0, "processes": [
             {"pid": 19772, "sm_pct": 60, "memory_pct": 10}, {"pid": "x", "sm_pct": 1}, 7]},
        {"uuid": GPU1, "pci": "0000:02:00.0", "name": "NVIDIA H100 80GB HBM3", "total_bytes": 81559 * MIB,
         "utilization_pct": 100, "temperature_c": None, "power_mw": 698_900, "lost": ""},
    ],
}  # fmt: skip
STATUS = {
    "ok": True,
    "drift": [],
    "containers": [{"id": ID3, "names": {"name": "main", "pod": LONG, "namespace": "ml"}}],
}


@pytest.fixture
def node(tree: Tree) -> Tree:
    """Two GPUs, three containers, one of them a pod's with many processes, one of which has a hostile name."""
    tree.gpu(0)
    tree.gpu(
        1,
        policy=1,
        max_inst=25,
        free_weight=24,
        pci="0000:02:00.0",
        stat=f"total_bytes {81559 * MIB}\nused_bytes {70000 * MIB}\nlimits_bytes {80000 * MIB}",
    )
    many = "\n".join(f"PID: {300 + n} Mem: {n * MIB}" for n in range(12))
    tree.slot(1, ID3, memsize=80000 * MIB, meminfo=f"Free: 1\n{many}")
    tree.listed(inst_line(ID1, 1), inst_line(ID2, 7), inst_line(ID3, 9, gpus="1:5"))
    write(tree.root / "proc/19772/comm", "train.py")
    write(tree.root / "proc/311/comm", "x\x1b[31m\x1b]0;owned\x07")
    return tree


@pytest.fixture
def sampled(node: Tree, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """The same, with a sample of exactly a second for each command."""
    sample(monkeypatch)
    return node


@pytest.mark.parametrize("width", [40, 80, 140])
def test_the_text(sampled: Tree, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    with daemon_at(sampled.root, {"gpus": packed(NVML), "status": packed(STATUS)}):
        result = Cli(sampled).smi()
    assert result.exit_code == 0, result.stderr
    assert max(map(len, result.stdout.splitlines())) <= width
    golden(f"smi-node-{width}.txt", result.stdout)
    figures = (
        "012b2edccd7a",
        "aabbccddeeff",
        "ffeeddccbbaa",
        "256/6043",
        "256/80000",
        "70000/81559",
        "33.3%",
        "95.0%",
        "19772",
    )
    assert [one for one in figures if one not in result.stdout] == [], "ids and figures are never cut"


def test_before_the_first_container(empty: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module does not know the card's memory yet; NVML does."""
    monkeypatch.setenv("COLUMNS", "80")
    empty.gpu(0, free_weight=20, stat="total_bytes 0\nused_bytes 0\nlimits_bytes 0")
    with daemon_at(empty.root, {"gpus": packed(NVML), "status": packed(STATUS)}):
        text = Cli(empty).smi().stdout
        data = json.loads(Cli(empty).smi("--json").stdout)
    golden("smi-first.txt", text)
    assert "0/15109" in text
    assert data["gpus"][0]["memory"]["total_bytes"] == 15109 * MIB
    schema.validate(data, SCHEMA)


def test_nothing_is_shortened_for_a_pipe(node: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    with daemon_at(node.root, {"status": packed(STATUS)}):
        text = Cli(node).smi("--no-sample").stdout
    assert f"ml/{LONG}/main" in text
    assert "…" not in text


def test_json_has_pod_sensors_and_names(node: Tree) -> None:
    with daemon_at(node.root, {"gpus": packed(NVML), "status": packed(STATUS)}):
        data = json.loads(Cli(node).smi("--json", "--interval", "0.05").stdout)
    schema.validate(data, SCHEMA)
    one, two = data["gpus"]
    assert one["nvml"] == {
        "used_bytes": 900 * MIB, "utilization_pct": 38, "temperature_c": 45, "power_mw": 31250,
        "power_limit_mw": 70000, "lost": None, "age_s": 1, "memory_utilization_pct": 20, "sm_active_pct": 61.2,
        "dram_active_pct": 30.0,
    }  # fmt: skip
    process = one["containers"][0]["pids"][0]
    assert (process["sm_pct"], process["memory_utilization_pct"]) == (60, 10)
    assert (two["nvml"]["temperature_c"], two["nvml"]["used_bytes"]) == (None, None)
    (pod,) = two["containers"]
    assert (pod["pod"], pod["namespace"], pod["name"]) == (LONG, "ml", "main")
    assert one["containers"][0]["pids"][0]["name"] == "train.py"
    assert data["driver"] == "580.105.08"


@pytest.mark.parametrize(
    ("values", "util", "line"),
    [
        ({"lost": "no answer within 1 s", "age_s": 3}, "38%", "no answer within 1 s; these values are 3 s old"),
        (
            {"lost": "no answer", "age_s": 12, "utilization_pct": None, "temperature_c": None, "power_mw": None},
            "-",
            "no answer; its last values are 12 s old",
        ),
        ({"lost": "GPU is lost", "age_s": 0}, "38%", "GPU is lost"),
        ({"lost": "no answer", "age_s": None}, "38%", "no answer"),
    ],
)
def test_a_value_beside_no_answer_has_its_age(empty: Tree, values: dict[str, object], util: str, line: str) -> None:
    """UTIL 38% stood above "no answer within 1 s", without a word about when it was read."""
    row = {**NVML["gpus"][0], **values}  # type: ignore[index]
    with daemon_at(empty.root, {"gpus": packed({**NVML, "gpus": [row]}), "status": packed(STATUS)}):
        lines = Cli(empty).smi("--no-sample").stdout.splitlines()
        data = json.loads(Cli(empty).smi("--no-sample", "--json").stdout)
    assert f"  GPU 0: NVML: {line}" in lines
    assert next(one for one in lines if one.startswith("  0 ")).split()[-3] == util
    assert data["gpus"][0]["nvml"]["age_s"] == values["age_s"]
    schema.validate(data, SCHEMA)


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("utilization_pct", {38: 38, 0: 0, -1: None, 1.5: None, "38": None, None: None}),
        ("sm_active_pct", {61.5: 61.5, 0: 0.0, 100: 100.0, 100.1: None, -0.1: None, "61": None, None: None}),
        ("name", {"Tesla T4": "Tesla T4", 7: "", None: ""}),
    ],
)
def test_a_value_of_another_form_is_none(key: str, values: dict[object, object]) -> None:
    """Of an answer by cgpud, which may be of another version."""
    assert {value: getattr(sensors.of_row({key: value}), key) for value in values} == values
    assert sensors.of_row({"utilization_pct": True}).utilization_pct is None


def test_a_share_that_is_computed_is_marked(sampled: Tree) -> None:
    """Under soft the hardware's timeslices decide, and what a container got is not measured."""
    sampled.gpu(0, policy=policies.Policy.SOFT)
    rows = [line.split() for line in Cli(sampled).smi("-i", "0").stdout.splitlines()]
    assert [row[5] for row in rows if row[1:2] == [ID1[:12]] and "weighted" not in row][:1] == ["~33.3%"]


def test_a_tenant_cannot_write_to_the_terminal(node: Tree) -> None:
    for text in (Cli(node).smi("--no-sample").stdout, Cli(node).smi("pmon", "-d", "0.1", "-c", "1").stdout):
        assert "x?[31m?]0;owned?" in text
        assert "\x1b" not in text


# ---- filters ----


@pytest.mark.parametrize("word", ["1", GPU1, GPU1[:12], GPU1.lower(), "0000:02:00.0"])
def test_one_gpu(node: Tree, word: str) -> None:
    data = json.loads(Cli(node).smi("--no-sample", "--json", "-i", word).stdout)
    assert [gpu["index"] for gpu in data["gpus"]] == [1]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("-i", "7"), 5, "gpu 7: there is no such GPU"),
        (("-i", "GPU-0000000"), 2, "fits 2 GPUs"),
        (("-i", ""), 5, "there is no such GPU"),
        (("-c", ""), 2, "an empty word names no container"),
        (("--json", "dmon"), 2, "dmon has a form of its own"),
        (("-i", ","), 5, "there is no such GPU"),
        (("-c", "nobody"), 5, "container nobody"),
        (("-c", "f", "-c", "012"), 2, "-c/--container is given twice, and takes one value"),
        (("--query-gpu", "nonsense"), 2, "there is no field 'nonsense' (--help-query-gpu)"),
        (("--query-gpu", "name", "--format", "xml"), 2, "'xml' is no format"),
        (("--query-gpu", "name", "--json"), 2, "exclude each other"),
        (("-l", "0"), 2, "is not in the range"),
        (("dmon", "-c", "0"), 2, "is not in the range"),
        (("dmon", "-c", "9" * 20), 2, "is not in the range"),
        (("top", "-n", "9" * 20), 2, "is not in the range"),
        (("bogus",), 2, "No such command"),
    ],
)
def test_wrong_words(node: Tree, words: tuple[str, ...], code: int, said: str) -> None:
    result = Cli(node).smi("--no-sample", *words)
    assert result.exit_code == code
    assert said in result.stderr
    assert (code == 0) == bool(result.stdout)


def test_lines_of_other_gpus_are_left_out(node: Tree) -> None:
    lost = {**NVML, "gpus": [{**NVML["gpus"][0], "lost": "no answer"}]}  # type: ignore[index,dict-item]
    drift = [{"gpu": 0, "index": 0, "key": "policy", "configured": "fixed", "live": "weighted"}]
    with daemon_at(node.root, {"gpus": packed(lost), "status": packed({**STATUS, "drift": drift})}):
        texts = [Cli(node).smi("--no-sample", "-i", word).stdout for word in "01"]
    for line in ("GPU 0: NVML: no answer", "GPU 0: policy is weighted, cgpu.toml has fixed"):
        assert [line in text for text in texts] == [True, False]


def test_a_filter_does_not_change_the_ceilings(node: Tree) -> None:
    rows = json.loads(Cli(node).smi("--no-sample", "--json", "-c", "gpu_test1").stdout)["gpus"]
    assert [(one["id"], one["share_allowed_pct"]) for gpu in rows for one in gpu["containers"]] == [(ID1, 33.33)]
    text = Cli(node).smi("--no-sample", "-c", "gpu_test1").stdout
    assert "33.3%" in text
    assert ID2[:12] not in text


@pytest.mark.parametrize("sort", SORTS)
def test_sorting(sampled: Tree, sort: str) -> None:
    data = json.loads(Cli(sampled).smi("--json", "--sort", sort).stdout)
    order = [one["id"] for one in data["gpus"][0]["containers"]]
    assert order == ([ID1, ID2] if sort == "name" else [ID2, ID1])


def test_list(node: Tree) -> None:
    lines = Cli(node).smi("-L").stdout.splitlines()
    assert lines[0] == "GPU 0: Tesla T4 (simulated) (UUID: GPU-00000000-1111-2222-3333-444455556666)"
    assert lines[1] == f"  Container gpu_test1: 6043 MiB, weight 1 (ID: {ID1})"


# ---- queries ----


def test_every_field(sampled: Tree) -> None:
    with daemon_at(sampled.root, {"gpus": packed(NVML), "status": packed(STATUS)}):
        gpus = Cli(sampled).smi("--query-gpu", ",".join(query.GPU_FIELDS)).stdout
        boxes = Cli(sampled).smi("--query-container", ",".join(query.CONTAINER_FIELDS)).stdout
    golden("smi-query-gpu.txt", gpus)
    golden("smi-query-container.txt", boxes)


def test_forms_of_csv(node: Tree) -> None:
    fields = ("--query-gpu=name,memory.total,power.draw",)
    assert Cli(node).smi(*fields, "--format=csv").stdout.splitlines() == [
        "name, memory.total [MiB], power.draw [W]",
        "Tesla T4 (simulated), 15109 MiB, [N/A]",
        "-, 81559 MiB, [N/A]",
    ]
    assert Cli(node).smi(*fields, "--format=csv,noheader,nounits", "-i", "0").stdout == (
        "Tesla T4 (simulated), 15109, [N/A]\n"
    )


def test_a_memory_that_is_not_known_is_no_zero(empty: Tree) -> None:
    empty.gpu(0, stat="total_bytes 0\nused_bytes 0\nlimits_bytes 0")
    assert Cli(empty).smi("--query-gpu=memory.total", "--format=csv,noheader").stdout == "[N/A]\n"


def test_a_comma_in_a_name_is_quoted(node: Tree) -> None:
    write(node.root / f"proc/driver/nvidia/gpus/{PCI}/information", 'Model: A, "B"')
    assert Cli(node).smi("--query-gpu=name,index", "--format=csv,noheader", "-i", "0").stdout == '"A, ""B""", 0\n'


@pytest.mark.parametrize(
    ("option", "known"),
    [("--help-query-gpu", query.GPU_FIELDS), ("--help-query-container", query.CONTAINER_FIELDS)],
)
def test_the_fields_are_listed(cli: Cli, option: str, known: dict[str, query.Field]) -> None:
    result = cli.smi(option)
    assert [line.split()[0] for line in result.stdout.splitlines()] == list(known)


# ---- loops ----


def test_dmon_and_pmon(node: Tree) -> None:
    with daemon_at(node.root, {"gpus": packed(NVML)}):
        lines = Cli(node).smi("dmon", "-d", "0.1", "-c", "2").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["#", "#", "0", "1", "0", "1"]
    words = "0 31 45 38 20 61 30 weighted 2 1 768 14101 15109 3"
    assert " ".join(lines[2].split()) == words
    lines = Cli(node).smi("-i", "0", "-c", "gpu_test1", "pmon", "-d", "0.1", "-c", "1").stdout.splitlines()
    assert [" ".join(line.split()) for line in lines[2:]] == ["0 19772 gpu_test1 0 - - 256 running train.py"]


def test_a_gpu_without_processes_has_a_line(empty: Tree) -> None:
    assert Cli(empty).smi("pmon", "-d", "0.1", "-c", "1").stdout.splitlines()[2].split() == ["0", *["-"] * 8]


@pytest.mark.parametrize("words", [("--json",), ("--query-gpu=index",), ()])
def test_loop_ends_with_its_reader(node: Tree, words: tuple[str, ...]) -> None:
    code = (
        "import sys; from cgpu_cli.smi import main; "
        f"sys.argv[1:] = ['--root', {str(node.root)!r}, '-l', '0.1', *{words!r}]; main()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        lines = [process.stdout.readline() for _ in range(7)]
        process.stdout.close()
        assert process.wait(30) == 141
    if words == ("--json",):
        for line in lines:
            schema.validate(json.loads(line), SCHEMA)
    if words == ("--query-gpu=index",):
        assert [line.strip() for line in lines] == ["index", "0", "1", "0", "1", "0", "1"]


# ---- rates ----


def _at(snapshot: Snapshot, seconds: float, gpu_ns: int, wait_ns: int, turns: int) -> Snapshot:
    stat = {"gpu_ns": gpu_ns, "wait_ns": wait_ns, "turns": turns, "opened": 1}
    gpus = [
        replace(gpu, slots=tuple(replace(slot, at_ns=round(seconds * 1e9), stat=stat) for slot in gpu.slots))
        for gpu in snapshot.gpus
    ]
    return replace(snapshot, gpus=tuple(gpus))


def test_one_second_and_ten(tree: Tree) -> None:
    """Half of ten seconds, and a quarter of the last, in which it had five turns."""
    one = proc.read_tree(proc.Paths.below(str(tree.root)))
    readings = [_at(one, second, second * 10**9 // 2, second * 10**9 // 2, second * 10) for second in range(10)]
    last = _at(one, 10, 9 * 10**9 // 2 + 10**9 // 4, 9 * 10**9 // 2 + 3 * 10**9 // 4, 95)
    found = rates.rates([*readings, last])[0, ID1[:12]]
    assert (found.share_got_pct, found.share_got_10s_pct) == (25.0, pytest.approx(47.5))
    assert (found.throttled_pct, found.wait_per_turn_us) == (75.0, 150_000)
    assert rates.rates([readings[5], last])[0, ID1[:12]].share_got_10s_pct is None, "not observed for so long"
    late = _at(one, 16, 9 * 10**9, 0, 95)
    assert rates.rates([readings[0], late])[0, ID1[:12]].share_got_10s_pct is None, "over 16 s"


def test_histograms_that_do_not_fit_together_have_no_difference() -> None:
    def waits_of(count: int, *bounds: int) -> wait_times.Waits:
        return wait_times.Waits(tuple((ns, count) for ns in bounds), count, count * 10)

    assert wait_times.since(waits_of(3, 100, 200), waits_of(5, 100, 200)) == waits_of(2, 100, 200)
    assert wait_times.since(waits_of(3, 100, 200), waits_of(2, 100, 200)) is None, "of an earlier container"
    assert wait_times.since(waits_of(3, 100), waits_of(5, 100, 200)) is None, "of another core"
    assert wait_times.since(None, waits_of(5, 100)) == waits_of(5, 100)


def test_the_part_of_a_ceiling_in_the_throttled_time(tree: Tree) -> None:
    """Over a second: a quarter it ran, half it had no budget, a quarter it was out of turn otherwise."""
    one = proc.read_tree(proc.Paths.below(str(tree.root)))
    key = (0, ID1[:12])

    def at(seconds: float, gpu_ns: int, wait_ns: int, throttled_ns: int) -> Snapshot:
        now = _at(one, seconds, gpu_ns, wait_ns, 1)
        slots = tuple(replace(slot, stat=slot.stat | {"throttled_ns": throttled_ns}) for slot in now.gpus[0].slots)
        return replace(now, gpus=(replace(now.gpus[0], slots=slots),))

    before, after = at(1, 10**9, 0, 0), at(2, 10**9 * 5 // 4, 10**9 * 3 // 4, 10**9 // 2)
    found = rates.rates([before, after])[key]
    assert (found.throttled_pct, found.throttled_by_ceiling_pct) == (75.0, 50.0)
    assert rates.rates([before, before])[key].throttled_by_ceiling_pct is None
    assert rates.rates([before, _at(one, 2, 1, 1, 1)])[key].throttled_by_ceiling_pct is None, "an older module"
    native = replace(after, gpus=(replace(after.gpus[0], policy=5),))
    assert rates.rates([before, native])[key].throttled_by_ceiling_pct is None


def _waited(snapshot: Snapshot, seconds: float, shorter: dict[int, int], total: int) -> Snapshot:
    stat = {name: int(value) for name, value in (line.split() for line in waits(shorter, total).splitlines())}
    now = _at(snapshot, seconds, 0, 0, 0)
    slots = tuple(replace(slot, stat=slot.stat | stat) for slot in now.gpus[0].slots)
    return replace(now, gpus=(replace(now.gpus[0], slots=slots),))


def test_the_99th_percentile_of_the_waits(tree: Tree) -> None:
    """Of the sample alone, interpolated within its bucket; of a wait above the last bound that bound is known."""
    one = proc.read_tree(proc.Paths.below(str(tree.root)))
    key = (0, ID1[:12])
    before, after = _waited(one, 0, {0: 50}, 50), _waited(one, 1, {0: 50, 3: 100}, 150)
    assert rates.rates([before, after])[key].wait_p99_us == pytest.approx(400 + 400 * 0.99)
    assert rates.rates([before, _waited(one, 1, {0: 50}, 53)])[key].wait_p99_us == pytest.approx((100 << 17) * 1.0)
    assert rates.rates([after, _waited(one, 2, {0: 50, 3: 100}, 150)])[key].wait_p99_us is None, "no wait"
    assert rates.rates([before, _at(one, 1, 0, 0, 0)])[key].wait_p99_us is None, "an older module"
    readings = [_waited(one, second, {0: 50 + second}, 50 + second) for second in range(11)]
    assert rates.rates(readings)[key].wait_p99_10s_us == pytest.approx(99)
    assert rates.rates(readings[4:])[key].wait_p99_10s_us is None


def test_the_native_policy_is_not_measured(tree: Tree) -> None:
    tree.gpu(0, policy=5)
    now = proc.read_tree(proc.Paths.below(str(tree.root)))
    assert rates.rates([now])[0, ID1[:12]] == rates.Rates()


# ---- tables ----

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp", "Cf")), max_size=40)


@settings(deadline=None)
@given(st.lists(st.tuples(TEXT, TEXT, TEXT), max_size=5), st.integers(6, 120))
def test_no_line_is_wider_than_the_terminal(rows: list[tuple[str, str, str]], width: int) -> None:
    layout = (Column("ONE", least=3), Column("TWO", right=True, drop=1), Column("THREE", least=2, tail=False))
    lines = columns.table(layout, rows, width)
    assert len(lines) == len(rows) + 1
    assert all(columns.cells(line) <= width for line in lines)
    assert all("\n" not in line for line in lines)


@settings(deadline=None)
@given(TEXT, st.integers(0, 50))
def test_a_shortened_text_keeps_its_ends(text: str, width: int) -> None:
    found = columns.shorten(text, width)
    assert columns.cells(found) <= width
    if columns.cells(text) <= width:
        assert found == text
    elif width >= 5 and text.isascii():
        left, right = found.split("…")
        assert text.startswith(left)
        assert text.endswith(right)


@settings(deadline=None)
@given(st.floats(0, 2), st.integers(3, 40))
def test_a_bar_has_its_width(part: float, width: int) -> None:
    found = columns.bar(part, width)
    assert len(found) == width
    assert ("#" in found) == (part > 0)


# ---- sensors without cgpud ----


def test_without_cgpud_a_child_asks_nvml(tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child is the real one; its pynvml fails without the library, which is no error here."""
    monkeypatch.setattr(sensors, "LIVE", tree.proc)
    assert sensors.read(proc.Paths.below(str(tree.root))) == []
    child = 'import sys, json; print(json.dumps({"count": 1})); print(json.dumps({"gpu": {"uuid": "GPU-1", '
    child += '"total_mib": 3, "used_mib": None, "sensors": {"power_mw": 5, "temperature_c": True}}}))'
    monkeypatch.setattr(sensors, "PROGRAM", child)
    (found,) = sensors.read(proc.Paths.below(str(tree.root)))
    assert (found.uuid, found.total_bytes, found.power_mw, found.temperature_c) == ("GPU-1", 3 * MIB, 5, None)


@pytest.mark.parametrize("child", ["import time; time.sleep(60)", "print('{')", "print('[]')", "raise SystemExit(3)"])
def test_a_child_that_fails_is_no_answer(tree: Tree, monkeypatch: pytest.MonkeyPatch, child: str) -> None:
    monkeypatch.setattr(sensors, "LIVE", tree.proc)
    monkeypatch.setattr(sensors, "PROGRAM", child)
    monkeypatch.setattr(sensors, "CHILD_S", 0.5)
    began = time.monotonic()
    assert sensors.read(proc.Paths.below(str(tree.root))) == []
    assert time.monotonic() - began < 20


# ---- top ----


@settings(deadline=None)
@given(st.lists(st.characters(codec="utf-8"), max_size=60))
def test_keys_never_fail(keys: list[str]) -> None:
    state = topview.State()
    for key in keys:
        state = topview.press(state, key, [0, 1])
    assert state.sort in SORTS
    assert state.gpu in (None, 0, 1)


def test_what_the_keys_do() -> None:
    def typed(text: str) -> topview.State:
        state = topview.State()
        for key in text:
            state = topview.press(state, key, [0, 1])
        return state

    assert typed("q").quit
    assert not typed("/q").quit
    assert typed("/webx\x7f\r") == topview.State(filter="web")
    assert typed("/web\x1b") == topview.State()
    assert [typed("g" * n).gpu for n in range(4)] == [None, 0, 1, None]
    assert typed("p ").processes
    assert typed("p ").paused
    assert typed("").sort == "share"
    assert {typed("s" * n).sort for n in range(len(SORTS))} == set(SORTS)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (140, 40), (40, 8), (20, 3)])
def test_a_frame_fits_its_screen(node: Tree, width: int, height: int) -> None:
    now = proc.read_tree(proc.Paths.below(str(node.root)))
    view = View(now, rates.rates([a_second_before(now), now]))
    trail = topview.Trail()
    for _ in range(200):
        trail.add(view)
    for state in (topview.State(processes=True), topview.State(filter="gpu_test1"), topview.State(typing="x")):
        lines = topview.frame(view, trail.series, state, width, height)
        assert len(lines) == height
        assert all(columns.cells(line) <= width for line in lines)
    if width >= 80:
        assert any("▄" in line or "▃" in line for line in topview.frame(view, trail.series, topview.State(), 80, 24))


def many(tree: Tree, count: int) -> View:
    ids = [f"{number:02x}{ID1[2:]}" for number in range(count)]
    shutil.rmtree(tree.proc / "0")
    tree.gpu(0, max_inst=25, free_weight=25 - count)
    for number, one in enumerate(ids):
        tree.slot(0, one)
        write(tree.root / f"var/lib/docker/containers/{one}/config.v2.json", json.dumps({"Name": f"/job{number}"}))
    tree.listed(*(inst_line(one, number + 1) for number, one in enumerate(ids)))
    now = proc.read_tree(proc.Paths.below(str(tree.root)))
    return chosen(View(now, rates.rates([now])))


def test_each_of_25_containers_can_be_reached_on_a_small_screen(empty: Tree) -> None:
    """The screen ended with "12 more lines", and no key showed them."""
    view, state, seen = many(empty, 25), topview.State(sort="name"), []
    for key in ("", *"jjj"):
        state = topview.press(state, key, [0], 100) if key else state
        lines = topview.frame(view, {}, state, 80, 24)
        assert len(lines) == 24 and any("WEIGHT ALLOWED" in line for line in lines), "the heads stay"
        seen += [word for line in lines for word in line.split() if word.startswith("job")]
    assert set(seen) == {f"job{number}" for number in range(25)}
    assert "lines 10 to 25 of 25" in lines[-2]
    back = topview.frame(view, {}, topview.press(state, "s", [0], 100), 80, 24)
    assert "lines 1 to 16 of 25" in back[-2], "another order begins at its first line"


@pytest.mark.parametrize(("width", "height"), [(40, 12), (30, 24), (80, 6)])
def test_what_is_scrolled_fits_the_screen(empty: Tree, width: int, height: int) -> None:
    view = many(empty, 25)
    for first in (0, 7, 400):
        for state in (topview.State(first=first), topview.State(first=first, history=True)):
            lines = topview.frame(view, {}, state, width, height)
            assert len(lines) == height and max(map(columns.cells, lines)) <= width


@pytest.mark.parametrize(
    ("text", "keys"), [("\x1b[B", "↓"), ("\x1b[5~", "k"), ("\x1b[15~", ""), ("\x1b", "\x1b"), ("jj", "jj")]
)
def test_sequences_of_a_terminal(text: str, keys: str) -> None:
    assert topview.keys_of(text) == keys


def test_a_sparkline_of_small_shares_is_not_flat(empty: Tree) -> None:
    """Of 25 containers each had 4 %: one line of the lowest block."""
    view = many(empty, 25)
    series = {(0, slot.id): [1.0, 2.0, 4.0, 3.0] for slot in view.snapshot.gpus[0].slots}
    for state in (topview.State(), topview.State(pods=True), topview.State(history=True)):
        lines = topview.frame(view, series, state, 140, 40)
        assert any("UP TO 5%" in line for line in lines)
        assert sum("▂▃▆▅" in line for line in lines) == 25
    assert [topview.scale([[value]], 20) for value in (0.1, 5, 5.1, 30, 80, 100)] == [5, 5, 10, 50, 100, 100]
    assert topview.scale([], 20) == 100


def test_names_are_in_the_order_of_their_numbers(empty: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """job1, job10, job11, job2."""
    view = many(empty, 12)
    want = [f"job{number}" for number in range(12)]
    assert [slot.name for slot in view.snapshot.gpus[0].slots] == want
    assert [line.split()[1] for line in Cli(empty).cgpu("ps").stdout.splitlines()[1:]] == want


@settings(deadline=None)
@given(st.lists(st.floats(-10, 500), max_size=30), st.integers(1, 40), st.booleans())
def test_a_sparkline_has_its_width(values: list[float], width: int, plain: bool) -> None:
    text = topview.spark(values, width, plain)
    assert len(text) == width
    assert not plain or text.isascii()


def test_top_on_a_terminal(node: Tree) -> None:
    """The real program on a pseudo-terminal: draws, filters, restores the terminal, ends by q."""
    pytest.importorskip("rich")
    code = (
        "import sys; from cgpu_cli.smi import main; "
        f"sys.argv[1:] = ['--root', {str(node.root)!r}, 'top', '-d', '0.3']; main()"
    )
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(slave)
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=slave, stdout=slave, stderr=slave, env={**os.environ, "TERM": "xterm-256color", "LANG": "C.UTF-8"},
    )  # fmt: skip
    data = b""

    def until(pattern: bytes, keys: bytes = b"") -> None:
        nonlocal data
        os.write(master, keys)
        end = time.monotonic() + 60
        while not re.search(pattern, data) and time.monotonic() < end:
            if select.select([master], [], [], 0.2)[0]:
                data += os.read(master, 65536)
        assert re.search(pattern, data), data[-3000:]

    try:
        until(rb"gpu_test1")
        until(rb"/gpu_t_", b"/gpu_t")
        until(rb"filter: gpu_t", b"\r")
        os.write(master, b"q")
        while process.poll() is None:
            if select.select([master], [], [], 0.2)[0]:
                data += os.read(master, 65536)
        assert process.returncode == 0
        assert termios.tcgetattr(slave) == before
        assert b"Traceback" not in data
        assert not re.search(rb"\x1b\[[1-9][0-9;]*m", data), "no colour, with and without NO_COLOR"
    finally:
        process.kill()
        os.close(master)
        os.close(slave)


def test_top_without_a_terminal_is_a_loop(node: Tree) -> None:
    text = Cli(node).smi("top", "-n", "2", "-d", "0.2").stdout
    assert text.count("cgpu-smi   core") == 2
    assert "\x1b" not in text


def test_top_without_its_library(node: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    from cgpu_cli import top

    monkeypatch.setitem(sys.modules, "rich.console", None)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    with pytest.raises(Exception, match="the Python package rich is not installed"):
        top.screen(proc.Paths.below(str(node.root)), None, 1.0, 1)  # type: ignore[arg-type]


def test_the_start_imports_no_screen() -> None:
    code = "import sys; import cgpu_cli.smi; sys.exit('rich' in sys.modules or 'asyncio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_overview_has_every_column_in_its_help(cli: Cli) -> None:
    text = " ".join(cli.smi("--help").stdout.split())
    shown = [cells.GPU[name] for name in overview.GPU_NAMES]
    shown += [cells.SLOT[name] for name in (*overview.COMPUTE, *overview.MEMORY)]
    plain = {"", "GPU", "NAME", "UUID", "POLICY"}
    heads = {one.column.head.removesuffix(" MiB") for one in shown} - plain
    assert [head for head in heads if head not in text] == []
    page = (Path(__file__).parents[3] / "docs/user/cli.md").read_text().partition("| column | |")[2]
    assert [head for head in heads if head not in page.partition("\n\n")[0]] == []
    assert [one.legend for one in shown if one.legend not in text] == []
    unsaid = {one.column.head for one in shown if not one.legend}
    assert unsaid == plain


def test_a_value_does_not_outlive_its_source(node: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a loop UTIL stayed as it was for as long as cgpud gave no answer."""
    now, over = [100.0], threading.Event()
    monkeypatch.setattr(collect.time, "monotonic", lambda: now[0])
    found = [sensors.of_row(row) for row in NVML["gpus"]]  # type: ignore[union-attr]
    answers = [lambda: found, lambda: (over.wait(20), found)[1], lambda: (over.wait(20), found)[1]]
    monkeypatch.setattr(sensors, "read", lambda _paths: answers.pop(0)())
    collector = collect.Collector(proc.Paths.below(str(node.root)))
    seen = []
    for seconds in (0, 3, 6):
        now[0] = 100.0 + seconds
        collector.request()
        view = collector.view(0.05)
        seen.append(view.sensors_of(view.snapshot.gpus[0]).utilization_pct)
    over.set()
    assert seen == [38, 38, None]


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (None, "-"),
        (999, "999us"),
        (50_600, "50.6ms"),
        (99_900, "99.9ms"),
        (101_000, "101ms"),
        (999_000, "999ms"),
        (1_500_000, "1.50s"),
    ],
)
def test_neighbouring_durations_have_the_same_unit(us: float | None, text: str) -> None:
    """50.6ms stood beside 0.10s."""
    assert cells.duration(us) == text


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.tuples(st.integers(0, 10**12), TEXT, st.integers(0, 10**12)), min_size=1, max_size=4),
    st.integers(1, 60),
)
def test_a_figure_is_never_cut(rows: list[tuple[int, str, int]], width: int) -> None:
    layout = (Column("GPU", right=True), Column("NAME", least=4), Column("USED MiB", right=True))
    words = [
        word
        for line in columns.table(layout, [(str(a), b, str(c)) for a, b, c in rows], width)
        for word in line.split()
    ]
    assert all(str(number) in words for a, _, c in rows for number in (a, c))


@pytest.mark.parametrize("width", [80, 140])
def test_the_live_screen(node: Tree, width: int) -> None:
    now = exactly_at(proc.read_tree(proc.Paths.below(str(node.root))), 10**12)
    view = View(now, rates.rates([a_second_before(now), now]), 1.0)
    trail = topview.Trail()
    for _ in range(30):
        trail.add(view)
    lines = topview.frame(view, trail.series, topview.State(), width, 24)
    golden(f"top-{width}.txt", "\n".join(lines) + "\n")
    assert max(map(columns.cells, lines)) <= width


@pytest.mark.parametrize("width", [40, 60, 80, 140])
def test_the_help_of_the_live_screen(node: Tree, width: int) -> None:
    view = View(proc.read_tree(proc.Paths.below(str(node.root))))
    shown = topview.press(topview.State(), "?", [0])
    assert shown.help and not topview.press(shown, "x", [0]).help and topview.press(shown, "q", [0]).quit
    lines = topview.frame(view, {}, topview.State(help=True), width, 40)
    assert len(lines) == 40 and max(map(columns.cells, lines)) <= width
    text = " ".join(" ".join(lines).split())
    assert all(about in text for _, about in (*topview.KEYS, *topview.COLUMNS))


# ---- everything ----


def test_everything_as_text_and_xml(sampled: Tree) -> None:
    """Each value of --json is there, with its unit, or by its name."""
    with daemon_at(sampled.root, {"gpus": packed(NVML), "status": packed(STATUS)}):
        text = Cli(sampled).smi("-q").stdout
        one = Cli(sampled).smi("-q", "-c", "gpu_test1").stdout
        xml = Cli(sampled).smi("-q", "-x").stdout
        data = json.loads(Cli(sampled).smi("--json").stdout)
    golden("smi-full.txt", one)
    lines = {tuple(part.strip() for part in line.split(" : ", 1)) for line in text.splitlines() if " : " in line}
    assert {("SM Active", "61.2 %"), ("Power", "31.25 W"), ("Temperature", "45 C"), ("High Priority", "No")} <= lines
    root = ET.fromstring(xml)
    gpus = root.findall("gpus/gpu")
    assert [one.findtext("pci") for one in gpus] == [one["pci"] for one in data["gpus"]]
    assert gpus[0].findtext("nvml/sm_active_pct") == "61.2" and gpus[1].findtext("nvml/temperature_c") == "N/A"
    assert len(root.findall(".//container")) == sum(len(one["containers"]) for one in data["gpus"])
    assert set(gpus[0].find("containers/container") or ()) and root.findtext(".//process/sm_pct") == "60"
    names = {one.tag for one in gpus[0]}
    assert names == set(data["gpus"][0])


def test_xml_is_the_form_of_everything(cli: Cli) -> None:
    assert "-x is the form of -q" in cli.smi("-x").stderr
    assert "exclude each other" in cli.smi("-q", "--json").stderr
    assert "has a form of its own" in cli.smi("-q", "dmon").stderr


def test_a_processs_name_breaks_no_xml(node: Tree) -> None:
    write(node.root / "proc/19772/comm", "<a>&\x07]]>")
    root = ET.fromstring(Cli(node).smi("-q", "-x", "--no-sample").stdout)
    assert "<a>&?]]>" in {one.text for one in root.iter("name")}


# ---- pods and history ----


def test_a_screen_scrolls_as_far_as_there_are_lines() -> None:
    first = topview.State()
    assert [topview.press(first, key, [0], 3).first for key in ("j", "↓", "k")] == [3, 1, 0]
    assert topview.press(replace(first, first=2), "k", [0], 3).first == 0


def test_a_sparkline_goes_with_its_container(node: Tree) -> None:
    now = proc.read_tree(proc.Paths.below(str(node.root)))
    trail = topview.Trail()
    trail.add(View(now))
    assert set(trail.series) == {0, 1, (0, ID1), (0, ID2), (1, ID3)}
    trail.add(View(replace(now, gpus=(replace(now.gpus[0], slots=now.gpus[0].slots[:1]),))))
    assert {key: len(found) for key, found in trail.series.items()} == {0: 2, (0, now.gpus[0].slots[0].id): 2}


def test_a_container_is_named_by_its_directory_too() -> None:
    there = [Named(f"{n}" * 64, f"dir{n}", "x" if n else None) for n in range(3)]
    assert [names.choose(word, there) for word in ("dir1", "1", "2" * 64)] == [1, 1, 2]
    many = [Named(f"a{n}" * 32, f"dir{n}") for n in range(7)]
    with pytest.raises(CgpuError, match=r"fits 7 containers: a0.*, a4[^,]* and 2 more") as caught:
        names.choose("a", many)
    assert "a5" not in caught.value.why


def test_ids_that_begin_alike_stay_apart(node: Tree) -> None:
    """A container by hand has no name; twelve characters of its id may be another's."""
    now = exactly_at(proc.read_tree(proc.Paths.below(str(node.root))), 10**12)
    first, *others = now.gpus[0].slots
    alike = [
        replace(first, id="ab" * 8 + end, name=None, dir=f"d{end}", pids=((7, MIB),)) for end in ("0" * 48, "1" * 48)
    ]
    view = View(replace(now, gpus=(replace(now.gpus[0], slots=(*alike, *others)),)))
    for key in "ot":
        lines = topview.frame(view, {}, topview.press(topview.State(), key, [0]), 140, 40)
        assert len({word for line in lines for word in line.split() if word.startswith("ab" * 8)}) == 2, lines
    one = chosen(view, (), [alike[0].id])
    assert one.ids == view.ids and len(one.ids[alike[0].id]) > 12, "a filter does not make it another's"
    named = [line for line in monitor.process_lines(view) if "abab" in line]
    assert len(named) == 2 and named[0] != named[1]


@pytest.mark.parametrize("width", [60, 80, 140])
@pytest.mark.parametrize("key", ["o", "t"])
def test_pods_and_history(node: Tree, width: int, key: str) -> None:
    now = exactly_at(proc.read_tree(proc.Paths.below(str(node.root))), 10**12)
    slots = now.gpus[0].slots
    named = {one.id: Names(f"c{number}", "serve", "ml") for number, one in enumerate(slots)}
    view = View(now, rates.rates([a_second_before(now), now]), 1.0, names=named)
    trail = topview.Trail()
    for _ in range(30):
        trail.add(view)
    state = topview.press(topview.State(), key, [0, 1])
    lines = topview.frame(view, trail.series, state, width, 24)
    assert len(lines) == 24 and max(map(columns.cells, lines)) <= width
    text = "\n".join(lines)
    if key == "o":
        (row,) = (line for line in lines if "ml/serve" in line)
        used, limit = sum(one.used for one in slots) // MIB, sum(one.limit for one in slots) // MIB
        assert f"{used}/{limit}" in row and str(sum(one.weight for one in slots)) in row.split()
        assert "ml/serve/c0" not in text
    else:
        assert "READINGS" in text and "GPU 0" in text and text.count("█") + text.count("▁") > 0
    assert topview.press(state, key, [0, 1]) == topview.State()
