# SPDX-License-Identifier: MIT
"""A bench's file is JSON that every reader takes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import results

BENCHES = ("engine.py", "ioctl.py", "sched.py", "sched_vm.py")


def refuse(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def test_a_figure_without_an_end_is_null_with_its_reason(tmp_path: Path) -> None:
    rows = [{"error_pct": math.inf, "p99_us": 3.5}, {"error_pct": 0.5}, {"least": math.nan, "all": [1.0, -math.inf]}]
    path = tmp_path / "build/bench.json"
    results.write_report(path, {"results": rows, "ok": False, "costs": {"6": {"25": math.inf}}})
    found = json.loads(path.read_text(), parse_constant=refuse)
    assert found["results"] == [
        {"error_pct": None, "p99_us": 3.5, "not_finite": {"error_pct": results.INFINITE}},
        {"error_pct": 0.5},
        {"least": None, "all": [1.0, None], "not_finite": {"least": results.UNDEFINED}},
    ]
    assert found["costs"] == {"6": {"25": None, "not_finite": {"25": results.INFINITE}}}
    assert found["ok"] is False


@pytest.mark.parametrize("bench", BENCHES)
def test_each_bench_writes_its_file_so(bench: str) -> None:
    """A json.dumps() of its own would let an infinite figure through."""
    assert "OUTPUT.write_text(" not in Path(__file__).with_name(bench).read_text()
