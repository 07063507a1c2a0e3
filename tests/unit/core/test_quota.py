# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""What a card has a fixed number of: floors that no other can take, the rest first come."""

from corelib import C, ffi, lib
from hypothesis import given
from hypothesis import strategies as st

SLOTS = C.CGPU_SLOTS


def view_of(total, max_inst, pct, used, slot):
    pool = ffi.new("struct cgpu_quota_pool *", {"total": total, "max_inst": max_inst, "floor_pct": pct})
    view = ffi.new("struct cgpu_quota_view *")
    lib.cgpu_quota_view(pool, ffi.new("u64[]", used), len(used), slot, view)
    return view


def test_a_card_of_turing_and_twenty_containers():
    """2,048 ids: 44 are each one's, two contexts of libcuda's 20 channels; 912 are first come, first served."""
    alone = view_of(2048, 20, 50, [0] * SLOTS, 0)
    assert (alone.total, alone.floor, alone.left) == (1792, 44, 44 + 1792 - 20 * 44)
    greedy = [alone.left] + [0] * (SLOTS - 1)
    assert view_of(2048, 20, 50, greedy, 0).left == 0
    assert [view_of(2048, 20, 50, greedy, slot).left for slot in range(1, 20)] == [44] * 19


def test_equal_parts_and_first_come_are_the_ends():
    used = [0] * SLOTS
    assert view_of(2048, 20, 100, used, 0).left == 1792 // 20 + 1792 % 20
    assert view_of(2048, 20, 0, used, 0).left == 1792
    assert view_of(2048, 20, 4000, used, 0).floor == 89, "as 100"


def test_the_refusal_can_name_the_largest_user():
    view = view_of(2048, 20, 50, [3, 700, 20, *[0] * (SLOTS - 3)], 0)
    assert (view.most, view.most_slot) == (700, 1)


def test_nothing_to_divide():
    assert view_of(0, 20, 50, [0] * SLOTS, 0).left == 0
    assert view_of(2048, 0, 50, [0] * SLOTS, 0).left == 1792, "as one"


STEPS = st.lists(st.tuples(st.integers(0, SLOTS - 1), st.integers(-(2**20), 2**20)), max_size=80)
POOL = st.tuples(st.integers(0, 2**55), st.integers(1, SLOTS), st.integers(0, 100))


@given(POOL, STEPS)
def test_no_slot_takes_a_floor_and_no_more_is_given_than_there_is(pool, steps):
    """Whatever the order: each one reaches its floor, and the sum stays below the pool."""
    total, inst, pct = pool
    used = [0] * SLOTS
    for slot, amount in steps:
        slot %= inst
        if amount < 0:
            used[slot] = max(0, used[slot] + amount)
            continue
        view = view_of(total, inst, pct, used, slot)
        used[slot] += min(amount, view.left)
        assert sum(used) <= view.total
    for slot in range(inst):
        view = view_of(total, inst, pct, used, slot)
        assert used[slot] + view.left >= view.floor
        assert view.most == max(used)
        assert used[view.most_slot] == view.most


@given(POOL, st.lists(st.integers(0, 2**50), min_size=SLOTS, max_size=SLOTS), st.integers(0, SLOTS - 1))
def test_a_slot_above_its_share_gets_nothing_more(pool, used, slot):
    """After max_inst or the parameter changed: never above the pool, never below zero."""
    view = view_of(*pool, used, slot)
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
