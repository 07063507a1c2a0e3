# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""Processes whose channels went before the driver's samples of their time were read: state/gone.c."""

from types import SimpleNamespace

import pytest
import shellpart

MS = 10**6
SECOND = 1000 * MS
KEPT = 16  # CKM_GONE_PIDS
NO_SLOT = 2**32 - 1
LOW, HIGH = 1, 2
CDEF = """
void note(uint64_t at_ns, uint32_t slot, bool high, uint32_t pid);
uint32_t look(uint32_t pid, uint64_t at_ns, uint32_t but);
void forget_all(void);
"""
MORE = """
static struct ckm_gpu gpu;
static u64 now_ns;
static bool is_high;

u64 ktime_get_ns(void)
{
	return now_ns;
}

void ckm_gpu_slot_view_locked(struct ckm_gpu *g, u32 sched_id, struct cgpu_sched_entity_view *view)
{
	view->highprio = is_high;
}

void note(u64 at_ns, u32 slot, bool high, u32 pid)
{
	struct ckm_slot of = { .gpu = &gpu, .sched_id = slot };

	now_ns = at_ns;
	is_high = high;
	ckm_gone_note_locked(&of, pid);
}

u32 look(u32 pid, u64 at_ns, u32 but)
{
	return ckm_gone_look_locked(&gpu, pid, at_ns, but);
}

void forget_all(void)
{
	memset(&gpu, 0, sizeof(gpu));
}
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return shellpart.build("state/gone.c", tmp_path_factory.mktemp("gone"), CDEF, MORE)[1]


@pytest.fixture
def gone(built):
    built.forget_all()
    return SimpleNamespace(note=built.note, look=lambda pid, at, but=NO_SLOT: built.look(pid, at, but))


def test_a_process_is_known_for_samples_of_before_it_went(gone):
    gone.note(10 * SECOND, 3, False, 7)
    assert gone.look(7, 9 * SECOND) == LOW
    assert gone.look(7, 10 * SECOND + 6 * MS) == 0, "its number may be another's"
    assert gone.look(8, 9 * SECOND) == 0
    assert gone.look(7, 9 * SECOND, but=3) == 0, "it has channels there"


@pytest.mark.parametrize("high", [False, True])
def test_one_that_was_forgotten_counts_by_its_priority(gone, high):
    for i in range(KEPT + 1):
        gone.note(10 * SECOND + i, 3, high, 100 + i)
    assert gone.look(100, 9 * SECOND) == (HIGH if high else LOW)
    assert gone.look(100, 9 * SECOND, but=4) == (HIGH if high else 0)


def test_what_is_forgotten_hides_few_others(gone):
    """Else high priority whose processes end would spend a neighbour's by the work of all others."""
    for i in range(KEPT + 1):
        gone.note(10 * SECOND + i, 3, True, 100 + i)
    others = [pid for pid in range(1000, 2000) if gone.look(pid, 9 * SECOND, but=4)]
    assert len(others) < 5


@pytest.mark.parametrize("high", [False, True])
def test_what_another_slot_forgets_hides_none(gone, high):
    """A tenant with two containers: in one many processes end, in the other one has ended each second for long."""
    for i in range(KEPT):
        gone.note((i + 1) * SECOND, 4, high, 200 + i)
    for i in range(KEPT + 1):
        gone.note(30 * SECOND + i, 3, high, 100 + i)
    gone.note(30 * SECOND + KEPT + 1, 4, high, 300)
    assert gone.look(100, 29 * SECOND) == (HIGH if high else LOW)
