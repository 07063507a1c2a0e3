# SPDX-License-Identifier: MIT OR GPL-2.0-only
import errno

import pytest
from corelib import C, ffi, lib
from hypothesis import example, given
from hypothesis import strategies as st

MIB = C.CGPU_MIB
u64 = st.integers(0, 2**64 - 1)


def ledger(limit):
    led = ffi.new("struct cgpu_ledger *")
    lib.cgpu_ledger_init(led, limit)
    return led


@example([("c", 1000), ("c", 1), ("u", 1000)])  # up to the last byte and not one more
@example([("c", 800), ("l", 500), ("c", 1), ("c", 0), ("u", 400), ("c", 10)])  # a limit below what is used
@example([("l", 2**64 - 1), ("c", 2**64 - 2), ("c", 2), ("c", 1)])  # a sum that overflows
@example([("c", 10), ("u", 11)])  # more is given back than was taken
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
