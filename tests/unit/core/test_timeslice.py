# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""Timeslices of TSGs of which the driver sets some: sched/timeslice.c."""

import pytest
import shellpart

PER_PLAN = 16  # CALLS_MAX
CDEF = """
void begin(uint32_t tsgs);
void refuse(uint32_t tsg);
uint32_t has_us(uint32_t tsg);
uint32_t set(uint32_t us, uint32_t *more);
"""
MORE = """
#define TSGS	256

static struct ckm_gpu gpu;
static struct ckm_slot of;
static struct ckm_group groups[TSGS];
static struct ckm_obj handles[TSGS];
static u32 us[TSGS];
static bool refused[TSGS];

u32 ckm_drv_control(u32 client, u32 object, u32 cmd, void *params, u32 size) { return NV_OK; }
void ckm_events_control_failed(struct ckm_gpu *g, u32 sched_id, u32 control, u32 status) {}

u32 ckm_ctrl_timed(struct ckm_gpu *g, enum ckm_ctrl_kind kind, u32 client, u32 object, u32 cmd, void *params, u32 size)
{
	if (refused[object])
		return 0x40;
	us[object] = (u32)*(u64 *)params;
	return NV_OK;
}

void begin(u32 tsgs)
{
	u32 i;

	memset(us, 0, sizeof(us));
	memset(refused, 0, sizeof(refused));
	memset(&gpu, 0, sizeof(gpu));
	gpu.slot[0] = &of;
	of.gpu = &gpu;
	INIT_LIST_HEAD(&of.tsgs);
	for (i = 0; i < tsgs; i++) {
		groups[i].set_us = 0;
		handles[i].core.hobject = i;
		INIT_LIST_HEAD(&groups[i].handles);
		list_add_tail(&handles[i].sched, &groups[i].handles);
		list_add_tail(&groups[i].sched, &of.tsgs);
	}
}

void refuse(u32 tsg) { refused[tsg] = true; }
u32 has_us(u32 tsg) { return us[tsg]; }

u32 set(u32 to_us, u32 *more)
{
	struct cgpu_step s = { .mask = 1, .plan.timeslice_us[0] = to_us };
	u32 called = 0;

	*more = 0;
	return ckm_timeslices_set(&gpu, &s, more, &called);
}
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return shellpart.build("sched/timeslice.c", tmp_path_factory.mktemp("timeslice"), CDEF, MORE)


def test_all_are_set_by_some_plans(built):
    ffi, driver = built
    more = ffi.new("uint32_t *")
    driver.begin(40)
    assert [(driver.set(500, more), more[0]) for _ in range(3)] == [(0, 1), (0, 1), (1, 0)]
    assert {driver.has_us(tsg) for tsg in range(40)} == {500}


@pytest.mark.parametrize("refused", [1, PER_PLAN, 100])
def test_those_that_the_driver_refuses_keep_no_other_one_from_its_timeslice(built, refused):
    """A tenant whose first TSGs faulted would have the driver's timeslice for all that it makes later."""
    ffi, driver = built
    driver.begin(refused + 20)
    for tsg in range(refused):
        driver.refuse(tsg)
    for _ in range(-(-(refused + 20) // PER_PLAN)):
        assert driver.set(500, ffi.new("uint32_t *")) == 0
    assert {driver.has_us(refused + tsg) for tsg in range(20)} == {500}
