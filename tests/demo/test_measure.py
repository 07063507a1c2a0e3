# SPDX-License-Identifier: MIT
"""The arithmetic of the demo, and its host side without a machine."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import host as demo
import pytest
from measure import Progress, rate, whole_rounds, works_at

from cgpu_cli import cells, overview


def test_whole_rounds() -> None:
    assert whole_rounds(10, 0.015) == pytest.approx(10.005)
    assert whole_rounds(10, 3) == 9
    assert whole_rounds(1, 60) == 60


def test_rate_is_taken_between_samples() -> None:
    samples = [(0.0, 0.0), (1.0, 100.0), (2.0, 300.0), (3.0, 300.0)]
    assert works_at(samples, 1.5) == 200
    assert rate(samples, 0.5, 2.5) == 125
    with pytest.raises(ValueError, match="no samples"):
        works_at(samples, 3.5)


def test_progress_follows_lines() -> None:
    now = time.monotonic()
    lines = [
        {"event": "ready", "total_bytes": 7},
        *({"event": "progress", "monotonic": now + n, "works": n} for n in range(3)),
    ]
    text = "\n".join([*(json.dumps(line) for line in lines), "simload: no"])
    code = f"import time; print({text!r}); time.sleep(60)"
    progress = Progress([sys.executable, "-uc", code])
    try:
        assert progress.wait_until(now + 2, 10)
        assert progress.event("ready") == lines[0]
        assert progress.works() == 2
        assert not progress.wait_until(now + 99, 0.05)
        assert rate(progress.samples(), now, now + 2) == pytest.approx(1)
    finally:
        progress.stop()


def test_report_must_be_complete() -> None:
    report = {key: dict.fromkeys(names, 0) for key, names in demo.DEMO.keys.items()}
    assert demo.complete(demo.DEMO, report)
    report["containers"] = {
        name: {"total_mib": 1, "limit_bytes": 2, "weight": 3, "work_per_s": 4.0} for name in report["containers"]
    }
    assert len(demo.table(report)) == 6
    del report["ratio"]["got"]
    assert not demo.complete(demo.DEMO, report)
    assert not demo.complete(demo.DEMO, {"simulated": True, "ok": False})
    assert demo.table({"simulated": True, "ok": False})


def test_the_other_report_has_programs() -> None:
    report = {key: dict.fromkeys(names, 0) for key, names in demo.REAL.keys.items()}
    assert demo.complete(demo.REAL, report)
    report["ratio"]["window_s"] = 10.0
    assert demo.complete(demo.REAL, report), "a report may have further keys"
    report["containers"] = {name: {"total_mib": 1, "work_per_s": 4.0} for name in report["containers"]}
    report["programs"] = {name: {"branch": "550", "result": "ok"} for name in report["programs"]}
    assert "nvidia-smi      550: ok" in demo.table(report)
    del report["programs"]["walk"]
    assert not demo.complete(demo.REAL, report)


def test_the_readme_has_what_the_demo_prints() -> None:
    """Steps by their titles, and cgpu-smi's columns of today."""
    root = Path(__file__).parents[2]
    page = (root / "README.md").read_text().partition("## What the demo shows")[2]
    text = page.split("```")[1]
    lines = [line.partition("| ")[2] for line in text.splitlines() if " | " in line]
    sources = "".join((root / "tests/demo" / name).read_text() for name in ("guest.py", "host.py"))
    steps = [line.removeprefix("== ") for line in lines if line.startswith("== ")]
    assert len(steps) > 3
    assert [one for one in steps if f'"{one}' not in sources] == []
    (heads,) = (line.split() for line in lines if line.split()[:2] == ["GPU", "CONTAINER"])
    names = (*overview.NAMED, *overview.COMPUTE, *overview.MEMORY)
    assert heads == " ".join(cells.SLOT[name].column.head for name in names).split()
