# SPDX-License-Identifier: MIT
"""docs/reliability.md is what `make reliability` writes from the records."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "soak"))

import record


def test_the_page_is_that_of_the_records():
    assert record.PAGE.read_text() == record.page(record.read()), "make reliability"


def test_without_a_record_the_page_claims_nothing():
    assert record.page([]).endswith("\nNo record yet.\n")


SOAK = {"kind": "soak", "minutes": 10.0, "containers": 1200, "faults": 30, "swaps": 7, "result": "passed"}
FAILED = {**SOAK, "minutes": 2.5, "result": "failed: status 1, 2 complaints"}
TEXT = {"kind": "fuzz-text", "parser": "json", "inputs": 1_000_000, "result": "passed"}
CALLS = {"kind": "fuzz", "calls": 500, "result": "passed"}


def test_a_failed_run_is_shown_and_counted():
    text = record.page([SOAK, FAILED])
    assert "failed: status 1, 2 complaints |" in text
    assert "1 of 2 runs passed." in text
    assert "minutes of load: 10\n" in text and "containers: 1,200\n" in text
    assert "in those that failed: 0 (not counted in 2 of 2 runs)\n" in text


def test_a_figure_that_is_missing_is_no_nought():
    text = record.page([{**SOAK, "lost bytes": 4096}, {**FAILED, "lost bytes": 8192}, SOAK])
    assert "in those that failed: 12,288 (not counted in 1 of 3 runs)\n" in text


def test_each_kind_has_a_table():
    text = record.page([TEXT, SOAK, CALLS])
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        "## Random lives",
        "## Wrong calls",
        "## Wrong texts",
    ]
    assert "| - | - | json | - | 1000000 | passed |" in text
    assert "wrong inputs: 1,000,500\n" in text


def test_a_record_has_the_columns_of_its_kind_only(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "RECORDS", tmp_path / "records.jsonl")
    record.add("fuzz", False, "status 1, 0 complaints", kernel="6.1", calls=7, escape={"rows": 3})
    (found,) = record.read()
    assert found["result"] == "failed: status 1, 0 complaints"
    assert set(found) == {"kind", "date", "revision", "kernel", "calls", "result"}
