# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""Which places of video memory a container may not choose: ckm_alloc_check_place()."""

import pytest
import shellpart

FIXED, BEGIN_END, WPR1, WPR2, SCANOUT_CARVEOUT, ALIGNED = 0x10, 0x20000, 1 << 30, 1 << 31, 1 << 10, 0x100
INVALID_ARGUMENT = 0x1F
BEFORE = """
#include "core/nv_abi.h"
struct rm_call { int call; };
struct ckm_alloc { struct rm_call *rc; };
static int refused;
#define ckm_call_denied(call, text, number)	((void)(call), (void)(text), (void)(number), refused++)
"""
CDEF = "uint32_t place(uint32_t flags, uint32_t attr2, uint64_t alignment, uint64_t *bytes);"
MORE = """
u32 place(u32 flags, u32 attr2, u64 alignment, u64 *bytes)
{
	struct rm_call call = {};
	struct ckm_alloc a = { .rc = &call };
	u32 status;

	refused = 0;
	status = ckm_alloc_check_place(&a, flags, attr2, alignment, bytes);
	return !status == !refused ? status : ~0u;
}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    source = BEFORE + shellpart.function_of("intercept/rm_alloc_check.c", "ckm_alloc_check_place")
    ffi, lib = shellpart.build(source, tmp_path_factory.mktemp("place"), CDEF, MORE)

    def ask(flags=0, attr2=0, alignment=0):
        size = ffi.new("uint64_t *", 64 << 10)
        return lib.place(flags, attr2, alignment, size), size[0]

    return ask


@pytest.mark.parametrize("flags", [FIXED, BEGIN_END, WPR1, WPR2])
def test_a_chosen_place_is_refused(place, flags):
    assert place(flags)[0] == INVALID_ARGUMENT


def test_what_rm_keeps_is_refused(place):
    """From 590 on the attribute takes an allocation past PMA, as the flags of a protected region do."""
    assert place(attr2=SCANOUT_CARVEOUT)[0] == INVALID_ARGUMENT


def test_an_alignment_is_charged(place):
    assert place() == (0, 64 << 10)
    assert place(ALIGNED, 0x300, 2 << 20) == (0, 2 << 20)
    assert place(0, 0, 2 << 20) == (0, 64 << 10)
