# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""docs/reference/policies.md, line by line: its tables and time lines are read and compared with the engine."""

import errno
import re
from functools import cache
from pathlib import Path

import pytest
from corelib import BURST, FREEZE, MS, POLICIES, TIMESLICE, WEIGHTED, CoreError, Turn, ffi, lib, slots
from simgpu import A100, BurstGpu, TimeslicedGpu

REPO = Path(__file__).resolve().parents[3]
PAGE = (REPO / "docs/reference/policies.md").read_text()


def section(number):
    return PAGE.split(f"\n## {number}. ")[1].split("\n## ")[0]


def table(text, head):
    """Rows of the table whose first line begins with @head, as lists of cells."""
    lines = text[text.index(f"\n{head}") + 1 :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def blocks(number):
    """Title -> lines of each code block of a section."""
    found = re.findall(r"```\n(.+)\n((?:.+\n)+?)```", section(number))
    return {title: lines.splitlines() for title, lines in found}


def draw(turn, ids, count, cell_ms, both="*"):
    """A time line as the page draws it: in each cell the slot of @ids that had most of it."""
    out = ""
    for _ in range(count):
        ran = max(turn.timeline(cell_ms), key=lambda stretch: stretch[1])[0]
        names = [name for name, slot in ids.items() if slot in ran]
        out += names[0] if len(names) == 1 else both if names else "."
    return out


# ---- section 1: what becomes of the time -----------------------------------------------------

STATES = ["not opened", "idle, unknown", "idle, known", "busy", "weight 0"]
CELLS = [
    (int(row[0]), state, word)
    for row in table(section(1), "| # | policy |")
    for state, word in zip(STATES, row[2:7], strict=True)
]
OTHERS = {"a": 1, "c": 3}  # busy, and their weights
X_WEIGHT, MAX_INST = 2, 10


def in_state(policy, state):
    """x in some state, beside the others; None: no x."""
    turn = Turn(policy, slice_ms=10, max_inst=MAX_INST)
    ids = {}
    if state:
        ids["x"] = turn.add(X_WEIGHT, channels=state != "not opened")
        if state == "weight 0":
            turn.set("weight", ids["x"], 0)
    for name, weight in OTHERS.items():
        ids[name] = turn.add(weight, channels=1)
    if state == "idle, known":
        opened = turn.opened_mask()
        # In one of these it has a turn: what is read of a frozen container does not count.
        for _ in range(100):
            turn.step()
            lib.cgpu_sched_set_run_state(turn.t, opened, opened & ~(1 << ids["x"]), turn.now)
            turn.now += MS
    return turn, ids


class IdleGpu(TimeslicedGpu):
    """One of them has the GPU open and never any work."""

    idle = None

    def wants(self):
        return super().wants() - {self.idle}


def got(policy, state):
    """Part of 3 s of GPU time that each really had; x works unless it idles."""
    turn, ids = in_state(policy, state)
    gpu = IdleGpu(turn, A100)
    gpu.idle = ids["x"] if state and state.startswith("idle") else None
    gpu.run(400)
    gpu.got.clear()
    gpu.run(3_000)
    return {name: gpu.got.get(slot, 0) / (3_000 * MS) for name, slot in ids.items()}


def others(found):
    return [found[name] for name in OTHERS]


def test_every_policy_and_state_is_on_the_page():
    assert {(p, s) for p, s, _ in CELLS} == {(p, s) for p in POLICIES for s in STATES}


@pytest.mark.parametrize(("policy", "state", "word"), CELLS, ids=lambda value: str(value).replace("/", " of "))
def test_the_table(policy, state, word):
    found, busy, gone = got(policy, state), got(policy, "busy"), got(policy, None)
    near = 0.03
    if word == "lost":
        assert others(found) == pytest.approx(others(busy), abs=near)
        assert found["x"] == 0
    elif word == "skipped":
        assert others(found) == pytest.approx(others(gone), abs=near)
        assert found["x"] == 0
    elif word == "given away":
        assert others(found) == pytest.approx(others(gone), abs=near)
        turn, ids = in_state(policy, state)
        assert turn.shares(1_000)[ids["x"]] == pytest.approx(1), "it may run at any time"
    elif word == "runs":
        assert found["x"] == pytest.approx(busy["x"], abs=near)
        assert found["x"] > 0.2
    else:
        there = 1 + len(OTHERS)
        values = {
            "1": 1,
            "weight": X_WEIGHT,
            "Σ weight": X_WEIGHT + sum(OTHERS.values()),
            "max_inst": MAX_INST,
            "openers": there,
            "containers": there,
        }
        of, _, all_of = {"equal": "1/openers", "the driver's": "1/openers"}.get(word, word).partition("/")
        assert found["x"] == pytest.approx(values[of] / values[all_of], abs=0.02)


@pytest.mark.parametrize("row", table(section(1), "| # | policy |"), ids=lambda row: row[1])
def test_the_control_of_the_table(row):
    policy, control = int(row[0]), row[7]
    need = 0 if control == "none" else TIMESLICE if control == "timeslices" else FREEZE
    Turn(policy, controls=need)
    if need:
        with pytest.raises(CoreError) as caught:
            Turn(policy, controls=(FREEZE | TIMESLICE) & ~need)
        assert caught.value.errno == errno.EOPNOTSUPP
    if control.endswith(("freeze", "thaw")):
        turn, _ = in_state(policy, "busy")
        assert turn.next().thaw_first == (control == "thaw, then freeze")


# ---- section 2: time lines -------------------------------------------------------------------

LINES = [(title, line[0], line[2:]) for title, lines in blocks(2).items() for line in lines]


@pytest.mark.parametrize(("title", "policy", "want"), LINES, ids=[f"{t}, {p}" for t, p, _ in LINES])
def test_time_line(title, policy, want):
    turn = Turn(int(policy), slice_ms=10, max_inst=6)
    ids = {"A": turn.add(2, channels=1)}
    turn.add(1)
    if title == "busy":
        ids["C"] = turn.add(3, channels=1)
    else:
        assert title == "without C"
    assert draw(turn, ids, len(want), 10) == want


def test_all_policies_have_their_lines():
    assert sorted((t, p) for t, p, _ in LINES) == sorted((t, str(p)) for t in ("busy", "without C") for p in POLICIES)


# ---- section 4: events -----------------------------------------------------------------------


def nothing(turn, ids):
    pass


EVENTS = {
    "C is created and opens the GPU, 5 ms into a turn of A": lambda t, ids: ids.update(C=t.add(2, channels=1)),
    "C, until now not opened, opens the GPU, 5 ms into a turn of A": lambda t, ids: t.channels(ids["C"], 1),
    "C has nothing to do any more": nothing,
    "C closes the GPU, 5 ms into its turn": lambda t, ids: t.channels(ids["C"], 0),
    "C exits, 5 ms into its turn": lambda t, ids: t.delete(ids.pop("C")),
    "C gets weight 0, 5 ms into its turn": lambda t, ids: t.set("weight", ids["C"], 0),
    "A gets weight 2, 5 ms into its turn": lambda t, ids: t.set("weight", ids["A"], 2),
    "slice_us becomes 20000, 5 ms into a turn of A": lambda t, ids: t.set("slice_us", 20_000),
    "max_inst becomes 8, 5 ms into a turn of A": lambda t, ids: t.set("max_inst", 8),
}


def into_the_turn(turn, ids, slot):
    """Five ms into a turn of @slot, where there are turns."""
    turn.timeline(300)
    before = None
    for _ in range(1_000):
        ran = slots(turn.step().run_mask & turn.opened_mask())
        if len(ran) > 1 or turn.next().until_ns == 2**64 - 1:
            break
        if ran == {ids[slot]} and before not in (None, ran):
            break
        before = ran
        turn.now += MS // 2
    turn.timeline(5)


LINES4 = [(title, line[0], line[2:]) for title, lines in blocks(4).items() for line in lines]


@pytest.mark.parametrize(("title", "policy", "want"), LINES4, ids=[f"{t}: {p}" for t, p, _ in LINES4])
def test_event(title, policy, want):
    turn = Turn(int(policy), slice_ms=10, max_inst=5)
    ids = {"A": turn.add(1, channels=1)}
    if "created" not in title:
        ids["C"] = turn.add(2, channels="not opened" not in title)
    into_the_turn(turn, ids, "C" if "into its turn" in title and title.startswith("C") else "A")
    EVENTS[title](turn, ids)
    assert draw(turn, ids, len(want), 5) == want


def test_all_events_have_their_lines():
    assert {(t, p) for t, p, _ in LINES4} == {(t, str(p)) for t in EVENTS for p in POLICIES}


# (what is written, errno) -> tries of it, on a GPU with max_inst 6 and weights 2 and 2.
REFUSED = {
    ("policy", "EINVAL"): [lambda t, bad=bad: t.set("policy", bad) for bad in (len(POLICIES), 2**32, 2**64 - 1)],
    ("policy", "EBUSY"): [lambda t: t.set("policy", 2)],
    ("policy", "EOPNOTSUPP"): [lambda t: t.set("policy", 4)],
    ("weight", "EINVAL"): [lambda t: t.set("weight", 0, 7), lambda t: t.set("weight", 0, 2**32 + 1)],
    ("weight", "ENOSPC"): [lambda t: t.set("weight", 0, 5)],
    ("max_inst", "EINVAL"): [lambda t, bad=bad: t.set("max_inst", bad) for bad in (0, 26, 2**32 + 5)],
    ("max_inst", "EBUSY"): [lambda t: t.set("max_inst", 3), lambda t: t.set("max_inst", 1)],
    ("prio_ratio", "EINVAL"): [lambda t, bad=bad: t.set("prio_ratio", bad) for bad in (0, 19, 100, 2**32 + 50)],
    ("slice_us", "EINVAL"): [lambda t, bad=bad: t.set("slice_us", bad) for bad in (0, 999, 100_001, 2**63)],
    ("highprio", "EINVAL"): [lambda t: t.set("highprio", 0, 2)],
    ("ceiling", "EINVAL"): [lambda t: t.set("ceiling", 0, 1), lambda t: t.set("ceiling", 0, 7)],
    ("create", "ENOSPC"): [lambda t: t.add(3)],
}
ROWS = sorted({(row[0].strip("`"), row[1]) for row in table(section(4), "| write |")})


def test_all_refusals_are_on_the_page():
    assert sorted(REFUSED) == ROWS


@pytest.mark.parametrize("row", ROWS, ids=" ".join)
def test_what_is_refused_changes_nothing(row):
    above = row == ("policy", "EBUSY")
    turn = Turn(BURST if above else WEIGHTED, max_inst=26 if above else 6, controls=FREEZE)
    for _ in range(2):
        turn.add(2, channels=1)
    turn.timeline(33)
    for write in REFUSED[row]:
        before = bytes(ffi.buffer(turn.t))
        with pytest.raises(CoreError) as caught:
            write(turn)
        assert caught.value.errno == getattr(errno, row[1])
        assert bytes(ffi.buffer(turn.t)) == before


# ---- section 5: high priority ----------------------------------------------------------------

LINES5 = [(title, lines) for title, lines in blocks(5).items()]


@pytest.mark.parametrize(("title", "want"), LINES5, ids=[title for title, _ in LINES5])
def test_highprio_line(title, want):
    policy = int(re.match(r"policy (\d)", title)[1])
    controls = FREEZE if "without the timeslice control" in title else FREEZE | TIMESLICE
    turn = Turn(policy, slice_ms=10, max_inst=10, controls=controls)
    high = {"H": turn.add(1, highprio=1, channels=1)}
    low = {"A": turn.add(1, channels=1), "B": turn.add(2, channels=1)}
    turn.timeline(800)
    turn.timeline((turn.t.prio_period_ns + 100 * MS - turn.now) / MS)
    lines = ["", ""]
    for _ in want[0]:
        ran = max(turn.timeline(5), key=lambda stretch: stretch[1])[0]
        for i, ids in enumerate((high, low)):
            names = [name for name, slot in ids.items() if slot in ran]
            lines[i] += names[0] if len(names) == 1 else "*" if names else "."
    assert lines == want


PUBLISHED = {row[0]: (float(row[1]), float(row[2])) for row in table(section(5), "| | p50 us |")}
# what the page calls it -> policies, controls, how many others, which figure
MEASURED = {
    "H wakes, one other: until its first work": ([1, 2, 3, 4], 3, 1, "free"),
    "H wakes, four others, policies 1 and 2": ([1, 2], 3, 4, "free"),
    "H wakes, four others, policy 4": ([4], 3, 4, "free"),
    "H wakes after the quota was used up": ([1, 2, 3, 4], 3, 1, "frozen"),
    "H sleeps: until another one works": ([1, 2, 4], 3, 4, "back"),
    "H sleeps, without the timeslice control": ([1, 2, 3], FREEZE, 1, "back"),
}


def test_all_times_are_measured():
    assert set(PUBLISHED) == set(MEASURED)


@cache
def bursts(policy, controls, count):
    turn = Turn(policy, slice_ms=8, controls=controls, max_inst=10, switch_us=70)
    high = turn.add(highprio=1, channels=1)
    for _ in range(count):
        turn.add(8 // count, channels=1)
    gpu = BurstGpu(turn, A100, 3)
    gpu.sleeper = high
    gpu.run(12_000)
    return gpu


def quantile(values, part):
    return sorted(values)[int((len(values) - 1) * part)]


@pytest.mark.parametrize("name", MEASURED)
def test_takeover_and_give_back(name):
    """The published figures hold under each policy, and are not a mile away."""
    policies, controls, count, which = MEASURED[name]
    p50, p99 = PUBLISHED[name]
    for policy in policies:
        gpu = bursts(policy, controls, count)
        found = gpu.give_back_us if which == "back" else gpu.takeover_us[which]
        assert len(found) > 50
        assert quantile(found, 0.5) <= p50
        assert quantile(found, 0.99) <= p99
        if which == "free" and count == 1:
            assert max(found) <= 300 + 1_000, "one control call and a millisecond"
    assert quantile(found, 0.99) >= p99 / 4
