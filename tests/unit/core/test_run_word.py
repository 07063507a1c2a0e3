# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""What the word of a channel shows, for both kinds of words, against the manuals' own names."""

import itertools

import pytest
from corelib import lib
from hypothesis import given
from hypothesis import strategies as st

CHRAM, PCCSR = lib.CGPU_RUN_CHRAM, lib.CGPU_RUN_PCCSR
ENABLED, BUSY, ON_ENGINE, ABSENT, REFUSED = 0x01, 0x02, 0x04, 0x08, 0x10

#: NV_PCCSR_CHANNEL_STATUS_* of manuals/turing/tu104/dev_fifo.ref.txt (open-gpu-doc), from 0 on.
STATUS = (
    "IDLE",
    "PENDING",
    "PENDING_CTX_RELOAD",
    "PENDING_ACQUIRE",
    "PENDING_ACQ_CTX_RELOAD",
    "ON_PBDMA",
    "ON_PBDMA_AND_ENG",
    "ON_ENG",
    "ON_ENG_PENDING_ACQUIRE",
    "ON_ENG_PENDING",
    "ON_PBDMA_CTX_RELOAD",
    "ON_PBDMA_AND_ENG_CTX_RELOAD",
    "ON_ENG_CTX_RELOAD",
    "ON_ENG_PENDING_CTX_RELOAD",
    "ON_ENG_PENDING_ACQ_CTX_RELOAD",
)
#: NV_CHRAM_CHANNEL_* of manuals/ampere/ga100/dev_runlist.ref.txt: name and bit.
CHRAM_BITS = {
    "ENABLE": 1,
    "NEXT": 2,
    "BUSY": 3,
    "PBDMA_FAULTED": 4,
    "ENG_FAULTED": 5,
    "ON_PBDMA": 6,
    "ON_ENG": 7,
    "PENDING": 8,
    "CTX_RELOAD": 9,
    "PBDMA_BUSY": 10,
    "ENG_BUSY": 11,
    "ACQUIRE_FAIL": 12,
}


@pytest.mark.parametrize("status", range(len(STATUS)), ids=STATUS)
def test_pccsr(status):
    for enable, following, busy in itertools.product((False, True), repeat=3):
        for faulted in (0, 0x00400000, 0x00800000, 0x00C00000):
            shows = lib.cgpu_run_word(PCCSR, enable | following << 1 | status << 24 | busy << 28 | faulted)
            assert bool(shows & ENABLED) == enable
            assert bool(shows & BUSY) == (following or busy or STATUS[status] != "IDLE")
            assert bool(shows & ON_ENGINE) == ("ENG" in STATUS[status])
            assert not shows & (ABSENT | REFUSED)


@given(st.sets(st.sampled_from(sorted(CHRAM_BITS))))
def test_chram(names):
    shows = lib.cgpu_run_word(CHRAM, sum(1 << CHRAM_BITS[name] for name in names))
    assert bool(shows & ENABLED) == ("ENABLE" in names)
    assert bool(shows & BUSY) == bool(names & {"NEXT", "BUSY", "ON_PBDMA", "ON_ENG", "PENDING"})
    assert bool(shows & ON_ENGINE) == ("ON_ENG" in names)
    assert not shows & (ABSENT | REFUSED)


@given(st.sampled_from([CHRAM, PCCSR]), st.integers(0, 0xFFFF))
def test_a_refused_read_is_no_state(source, low):
    assert lib.cgpu_run_word(source, 0xBADF0000 | low) == REFUSED


@pytest.mark.parametrize("source", [CHRAM, PCCSR])
def test_ones_are_no_state(source):
    assert lib.cgpu_run_word(source, 0xFFFFFFFF) == ABSENT


@given(st.integers(0, 0x00FFFFFF), st.booleans())
def test_a_status_that_the_manual_does_not_name_is_no_state(low, busy):
    assert lib.cgpu_run_word(PCCSR, 0x0F000000 | low | busy << 28) == REFUSED


@given(st.sampled_from([CHRAM, PCCSR]), st.integers(0, 0xFFFFFFFF))
def test_a_word_is_a_state_or_none(source, word):
    shows = lib.cgpu_run_word(source, word)
    assert shows in (ABSENT, REFUSED) or not shows & ~(ENABLED | BUSY | ON_ENGINE)
    assert not shows & ON_ENGINE or shows & BUSY


@given(st.sampled_from([0, 0x140, 0x150, 0x160, 0x170, 0x180, 0x190]), st.integers(0, 0xFFFFFFFF))
def test_pccsr_needs_turing_by_driver_and_by_register(arch, boot_0):
    assert lib.cgpu_run_has_pccsr(arch, boot_0) == (arch == 0x160 and boot_0 >> 24 & 0x1F == 0x16)


@pytest.mark.parametrize(
    ("boot_0", "there"),
    [
        (0x162000A1, 1),
        (0x164000A1, 1),
        (0x168000A1, 1),
        (0x170000A1, 0),
        (0x140000A1, 0),
        (0xFFFFFFFF, 0),
        (0xBADF5040, 0),
        (0, 0),
    ],
    ids=["TU102", "TU104", "TU116", "GA100", "GV100", "ones", "refused", "zeros"],
)
def test_chips_by_their_register(boot_0, there):
    assert lib.cgpu_run_has_pccsr(0x160, boot_0) == there
