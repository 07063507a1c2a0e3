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


def test_a_failed_run_is_shown():
    failed = dict.fromkeys(record.COLUMNS, "-") | {"result": "failed: status 1, 2 complaints"}
    assert "failed: status 1, 2 complaints |" in record.page([failed])
