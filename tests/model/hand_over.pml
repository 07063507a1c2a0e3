/* SPDX-License-Identifier: MIT
 *
 * A tenant enables a channel while the scheduler thread freezes and thaws its container:
 * cgpu_km/sched/sched_thread.c: act(), ckm_sched_freeze_new_channel(); intercept/rm_control.c: enable(), post_schedule();
 * intercept/rm_alloc.c.
 *
 * The driver may forget, when a channel is enabled, that it was disabled before: that is not known of a card. Checked in
 * every interleaving, whenever no call of the tenant is in progress and ctrl_lock is free:
 *
 *   - no channel of a frozen container can run;
 *   - no channel of a thawed container is disabled.
 *
 * BUG=n must fail: 1 no freeze after the channel is enabled; 2 the tenant's freeze does not take ctrl_lock; 3 a freeze that
 * failed counts as done.
 */
#ifndef BUG
#define BUG 0
#endif

bool ctrl_lock;
bool frozen;			/* the core's state, as acknowledged */
bool listed, on, disabled;	/* the channel: known to the module; the driver's two bits */
bool in_call;			/* of the tenant */

inline take(m) { atomic { !m -> m = true } }
inline drop(m) { m = false }

proctype scheduler()
{
	byte turns = 0;
	bool done;

	do
	:: turns < 3 ->
		turns++;
		take(ctrl_lock);
		/* DISABLE_CHANNELS names every channel that is listed, enabled or not; it can fail. */
		done = true;
		if
		:: listed -> disabled = true
		:: listed -> done = false
		:: !listed
		fi;
#if BUG == 3
		frozen = true;
#else
		frozen = done;
#endif
		drop(ctrl_lock);
		take(ctrl_lock);
		disabled = false;
		frozen = false;
		drop(ctrl_lock);
		/* The last turn may end frozen. */
		if
		:: turns == 3 ->
			take(ctrl_lock);
			if :: listed -> disabled = true :: else fi;
			frozen = true;
			drop(ctrl_lock)
		:: else
		fi
	:: else -> break
	od
}

inline freeze_new_channel()
{
#if BUG == 2
	if :: frozen -> skip; disabled = true :: else fi
#else
	take(ctrl_lock);
	if :: frozen -> disabled = true :: else fi;
	drop(ctrl_lock)
#endif
}

proctype tenant()
{
	in_call = true;			/* the channel is allocated */
	listed = true;
	in_call = false;

	in_call = true;			/* GPFIFO_SCHEDULE */
	if :: frozen -> freeze_new_channel() :: else fi;
	if
	:: on = true
	:: d_step { on = true; disabled = false }
	fi;
#if BUG != 1
	freeze_new_channel();
#endif
	in_call = false
}

proctype monitor()
{
	do
	:: atomic {
		!in_call && !ctrl_lock && listed ->
		assert(!(frozen && on && !disabled));
		assert(!(!frozen && on && disabled))
	   }
	:: atomic { timeout -> break }
	od
}

init
{
	atomic { run scheduler(); run tenant(); run monitor() }
}
