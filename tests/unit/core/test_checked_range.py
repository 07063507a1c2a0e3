# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""When a read of the driver is of other parameters than those that were checked: cgpu_km/call.h, compiled here.

The driver reads a class's parameters by the size that it knows itself. One that differs from the table's is another
struct, of a release that is newer than the table.
"""

import re

import pytest
import shellpart
from shellpart import KM

CDEF = "bool is_other(unsigned long user, uint32_t size, bool whole, unsigned long at, uint32_t n);"
MORE = """
bool is_other(unsigned long user, u32 size, bool whole, unsigned long at, u32 n)
{
	const struct ckm_range range = { .user = user, .size = size, .whole = whole };

	return ckm_range_is_other(&range, at, n);
}
"""
USER, SIZE = 0x7F00_0000_1000, 368


@pytest.fixture(scope="module")
def is_other(tmp_path_factory):
    source = shellpart.struct_of("call.h", "ckm_range") + shellpart.function_of("call.h", "ckm_range_is_other")
    return shellpart.build(source, tmp_path_factory.mktemp("range"), CDEF, MORE)[1].is_other


@pytest.mark.parametrize("n", [SIZE - 8, SIZE - 1, SIZE + 1, SIZE + 8, 4])
def test_another_size_is_another_struct(is_other, n):
    assert is_other(USER, SIZE, True, USER, n)
    assert not is_other(USER, SIZE, False, USER, n), "a control's, whose size the call names and the table has"


def test_the_tables_size_passes(is_other):
    assert not is_other(USER, SIZE, True, USER, SIZE)


@pytest.mark.parametrize("at", [USER - 8, USER + 8, USER + SIZE])
def test_reads_elsewhere_are_of_other_things(is_other, at):
    """What the call names by a pointer of its own, such as the rights that it requests."""
    assert not is_other(USER, SIZE, True, at, 4)


def test_the_module_asks_it_of_each_class():
    """Where a class's parameters are copied in they are marked, and the redirected copy looks at the mark."""
    alloc = (KM / "intercept/rm_alloc.c").read_text()
    assert re.search(r"ckm_copy_in_params\(a->rc->call.*?nested\.whole = true;", alloc, re.DOTALL)
    seal = (KM / "intercept/seal.c").read_text()
    copy = seal[seal.index("redirected_memcpy_from_user") :]
    assert copy.index("ckm_range_is_other") < copy.index("copy_from_user(to")
