# SPDX-License-Identifier: MIT
"""The push buffer decoder: host methods, semaphores, copies. Words in, works and memory out."""

import ctypes
import struct
import subprocess
from pathlib import Path

import pytest
from machine import (
    BASE,
    COPY,
    COUNTED,
    END,
    FAULT,
    FLAGS,
    HERE,
    INTR,
    MORE,
    SEM,
    SIGNALLED,
    SOURCES,
    WAIT,
    WORDS,
    WORK,
    YIELD,
    Machine,
    halves,
    inc,
    same,
)

SEMA = BASE + 0x1000
SRC = BASE + 0x10000
DST = BASE + 0x80000
TURING, AMPERE_B, HOPPER = 0xC5B5, 0xC7B5, 0xC8B5

MIN, MAX, XOR, AND, OR, ADD, INC, DEC = range(8)


def old_sem(va: int, payload: int, flags: int) -> list[int]:
    """SEMAPHOREA to D."""
    return inc(0, 0x10, *halves(va), payload, flags)


def new_sem(va: int, payload: int, flags: int) -> list[int]:
    """SEM_ADDR_LO to SEM_EXECUTE."""
    return inc(0, 0x5C, va & 0xFFFFFFFF, va >> 32, payload & 0xFFFFFFFF, payload >> 32, flags)


def test_release_of_one_word_leaves_the_rest(m: Machine) -> None:
    m.write(SEMA, b"\xaa" * 16)
    works = m.run(old_sem(SEMA, 7, 2 | 1 << 24))
    assert [(w.kind, w.did) for w in works] == [(SEM, SIGNALLED)]
    assert m.read(SEMA, 16) == struct.pack("<I", 7) + b"\xaa" * 12


@pytest.mark.parametrize("release", [old_sem(SEMA, 7, 2), new_sem(SEMA, 7, 1 | 1 << 25)])
def test_time_is_written_before_the_value(m: Machine, release: list[int]) -> None:
    m.run(release)
    assert m.word(SEMA) == 7 and m.long(SEMA + 8) == m.now
    assert m.writes() == [(SEMA + 8, 8), (SEMA, 4)]


def test_release_of_64_bits(m: Machine) -> None:
    m.run(new_sem(SEMA, 0x1122334455667788, 1 | 1 << 24))
    assert m.long(SEMA) == 0x1122334455667788


# operation, value in memory, awaited value, whether it is satisfied
NEW_ACQUIRES = [
    (0, 5, 5, True), (0, 6, 5, False),
    (2, 6, 5, True), (2, 4, 5, False), (2, 1, 0xFFFFFFFF, False),
    (3, 6, 5, True), (3, 4, 5, False), (3, 1, 0xFFFFFFFF, True), (3, 0x80000005, 5, False),
    (4, 6, 2, True), (4, 4, 2, False),
    (5, 0xFFFF0000, 0x0000FFFE, True), (5, 0xFFFF0000, 0x0000FFFF, False),
]  # fmt: skip


@pytest.mark.parametrize("op, there, wanted, comes", NEW_ACQUIRES)
@pytest.mark.parametrize("wide", [False, True])
def test_acquire(m: Machine, op: int, there: int, wanted: int, comes: bool, wide: bool) -> None:
    if wide:
        # the same in the upper half, the lower one equal or, for NOR, full
        low = 0xFFFFFFFF if op == 5 else 0 if op == 4 else 9
        there, wanted = there << 32 | low, wanted << 32 | (low if op != 4 else 0)
    m.write(SEMA, struct.pack("<Q", there))
    m.entry(new_sem(SEMA, wanted, op | wide << 24))
    assert m.next() == (END if comes else WAIT)


@pytest.mark.parametrize(
    "op, there, wanted, comes",
    [(1, 5, 5, True), (1, 6, 5, False), (4, 6, 5, True), (4, 0xFFFFFFFF, 0, False), (8, 3, 2, True), (8, 1, 2, False)],
)
def test_old_acquire(m: Machine, op: int, there: int, wanted: int, comes: bool) -> None:
    m.write(SEMA, struct.pack("<I", there))
    m.entry(old_sem(SEMA, wanted, op))
    assert m.next() == (END if comes else WAIT)


