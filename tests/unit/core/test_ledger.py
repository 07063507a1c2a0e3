# SPDX-License-Identifier: MIT OR GPL-2.0-only
import errno

import pytest
from corelib import C, ffi, lib
from hypothesis import given
from hypothesis import strategies as st

MIB = C.CGPU_MIB
u64 = st.integers(0, 2**64 - 1)


def ledger(limit):
    led = ffi.new("struct cgpu_ledger *")
    lib.cgpu_ledger_init(led, limit)
    return led


def test_up_to_the_last_byte_and_not_one_more():
    led = ledger(100)
    assert lib.cgpu_ledger_charge(led, 100) == 0
    assert lib.cgpu_ledger_charge(led, 1) == -errno.ENOMEM
    assert (led.used_bytes, led.peak_bytes, led.refused) == (100, 100, 1)
    assert lib.cgpu_ledger_uncharge(led, 100)
    assert (led.used_bytes, led.peak_bytes) == (0, 100)


def test_limit_below_use_takes_nothing_and_gives_nothing():
    led = ledger(100)
    lib.cgpu_ledger_charge(led, 80)
    lib.cgpu_ledger_set_limit(led, 50)
    assert led.used_bytes == 80
    assert lib.cgpu_ledger_free(led) == 0
    assert lib.cgpu_ledger_charge(led, 1) == -errno.ENOMEM
    assert lib.cgpu_ledger_charge(led, 0) == 0
    lib.cgpu_ledger_uncharge(led, 40)
    assert lib.cgpu_ledger_charge(led, 10) == 0


def test_an_overflowing_sum_is_over_any_limit():
    led = ledger(2**64 - 1)
    assert lib.cgpu_ledger_charge(led, 2**64 - 2) == 0
    assert lib.cgpu_ledger_charge(led, 2) == -errno.ENOMEM
    assert lib.cgpu_ledger_charge(led, 1) == 0


def test_uncharging_too_much_is_reported_and_leaves_nothing():
    led = ledger(100)
    lib.cgpu_ledger_charge(led, 10)
    assert not lib.cgpu_ledger_uncharge(led, 11)
    assert led.used_bytes == 0


@given(st.lists(st.tuples(st.sampled_from("cul"), u64)))
def test_against_a_model(steps):
    led, limit, used, peak, refused = ledger(1000), 1000, 0, 0, 0
    for kind, value in steps:
        if kind == "l":
            limit = value
            lib.cgpu_ledger_set_limit(led, value)
        elif kind == "c":
            fits = value <= max(0, limit - used)
            assert (lib.cgpu_ledger_charge(led, value) == 0) == fits
            used, refused = used + value * fits, refused + (not fits)
        else:
            assert lib.cgpu_ledger_uncharge(led, value) == (value <= used)
            used = max(0, used - value)
        peak = max(peak, used)
        assert (led.used_bytes, led.peak_bytes, led.refused) == (used, peak, refused)
        assert lib.cgpu_ledger_free(led) == max(0, limit - used)


@pytest.mark.parametrize(("limit", "ok"), [(0, 0), (MIB - 1, 0), (MIB, 1), (2**63 - 1, 1), (2**63, 0), (2**64 - 1, 0)])
def test_limits_that_may_be_written(limit, ok):
    assert lib.cgpu_ledger_check_limit(limit) == (0 if ok else -errno.EINVAL)
