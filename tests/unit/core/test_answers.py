# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""Answers that the module makes itself, and arguments that are read before they pass."""

import struct

import calltable
import pytest
from calltable import BRANCHES
from corelib import C, ffi, lib
from hypothesis import given
from hypothesis import strategies as st

P2P, P2P_V2, MATRIX, FABRIC = 0x127, 0x12B, 0x13A, 0x136
PROBE, NVLINK_CAPS, NVLINK_STATUS, UNNAMED = 0x208001A3, 0x20803001, 0x20803002, 0x20808162
ROWS = [r for r in calltable.table("control") if r.verdict in ("NOT_THERE", "PEERS") and r.number != UNNAMED]


GUARD = bytes(range(1, 65))  #: behind the parameters


def answered(cmd: int, before: bytes) -> bytes | None:
    """The parameters after the answer; None if there is none. No byte behind them is written."""
    buf = ffi.new("u8[]", list(before + GUARD))
    found = lib.cgpu_call_not_there(cmd, buf, len(before))
    after = bytes(ffi.buffer(buf))
    assert after[len(before) :] == GUARD
    assert found or after == before + GUARD, "no answer, and it wrote"
    return after[: len(before)] if found else None


def test_each_of_these_rows_has_an_answer():
    assert {r.number for r in ROWS} == {P2P, P2P_V2, MATRIX, FABRIC, PROBE, NVLINK_CAPS, NVLINK_STATUS}
    for row in ROWS:
        assert answered(row.number, b"\xaa" * row.size) is not None, row


@pytest.mark.parametrize("branch", BRANCHES)
def test_no_peers(branch):
    """Which GPUs stays. No capability, no engine, a reason for each, no peer id."""
    size = lib.cgpu_call_control(branch, P2P_V2).params_size
    asked = struct.pack("<33I", *range(32), 32)
    got = answered(P2P_V2, asked + b"\xaa" * (size - len(asked)))
    assert got[:132] == asked
    assert got[132:144] == bytes(12)
    assert got[144:153] == b"\x05" * 9
    assert set(got[156:]) == {0xFF}


def test_no_peers_and_the_list_behind_its_pointer_is_left():
    got = answered(P2P, b"\xaa" * 176)
    assert got[144:153] == b"\x05" * 9
    assert got[132:144] == bytes(12)
    assert got[160:] == b"\xaa" * 16


def test_no_peers_in_the_matrix():
    got = answered(MATRIX, b"\x02" * 1352)
    assert (got[:72], got[72:]) == (b"\x02" * 72, bytes(1280))


def test_no_fabric_and_no_nvlink():
    assert answered(FABRIC, bytes(4)) == struct.pack("<I", 1), "SKIP: none is managed"
    assert answered(PROBE, b"\xaa" * 56) == bytes(56), "UNSUPPORTED"
    assert answered(NVLINK_CAPS, b"\xaa" * 48) == bytes(48)


@given(st.sampled_from([P2P, P2P_V2, MATRIX, FABRIC, NVLINK_CAPS, 0x127127]), st.binary(max_size=200))
def test_any_size_stays_inside(cmd, before):
    """answered() looks behind the parameters. A control without such an answer gets none at any size."""
    assert answered(cmd, before) is None or cmd != 0x127127


# ---- peers ----

NONE, DRIVER, FOREIGN, OK, MIXED = range(5)
TURING, AMPERE = 0x160, 0x170
OWN = {0x100: TURING, 0x200: TURING, 0x300: AMPERE, 0x400: 0}


def who_answers(cmd: int, params: bytes, own: dict[int, int] = OWN) -> int:
    gpus = ffi.new("struct cgpu_peer_gpu[]", [list(pair) for pair in own.items()])
    return lib.cgpu_call_peers(cmd, ffi.new("u8[]", list(params)), len(params), gpus, len(own))


def listed(*ids: int, count: int | None = None) -> bytes:
    words = [*ids, *[0x7777] * (32 - len(ids)), len(ids) if count is None else count]
    return struct.pack("<33I", *words).ljust(4252, b"\0")


def grouped(a: list[int], b: list[int], counts: tuple[int, int] | None = None) -> bytes:
    words = [*(counts or (len(a), len(b))), *a, *[0x7777] * (8 - len(a)), *b, *[0x7777] * (8 - len(b))]
    return struct.pack("<18I", *words).ljust(1352, b"\0")


@pytest.mark.parametrize("cmd", [P2P, P2P_V2])
def test_the_driver_answers_for_gpus_of_one_architecture(cmd):
    assert who_answers(cmd, listed(0x100, 0x200)) == DRIVER
    assert who_answers(cmd, listed(0x200, 0x100, 0x200)) == DRIVER
    assert who_answers(cmd, listed(0x100)) == who_answers(cmd, listed(0x100, 0x100)) == NONE, "one GPU has no peer"
    for ids in ((0x100, 0x300), (0x100, 0x200, 0x300), (0x100, 0x400), (0x400,)):
        assert who_answers(cmd, listed(*ids)) == MIXED, "an architecture that is not known is like none"