def test_who_waits_goes_on_where_it_was(m: Machine) -> None:
    m.entry(old_sem(SEMA, 1, 2 | 1 << 24) + new_sem(SEMA + 16, 9, 3) + old_sem(SEMA, 2, 2 | 1 << 24))
    works, step = m.play()
    assert step == WAIT and len(works) == 1 and m.word(SEMA) == 1
    before = m.value("writes")
    assert not m.ready() and m.next() == WAIT and m.value("writes") == before
    m.write(SEMA + 16, struct.pack("<I", 10))
    assert m.ready()
    works, step = m.play()
    assert step == END and len(works) == 1 and m.word(SEMA) == 2


def test_immediate_data_waits_too(m: Machine) -> None:
    wait = 4 << 29 | 1 << 16 | 0x1C >> 2  # SEMAPHORED, ACQUIRE, in the header
    m.entry([*inc(0, 0x10, *halves(SEMA), 3), wait])
    assert m.next() == WAIT
    m.write(SEMA, struct.pack("<I", 3))
    assert m.next() == END


REDUCTIONS = [
    (MIN, 5, 3, 3, False), (MIN, 3, 5, 3, False), (MIN, 0xFFFFFFFF, 1, 1, False),
    (MIN, 0xFFFFFFFF, 1, 0xFFFFFFFF, True), (MAX, 5, 3, 5, False), (MAX, 0xFFFFFFFF, 1, 1, True),
    (XOR, 6, 3, 5, False), (AND, 6, 3, 2, False),
    (OR, 6, 3, 7, False), (ADD, 0xFFFFFFFF, 2, 1, False), (INC, 3, 5, 4, False), (INC, 5, 5, 0, False),
    (DEC, 3, 5, 2, False), (DEC, 0, 5, 5, False), (DEC, 9, 5, 5, False),
]  # fmt: skip


@pytest.mark.parametrize("op, there, value, result, signed", REDUCTIONS)
@pytest.mark.parametrize("how", ["old", "new", "copy"])
def test_reduction(m: Machine, how: str, op: int, there: int, value: int, result: int, signed: bool) -> None:
    m.write(SEMA, struct.pack("<Q", 0x5555555500000000 | there))
    unsigned = 0 if signed else 1
    if how == "old":
        m.run(old_sem(SEMA, value, 16 | op << 27 | unsigned << 31))
    elif how == "new":
        m.run(new_sem(SEMA, value, 6 | op << 27 | unsigned << 31))
    else:
        m.run(inc(4, 0, TURING), inc(4, 0x240, *halves(SEMA), value),
              inc(4, 0x300, 1 << 3 | op << 14 | unsigned << 18 | 1 << 19))  # fmt: skip
    assert m.long(SEMA) == 0x5555555500000000 | result


def test_reduction_of_64_bits(m: Machine) -> None:
    m.write(SEMA, struct.pack("<Q", 0xFFFFFFFF))
    m.run(new_sem(SEMA, 0x100000001, 6 | ADD << 27 | 1 << 24))
    assert m.long(SEMA) == 0x200000000


def test_reduction_counts_what_the_cpu_did_meanwhile(m: Machine, lib: ctypes.CDLL) -> None:
    lib.home_lose(m.home, 3)
    m.run(new_sem(SEMA, 10, 6 | ADD << 27))
    assert m.word(SEMA) == 13


