# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""Freezes of channels of which the driver refuses some: sched/freeze.c."""

import random

import pytest
import shellpart

ACCEPTED, NO_FREEZE, NO_THAW, NEITHER, ABSENT = range(5)
PER_CALL = 64
CDEF = """
void begin(void);
void add(uint32_t slot, uint32_t channel);
void answer(uint32_t channel, uint32_t how);
bool is_frozen(uint32_t channel);
bool has(uint32_t channel);
uint32_t calls(void);
uint32_t allocated(void);
uint32_t freeze(uint32_t mask, bool freeze);
bool freeze_one(uint32_t slot, uint32_t channel);
"""
MORE = """
#define CHANNELS	4096

static struct ckm_gpu gpu;
static struct ckm_slot slots[CGPU_SLOTS];
static struct ckm_obj objs[CHANNELS];
static u32 how[CHANNELS], made;
static bool frozen[CHANNELS];

u32 ckm_ctrl_timed(struct ckm_gpu *g, enum ckm_ctrl_kind kind, u32 client, u32 object, u32 cmd, void *params, u32 size)
{
	struct nv_disable_channels *list = params;
	u32 i;

	made++;
	for (i = 0; i < list->numChannels; i++) {
		u32 c = list->hChannelList[i];

		if (how[c] == 4)
			return NV_ERR_OBJECT_NOT_FOUND;
		if (how[c] == 3 || how[c] == (list->bDisable ? 1 : 2))
			return 0x40;
	}
	for (i = 0; i < list->numChannels; i++)
		frozen[list->hChannelList[i]] = list->bDisable;
	return NV_OK;
}

void ckm_gone_note_locked(struct ckm_slot *slot, u32 pid) {}
void ckm_slot_channels_changed_locked(struct ckm_slot *slot) {}
void ckm_events_control_failed(struct ckm_gpu *g, u32 sched_id, u32 control, u32 status) {}
bool ckm_ctrl_needs_restart(const struct ckm_gpu *g) { return false; }
bool ckm_ctrl_commit(struct ckm_gpu *g, u32 mask, u64 *failed_ns) { return true; }

void begin(void)
{
	u32 i;

	memset(&gpu, 0, sizeof(gpu));
	memset(objs, 0, sizeof(objs));
	memset(how, 0, sizeof(how));
	memset(frozen, 0, sizeof(frozen));
	made = 0;
	for (i = 0; i < CGPU_SLOTS; i++) {
		slots[i] = (struct ckm_slot){ .gpu = &gpu, .sched_id = i };
		INIT_LIST_HEAD(&slots[i].channels);
		gpu.slot[i] = &slots[i];
	}
}

void add(u32 slot, u32 channel)
{
	struct ckm_obj *obj = &objs[channel];

	obj->core.hobject = channel;
	obj->seq = channel + 1;
	list_add_tail(&obj->sched, &slots[slot].channels);
	slots[slot].channel_count++;
}

void answer(u32 channel, u32 as) { how[channel] = as; }
bool is_frozen(u32 channel) { return frozen[channel]; }
u32 calls(void) { return made; }
u32 allocated(void) { return allocations; }

bool has(u32 channel)
{
	return objs[channel].sched.next != &objs[channel].sched;
}

u32 freeze(u32 mask, bool as)
{
	u32 part = 0, done = ckm_ctrl_set_frozen(&gpu, mask, as, &part);

	return done | (gpu.lock ? 1u << 31 : 0);
}

bool freeze_one(u32 slot, u32 channel)
{
	const struct ckm_channel_filter filter = { .channel = &objs[channel] };

	return ckm_ctrl_freeze_some(&gpu, slot, &filter);
}
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return shellpart.build("sched/freeze.c", tmp_path_factory.mktemp("freeze"), CDEF, MORE)[1]


@pytest.fixture
def driver(built):
    built.begin()
    return built


def add(driver, slot, count, first=0):
    channels = range(first, first + count)
    for channel in channels:
        driver.add(slot, channel)
    return channels


def calls_of(driver, *args):
    before = driver.calls()
    driver.freeze(*args)
    return driver.calls() - before


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 200])
def test_all_are_frozen_and_thawed(driver, count):
    channels = add(driver, 3, count)
    for freeze in (True, False):
        assert calls_of(driver, 1 << 3, freeze) == -(-count // PER_CALL)
        assert driver.freeze(1 << 3, freeze) == 1 << 3
        assert all(driver.is_frozen(channel) is freeze for channel in channels)


def test_no_memory_is_taken_for_refused_ones_that_are_not_there(driver):
    """Each hand-over goes this way, and an allocation may wait for the memory of others."""
    add(driver, 3, 10)
    before = driver.allocated()
    assert driver.freeze(1 << 3, True) == 1 << 3
    assert driver.allocated() - before == 2, "the list of one call, and the channels"
    assert driver.freeze(1 << 4, True) == 1 << 4
    assert driver.allocated() - before == 2, "it has none"


@pytest.mark.parametrize("how", [NO_FREEZE, NO_THAW, NEITHER])
def test_refused_ones_cost_two_calls_more_once_they_are_known(driver, how):
    """Also where the driver thaws what it does not freeze: preempting one that faulted fails, enabling it does not."""
    channels = add(driver, 3, 200)
    refused = channels[::2]
    for channel in refused:
        driver.answer(channel, how)
    for freeze in (True, False, True, False):
        calls = calls_of(driver, 1 << 3, freeze)
    for freeze in (True, False) * 5:
        calls = calls_of(driver, 1 << 3, freeze)
        assert calls <= 2 + 2 + 1 or not calls
        assert all(driver.is_frozen(channel) is freeze for channel in channels if channel not in refused)


def test_one_that_is_accepted_again_is_found_whatever_other_slots_do(driver):
    """A refused channel of each place in the order, beside slots whose own refused ones are tried alone meanwhile."""
    pattern = random.Random(1)
    for place in range(6):
        driver.begin()
        channels, others = add(driver, 3, 6), add(driver, 4, 2, first=100)
        for channel in (*channels, *others):
            driver.answer(channel, NEITHER)
        driver.freeze(0b11 << 3, True)
        driver.freeze(0b11 << 3, False)
        driver.answer(channels[place], ACCEPTED)
        for _ in range(len(channels)):
            driver.freeze(1 << 3, False)
            for _ in range(pattern.choice([1, 5, 11])):
                driver.freeze(1 << 4, True)
            driver.freeze(1 << 3, True)
        assert driver.is_frozen(channels[place])


def test_a_call_that_makes_channels_runnable_moves_no_other_ones_turn(driver):
    channels = add(driver, 3, 6)
    for channel in channels:
        driver.answer(channel, NEITHER)
    driver.freeze(1 << 3, True)
    driver.answer(channels[4], ACCEPTED)
    for _ in range(len(channels)):
        driver.freeze(1 << 3, True)
        for channel in channels[:3]:
            assert not driver.freeze_one(3, channel)
    assert driver.is_frozen(channels[4])


def test_all_are_taken_in_again_when_the_driver_accepts_them(driver):
    channels = add(driver, 3, 200)
    for channel in channels[:100]:
        driver.answer(channel, NO_FREEZE)
    assert driver.freeze(1 << 3, True) == 0
    for channel in channels[:100]:
        driver.answer(channel, ACCEPTED)
    assert driver.freeze(1 << 3, True) == 1 << 3
    assert calls_of(driver, 1 << 3, True) == 4


@pytest.mark.parametrize("others", [0, 1, 70])
def test_a_refused_one_that_the_driver_has_no_more_is_no_failure(driver, others):
    channels = add(driver, 3, 1 + others)
    for channel in channels:
        driver.answer(channel, NO_FREEZE)
    assert driver.freeze(1 << 3, True) == 0
    driver.answer(channels[0], ABSENT)
    for channel in channels[1:]:
        driver.answer(channel, ACCEPTED)
    for _ in range(1 + others):
        done = driver.freeze(1 << 3, True)
        if done:
            break
    assert done == 1 << 3
    assert not driver.has(channels[0])
    assert all(driver.is_frozen(channel) for channel in channels[1:])
