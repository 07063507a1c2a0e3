# SPDX-License-Identifier: MIT OR GPL-2.0
"""What a card has a fixed number of: floors that nobody can take, and the rest for who comes first."""

from corelib import C, ffi, lib
from hypothesis import given
from hypothesis import strategies as st

SLOTS = C.CGPU_SLOTS


def look(total, max_inst, pct, used, who):
    pool = ffi.new("struct cgpu_quota_pool *", {"total": total, "max_inst": max_inst, "floor_pct": pct})
    view = ffi.new("struct cgpu_quota_view *")
    lib.cgpu_quota_view(pool, ffi.new("u64[]", used), len(used), who, view)
    return view


def test_a_card_of_turing_and_twenty_containers():
    """2,048 ids: 44 are each one's, two contexts of libcuda's 20 channels; 912 go to who comes first."""
    alone = look(2048, 20, 50, [0] * SLOTS, 0)
    assert (alone.total, alone.floor, alone.left) == (1792, 44, 44 + 1792 - 20 * 44)
    greedy = [alone.left] + [0] * (SLOTS - 1)
    assert look(2048, 20, 50, greedy, 0).left == 0
    assert [look(2048, 20, 50, greedy, who).left for who in range(1, 20)] == [44] * 19


def test_equal_parts_and_first_come_are_the_ends():
    used = [0] * SLOTS
    assert look(2048, 20, 100, used, 0).left == 1792 // 20 + 1792 % 20
    assert look(2048, 20, 0, used, 0).left == 1792
    assert look(2048, 20, 4000, used, 0).floor == 89, "as 100"


def test_the_refusal_can_name_who_has_most():
    view = look(2048, 20, 50, [3, 700, 20, *[0] * (SLOTS - 3)], 0)
    assert (view.most, view.most_slot) == (700, 1)


def test_nothing_to_divide():
    assert look(0, 20, 50, [0] * SLOTS, 0).left == 0
    assert look(2048, 0, 50, [0] * SLOTS, 0).left == 1792, "as one"


STEPS = st.lists(st.tuples(st.integers(0, SLOTS - 1), st.integers(-(2**20), 2**20)), max_size=80)
POOL = st.tuples(st.integers(0, 2**55), st.integers(1, SLOTS), st.integers(0, 100))


@given(POOL, STEPS)
def test_nobody_takes_a_floor_and_no_more_is_given_than_there_is(pool, steps):
    """Whatever the order: each one reaches its floor, and the sum stays below the pool."""
    total, inst, pct = pool
    used = [0] * SLOTS
    for who, amount in steps:
        who %= inst
        if amount < 0:
            used[who] = max(0, used[who] + amount)
            continue
        view = look(total, inst, pct, used, who)
        used[who] += min(amount, view.left)
        assert sum(used) <= view.total
    for who in range(inst):
        view = look(total, inst, pct, used, who)
        assert used[who] + view.left >= view.floor
        assert view.most == max(used)
        assert used[view.most_slot] == view.most


@given(POOL, st.lists(st.integers(0, 2**50), min_size=SLOTS, max_size=SLOTS), st.integers(0, SLOTS - 1))
def test_who_has_more_than_the_rule_gives_gets_nothing_more(pool, used, who):
    """After max_inst or the parameter changed: never above the pool, never below zero."""
    view = look(*pool, used, who)
    assert view.left <= max(0, view.total - sum(used))
    assert view.floor * pool[1] <= view.total <= pool[0]


@given(st.integers(0, 2**40), st.integers(0, 2**40), st.integers(0, 2**40))
def test_bar1_by_whole_pages(size, offset, length):
    page = 2 << 20 if size >= 2 << 20 else 64 << 10
    got = lib.cgpu_estimate_bar1_bytes(size, offset, length)
    assert got % page == 0
    assert length <= got < length + 2 * page
    assert got == len(range(offset // page * page, offset + length, page)) * page


def test_bar1_that_overflows_is_too_much():
    assert lib.cgpu_estimate_bar1_bytes(1 << 20, 2**64 - 1, 1) == 2**64 - 1
    assert lib.cgpu_estimate_bar1_bytes(1 << 20, 1 << 63, 2**64 - 1) == 2**64 - 1
