# SPDX-License-Identifier: MIT
"""The push buffer decoder: inline data, report semaphores, launches by QMD of each layout."""

import struct

import pytest
from machine import (
    BASE,
    COUNTED,
    END,
    INTR,
    LAUNCH,
    MORE,
    SEM,
    SIGNALLED,
    Machine,
    halves,
    inc,
    same,
)
from qmd import AMPERE, HOPPER, LAYOUTS, TURING, V02_03, V02_04, V03_00, V04_00, Layout

SEMA = BASE + 0x1000
DST = BASE + 0x80000
QMD = BASE + 0x20000
LAUNCH_NS, WAVE_NS, SMS = 2000, 10000, 40

# reductions of compute, by the headers' numbers
ADD, MIN, MAX, INC, DEC, AND, OR, XOR = range(8)


SCHEDULE, DECREMENT = 1, 4
each_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=["V02_03", "V02_04", "V03_00", "V04_00"])


def bind(cls: int) -> list[int]:
    return inc(1, 0, cls)


def schedule(layout: Layout, va: int = QMD, action: int = 3) -> list[int]:
    """By SEND_SIGNALING_PCAS: INVALIDATE and SCHEDULE, or the newer one's action."""
    b = inc(1, 0x2BC, 3) if layout is V02_03 else inc(1, 0x2C0, action)
    return bind(layout.cls) + inc(1, 0x2B4, va >> 8) + b


@each_layout
def test_launch_takes_the_time_of_its_grid(m: Machine, layout: Layout) -> None:
    for x, y, z, waves in ((1, 1, 1, 1), (40, 1, 1, 1), (41, 1, 1, 2), (10, 10, 2, 5), (0, 1, 1, 0)):
        m.write(QMD, layout.make(x=x, y=y, z=z))
        works = m.run(schedule(layout))
        assert [(w.kind, w.did) for w in works] == [(LAUNCH, COUNTED)]
        assert 0 <= works[0].ns - LAUNCH_NS - waves * WAVE_NS < 20, "and a nanosecond for each word"


@each_layout
def test_largest_grid_ends(m: Machine, layout: Layout) -> None:
    m.write(QMD, layout.make(x=0xFFFFFFFF, y=0xFFFF, z=0xFFFF))
    works = m.run(schedule(layout))
    assert works[0].ns <= 24 * 3600 * 10**9 + 100


@each_layout
def test_releases_of_a_launch(m: Machine, layout: Layout) -> None:
    m.write(SEMA, b"\xaa" * 48)
    values = {"x": 1, "y": 1, "z": 1, "release0": 1, "address0": SEMA, "payload0": 7,
              "release1": 1, "address1": SEMA + 16, "payload1": 8, "one_word1": 1}  # fmt: skip
    if "release2" in layout.fields:
        values |= {"release2": 1, "address2": SEMA + 32, "payload2": 9, "one_word2": 1}
    m.write(QMD, layout.make(**values))
    works = m.run(schedule(layout))
    assert works[0].did == COUNTED | SIGNALLED
    assert m.word(SEMA) == 7 and m.long(SEMA + 8) == m.now
    assert m.read(SEMA + 16, 16) == struct.pack("<I", 8) + b"\xaa" * 12
    assert m.word(SEMA + 32) == (9 if "release2" in layout.fields else 0xAAAAAAAA)


@each_layout
@pytest.mark.parametrize(
    "op, there, value, result",
    [
        (ADD, 5, 3, 8),
        (MIN, 5, 3, 3),
        (MAX, 5, 3, 5),
        (INC, 5, 9, 6),
        (DEC, 5, 9, 4),
        (AND, 6, 3, 2),
        (OR, 6, 3, 7),
        (XOR, 6, 3, 5),
    ],
)
def test_reduction_of_a_launch(m: Machine, layout: Layout, op: int, there: int, value: int, result: int) -> None:
    m.write(SEMA, struct.pack("<I", there))
    m.write(QMD, layout.make(x=1, y=1, z=1, release0=1, address0=SEMA, payload0=value, one_word0=1, reduce0=1, op0=op))
    m.run(schedule(layout))
    assert m.word(SEMA) == result


@pytest.mark.parametrize("layout", [V03_00, V04_00], ids=["V03_00", "V04_00"])
def test_trap_and_64_bits(m: Machine, layout: Layout) -> None:
    m.write(QMD, layout.make(x=1, y=1, z=1, release0=1, address0=SEMA, payload0=1 << 40, one_word0=2, wide0=1, trap0=1))
    works = m.run(schedule(layout))
    assert works[0].did == COUNTED | SIGNALLED | INTR and m.long(SEMA) == 1 << 40