@pytest.mark.parametrize("cmd", [P2P, P2P_V2])
def test_a_gpu_that_is_not_the_containers(cmd):
    for params in (listed(0x100, 0x500), listed(0x500), listed(0x300, 0x100, 0x500), listed(0x100, 0x200, count=3)):
        assert who_answers(cmd, params) == FOREIGN
    for count in (0, 33, 0xFFFFFFFF):
        assert who_answers(cmd, listed(0x100, 0x200, count=count)) == FOREIGN
    assert who_answers(cmd, bytes(131)) == FOREIGN, "no room for a list"


def test_pairs_of_groups():
    assert who_answers(MATRIX, grouped([0x100, 0x300], [])) == DRIVER
    assert who_answers(MATRIX, grouped([0x100], [0x200, 0x300])) == DRIVER
    for a, b in (([0x500], []), ([0x100, 0x500], []), ([0x100], [0x500]), ([0x100], [0x200, 0x500]), ([], [0x100])):
        assert who_answers(MATRIX, grouped(a, b)) == FOREIGN
    for counts in ((0, 0), (9, 0), (1, 9), (1, 0xFFFFFFFF)):
        assert who_answers(MATRIX, grouped([0x100], [0x200], counts)) == FOREIGN
    assert who_answers(MATRIX, bytes(71)) == FOREIGN


@pytest.mark.parametrize(
    ("archs", "peers"),
    [
        ((TURING, AMPERE), False),
        ((TURING, 0), False),
        ((0, 0), False),
        ((TURING, AMPERE, 0x180), False),
        ((TURING, TURING), True),
        ((TURING, AMPERE, AMPERE), True),
    ],
)
def test_nvlink_of_a_container_by_its_architectures(archs, peers):
    """Without two GPUs of one architecture no link leads to a GPU of the container that could be a peer."""
    own = {0x100 * (n + 1): arch for n, arch in enumerate(archs)}
    for cmd in (NVLINK_CAPS, NVLINK_STATUS):
        assert who_answers(cmd, bytes(48), own) == (DRIVER if peers else MIXED)
    assert who_answers(UNNAMED, bytes(1), own) == (OK if peers else MIXED)
    assert who_answers(MATRIX, grouped(list(own), []), own) == DRIVER, "the driver has an answer for each pair"


def test_a_container_with_one_gpu_has_no_peers():
    one = {0x100: TURING}
    for cmd, params in ((P2P, listed(0x100, 0x200)), (P2P_V2, b""), (MATRIX, b""), (NVLINK_CAPS, bytes(48))):
        assert who_answers(cmd, params, one) == NONE
    for cmd in (NVLINK_CAPS, NVLINK_STATUS):
        assert who_answers(cmd, bytes(16)) == DRIVER
    assert who_answers(UNNAMED, bytes(1), one) == NONE
    assert who_answers(UNNAMED, bytes(1)) == OK
    assert who_answers(FABRIC, bytes(4)) == FOREIGN, "fabric is never the driver's to answer"


IDS = st.lists(st.sampled_from([*OWN, 0x500]), max_size=8)


@given(st.sampled_from([P2P, P2P_V2, MATRIX]), IDS, IDS, st.none() | st.tuples(st.integers(0, 9), st.integers(0, 9)))
def test_whatever_is_in_the_list_the_driver_gets_own_gpus_only(cmd, a, b, counts):
    first, second = counts or (len(a), len(b))
    if cmd == MATRIX:
        answer, groups = who_answers(cmd, grouped(a, b, (first, second))), ((a, first), (b, second))
    else:
        answer, groups = who_answers(cmd, listed(*a, count=first)), ((a, first),)
    own = all(count <= len(ids) and set(ids[:count]) <= set(OWN) for ids, count in groups)
    assert own if answer == DRIVER else answer != OK
    assert (answer == FOREIGN) == (not own or groups[0][1] == 0)


# ---- mappings for the GPU ----

P2P_FLAGS = [1 << bit for bit in range(20, 28)]


def may_map(kind: str, memory: int, device: int, space: int, flags: int = 0) -> bool:
    kinds = {name: number for number, name in calltable.CLASS_KINDS.items()}
    fields = {"flags": flags, "kind": kinds[kind], "memory": memory, "device": device, "space": space}
    return lib.cgpu_call_may_map_dma(ffi.new("struct cgpu_dma_map *", fields))


@pytest.mark.parametrize("kind", ["VIDMEM", "DOORBELL", "SYSMEM"])
def test_memory_is_mapped_on_its_own_gpu(kind):
    """Video memory in page tables of its own GPU, system memory in those of any; never in two GPUs' at once."""
    assert may_map(kind, memory=1, device=1, space=1, flags=0xF00FFFDF)
    assert may_map(kind, memory=0, device=1, space=1) == (kind == "SYSMEM")
    assert may_map(kind, memory=0xFFFFFFFF, device=1, space=1) == (kind == "SYSMEM"), "of no GPU"
    for memory, device, space in ((0, 0, 1), (1, 0, 1), (0, 1, 0)):
        assert not may_map(kind, memory, device, space)


