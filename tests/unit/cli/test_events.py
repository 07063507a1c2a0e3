# SPDX-License-Identifier: MIT
"""cgpu events over a module in memory."""

from __future__ import annotations

import errno
import json
import re
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import schema
from click.testing import Result
from fake_daemon import daemon_at, packed
from fake_tree import Cli, Tree
from fakelink import FakeLink, example_gpus

from cgpu_cli import events
from cgpu_common.errors import KernelMissing, KernelRefused, Resync
from cgpu_common.kernel_abi import Event
from cgpu_common.link import Joined
from cgpu_common.model import MIB, Container, KernelEvent, Slot

SCHEMA = schema.load("cgpu-events")
(GPU,) = example_gpus()
ONE = Container("f" * 64, 7, "f" * 12, 509, 0, 1, False, (Slot(0, 2, 0, 6043 * MIB, weight=1),))
VALUES = {
    Event.REFUSED: {"pid": 1, "asked": MIB, "limit": MIB, "used": MIB, "suppressed": 2},
    Event.OVERRUN: {"overruns": 1, "preempt_slow": 2, "suppressed": 0},
    Event.CONTROL_FAILED: {"control": 1, "status": 64, "suppressed": 0},
    Event.CONTROLS: {"old": 3, "new": 1, "ineffective": 2},
    Event.POLICY: {"old": 2, "new": 5, "lost": 1},
    Event.QUOTA: {"resource": "nvdec", "pid": 1, "asked": 1, "limit": 11, "used": 11, "suppressed": 0},
}
CORE = KernelEvent(Event.CORE, None, None, {"core": "0.1.0", "candidate": "0.1.1", "errno": 5, "why": "it is ill"})
EVERY = [
    CORE if kind == Event.CORE else KernelEvent(kind, ONE, GPU if kind in VALUES else None, VALUES.get(kind, {}))
    for kind in Event
]


class Script(FakeLink):
    """Each call of events() plays the next act: events, then the exception that ends it."""

    def __init__(self, *acts: list[KernelEvent | Exception]) -> None:
        super().__init__()
        self.acts = list(acts)

    async def events(self, joined: Joined | None = None) -> AsyncIterator[KernelEvent]:
        if joined is not None:
            await joined()
        for item in self.acts.pop(0):
            if isinstance(item, Exception):
                raise item
            yield item


def play(cli: Cli, monkeypatch: pytest.MonkeyPatch, *args: str, acts: list[list[KernelEvent | Exception]]) -> Result:
    monkeypatch.setattr(events, "open_link", lambda: Script(*acts))
    monkeypatch.setattr(events, "LOOK_AGAIN_S", 0.01)
    return cli.cgpu("events", *args)