@pytest.mark.parametrize(
    "words, why",
    [
        (old_sem(SEMA, 1, 3), "unknown semaphore operation"),
        (new_sem(SEMA, 1, 7), "unknown semaphore operation"),
        (old_sem(SEMA, 1, 16 | 9 << 27), "unknown reduction"),
        (old_sem(0x1000, 1, 2), "semaphore not mapped"),
        (new_sem(0x1000, 1, 0), "semaphore not mapped"),
        (new_sem(SEMA + 4, 1, 1 | 1 << 24), "semaphore not aligned"),
        (new_sem(BASE + Machine.SIZE - 8, 1, 1 | 1 << 25), "semaphore not mapped"),
        ([6 << 29], "unknown header"),
        ([2 << 29 | 1 << 16], "unknown header"),
        (inc(1, 0x300, 1), "method without an object"),
        (inc(4, 0, TURING) + inc(4, 0x300, 1 | 1 << 12), "physical copy by a user"),
    ],
)
def test_fault(m: Machine, words: list[int], why: str) -> None:
    assert m.fault(words) == why


def test_push_buffer_must_be_mapped(m: Machine) -> None:
    m.raw_entry(BASE + Machine.SIZE - 8, 4)
    assert m.next() == FAULT and m.why() == "push buffer not mapped"


def test_interrupt_and_yield(m: Machine) -> None:
    works = m.run(inc(0, 0x20, 0), inc(0, 0x80, 0), inc(0, 0x80, 2), inc(0, 0x78, 0), inc(0, 0x24, 0))
    assert [(w.kind, w.did) for w in works] == [(WORDS, INTR), (WORDS, YIELD)]


def test_header_formats(m: Machine) -> None:
    lo, hi = SEMA & 0xFFFFFFFF, SEMA >> 32
    first_only = [5 << 29 | 3 << 16 | 0x5C >> 2, lo, hi, hi]  # ONE_INC: the second and third go to SEM_ADDR_HI
    immediate = [4 << 29 | 77 << 16 | 0x64 >> 2, *inc(0, 0x68, 0), 4 << 29 | 1 << 16 | 0x6C >> 2]
    m.run(first_only, immediate)
    assert m.word(SEMA) == 77
    old = [3 << 18 | 0x5C, lo + 4, hi, 78, *inc(0, 0x6C, 1)]  # the address in bits 12:2, the count in 28:18
    m.run(old)
    assert m.word(SEMA + 4) == 78
    m.run([2 << 29 | 2 << 18 | 0x64, 1, 79, *inc(0, 0x6C, 1)])  # NON_INC, the old way
    assert m.word(SEMA + 4) == 79
    m.run([0, 0, *inc(0, 0x64, 80), 7 << 29, *inc(0, 0x6C, 1)])  # NOPs; END_PB_SEGMENT
    assert m.word(SEMA + 4) == 79
    m.run(inc(0, 0x6C, 1))
    assert m.word(SEMA + 4) == 80


def test_subdevice_mask(m: Machine) -> None:
    off, on, store, use = (1 << 16), (1 << 16 | 1 << 4), (2 << 16 | 2 << 4), 3 << 16
    m.run(new_sem(SEMA, 1, 1), [off], new_sem(SEMA, 2, 1), [on])
    assert m.word(SEMA) == 1
    m.run(new_sem(SEMA, 3, 1), [store, use], new_sem(SEMA, 4, 1), [on])
    assert m.word(SEMA) == 3


def test_hopper_reads_beyond_40_bits(m: Machine, lib: ctypes.CDLL) -> None:
    high = 0x1FF0200000000
    lib.home_move(m.home, high)
    words = new_sem(high + 0x1000, 5, 1)
    m.write(m.PUSH, struct.pack(f"<{len(words)}I", *words))
    lib.home_entry(m.home, high >> 40 << 8, 4)  # SET_PB_SEGMENT_EXTENDED_BASE
    assert m.next() == END
    m.raw_entry(m.PUSH - BASE + high & (1 << 40) - 1, len(words))
    works, step = m.play()
    assert step == END and len(works) == 1 and m.word(SEMA) == 5


def test_long_stretch_without_work_takes_time(m: Machine) -> None:
    m.entry([0] * 100000)
    steps = 0
    while (step := m.next()) == WORK:
        before = m.value("at")
        done = m.finish()
        assert done.kind == WORDS and done.ns >= 1000
        steps += 1
        assert m.value("at") == before and before <= steps * 1024
    assert step == END and steps >= 97


