// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* A core that fails, or needs the run state, as its module parameters request. */
#include <linux/module.h>

#include "core_link.h"

static unsigned int abi = CGPU_CORE_ABI;
module_param(abi, uint, 0444);
MODULE_PARM_DESC(abi, "what it says it speaks");

static unsigned int ops_size = sizeof(struct cgpu_core_ops);
module_param(ops_size, uint, 0444);
MODULE_PARM_DESC(ops_size, "how large it says its table is");

static char *version = CGPU_VERSION;
module_param(version, charp, 0444);
MODULE_PARM_DESC(version, "what it says it is");

static bool hollow;
module_param(hollow, bool, 0444);
MODULE_PARM_DESC(hollow, "its table lacks an operation");

static bool sick;
module_param(sick, bool, 0644);
MODULE_PARM_DESC(sick, "its self-test fails");

static unsigned int fail_at;
module_param(fail_at, uint, 0644);
MODULE_PARM_DESC(fail_at, "the state that cannot be taken over, counted down; 0: none");

static bool forgetful;
module_param(forgetful, bool, 0644);
MODULE_PARM_DESC(forgetful, "weights get lost on the way");

static unsigned int poll_us;
module_param(poll_us, uint, 0644);
MODULE_PARM_DESC(poll_us, "every plan needs the run state again so long after, us; 0: as the product's");

static unsigned int polls, known, busy;
module_param(polls, uint, 0444);
MODULE_PARM_DESC(polls, "run states given to it");
module_param(known, uint, 0444);
MODULE_PARM_DESC(known, "slots of the last one");
module_param(busy, uint, 0444);
MODULE_PARM_DESC(busy, "those of them with work");

static struct cgpu_core_ops ops;

static int moody_selftest(void)
{
	return sick ? -EILSEQ : cgpu_core_ops.selftest();
}

static int moody_migrate(struct cgpu_sched *fresh, const void *old, u32 old_version)
{
	int ret;
	u32 i;

	if (fail_at && !--fail_at)
		return -EBADMSG;
	ret = cgpu_sched_migrate(fresh, old, old_version);
	for (i = 0; forgetful && i < CGPU_SLOTS; i++)
		fresh->slot[i].weight = 0;
	return ret;
}

static void moody_step(struct cgpu_sched *t, struct cgpu_check *l, struct cgpu_step *s,
		       const struct cgpu_step_event *event)
{
	if (event->kind == CGPU_STEP_EVENT_READ) {
		polls++;
		known = event->known;
		busy = event->busy;
	}
	cgpu_core_ops.sched.step(t, l, s, event);
	if (s->kind == CGPU_STEP_WAIT && poll_us)
		s->poll_ns = poll_us * 1000ull;
}

static int __init moody_init(void)
{
	ops = cgpu_core_ops;
	ops.abi = abi;
	ops.ops_size = ops_size;
	ops.version = version;
	ops.selftest = moody_selftest;
	if (hollow)
		ops.nv.has_pccsr = NULL;
	ops.sched.migrate = moody_migrate;
	ops.sched.step = moody_step;
	return ckm_core_register(&ops, THIS_MODULE);
}

static void __exit moody_exit(void)
{
	ckm_core_unregister(&ops);
}

module_init(moody_init);
module_exit(moody_exit);

MODULE_DESCRIPTION("cgpu: a core that fails, for tests");
MODULE_LICENSE("Dual MIT/GPL");