def test_a_line_each(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    result = play(cli, monkeypatch, "-n", str(len(EVERY)), acts=[[*EVERY]])
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert len(lines) == len(EVERY)
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (info|warning|error) +\S", line) for line in lines)
    assert "the policy of GPU 0 changed from 2 (weighted) to 5 (native)" in result.stdout


def test_json_is_as_the_schema_says(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    acts: list[list[KernelEvent | Exception]] = [[*EVERY, KernelEvent(99), Resync("lost")], [EVERY[0]]]
    result = play(cli, monkeypatch, "--json", "-n", str(len(EVERY) + 2), acts=acts)
    assert result.exit_code == 0
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    for line in lines:
        schema.validate(line, SCHEMA)
    kinds = [line["kind"] for line in lines]
    assert kinds == [*(kind.name.lower() for kind in Event), "unknown_99", "resync", "created"]
    said = SCHEMA["properties"]["kind"]["description"]
    assert all(re.search(rf"\b{kind.name.lower()}\b", said) for kind in Event)
    (refused,) = [line for line in lines if line["kind"] == "refused"]
    assert (refused["asked_bytes"], refused["container"], refused["gpu"], refused["suppressed"]) == (
        MIB,
        "f" * 12,
        0,
        2,
    )
    (core,) = [line for line in lines if line["kind"] == "core"]
    assert (core["level"], core["core"], core["candidate"], core["errno"]) == ("warning", "0.1.0", "0.1.1", 5)
    assert {name for line in lines for name in line} == set(SCHEMA["properties"])


def test_without_the_module(empty: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(empty.proc)
    result = play(Cli(empty), monkeypatch, acts=[[KernelMissing()]])
    assert result.exit_code == 3
    assert result.stderr == "cgpu: error: events: the module cgpu_km is not loaded (modprobe cgpu_km)\n"
    result = play(Cli(empty), monkeypatch, "--json", acts=[[KernelMissing()]])
    assert json.loads(result.stderr)["error"]["code"] == "no_module"
    assert result.stdout == ""


def test_in_another_network_namespace(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    result = play(cli, monkeypatch, acts=[[KernelMissing()]])
    assert result.exit_code == 4
    assert "network namespace" in result.stderr


def test_follow_waits_for_the_module(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    acts: list[list[KernelEvent | Exception]] = [[KernelMissing()], [EVERY[0], KernelMissing()], [EVERY[1]]]
    result = play(cli, monkeypatch, "--follow", "-n", "2", acts=acts)
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 2


def test_not_permitted(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    result = play(cli, monkeypatch, acts=[[OSError(errno.EPERM, "no")]])
    assert result.exit_code == 4
    assert result.stderr.startswith("cgpu: error: events: not permitted")


# ---- past events ----

PAST = {
    "ok": True,
    "complete_from": 1772442000.0,
    "began": 1772442000.0,
    "events": [
        {"time": 1772442847.512, "level": "info", "text": "one", "fields": {"kind": "attached"}},
        {"time": 1772442848.0, "level": "warning", "text": "two", "fields": {"kind": "refused"}},
    ],
}


def test_past_events_come_first(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    with daemon_at(tree.root, {"events": packed(PAST)}):
        result = play(Cli(tree), monkeypatch, "--since", "@1772442800", "-n", "3", acts=[[CORE]])
        assert result.exit_code == 0, result.stderr
        lines = result.stdout.splitlines()
        assert lines[0] == "2026-03-02T09:14:07.512Z info    one"
        assert (len(lines), lines[1].split()[-1], "core 0.1.1" in lines[2]) == (3, "two", True)
        assert result.stderr == ""


def test_past_events_alone(tree: Tree) -> None:
    """No netlink is opened. A line says from when on they are complete."""
    with daemon_at(tree.root, {"events": packed(PAST)}):
        result = Cli(tree).cgpu("events", "--since", "@1", "--no-stream", "-n", "1", "--json")
    assert json.loads(result.stdout)["kind"] == "attached"
    assert result.stderr == "cgpud keeps events from 2026-03-02T09:00:00.000Z on only\n"


def test_what_is_thinned_says_so(tree: Tree) -> None:
    """One overrun was listed, "all events" were said to be there, and the container had 17."""
    with daemon_at(tree.root, {"events": packed(PAST)}):
        thinned = Cli(tree).cgpu("events", "--since", "@1772442800", "--no-stream", "--kind", "overrun")
        whole = Cli(tree).cgpu("events", "--since", "@1772442800", "--no-stream", "--kind", "attached")
    assert "cgpud keeps one a minute for a container and GPU" in thinned.stderr
    assert whole.stderr == ""


def test_since_needs_cgpud(cli: Cli) -> None:
    result = cli.cgpu("events", "--since", "10m")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "cgpud, which keeps past events, does not answer" in result.stderr


@pytest.mark.parametrize(
    ("text", "at"),
    [("90s", 1e9 - 90), ("10m", 1e9 - 600), ("2h", 1e9 - 7200), ("1d", 1e9 - 86400), ("@5", 5.0),
     ("2026-03-02T09:14:07+00:00", 1772442847.0)],
)  # fmt: skip
def test_times(text: str, at: float) -> None:
    assert events.parse_since(text, 1e9) == at


@pytest.mark.parametrize("text", ["", "m", "-1m", "1.5h", "yesterday", "@", "@x", "٣m", "9999999999s", "0000-00-00"])
def test_what_is_no_time(cli: Cli, text: str) -> None:
    result = cli.cgpu("events", "--since", text)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)


# ---- filters and names ----


@pytest.mark.parametrize(
    ("fields", "name", "key", "kinds", "shown"),
    [
        ({"kind": "overrun", "id": "ab12", "container": "ab12"}, None, None, {"created"}, False),
        ({"kind": "created", "id": "ab12", "container": "ab12"}, None, None, {"created"}, True),
        ({"kind": "created", "id": "ab12", "container": "ab12"}, "train", "train", {"created"}, True),
        ({"kind": "created", "id": "ab12", "container": "ab12"}, "train", "ab", {"created"}, True),
        ({"kind": "created", "id": "ab12", "container": "ab12"}, "train", "serve", {"created"}, False),
        ({"kind": "policy", "gpu": 0}, None, "train", {"policy"}, False),
        ({"kind": "unknown_99"}, None, None, {"created"}, True),
    ],
)
def test_which_events_are_wanted(
    fields: dict[str, Any], name: str | None, key: str | None, kinds: set[str], shown: bool
) -> None:
    assert events.Wanted(frozenset(kinds), key).has(fields, name) is shown


def test_a_sentence_has_the_name() -> None:
    text = events.with_name("container ab12 overran its turn", {"container": "ab12"}, "train")
    assert text == "container ab12 (train) overran its turn"


def test_since_a_time_to_come(cli: Cli) -> None:
    """It printed nothing, and waited."""
    result = cli.cgpu("events", "--since", "2099-01-01", "--no-stream")
    assert (result.exit_code, "is in the future" in result.stderr) == (2, True)


def test_a_change_shows_what_changed(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """The containers that were there before are read once; one that came later is known by its first event."""
    late = replace(ONE, id="e" * 64, dir="e" * 12)
    heavier, later = (replace(one, slots=(replace(one.slots[0], weight=3),)) for one in (ONE, late))

    class Full(Script):
        async def list(self) -> tuple[Container, ...]:
            return (ONE,)

    acts = [KernelEvent(Event.CHANGED, heavier), KernelEvent(Event.CREATED, late), KernelEvent(Event.CHANGED, later)]
    monkeypatch.setattr(events, "open_link", lambda: Full([*acts]))
    lines = [json.loads(line) for line in cli.cgpu("events", "--json", "-n", "3").stdout.splitlines()]
    for line in lines:
        schema.validate(line, SCHEMA)
    assert [line["text"].rpartition(": ")[2] for line in (lines[0], lines[2])] == ["GPU 0 weight 1 -> 3"] * 2
    assert [line.get("changes") for line in lines] == [[CHANGE], None, [CHANGE]]


CHANGE = {"gpu": 0, "name": "weight", "old": 1, "new": 3}


def test_a_list_that_is_refused_stops_no_event(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    class Mute(Script):
        async def list(self) -> tuple[Container, ...]:
            raise KernelRefused(errno.ETIMEDOUT, "cgpu_km did not answer within 30 s")

    monkeypatch.setattr(events, "open_link", lambda: Mute([KernelEvent(Event.CHANGED, ONE)]))
    result = cli.cgpu("events", "-n", "1")
    assert (result.exit_code, "was changed, and has now GPU 0: 6043 MiB, weight 1" in result.stdout) == (0, True)