def copy(
    cls: int, src: int, dst: int, length: int, flags: int, lines: int = 0, pitches: tuple[int, int] = (0, 0)
) -> list[int]:
    return inc(4, 0, cls) + inc(4, 0x400, *halves(src), *halves(dst), *pitches, length, lines) + inc(4, 0x300, flags)


PITCH = 1 << 7 | 1 << 8
LINES = 1 << 9
REMAP = 1 << 10
PLAIN = 2 | PITCH


def pattern(size: int) -> bytes:
    return bytes((i * 7 + (i >> 8)) & 0xFF for i in range(size))


def test_copy(m: Machine) -> None:
    m.write(SRC, pattern(9000))
    works = m.run(copy(TURING, SRC + 3, DST + 5, 8000, PLAIN))
    assert [(w.kind, w.did) for w in works] == [(COPY, COUNTED)]
    assert m.read(DST, 8010) == b"\0" * 5 + pattern(9000)[3:8003] + b"\0" * 5
    assert 800 <= works[0].ns < 850, "8000 bytes at 10000 a microsecond"


def test_large_copy_goes_in_pieces(m: Machine) -> None:
    m.write(SRC, pattern(300000))
    works = m.run(copy(TURING, SRC, DST, 300000, PLAIN))
    assert m.read(DST, 300000) == pattern(300000)
    assert [w.did & MORE for w in works] == [MORE] * 4 + [0] and sum(w.did & COUNTED != 0 for w in works) == 1
    assert all(w.ns <= 6700 for w in works) and 30000 <= sum(w.ns for w in works) < 30100


def test_copy_of_lines(m: Machine) -> None:
    m.write(SRC, pattern(4000))
    m.run(copy(TURING, SRC, DST, 10, PLAIN | LINES, 5, (100, 33)))
    expected = bytearray(200)
    for i in range(5):
        expected[i * 33 : i * 33 + 10] = pattern(4000)[i * 100 : i * 100 + 10]
    assert m.read(DST, 200) == expected


def test_copy_backwards(m: Machine) -> None:
    m.write(SRC, pattern(400))
    m.run(copy(TURING, SRC + 300, DST, 10, PLAIN | LINES, 4, (-100, 10)))
    assert m.read(DST, 40) == b"".join(pattern(400)[i : i + 10] for i in (300, 200, 100, 0))


def test_memset(m: Machine) -> None:
    for const, size in ((0xA5, 1), (0x1234, 2), (0x11223344, 4)):
        m.write(DST, b"\xff" * 20000)
        select = inc(4, 0x700, const, 0, 4 | (size - 1) << 16)  # X from CONST_A
        m.run(inc(4, 0, TURING), select, copy(TURING, 0, DST, 3000, 2 | PITCH | REMAP))
        assert m.read(DST, 20000) == const.to_bytes(size, "little") * 3000 + b"\xff" * (20000 - 3000 * size)


def test_memset_of_two_constants(m: Machine) -> None:
    m.run(inc(4, 0, TURING), inc(4, 0x700, 0x11111111, 0x22222222, 4 | 5 << 4 | 3 << 16 | 1 << 24),
          copy(TURING, 0, DST, 100, 2 | PITCH | REMAP))  # fmt: skip
    assert m.read(DST, 800) == struct.pack("<2I", 0x11111111, 0x22222222) * 100


def test_components_change_places_and_stay(m: Machine) -> None:
    """BGRA from RGB: Z, Y, X of the source, and the fourth as it was."""
    m.write(SRC, pattern(300))
    m.write(DST, b"\xee" * 400)
    m.run(inc(4, 0, TURING), inc(4, 0x708, 2 | 1 << 4 | 0 << 8 | 6 << 12 | 2 << 20 | 3 << 24),
          copy(TURING, SRC, DST, 100, 2 | PITCH | REMAP))  # fmt: skip
    source = pattern(300)
    expected = b"".join(bytes((source[i + 2], source[i + 1], source[i], 0xEE)) for i in range(0, 300, 3))
    assert m.read(DST, 400) == expected


