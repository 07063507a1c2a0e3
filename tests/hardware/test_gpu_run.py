# SPDX-License-Identifier: MIT
"""The budget, questions that go wrong, what is written, and the report of it."""

from __future__ import annotations

import json
import re
import time
import tomllib
from pathlib import Path

import pytest
import report
import run
from hw import ask, loads, machine, traces

FACTS = {
    "simulated": True,
    "driver": "580.105.08",
    "card": "Simulated T4",
    "kernel": "6.1.0",
    "date": "2026-01-02 03:04 UTC",
}


@pytest.fixture
def context(tmp_path):
    made = ask.Context("simload", tmp_path, True, dict(FACTS), tmp_path)
    yield made
    made.close()


def made(name: str, work, seconds: float = 1) -> ask.Question:
    return ask.Question(name, "probes", f"{name}?", "by a test", seconds, (3,), work)


def raises(error: BaseException):
    def work(_: ask.Context) -> dict:
        raise error

    return work


def test_a_measured_result_has_all_that_says_where_it_is_from(context):
    result = ask.answer(made("one", lambda _: {"answer": "yes", "n": 3}), context, 5)
    assert result["state"] == "measured"
    assert (result["answer"], result["numbers"]) == ("yes", {"n": 3})
    assert {key: result[key] for key in FACTS} == FACTS


@pytest.mark.parametrize(
    ("error", "state", "reason"),
    [
        (ask.Missing("no torch"), "missing", "no torch"),
        (RuntimeError("it fell over"), "failed", "RuntimeError: it fell over"),
        (FileNotFoundError(2, "No such file", "conduct"), "failed", "conduct"),
    ],
)
def test_what_goes_wrong_is_the_result(context, error, state, reason):
    result = ask.answer(made("one", raises(error)), context, 5)
    assert result["state"] == state
    assert reason in result["reason"]
    assert "numbers" not in result


def test_a_question_that_hangs_is_cut_off(context):
    began = time.monotonic()
    result = ask.answer(made("one", lambda _: time.sleep(30)), context, 0.2)
    assert result["state"] == "too long"
    assert time.monotonic() - began < 5


def test_what_does_not_fit_is_named_and_not_begun(context, tmp_path, monkeypatch, capsys):
    now = [0.0]
    budget = ask.Budget(10, lambda: now[0])
    begun = []

    def work(_: ask.Context) -> dict:
        begun.append(1)
        now[0] += 8
        return {"answer": "done"}

    chosen = [made("first", work, 8), made("second", work, 8), made("third", raises(RuntimeError("bad")), 1)]
    context.quick = False
    monkeypatch.setattr(run, "questions", lambda: chosen)
    results = run.run(chosen, context, budget, tmp_path)
    assert [r["state"] for r in results] == ["measured", "not reached", "failed"]
    assert len(begun) == 1
    assert "2 s were left, it takes about 8" in results[1]["reason"]
    assert [json.loads(p.read_text())["question"] for p in sorted(tmp_path.glob("0*.json"))] == [
        "first",
        "second",
        "third",
    ]
    assert "second: not reached" in capsys.readouterr().out


def test_every_question_says_what_it_asks_and_those_that_decide_come_first():
    found = run.questions()
    assert [one.name for one in found[:6]] == ["restart", "foreign", "refuse-0xde", "mm-initialize", "table", "serve"]
    assert [one.group for one in found] == sorted((one.group for one in found), key=run.ORDER.index)
    for one in found:
        assert one.asks.endswith("?"), one.name
        assert one.method, one.name
    assert len({one.name for one in found}) == len(found)


def test_every_question_is_in_the_documents():
    rows = (machine.REPO / "docs/develop/hardware.md").read_text()
    for one in run.questions():
        assert f"`{one.name}`" in rows, one.name
        for number in one.rows:
            (row,) = (line for line in rows.splitlines() if line.startswith(f"| {number} |"))
            assert f"`{one.name}`" in row, (one.name, number)


def test_a_name_chooses_one_question_a_group_all_of_it():
    assert [one.name for one in run.choose("foreign")] == ["foreign"]
    assert {one.group for one in run.choose("memory")} == {"memory"}
    assert run.choose("all") == run.questions()
    with pytest.raises(SystemExit):
        run.parse(["nonsense"])


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.105.08  Wed Oct 29", "580.105.08"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.14  Release", "550.54.14"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.256  x", "470.256"),
        ("", "unknown"),
    ],
)
def test_the_drivers_version_is_read(text, version):
    assert machine.parse_version(text) == version


def test_a_results_directory_has_date_card_and_driver_in_its_name():
    facts = {"date": "2026-01-02 03:04 UTC", "card": "NVIDIA H100 80GB HBM3", "driver": "580.105.08"}
    assert machine.results_name(facts) == "2026-01-02-h100-80gb-hbm3-580.105.08"


def test_calls_in_a_recording_are_counted(tmp_path):
    raw = tmp_path / "rmtap-1-0.raw"
    raw.write_text(
        "1 2 3 open 5 nvidiactl 2\n1 2 3 ioctl 5 nvidiactl c020462a 0 0 x\n1 2 3 ioctl 5 nvidiactl c020462a 0 0 y\n"
    )
    assert traces.calls_of(raw) == {"nvidiactl 0xc020462a": 2}


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a driver here")
def test_without_a_driver_nothing_is_written(tmp_path, capsys):
    assert run.main(["all", "--out", str(tmp_path / "out")]) == 2
    assert "no /dev/nvidiactl" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_load_that_does_not_start_is_named_with_what_it_said(context):
    argv = ["sh", "-c", "echo no GPU today >&2; exit 4"]
    with (
        loads.Crew(lambda: loads.Load(argv, {}, context.work), 0.1) as crew,
        pytest.raises(loads.LoadError, match="today"),
    ):
        crew.add(1)
    assert not crew.loads


