# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""Each row that is passed to the driver has a reason: a note in the table, or a place on docs/develop/passed.md."""

import re
from collections import Counter
from pathlib import Path

import calltable

PAGE = (Path(__file__).resolve().parents[3] / "docs/develop/passed.md").read_text()
ROWS = [row for kind in calltable.KINDS for row in calltable.table(kind) if row.verdict == "PASS"]
NAME = re.compile(r"\b(?:NV|UVM)[0-9A-Z]*_[A-Z0-9_]+\b")


def listed() -> list[str]:
    """The names of the page's lists, before the colon of an item."""
    items = re.findall(r"^- (.*(?:\n  .*)*)", PAGE, re.M)
    return [name for item in items for name in NAME.findall(item.partition(":")[0])]


def test_each_passed_row_has_a_reason():
    without = {row.name for row in ROWS if not row.note}
    assert without - set(listed()) == set(), "passed, and neither a note nor a place on the page"


def test_the_page_has_no_other_names():
    """A row that is not passed any more, or has got a note of its own, or stands in two places."""
    assert set(listed()) - {row.name for row in ROWS} == set()
    assert [name for name, count in Counter(listed()).items() if count > 1] == []
    assert len(listed()) > 100


def test_the_page_says_where_it_matters():
    """Whatever a call changes has more than a heading."""
    changes = PAGE.split("## It changes an object")[1]
    for name in ("UVM_ALLOC_SEMAPHORE_POOL", "UVM_REGISTER_CHANNEL", "NV503C_CTRL_CMD_REGISTER_VA_SPACE"):
        assert re.search(rf"^- .*{name}.*: \w", changes, re.M)
