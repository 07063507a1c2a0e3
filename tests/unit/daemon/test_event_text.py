# SPDX-License-Identifier: MIT
"""Kernel events as sentences, in the log, and against docs/reference/netlink.md."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakelink import FakeLink
from fakes import Node, eventually
from structlog.testing import capture_logs

from cgpu_common import log
from cgpu_common.errors import Resync
from cgpu_common.events import LogThrottle, Seen, describe
from cgpu_common.kernel_abi import A, Cmd, Event, G, S
from cgpu_common.model import MIB, Container, KernelEvent, KernelGpu, Slot

REPO = Path(__file__).resolve().parents[3]
PAGE = REPO / "docs/reference/netlink.md"
WHOLE = Container("f" * 64, 7, "f" * 12, 509, 0, 1, False, (Slot(0, 2, 0, 6043 * MIB, 5 * MIB, 2, True),))
NAMES = Container("f" * 64, 7, "f" * 12, 0, 0, 0)
GPU = KernelGpu(0, "GPU-1", "0000:01:00.0", 0, 15109 * MIB)

TOLD = [
    (
        KernelEvent(Event.CREATED, WHOLE),
        "info",
        "container ffffffffffff was created (GPU 0: 6043 MiB, weight 2, high pr",
    ),
    (KernelEvent(Event.DYING, WHOLE), "info", "was destroyed; what is still open holds 5 MiB of GPU 0"),
    (KernelEvent(Event.GONE, WHOLE), "info", "container ffffffffffff is gone, its memory returned"),
    (KernelEvent(Event.CHANGED, WHOLE), "info", "was changed, and has now GPU 0: 6043 MiB, weight 2, high priority"),
    (
        KernelEvent(Event.CHANGED, replace(WHOLE, slots=(replace(WHOLE.slots[0], highprio=False, ceiling=30),))),
        "info",
        "was changed, and has now GPU 0: 6043 MiB, weight 2, ceiling 30",
    ),
    (
        KernelEvent(
            Event.REFUSED,
            NAMES,
            GPU,
            {"asked": 512 * MIB, "limit": 6043 * MIB, "used": 6000 * MIB, "pid": 42, "suppressed": 3},
        ),
        "warning",
        "was refused 512 MiB on GPU 0: 6000 MiB of 6043 MiB are in use (process 42); 3 more like it",
    ),
    (
        KernelEvent(
            Event.REFUSED,
            NAMES,
            GPU,
            {
                "asked": 512 * MIB,
                "limit": 6043 * MIB,
                "used": 100 * MIB,
                "pid": 42,
                "suppressed": 0,
                "why": "destroyed containers 5000 MiB, abcdef012345 9000 MiB",
            },
        ),
        "warning",
        "100 MiB of 6043 MiB are in use (process 42); the card has no room: held by destroyed containers 5000 MiB, abc",
    ),
    (
        KernelEvent(Event.OVERRUN, NAMES, GPU, {"overruns": 9, "preempt_slow": 2, "suppressed": 0}),
        "warning",
        "overran its turn on GPU 0 (9 late turns, 2 slow preemptions so far)",
    ),
    (
        KernelEvent(Event.CONTROL_FAILED, NAMES, GPU, {"control": 1, "status": 0x40, "suppressed": 0}),
        "warning",
        "the driver did not freeze or thaw container ffffffffffff on GPU 0: status 0x40",
    ),
    (
        KernelEvent(
            Event.QUOTA,
            NAMES,
            GPU,
            {"resource": "nvdec", "asked": 1, "limit": 11, "used": 11, "pid": 42, "suppressed": 3},
        ),
        "warning",
        "refused 1 sessions of NVDEC on GPU 0: it has 11 of the 11 that it may have now (process 42); 3 more like it",
    ),
    (
        KernelEvent(Event.CONTROLS, None, GPU, {"old": 3, "new": 2, "ineffective": 1}),
        "error",
        "GPU 0 lost the control freeze (answered, and moves nothing)",
    ),
    (
        KernelEvent(Event.CONTROLS, None, GPU, {"old": 0, "new": 3, "ineffective": 0}),
        "info",
        "has the control freeze and times",
    ),
    (
        KernelEvent(Event.POLICY, None, GPU, {"old": 2, "new": 5}),
        "info",
        "the policy of GPU 0 changed from 2 (weighted) to 5 (native)",
    ),
    (KernelEvent(Event.ATTACHED, None, GPU), "info", "GPU 0 (GPU-1) is attached"),
    (KernelEvent(Event.DETACHED, None, GPU), "info", "GPU 0 (GPU-1) is no longer attached"),
    (
        KernelEvent(Event.CORE, None, None, {"core": "0.1.1", "candidate": "0.1.1", "errno": 0, "why": "taken over"}),
        "info",
        "core 0.1.1 is active: taken over",
    ),
    (
        KernelEvent(Event.CORE, None, None, {"core": "0.1.0", "candidate": "0.1.2", "errno": 95, "why": "GPU 1: no"}),
        "warning",
        "core 0.1.2 was not taken: GPU 1: no; 0.1.0 runs on",
    ),
    (
        KernelEvent(Event.CORE, None, None, {"candidate": "moody", "errno": 22, "why": "it speaks ABI 99"}),
        "warning",
        "core moody was not taken: it speaks ABI 99; no core is there",
    ),
    (
        KernelEvent(Event.REDIRECTIONS, None, None, {"errno": 5, "why": "rm_ioctl is not redirected"}),
        "error",
        "calls of containers fail, because the driver's functions cannot be redirected: rm_ioctl is not redirected",
    ),
    (
        KernelEvent(Event.REDIRECTIONS, None, None, {"errno": 12, "why": "nvidia-uvm's functions are not redirected"}),
        "error",
        "containers get no address spaces of the GPU: nvidia-uvm's functions are not redirected",
    ),
    (
        KernelEvent(Event.REDIRECTIONS, None, None, {"errno": 0, "why": "all redirections are in effect"}),
        "info",
        "calls of containers reach the driver again: all redirections are in effect",
    ),
    (KernelEvent(99), "info", "event 99, which this version does not know"),
]


@pytest.mark.parametrize(("event", "level", "text"), TOLD, ids=lambda value: str(getattr(value, "kind", "")))
def test_sentences(event: KernelEvent, level: str, text: str) -> None:
    entry = describe(event)
    assert text in entry.text
    assert entry.level == level
    assert "\n" not in entry.text


def test_every_event_has_a_sentence() -> None:
    assert {event.kind for event, _, _ in TOLD} >= set(Event)


@pytest.mark.parametrize("kind", Event)
def test_nothing_is_taken_for_granted(kind: Event) -> None:
    """An event without some of its attributes has a sentence too."""
    for container in (None, NAMES):
        for gpu in (None, GPU):
            assert describe(KernelEvent(kind, container, gpu)).text


def test_throttle() -> None:
    throttle = LogThrottle(60)
    assert throttle.allow("a", 0) == 0
    assert [throttle.allow("a", now) for now in (1, 2, 59.9)] == [None] * 3
    assert throttle.allow("b", 59) == 0
    assert throttle.allow("a", 60) == 3
    assert throttle.allow("a", 200) == 0


def test_quiet_forgets() -> None:
    throttle = LogThrottle(60)
    assert [throttle.allow("a", now) for now in (0, 1)] == [0, None]
    assert throttle.allow("b", 100) == 0
    assert throttle.allow("a", 200) == 0, "what was left out is forgotten with it"


CHANGES = [
    ({"weight": 5}, "GPU 0 weight 2 -> 5", [(0, "weight", 2, 5)]),
    ({"limit": 8058 * MIB}, "GPU 0 memory 6043 MiB -> 8058 MiB", [(0, "limit_bytes", 6043 * MIB, 8058 * MIB)]),
    ({"highprio": False}, "GPU 0 high priority yes -> no", [(0, "highprio", 1, 0)]),
    ({"ceiling": 30}, "GPU 0 ceiling none -> 30", [(0, "ceiling", 0, 30)]),
    ({"host_limit": 512 * MIB}, "host memory no limit -> 512 MiB", [(None, "host_limit_bytes", 0, 512 * MIB)]),
    (
        {"weight": 1, "ceiling": 4},
        "GPU 0 weight 2 -> 1, GPU 0 ceiling none -> 4",
        [(0, "weight", 2, 1), (0, "ceiling", 0, 4)],
    ),
]


@pytest.mark.parametrize(("values", "words", "found"), CHANGES, ids=[row[1] for row in CHANGES])
def test_a_change_has_the_values_before_it(values: dict[str, Any], words: str, found: list[tuple[Any, ...]]) -> None:
    now = replace(WHOLE, slots=(replace(WHOLE.slots[0], **values),))
    entry = describe(KernelEvent(Event.CHANGED, now), WHOLE)
    assert entry.text == f"container ffffffffffff was changed: {words}"
    assert [tuple(one.values()) for one in entry.fields["changes"]] == found


def test_the_state_before_a_change_is_that_of_the_last_event() -> None:
    seen = Seen()
    weights = [replace(WHOLE, slots=(replace(WHOLE.slots[0], weight=weight, used=weight),)) for weight in range(5)]
    seen.learn([weights[1]])
    about_a_gpu = KernelEvent(Event.REFUSED, NAMES, GPU, {"asked": 1})
    texts = [seen.describe(one).text for one in (KernelEvent(Event.CHANGED, weights[2]), about_a_gpu)]
    seen.learn([weights[1]])  # a list that was read before that event
    texts += [seen.describe(KernelEvent(Event.CHANGED, weights[n])).text for n in (3, 3)]
    assert [texts[0][-6:], texts[2][-6:]] == ["1 -> 2", "2 -> 3"]
    assert "was set to the values that it had (GPU 0: 6043 MiB, weight 3" in texts[3]
    seen.describe(KernelEvent(Event.GONE, weights[3]))
    assert "changes" not in seen.describe(KernelEvent(Event.CHANGED, weights[4])).fields, "another life of the id"


async def test_the_daemon_keeps_what_a_change_changed(node: Node) -> None:
    with capture_logs() as lines:
        async with node.running() as daemon:
            await eventually(lambda: node.link.listeners, "listening")
            await node.prepare("a" * 64)
            made = node.link.containers["a" * 64]
            await node.link.set("a" * 64, made.cookie, {0: {S.WEIGHT: made.slots[0].weight + 1}})
            await eventually(lambda: daemon.kernel_events["changed"], "the change")
            (row,) = [one for one in daemon.queries.events(0)["events"] if one["fields"]["kind"] == "changed"]
    (line,) = [line for line in lines if line.get("kind") == "changed"]
    assert line["event"].endswith("GPU 0 weight 1 -> 2")
    assert row["fields"]["changes"] == [{"gpu": 0, "name": "weight", "old": 1, "new": 2}]


async def test_what_changed_while_events_were_lost_is_no_part_of_the_next_change(node: Node) -> None:
    class Lossy(FakeLink):
        async def events(self, joined: Any = None) -> Any:
            async for event in super().events(joined):
                if event.kind == Event.POLICY:
                    raise Resync("lost")
                yield event

    node.link = Lossy()
    async with node.running() as daemon:
        await eventually(lambda: node.link.listeners, "listening")
        await node.prepare("a" * 64)
        made = node.link.containers["a" * 64]
        await node.link.set("a" * 64, made.cookie, {0: {S.WEIGHT: 2}})
        await eventually(lambda: daemon.kernel_events["changed"] == 1, "the first change")
        node.link.containers["a" * 64] = replace(made, slots=(replace(made.slots[0], weight=5),))
        node.link.emit(Event.POLICY)
        await eventually(lambda: daemon.kernel_events["resync"] and node.link.listeners, "listening again")
        await node.link.set("a" * 64, made.cookie, {0: {S.WEIGHT: 6}})
        await eventually(lambda: daemon.kernel_events["changed"] == 2, "the next change")
        row = daemon.queries.events(0)["events"][-1]
    assert row["fields"]["changes"] == [{"gpu": 0, "name": "weight", "old": 5, "new": 6}]


async def test_the_log_tells_it(node: Node) -> None:
    with capture_logs() as lines:
        async with node.running() as daemon:
            await eventually(lambda: node.link.listeners, "listening")
            container = (await node.prepare("a" * 64)) and node.link.containers["a" * 64]
            for asked in range(1, 101):
                node.link.emit(Event.REFUSED, container, 0, asked=asked * MIB, limit=MIB, used=MIB, pid=1, suppressed=0)
            node.link.emit(Event.POLICY, None, 0, old=5, new=2)
            await eventually(lambda: daemon.kernel_events["policy"], "the policy")
            node.now += 61
            node.link.emit(Event.REFUSED, container, 0, asked=7 * MIB, limit=MIB, used=MIB, pid=1, suppressed=0)
            await eventually(lambda: daemon.kernel_events["refused"] == 101, "the last one")
    refused = [line for line in lines if line.get("kind") == "refused"]
    assert [line["asked_bytes"] // MIB for line in refused] == [1, 7]
    assert "not_logged" not in refused[0]
    assert refused[1]["not_logged"] == 99
    assert refused[0]["log_level"] == "warning"
    assert refused[0]["gpu"] == 0
    (policy,) = [line for line in lines if line.get("kind") == "policy"]
    assert policy["event"] == "the policy of GPU 0 changed from 5 (native) to 2 (weighted)"


def test_a_line_for_the_journal() -> None:
    fields = {"level": "warning", "timestamp": "t", "event": "it failed", "gpu": 0, "exception": "Traceback:\n x"}
    assert log.journal_line(None, "", fields) == "<4>it failed gpu=0\n<4>Traceback:\n<4> x"


def test_the_journal_is_known_by_its_descriptor(tmp_path: Path) -> None:
    with (tmp_path / "x").open("w") as out:
        found = os.fstat(out.fileno())
        assert log.is_journal(out.fileno(), {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"})
        assert not log.is_journal(out.fileno(), {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino + 1}"})
        assert not log.is_journal(out.fileno(), {})


def test_the_page_has_every_number() -> None:
    rows = set(re.findall(r"^\| ([A-Z_]+) \| (\d+) \|", PAGE.read_text(), re.M))
    wanted = {(one.name, str(int(one))) for kind in (Cmd, Event) for one in kind if one.name != "UNSPEC"}
    for letter, kind in (("A", A), ("S", S), ("G", G)):
        wanted |= {(f"{letter}_{one.name}", str(int(one))) for one in kind if one.name != "UNSPEC"}
    assert rows == wanted


#: Without those of nodes of /proc alone, whose sentences are in the kernel log.
SOURCES = sorted(path for path in (REPO / "cgpu_km").rglob("*.c") if path.name != "proc.c")


def test_the_page_has_every_sentence() -> None:
    """The sentences of extended acks in all sources; of one that contains numbers, its beginning."""
    text = " ".join(PAGE.read_text().split())
    said = [
        sentence
        for source in SOURCES
        for sentence in re.findall(r'(?:\*why = |GENL_SET_ERR_MSG\(info, )"([^"]+)"', source.read_text())
    ]
    assert len(said) > 15
    assert [sentence for sentence in said if sentence not in text] == []
