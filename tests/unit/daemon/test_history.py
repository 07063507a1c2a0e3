# SPDX-License-Identifier: MIT
"""The events that cgpud keeps for `cgpu events --since`."""

from __future__ import annotations

from typing import Any

from fakes import Node, eventually
from hypothesis import given, settings
from hypothesis import strategies as st

from cgpu_common.events import LogEntry
from cgpud.history import KEPT, KEPT_NOISY, History

ID = "0123456789abcdef" * 4


def entry(text: str) -> LogEntry:
    return LogEntry("info", text, {"kind": "policy"})


def texts(answer: dict[str, Any]) -> list[str]:
    return [row["text"] for row in answer["events"]]


def test_a_noisy_tenant_pushes_nothing_out() -> None:
    history = History(0.0)
    history.add(1.0, entry("policy"), False)
    for place in range(10 * KEPT_NOISY):
        history.add(2.0 + place, entry("refused"), True)
    answer = history.since(0.0)
    assert (texts(answer)[0], len(answer["events"])) == ("policy", 1 + KEPT_NOISY)
    assert answer["complete_from"] == 1.0 + 9 * KEPT_NOISY


def test_what_was_lost_once_stays_lost() -> None:
    """Of one kind the events after the tenth second are gone; one of the other kind that goes later is older."""
    history = History(0.0)
    history.add(1.0, entry("policy"), False)
    for place in range(KEPT_NOISY + 1):
        history.add(10.0 + place, entry("refused"), True)
    assert history.since(0.0)["complete_from"] == 10.0
    for _ in range(KEPT):
        history.add(1000.0, entry("policy"), False)
    assert history.since(0.0)["complete_from"] == 10.0


@settings(deadline=None)
@given(st.lists(st.booleans(), max_size=200), st.integers(0, 200))
def test_in_order_from_a_time_on(noisy: list[bool], since: int) -> None:
    history = History(0.0)
    for place, one in enumerate(noisy):
        history.add(float(place), entry(str(place)), one)
    answer = history.since(float(since))
    assert texts(answer) == [str(place) for place in range(since, len(noisy))]
    assert answer["complete_from"] == 0.0


def test_old_ones_go() -> None:
    history = History(0.0)
    for place in range(KEPT + 5):
        history.add(float(place), entry(str(place)), False)
    answer = history.since(0.0)
    assert (texts(answer)[0], answer["complete_from"]) == ("5", 4.0)


async def test_over_the_socket(node: Node) -> None:
    """The creation and the end of a container, by its events."""

    async with node.running():
        await eventually(lambda: node.link.listeners, "it listens")
        assert (await node.prepare(ID))["ok"]

        async def heard() -> list[str]:
            return texts(await node.ask(op="events", since=0.0))

        for _ in range(100):
            if any("was created" in text for text in await heard()):
                break
        assert any("was created" in text for text in await heard())
        assert (await node.ask(op="events", since=1e12))["events"] == []