@each_layout
def test_dependent_launch_follows(m: Machine, layout: Layout) -> None:
    second = QMD + 0x1000
    m.write(QMD, layout.make(x=1, y=1, z=1, next=1, action=SCHEDULE, pointer=second >> 8))
    m.write(second, layout.make(x=41, y=1, z=1, release0=1, address0=SEMA, payload0=2, one_word0=1))
    works = m.run(schedule(layout))
    assert [w.did for w in works] == [COUNTED | MORE, COUNTED | SIGNALLED] and m.word(SEMA) == 2
    assert 0 <= works[1].ns - LAUNCH_NS - 2 * WAVE_NS < 20


@each_layout
def test_endless_chain_goes_on_work_by_work(m: Machine, layout: Layout) -> None:
    m.write(QMD, layout.make(x=1, y=1, z=1, next=1, action=SCHEDULE, pointer=QMD >> 8))
    m.entry(schedule(layout))
    m.next()
    assert all(m.finish().did == COUNTED | MORE for _ in range(100))


def test_hopper_counts_what_a_launch_waits_for(m: Machine) -> None:
    """As libcuda does: an empty grid that waits for two kernels, then lets a third run."""
    null, last = QMD + 0x1000, QMD + 0x2000
    m.write(null, V04_00.make(counter=2, type=1, next=1, action=SCHEDULE, pointer=last >> 8))
    m.write(last, V04_00.make(x=1, y=1, z=1, release0=1, address0=SEMA, payload0=5, one_word0=1))
    m.write(QMD, V04_00.make(x=1, y=1, z=1, next=1, action=DECREMENT, pointer=null >> 8))
    assert m.run(schedule(V04_00, null, 10)) == [], "it waits"
    assert len(m.run(schedule(V04_00, QMD, 10))) == 1 and m.word(SEMA) == 0
    assert len(m.run(schedule(V04_00, QMD, 10))) == 3 and m.word(SEMA) == 5
    assert len(m.run(schedule(V04_00, null, 10))) == 0, "counted afresh"


def test_increment_and_decrement_by_methods(m: Machine) -> None:
    m.write(QMD, V04_00.make(x=1, y=1, z=1))
    assert m.run(schedule(V04_00, QMD, 12), schedule(V04_00, QMD, 12)) == []
    assert m.run(schedule(V04_00, QMD, 2)) == [], "two are missing"
    assert m.run(schedule(V04_00, QMD, 7)) == []
    assert len(m.run(schedule(V04_00, QMD, 7))) == 1


def test_two_dependents(m: Machine) -> None:
    for i in range(2):
        qmd = V04_00.make(x=1, y=1, z=1, release0=1, address0=SEMA, payload0=1, one_word0=1, reduce0=1)
        m.write(QMD + 0x1000 * (i + 1), qmd)
    m.write(QMD, V04_00.make(x=1, y=1, z=1, next=1, action=1, pointer=QMD + 0x1000 >> 8,
                             next1=1, action1=1, pointer1=QMD + 0x2000 >> 8))  # fmt: skip
    assert len(m.run(schedule(V04_00))) == 3 and m.word(SEMA) == 2


def test_breeding_launches_are_a_fault(m: Machine) -> None:
    m.write(QMD, V04_00.make(x=1, y=1, z=1, next=1, action=1, pointer=QMD >> 8, next1=1, action1=1, pointer1=QMD >> 8))
    assert m.fault(schedule(V04_00)) == "too many dependent QMDs"


@pytest.mark.parametrize("layout", [V02_03, V02_04, V04_00], ids=["V02_03", "V02_04", "V04_00"])
def test_inline_qmd_runs_with_its_last_word(m: Machine, layout: Layout) -> None:
    size = layout.words * 4
    made = layout.make(x=1, y=1, z=1, release0=1, address0=SEMA, payload0=3, one_word0=1)
    qmd = struct.unpack(f"<{size // 4}I", made)
    longer = 1 << 30 if size > 256 else 0
    address = inc(1, 0x318, QMD >> 40 | longer, QMD >> 8 & 0xFFFFFFFF)
    works = m.run(bind(layout.cls), address, inc(1, 0x320, *qmd[:-1]))
    assert works == []
    works = m.run(inc(1, 0x320 + size - 4, qmd[-1]))
    assert [w.kind for w in works] == [LAUNCH] and m.word(SEMA) == 3
    assert m.read(QMD, size) == made


def test_only_a_schedule_launches(m: Machine) -> None:
    m.write(QMD, V02_03.make(x=1, y=1, z=1))
    assert m.run(bind(TURING), inc(1, 0x2B4, QMD >> 8), inc(1, 0x2BC, 1)) == []
    assert m.run(inc(1, 0x2C0, 3)) == [], "Turing has no second PCAS"


