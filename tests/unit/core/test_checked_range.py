# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""When a read of the driver is of other parameters than those that were checked: cgpu_km/call.h, compiled here.

The driver reads a class's parameters by the size that it knows itself. One that differs from the table's is another
struct, of a release that is newer than the table.
"""

import ctypes
import os
import re
import subprocess
from pathlib import Path

import pytest

KM = Path(__file__).resolve().parents[3] / "cgpu_km"

TYPES = """
#include <stdbool.h>
#include <stdint.h>
typedef uint8_t u8; typedef uint32_t u32;
#define IS_ENABLED(option) 0
#define __aligned(n) __attribute__((aligned(n)))
"""
CODE = """
#include "call.h"
bool is_other(unsigned long user, u32 size, bool whole, unsigned long at, u32 n)
{
	const struct ckm_range range = { .user = user, .size = size, .whole = whole };

	return ckm_range_is_other(&range, at, n);
}
"""
USER, SIZE = 0x7F00_0000_1000, 368


@pytest.fixture(scope="module")
def is_other(tmp_path_factory):
    out = tmp_path_factory.mktemp("range")
    (out / "linux").mkdir()
    (out / "linux/types.h").write_text(TYPES)
    (out / "range.c").write_text(CODE)
    command = [os.environ.get("CC", "cc"), "-Wall", "-Werror", "-shared", "-fPIC", f"-I{out}", f"-I{KM}"]
    subprocess.run([*command, "-o", out / "range.so", out / "range.c"], check=True)
    function = ctypes.CDLL(str(out / "range.so")).is_other
    function.restype = ctypes.c_bool
    function.argtypes = [ctypes.c_ulong, ctypes.c_uint32, ctypes.c_bool, ctypes.c_ulong, ctypes.c_uint32]
    return function


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