@pytest.mark.parametrize("kind", ["PLAIN", "CHANNEL", "TSG", "DEVICE", "SUBDEVICE", "CLIENT", "COMPUTE", "SHARED_DATA"])
def test_nothing_but_memory_and_doorbells_is_mapped(kind):
    assert not may_map(kind, memory=1, device=1, space=1)


def test_no_mapping_is_the_kernels_as_well():
    """NVOS46_FLAGS_KERNEL_MAPPING: it would take BAR1 in no quota."""
    for kind in ("VIDMEM", "SYSMEM", "DOORBELL"):
        assert not may_map(kind, memory=1, device=1, space=1, flags=0x20)


@pytest.mark.parametrize("flag", P2P_FLAGS)
def test_no_mapping_names_a_peer(flag):
    for kind in ("VIDMEM", "SYSMEM"):
        for memory in (0, 1):
            assert not may_map(kind, memory, device=1, space=1, flags=flag)


# ---- thermal ----

READS = (0x100, 0x101, 0x301, 0x500, 0x510, 0x520, 0x540, 0x1500)


def thermal(opcodes, stride=44, count=None) -> bytes:
    head = struct.pack("<6I", 1, 0, stride, 3, 0, len(opcodes) if count is None else count)
    body = b"".join(struct.pack("<3I", 0, 0, op) + bytes(32) for op in opcodes)
    return (head + body).ljust(1432, b"\0")


def reads(params: bytes) -> bool:
    return lib.cgpu_call_thermal_reads(ffi.new("u8[]", list(params)), len(params))


def test_what_nvidia_smi_asks_reads():
    assert reads(thermal([0x100]))
    assert reads(thermal(READS * 4))


@given(st.lists(st.sampled_from(READS), max_size=31), st.integers(0, 2**32 - 1), st.integers(0, 31))
def test_one_unknown_instruction_is_one_too_many(known, other, at):
    ops = [*known[:at], other, *known[at:]]
    assert reads(thermal(ops)) == (other in READS)


@pytest.mark.parametrize("bad", [thermal([0x100], stride=48), thermal([0x100], stride=0), thermal([0x100], count=33)])
def test_a_list_that_the_driver_would_read_otherwise(bad):
    assert not reads(bad)
    assert not reads(thermal([0x100])[:-1])


# ---- preemption, share policies ----


@given(st.binary(min_size=32, max_size=32))
def test_compute_is_always_preempted_between_instructions(params):
    buf = ffi.new("u8[]", list(params))
    lib.cgpu_call_force_cilp(buf)
    got = bytes(ffi.buffer(buf))
    assert struct.unpack("<4I", got[:16]) == (1, struct.unpack("<I", params[4:8])[0], 0, 2)
    assert got[16:] == bytes(16)


@given(st.integers(0, 65535))
def test_a_share_policy_stays_with_the_user_or_the_process(kind):
    assert lib.cgpu_call_share_stays(kind) == (kind in (2, 4))


# ---- memory figures ----

MIB = 1 << 20


def fb(index, real=0xABCD, limit=4096 * MIB, used=96 * MIB, mapped=8 * MIB, left=56 * MIB):
    return lib.cgpu_call_fb_info(index, real, limit, used, mapped, left)


def test_the_figures_that_the_libraries_compare_agree():
    """libcuda: 8; 16, 9, 10; b, 19, 1b, 18, d, 17, 8; 1a, 22, 23. NVML: 16, 8, 9; 5, 1d."""
    total, free = 4096 << 10, 4000 << 10
    assert [fb(i) for i in (0x08, 0x07, 0x09, 0x20)] == [total] * 4
    assert [fb(i) for i in (0x16, 0x12)] == [free] * 2
    assert fb(0x44) == 0, "what neighbours would have to return"
    assert fb(0x10) == fb(0x15) == 0, "what the card keeps back is not of the slice: nothing but total and free"
    assert [fb(i) for i in (0x0B, 0x0D, 0x17, 0x18, 0x19, 0x1A, 0x1B, 0x22, 0x23)] == [0xABCD] * 9, "the card's"


def test_bar1_is_what_it_has_mapped_and_may_map():
    assert (
        fb(C.NV2080_CTRL_FB_INFO_INDEX_BAR1_SIZE),
        fb(C.NV2080_CTRL_FB_INFO_INDEX_BAR1_AVAIL_SIZE),
        fb(C.NV2080_CTRL_FB_INFO_INDEX_BAR1_MAX_CONTIGUOUS_AVAIL_SIZE),
    ) == (*(64 << 10, 56 << 10, 56 << 10),)