def test_programs_end_in_a_result(context):
    assert loads.run_program(["/nowhere/at-all"])["reason"] == "not installed"
    assert "no end after" in loads.run_program(["sleep", "9"], timeout_s=0.2)["reason"]
    assert loads.run_program(["sh", "-c", "echo out; exit 3"])["status"] == 3


# ---- the results that are kept ----

KEPT = sorted(path for path in (machine.GPU / "results").glob("*") if path.is_dir())


@pytest.mark.parametrize("folder", KEPT, ids=lambda folder: folder.name)
def test_kept_results_are_of_a_card_and_readable(folder):
    results = report.load(folder)
    names = {one.name for one in run.questions()}
    for result in results:
        assert result["simulated"] is False, result["question"]
        assert result["question"] in names
        assert machine.results_name(result) == folder.name
        assert result["state"] != "measured" or result["answer"], result["question"]
        assert result["quick"] in (True, False)
        assert report.state(result).startswith("measured: ") == (result["state"] == "measured")
    facts = json.loads((folder / "run.json").read_text())
    assert facts["simulated"] is False
    assert {name for one in facts["runs"] for name in one["results"]} == {p.name for p in folder.glob("[0-9][0-9]-*")}


@pytest.mark.parametrize("folder", KEPT, ids=lambda folder: folder.name)
def test_kept_results_say_nothing_about_a_place(folder):
    for path in folder.rglob("*"):
        text = path.read_text()
        assert not re.search(r"GPU-[0-9a-f]{8}-|[^\w.]/(?:root|home|opt|tmp|work)\b|\(\w+@", text), path.name
        assert not re.search(r"serial|\buuid", text, re.IGNORECASE), path.name
    assert sum(path.stat().st_size for path in folder.rglob("*")) < 300_000


def test_an_estimate_is_not_less_than_it_took_on_a_card():
    """A question is begun if its estimate fits into the budget."""
    took = [(one["question"], one["seconds"]) for folder in KEPT for one in report.load(folder) if not one["quick"]]
    seconds = {one.name: one.seconds for one in run.questions()}
    assert took
    assert [name for name, real in took if real > seconds[name]] == []


# ---- the report ----


def write(folder, number: int, **fields: object) -> None:
    result = {"question": f"q{number}", "state": "measured", "rows": [3], "answer": "yes", **FACTS, **fields}
    (folder / f"{number:02d}-q{number}.json").write_text(json.dumps(result))


def test_only_a_measurement_on_a_card_is_claimed(tmp_path):
    write(tmp_path, 0)
    write(tmp_path, 1, simulated=False)
    write(tmp_path, 2, simulated=False, state="failed", reason="a | b\nc", answer="")
    write(tmp_path, 3, simulated="false")
    table = report.table(report.load(tmp_path)).splitlines()
    assert table[2] == "| q0 | 3 | not verified on hardware (simulated) | yes |"
    assert table[3] == "| q1 | 3 | measured: Simulated T4, 580.105.08, kernel 6.1.0, 2026-01-02 | yes |"
    assert table[4] == "| q2 | 3 | not verified on hardware (failed) | a \\| b c |"
    assert "simulated" in table[5], "what is not surely a card is none"


def test_bad_results_are_named(tmp_path, capsys):
    assert report.main([str(tmp_path)]) == 1
    (tmp_path / "00-bad.json").write_text("[]")
    assert report.main([str(tmp_path)]) == 1
    assert "00-bad.json: not a result" in capsys.readouterr().err
    assert report.main([]) == 2


# ---- the simulated card ----

H100 = machine.GPU / "results/2026-11-23-h100-80gb-hbm3-580.159.04"


def test_the_page_has_the_requests_that_were_measured():
    page = (machine.REPO / "docs/develop/hardware.md").read_text()
    (rows,) = (one["numbers"]["rows"] for one in report.load(H100) if one["question"] == "serve")
    alone, train = rows["service alone"]["request_ms"], rows["training alone"]["steps_per_s"]
    for name, row in rows.items():
        cells = ["–"] * 7
        if took := row.get("request_ms"):
            ratios = [f"{took[key] / alone[key]:.2f}" for key in ("median", "p99")]
            cells[:5] = [str(took["n"]), f"{took['median']:.1f}", f"{took['p99']:.1f}", *ratios]
        if steps := row.get("steps_per_s"):
            cells[5:] = [f"{steps:.1f}", f"{100 * steps / train:.0f} %"]
        assert f" | {' | '.join(cells)} |\n" in page, name


def test_the_simulated_h100_has_what_was_measured():
    profile = tomllib.loads((machine.REPO / "tests/nvsim/profiles/h100.toml").read_text())
    found = {one["question"]: one["numbers"] for one in report.load(H100)}
    cells = [*found["latency"]["by_channels"], *found["latency"]["by_processes"]]
    assert profile["name"] == json.loads((H100 / "run.json").read_text())["card"]
    assert profile["control_us"] == round(cells[0]["freeze"]["median"])
    assert profile["tail_us"] == round(max(cell["freeze"]["p99"] for cell in cells))
    assert [[profile["timeslice_us"]]] * 2 == found["serve"]["timeslices_us"]
    alone = found["disable"]["ways"]["freeze"]["work_per_s_frozen"][1]
    lacks = [
        sum(cell["timeslice_us"]) * (alone / cell[f"work_per_s_{how}"] - 1) / len(cell["timeslice_us"])
        for cell in found["timeslice"]["cells"]
        for how in ("alone", "with_restart")
    ]
    assert min(lacks) <= profile["ctxsw_us"] <= max(lacks)
    assert max(lacks) - min(lacks) < 10
