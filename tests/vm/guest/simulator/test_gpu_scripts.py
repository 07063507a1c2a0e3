# SPDX-License-Identifier: MIT
"""The measurements of tests/hardware on the simulated driver alone: they find nvsim's known behaviour."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[4]

pytestmark = pytest.mark.bare

RUN = REPO / "tests/hardware/run.py"
LEVER = REPO / "build/gpu/librmlever.so"


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict[str, dict]:
    """One short run of the measurements on which the design depends."""
    out = tmp_path_factory.mktemp("gpu")
    for group in ("probes", "levers", "sched"):
        argv = [sys.executable, RUN, group, "--quick", "--budget-s", "300", "--out", out]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=400)
        assert done.returncode == 0, done.stdout + done.stderr
        print(done.stdout)
    found = [json.loads(path.read_text()) for path in out.glob("[0-9][0-9]-*.json")]
    return {result["question"]: result for result in found}


def test_all_was_measured_and_says_that_it_is_simulated(results):
    states = {name: r["state"] for name, r in results.items() if r["state"] != "measured"}
    assert states == {"allocation": "missing"}, "the simulated driver has no CUDA to allocate by"
    assert len(results) == 13
    for result in results.values():
        assert result["simulated"] is True
        assert result["driver"] == "580.105.08"
        assert result["load"] == "simload"
        assert result.get("answer") or result["reason"]


def test_a_timeslice_waits_for_the_restart(results):
    found = results["restart"]["numbers"]
    assert found["restart_status"] == "NV_OK"
    assert 0.8 < found["factor_timeslice_alone"] < 1.25
    assert found["factor_after_restart"] == pytest.approx(4, rel=0.25)
    four_to_one = results["timeslice"]["numbers"]["cells"][1]
    assert four_to_one["shares_alone"][0] == pytest.approx(0.5, abs=0.08)
    assert four_to_one["shares_with_restart"][0] == pytest.approx(0.8, abs=0.08)
    assert four_to_one["reads_back_us"] == [[4096], [1024]]


def test_nobody_asks_whose_channels_are_frozen(results):
    for who, restart in (("same_user", "NV_OK"), ("nobody", "INSUFFICIENT_PERMISSIONS (0x1b)")):
        found = results["foreign"]["numbers"][who]
        assert found["freeze_status"] == found["thaw_status"] == "NV_OK"
        assert found["restart_status"] == restart
        assert found["stopped"]
        assert found["back_after_thaw"]


def test_disabling_acts_by_itself(results):
    for way, found in results["disable"]["numbers"]["ways"].items():
        assert found["stops"], way
        assert found["comes_back"], way
        assert found["work_per_s_frozen"][1] > 1.3 * found["work_per_s_before"][1], way


def test_every_lever_was_timed(results):
    for row in results["latency"]["numbers"]["by_channels"]:
        assert row["channels"] == row["streams"]
        for lever in ("freeze", "thaw", "restart", "timeslice", "preempt"):
            assert row[lever]["n"] >= 7, lever
            assert row[lever]["failed"] == 0, lever
            assert 100 < row[lever]["median"] <= row[lever]["p99"], "a call to the firmware takes hundreds of us"


def test_the_core_turns_weights_into_work(results):
    """The accuracy is for a machine without emulated processors: here a call may take as long as a slice."""
    (cell,) = results["shares"]["numbers"]["cells"]
    light, heavy = cell["work_per_s"]
    assert 1.2 < heavy / light < 4
    charged = [member["gpu_ns"] for member in cell["conduct"]["member"]]
    assert charged[1] / charged[0] == pytest.approx(2, rel=0.35)
    assert cell["conduct"]["failed"] == 0
    assert cell["rounds"] >= 5


PROGRAM = """
import sys; sys.path.insert(0, {nvsim!r})
import nvclient as nv
with nv.Client() as rm, nv.Uvm() as first, nv.Uvm(initialize=False) as second:
    gpu = rm.gpu(0)
    print(rm.alloc(0xde, gpu.subdevice)[0], second.mm_initialize(first), gpu.memory()["total"])
"""


def asked(tmp_path, **env: str) -> tuple[list[int], list[str]]:
    """Status of class 0xde, status of MM_INITIALIZE, total bytes; and the answers given in the driver's place."""
    log = tmp_path / "answers"
    environment = {"LD_PRELOAD": str(LEVER), "RMLEVER_LOG": str(log), "PATH": "/usr/bin:/bin", **env}
    argv = [sys.executable, "-c", PROGRAM.format(nvsim=str(REPO / "tests/rmclient"))]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = log.read_text().splitlines() if log.exists() else []
    return [int(word) for word in done.stdout.split()], [line.split()[0] for line in lines]


def test_answers_in_the_drivers_place(tmp_path):
    (rusd, mm, total), said = asked(tmp_path)
    assert rusd != 0x22
    assert mm == 0
    assert total > 8 << 30
    assert said == []
    (tmp_path / "changed").mkdir()
    answers = {"RMLEVER_REFUSE": "de", "RMLEVER_MM_INITIALIZE": "56", "RMLEVER_TOTAL_MIB": "4096"}
    changed, said = asked(tmp_path / "changed", **answers)
    assert changed == [0x22, 0x56, 4 << 30]
    assert said == ["refused", "mm_initialize", "totals"]