@pytest.mark.parametrize(
    "words, why",
    [
        (inc(1, 0x2B4, 0x10) + inc(1, 0x2BC, 2), "QMD not mapped"),
        (inc(1, 0x2B4, DST >> 8) + inc(1, 0x2BC, 2), "QMD of an unknown version"),
        (inc(1, 0x318, 0, 0x10) + inc(1, 0x320, 0), "QMD not mapped"),
        (inc(1, 0x1B00, 0, 0x1000, 1, 0), "semaphore not mapped"),
        (inc(1, 0x1B00, *halves(SEMA), 1, 1), "unknown report operation"),
        (inc(1, 0x180, 4, 1, 0, 0x1000) + inc(1, 0x1B0, 1) + same(1, 0x1B4, 5), "inline data not mapped"),
    ],
)
def test_fault(m: Machine, words: list[int], why: str) -> None:
    assert m.fault(bind(TURING), words) == why


def load(length: int, lines: int, to: int, pitch: int, flags: int, data: bytes) -> list[int]:
    words = struct.unpack(f"<{len(data) // 4}I", data)
    return inc(1, 0x180, length, lines, *halves(to), pitch) + inc(1, 0x1B0, flags) + same(1, 0x1B4, *words)


def test_inline_data(m: Machine) -> None:
    data = bytes(range(256)) * 4
    m.run(bind(TURING), load(len(data) - 3, 1, DST + 1, 0, 1, data))
    assert m.read(DST, len(data) + 2) == b"\0" + data[:-3] + b"\0" * 4


def test_inline_lines_begin_with_a_word(m: Machine) -> None:
    m.run(bind(TURING), load(5, 3, DST, 16, 1, bytes(range(24))))
    lines = [bytes(range(begin, begin + 5)) for begin in (0, 8, 16)]
    assert m.read(DST, 48) == b"".join(line + b"\0" * 11 for line in lines)


def test_inline_words_behind_the_end_are_nothing(m: Machine) -> None:
    m.run(bind(TURING), load(4, 1, DST, 0, 1, b"\1" * 12))
    assert m.read(DST, 8) == b"\1" * 4 + b"\0" * 4


def test_inline_data_signals_its_end(m: Machine) -> None:
    works = m.run(bind(TURING), inc(1, 0x1DC, *halves(SEMA), 6), load(8, 1, DST, 0, 1 | 2 << 4 | 1 << 8, b"\1" * 8))
    assert [(w.kind, w.did) for w in works] == [(SEM, SIGNALLED | INTR)]
    assert m.writes() == [(DST, 8), (SEMA + 8, 8), (SEMA, 4)] and m.word(SEMA) == 6


@pytest.mark.parametrize("flags, intr", [(0, 0), (1 << 20, INTR), (1 << 28, 0)])
def test_report_semaphore(m: Machine, flags: int, intr: int) -> None:
    m.write(SEMA, b"\xaa" * 16)
    works = m.run(bind(TURING), inc(1, 0x1B00, *halves(SEMA), 4, flags))
    assert [w.did for w in works] == [SIGNALLED | intr] and m.word(SEMA) == 4
    assert m.long(SEMA + 8) == (0xAAAAAAAAAAAAAAAA if flags == 1 << 28 else m.now)


def test_report_that_only_traps(m: Machine) -> None:
    works = m.run(bind(TURING), inc(1, 0x1B00, *halves(SEMA), 4, 3))
    assert [w.did for w in works] == [INTR] and m.word(SEMA) == 0


def test_newer_report_semaphore(m: Machine) -> None:
    words = inc(1, 0x158, 1, 2, SEMA & 0xFFFFFFFF, SEMA >> 32, 1 << 2 | 2 << 3 | 1 << 12)
    works = m.run(bind(HOPPER), words)
    assert [w.did for w in works] == [SIGNALLED | INTR] and m.long(SEMA) == 2 << 32 | 1
    assert m.run(bind(AMPERE), words) == [], "Ampere has none"


def test_reduction_of_a_report(m: Machine) -> None:
    m.write(SEMA, struct.pack("<I", 5))
    m.run(bind(TURING), inc(1, 0x1B00, *halves(SEMA), 4, 1 << 28 | 1 << 3 | MAX << 9))
    assert m.word(SEMA) == 5


def test_segment_that_ends_in_a_launch(m: Machine) -> None:
    m.write(QMD, V02_03.make(x=1, y=1, z=1))
    m.entry(schedule(V02_03))
    works, step = m.play()
    assert step == END and len(works) == 1