def test_block_linear_memory_comes_back_as_it_went(m: Machine) -> None:
    m.write(SRC, pattern(6400))
    to = inc(4, 0x70C, 0x1000, 128, 64, 1, 0, 5 << 16 | 16)  # SET_DST_*: 128 bytes wide, 64 high, origin 16, 5
    back = inc(4, 0x728, 0x1000, 128, 64, 1, 0, 5 << 16 | 16)
    m.run(inc(4, 0, TURING), to, copy(TURING, SRC, DST, 64, 2 | 1 << 7 | LINES, 20, (64, 0)))
    assert m.read(DST, 5 * 128 + 16) == b"\0" * (5 * 128 + 16)
    m.run(inc(4, 0, TURING), back, copy(TURING, DST, SRC + 0x8000, 64, 2 | 1 << 8 | LINES, 20, (0, 64)))
    assert m.read(SRC + 0x8000, 20 * 64) == pattern(6400)[: 20 * 64]


def test_semaphore_of_a_copy_comes_last(m: Machine) -> None:
    m.write(SRC, pattern(100))
    works = m.run(
        inc(4, 0, TURING), inc(4, 0x240, *halves(SEMA), 9), copy(TURING, SRC, DST, 100, PLAIN | 2 << 3 | 2 << 5)
    )
    assert works[-1].did == COUNTED | SIGNALLED | INTR
    assert m.writes()[-3:] == [(DST, 100), (SEMA + 8, 8), (SEMA, 4)] and m.word(SEMA) == 9


def test_copy_engine_that_only_signals(m: Machine) -> None:
    works = m.run(inc(4, 0, TURING), inc(4, 0x240, *halves(SEMA), 9), inc(4, 0x300, 1 << 3))
    assert [w.did for w in works] == [SIGNALLED] and m.writes() == [(SEMA, 4)]


@pytest.mark.parametrize("cls, wide", [(TURING, False), (0xC6B5, False), (AMPERE_B, True), (HOPPER, True)])
def test_wide_payload_from_ampere_b_on(m: Machine, cls: int, wide: bool) -> None:
    m.run(inc(4, 0, cls), inc(4, 0x240, *halves(SEMA), 9, 3), inc(4, 0x300, 1 << 3 | 1 << 27))
    assert m.long(SEMA) == (3 << 32 | 9 if wide else 9)


@pytest.mark.parametrize("src, dst", [(SRC, BASE + Machine.SIZE - 50), (BASE + Machine.SIZE - 50, DST), (0x1000, DST)])
def test_copy_of_what_is_not_mapped(m: Machine, src: int, dst: int) -> None:
    assert m.fault(copy(TURING, src, dst, 100, PLAIN)) == "copy of what is not mapped"


def test_endless_copy_is_bounded_at_every_step(m: Machine) -> None:
    m.entry(copy(TURING, SRC, DST, 1, PLAIN | LINES, 0xFFFFFFFF, (0, 0)))
    assert m.next() == WORK
    for _ in range(50):
        before = m.value("writes")
        assert m.finish().did == MORE and m.value("writes") - before <= 256
    m.entry(copy(TURING, SRC, DST, 0, PLAIN | LINES, 0xFFFFFFFF, (0, 0)))
    assert m.next() == WORK and all(m.finish().did == MORE for _ in range(50))


def test_fuzz(tmp_path: Path) -> None:
    """Half-right push buffers under ASan and UBSan."""
    program = tmp_path / "fuzz"
    sources = [HERE / "fuzz.c", *SOURCES]
    subprocess.run(["cc", *FLAGS, "-fsanitize=address,undefined", "-o", program, *sources], check=True, timeout=120)
    run = subprocess.run([program, "1", "300"], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr[-2000:]
    assert int(run.stdout.split()[0]) > 1 << 20, "the buffers did nothing"


def test_inline_data_is_not_for_the_copy_engine(m: Machine) -> None:
    """Method numbers belong to a class: compute's inline data has no meaning here."""
    assert m.run(inc(4, 0, TURING), same(4, 0x1B4, 1, 2, 3)) == []
