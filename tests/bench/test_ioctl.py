# SPDX-License-Identifier: MIT
"""The bars of make bench-ioctl."""

from __future__ import annotations

from typing import Any

import ioctl

WHOLE = [
    {"call": call, "added_1": 1000, "added_25": 1000, "grown": 0, "drift": 0, "bar": bar}
    for call, bar in ioctl.BARS.items()
]


def judged(**figures: Any) -> list[str]:
    return ioctl.judge([WHOLE[0] | figures, *WHOLE[1:]])


def test_a_call_has_its_bar() -> None:
    assert judged() == judged(added_25=3000) == []
    assert "adds 3001 instructions" in judged(added_25=3001)[0]


def test_what_25_containers_add_may_grow_by_the_drivers_own() -> None:
    assert judged(grown=400) == judged(grown=600, drift=200) == []
    assert len(judged(grown=401)) == len(judged(grown=601, drift=200)) == 1


def test_a_driver_that_became_cheaper_allows_no_more() -> None:
    assert len(judged(grown=500, drift=-200)) == 1


def test_a_call_with_a_bar_has_to_be_measured() -> None:
    assert ioctl.judge(WHOLE[1:]) == [f"{WHOLE[0]['call']} has a bar and was not measured"]
    assert len(ioctl.judge([])) == len(ioctl.BARS)
